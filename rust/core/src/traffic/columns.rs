//! Properties of the vehicles of many environments as arrays, by name, for tasks of users.
//!
//! An environment's vehicles have numbers from 0 on, its places in a row of such an array: those of the agents are the
//! first, whether they are on the road or not, and the others follow in the order of the list.

use super::Traffic;
use super::map::{Neighbour, RoadMap};
use super::vehicles::LENGTH;

/// An environment whose agents drive vehicles among traffic.
pub trait Driven {
    type Map: RoadMap;

    fn traffic(&self) -> &Traffic<Self::Map>;

    /// The same, whose intermediate results may be computed anew.
    fn traffic_mut(&mut self) -> &mut Traffic<Self::Map>;

    /// The vehicle of an agent, after its end too; None: it is not on the road. Vehicles are in the order of their agents.
    fn vehicle_of(&self, agent: usize) -> Option<usize>;

    /// Returns whether an agent has reached its goal.
    fn has_arrived(&self, agent: usize) -> bool;

    /// Seconds since the episode began.
    fn time(&self) -> f64;
}

/// A property of a vehicle, by its index.
pub enum Property<M: RoadMap> {
    Number(fn(&Traffic<M>, usize) -> f64),
    Index(fn(&Traffic<M>, usize) -> usize),
    Flag(fn(&Traffic<M>, usize) -> bool),
}

impl<M: RoadMap> Property<M> {
    /// None: there is none of that name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "x" => Self::Number(|t, i| t.vehicles.x[i]),
            "y" => Self::Number(|t, i| t.vehicles.y[i]),
            "heading" => Self::Number(|t, i| t.vehicles.heading[i]),
            "speed" => Self::Number(|t, i| t.vehicles.speed[i]),
            "acceleration" => Self::Number(|t, i| t.vehicles.acceleration[i]),
            "target_speed" => Self::Number(|t, i| t.vehicles.target_speed[i]),
            "along" => Self::Number(|t, i| t.on_own_lane(i).0),
            "offset" => Self::Number(|t, i| t.on_own_lane(i).1),
            "lane_heading" => Self::Number(|t, i| t.road.lane(t.vehicles.lane[i]).heading_at(t.on_own_lane(i).0)),
            "lane" => Self::Index(|t, i| t.vehicles.lane[i]),
            "target_lane" => Self::Index(|t, i| t.vehicles.target_lane[i]),
            "lane_number" => Self::Index(|t, i| t.vehicles.lane[i] - t.road.section(t.vehicles.lane[i]).start),
            "present" => Self::Flag(|_, _| true),
            "crashed" => Self::Flag(|t, i| t.vehicles.crashed[i]),
            "on_road" => {
                Self::Flag(|t, i| t.road.lane(t.vehicles.lane[i]).holds(t.vehicles.x[i], t.vehicles.y[i], 0.0))
            }
            _ => return None,
        })
    }
}

/// Length of an environment's row with `agents` agents.
pub fn width<D: Driven>(env: &D, agents: usize) -> usize {
    let absent = (0..agents).filter(|&agent| env.vehicle_of(agent).is_none()).count();
    env.traffic().vehicles.len() + absent
}

/// Calls `put` with the place in the row and the vehicle, for all vehicles.
pub fn each_vehicle<D: Driven>(env: &D, agents: usize, mut put: impl FnMut(usize, usize)) {
    let mut of_agents = (0..agents).filter_map(|agent| Some((agent, env.vehicle_of(agent)?))).peekable();
    let mut next = agents;
    for vehicle in 0..env.traffic().vehicles.len() {
        if let Some((agent, _)) = of_agents.next_if(|&(_, own)| own == vehicle) {
            put(agent, vehicle);
        } else {
            put(next, vehicle);
            next += 1;
        }
    }
}

impl<M: RoadMap> Traffic<M> {
    /// The coordinates of a vehicle on the lane that it is nearest to.
    fn on_own_lane(&self, i: usize) -> (f64, f64) {
        self.road.lane(self.vehicles.lane[i]).local(self.vehicles.x[i], self.vehicles.y[i])
    }

    /// The distance from the centre of vehicle `i` to that of a neighbour, along its lane, metres.
    pub(super) fn distance_to(&self, i: usize, neighbour: Neighbour) -> f64 {
        let (x, y) = match neighbour {
            Neighbour::Vehicle(j) => (self.vehicles.x[j], self.vehicles.y[j]),
            Neighbour::Obstacle(j) => (self.road.obstacles()[j].x, self.road.obstacles()[j].y),
        };
        self.road.lane(self.vehicles.lane[i]).local(x, y).0 - self.on_own_lane(i).0
    }

    /// The gap from the front of vehicle `i` to the rear of what is before it on its lane, metres, and its speed, m/s;
    /// infinity and the vehicle's own speed if there is nothing.
    pub fn leader(&mut self, i: usize) -> (f64, f64) {
        match M::ahead(self, i) {
            None => (f64::INFINITY, self.vehicles.speed[i]),
            Some((Neighbour::Vehicle(j), distance)) => (distance - LENGTH, self.vehicles.speed[j]),
            Some((Neighbour::Obstacle(j), distance)) => {
                (distance - (LENGTH + self.road.obstacles()[j].length) / 2.0, 0.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::obstacle::Obstacle;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::{Driver, Vehicle};

    struct Two(Traffic, [Option<usize>; 2]);

    impl Driven for Two {
        type Map = Road;

        fn traffic(&self) -> &Traffic {
            &self.0
        }

        fn traffic_mut(&mut self) -> &mut Traffic {
            &mut self.0
        }

        fn vehicle_of(&self, agent: usize) -> Option<usize> {
            self.1[agent]
        }

        fn has_arrived(&self, _agent: usize) -> bool {
            false
        }

        fn time(&self) -> f64 {
            0.0
        }
    }

    #[test]
    fn agents_come_first_in_a_row() {
        let mut traffic = Traffic::new(Road::straight(2, 400.0, 30.0), vec![20.0]);
        for x in [10.0, 40.0, 70.0] {
            traffic.add(&Vehicle::new(Driver::Idm, x, 4.0, x));
        }
        for (agents, expected) in [
            ([Some(0), Some(2)], [Some(0), Some(2), Some(1), None]),
            ([None, Some(1)], [None, Some(1), Some(0), Some(2)]),
        ] {
            let env = Two(traffic.clone(), agents);
            let mut row = vec![None; width(&env, 2)];
            each_vehicle(&env, 2, |place, vehicle| row[place] = Some(vehicle));
            assert_eq!(row, expected[..row.len()]);
        }
    }

    #[test]
    fn a_gap_ends_at_the_rear_of_what_is_ahead() {
        let road = Road::new(Road::straight(1, 400.0, 30.0).lanes().to_vec(), vec![Obstacle::new(100.0, 0.0)]);
        let mut traffic = Traffic::new(road, vec![20.0]);
        for x in [10.0, 40.0, 150.0] {
            traffic.add(&Vehicle::new(Driver::Idm, x, 0.0, x));
        }
        assert_eq!(traffic.leader(0), (25.0, 40.0));
        assert_eq!(traffic.leader(1), (60.0 - 3.5, 0.0));
        assert_eq!(traffic.leader(2), (f64::INFINITY, 150.0));
    }
}
