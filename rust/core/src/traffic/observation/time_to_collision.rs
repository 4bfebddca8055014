//! Times after which the observer would hit a vehicle on its lane or a neighbouring one, at its speed or a neighbouring
//! one (`TimeToCollisionObservation`, `compute_ttc_grid`).

use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;
use crate::traffic::math::not_zero;
use crate::traffic::vehicles::LENGTH;

const SPEEDS: usize = 3;
const LANES: usize = 3;

/// A grid [3 target speeds, 3 lanes, `steps` of time] of costs: 1 where the middles meet, 0.5 where the vehicles
/// touch, 1 on lanes that are not there. The observer's own target speed and lane are in the middle; at the slowest
/// and the fastest the same speed is shown twice. It needs a `Meta` driver.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeToCollision {
    pub steps: usize,
    /// Seconds.
    pub step: f64,
}

impl TimeToCollision {
    pub(super) fn len(&self) -> usize {
        SPEEDS * LANES * self.steps
    }

    pub(super) fn write<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [f32]) {
        let v = &traffic.vehicles;
        let speeds = traffic.target_speeds();
        let lanes = traffic.road.section(v.lane[observer]);
        for (place, costs) in out.chunks_exact_mut(self.steps).enumerate() {
            let (row, column) = (place / LANES, place % LANES);
            let speed = speeds[(v.speed_index[observer] + row).saturating_sub(1).min(speeds.len() - 1)];
            let lane = (v.lane[observer] + column).checked_sub(1).filter(|lane| lanes.contains(lane));
            costs.fill(if lane.is_some() { 0.0 } else { 1.0 });
            if let Some(lane) = lane {
                self.fill(traffic, observer, speed, lane, costs);
            }
        }
    }

    /// Adds what is met on `lane` at `speed`.
    fn fill<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, speed: f64, lane: usize, costs: &mut [f32]) {
        let v = &traffic.vehicles;
        let own = traffic.road.lane(v.lane[observer]);
        let s = own.local(v.x[observer], v.y[observer]).0;
        let lanes = traffic.road.section(v.lane[observer]);
        for j in 0..v.len() {
            if j == observer || v.speed[j] == speed {
                continue;
            }
            // Where a connected road has another number of lanes, it is not known which of them leads where.
            let there = traffic.road.section(v.lane[j]);
            let certain = there.len() == lanes.len();
            if certain && v.lane[j] - there.start != lane - lanes.start
                || !traffic.road.leads_to(v.lane[observer], v.lane[j], &v.route[observer])
            {
                continue;
            }
            let gap = own.local(v.x[j], v.y[j]).0 - s;
            let other = v.speed[j] * (v.cos[j] * v.cos[observer] + v.sin[j] * v.sin[observer]);
            for (margin, cost) in [(0.0, 1.0), (-LENGTH, 0.5), (LENGTH, 0.5)] {
                let steps = (gap + margin) / not_zero(speed - other) / self.step;
                if steps < 0.0 {
                    continue;
                }
                for time in [steps.trunc(), steps.ceil()] {
                    if time < costs.len() as f64 {
                        let at = &mut costs[time as usize];
                        *at = at.max(cost);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::traffic;
    use super::*;

    #[test]
    fn a_slower_vehicle_ahead_is_met_in_time() {
        // At 25 m/s the one at +30 m with 20 m/s is met after 6 s, touched from 5 to 7 s; at 20 m/s never.
        let traffic = traffic(&[(130.0, 1, 20.0)]);
        let grid = TimeToCollision { steps: 10, step: 1.0 };
        let mut out = vec![f32::NAN; grid.len()];
        grid.write(&traffic, 0, &mut out);
        let cell = |speed: usize, lane: usize, time: usize| out[(speed * 3 + lane) * 10 + time];
        let times: Vec<f32> = (0..10).map(|time| cell(1, 1, time)).collect();
        assert_eq!(times, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 0.0]);
        assert!((0..10).all(|time| cell(0, 1, time) == 0.0 && cell(1, 0, time) == 0.0));
        // At 30 m/s after 3 s, touched at 2.5 and 3.5 s.
        assert_eq!([1, 2, 3, 4, 5].map(|time| cell(2, 1, time)), [0.0, 0.5, 1.0, 0.5, 0.0]);
    }

    #[test]
    fn lanes_beside_the_road_are_full() {
        let mut traffic = traffic(&[]);
        traffic.vehicles.lane[0] = 2;
        traffic.vehicles.speed_index[0] = 2;
        let grid = TimeToCollision { steps: 4, step: 0.5 };
        let mut out = vec![f32::NAN; grid.len()];
        grid.write(&traffic, 0, &mut out);
        for (i, &cost) in out.iter().enumerate() {
            assert_eq!(cost, if i / 4 % 3 == 2 { 1.0 } else { 0.0 });
        }
    }
}
