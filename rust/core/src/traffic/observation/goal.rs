//! Achieved and desired goals of an agent (`KinematicsGoalObservation`).

use super::Feature;
use crate::env::Real;
use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;

/// The features of the observer, of its landmark, and of the observer again: `achieved_goal`, `desired_goal` and
/// `observation`, in the order of Gymnasium's space.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// Features and the numbers that they are divided by.
    pub features: Vec<(Feature, f64)>,
}

impl Goal {
    pub(super) fn len(&self) -> usize {
        3 * self.features.len()
    }

    /// Pairs of a number of vehicle `i` and the same of its landmark, in the order of the features; (0, 0) without a
    /// landmark.
    pub fn pairs<M: RoadMap>(&self, traffic: &Traffic<M>, i: usize) -> impl Iterator<Item = (f64, f64)> {
        self.features.iter().map(move |&(feature, scale)| {
            traffic.landmarks.get(i).map_or((0.0, 0.0), |goal| {
                let desired = match feature {
                    Feature::CosH => goal.direction[0],
                    Feature::SinH => goal.direction[1],
                    _ => feature.of_object(traffic, &goal.body, None),
                };
                (feature.of(traffic, i, None) / scale, desired / scale)
            })
        })
    }

    pub(super) fn write<M: RoadMap, R: Real>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [R]) {
        let n = self.features.len();
        for (k, (achieved, desired)) in self.pairs(traffic, observer).enumerate() {
            out[k] = R::from_f64(achieved);
            out[n + k] = R::from_f64(desired);
            out[2 * n + k] = R::from_f64(achieved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::traffic;
    use super::*;
    use crate::traffic::obstacle::{Landmark, Obstacle};

    #[test]
    fn the_goal_stands_between_two_copies_of_the_observer() {
        let mut traffic = traffic(&[]);
        let goal = Goal { features: vec![(Feature::X, 100.0), (Feature::Vx, 5.0), (Feature::CosH, 1.0)] };
        let mut out = [f64::NAN; 9];
        goal.write(&traffic, 0, &mut out);
        assert_eq!(out, [0.0; 9], "nothing without a landmark");
        let body = Obstacle { heading: std::f64::consts::PI, ..Obstacle::new(30.0, 14.0) };
        traffic.landmarks.push(Landmark::new(body));
        goal.write(&traffic, 0, &mut out);
        assert_eq!(out, [1.0, 5.0, 1.0, 0.3, 0.0, -1.0, 1.0, 5.0, 1.0]);
    }
}
