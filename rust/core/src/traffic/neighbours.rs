//! Neighbours along a lane (`Road.neighbour_vehicles`).
//!
//! All lanes run along x, so that one order of the vehicles by x serves every lane. It changes little from frame to
//! frame. Of several that are equally near, the last of the list counts in front and the first behind; obstacles come
//! after the vehicles.

use super::Traffic;
use super::lane::MARGIN;
use super::map::{NO_NEIGHBOUR, Neighbour, RoadMap};
use super::vehicles::Vehicles;

/// The vehicles from the rearmost to the foremost; of equal ones the last of the list first.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// Vehicles by rank.
    by_rank: Vec<u32>,
    /// Ranks by vehicle.
    rank: Vec<u32>,
    /// Foremost so far on each lane, while the list is gone through.
    last: Vec<u32>,
}

impl Order {
    pub(super) fn by_rank(&self) -> &[u32] {
        &self.by_rank
    }

    pub(super) fn reserve(&mut self, vehicles: usize, lanes: usize) {
        self.by_rank.reserve_exact(vehicles);
        self.rank.reserve_exact(vehicles);
        self.last.reserve_exact(lanes);
    }

    /// Puts the vehicles in order again.
    pub(super) fn sort(&mut self, vehicles: &Vehicles) {
        let x = &vehicles.x[..];
        let n = x.len();
        if self.by_rank.len() != n {
            self.by_rank.clear();
            self.by_rank.extend((0..n as u32).rev());
            self.by_rank.sort_by(|&a, &b| x[a as usize].total_cmp(&x[b as usize]));
            self.rank.resize(n, 0);
        }
        for k in 1..n {
            let own = self.by_rank[k];
            let mut place = k;
            while place > 0 {
                let other = self.by_rank[place - 1];
                let (a, b) = (x[other as usize], x[own as usize]);
                if a < b || (a == b && other > own) {
                    break;
                }
                self.by_rank[place] = other;
                place -= 1;
            }
            self.by_rank[place] = own;
        }
        for (rank, &i) in self.by_rank.iter().enumerate() {
            self.rank[i as usize] = rank as u32;
        }
    }

    /// Returns whether another vehicle has exactly the x of vehicle `i`.
    fn is_tied(&self, i: usize, x: &[f64]) -> bool {
        let rank = self.rank[i] as usize;
        let same = |k: usize| self.by_rank.get(k).is_some_and(|&j| x[j as usize] == x[i]);
        same(rank + 1) || rank > 0 && same(rank - 1)
    }
}

impl Traffic {
    /// The nearest neighbours in front of and behind vehicle `i` on a lane, which need not be its own.
    pub fn neighbours(&self, i: usize, lane: usize) -> (Option<Neighbour>, Option<Neighbour>) {
        let v = &self.vehicles;
        let road_lane = self.road.lane(lane);
        let s = road_lane.local(v.x[i], v.y[i]).0;
        let (mut front, mut rear) = ((f64::INFINITY, None), (f64::NEG_INFINITY, None));
        for j in (0..v.len()).filter(|&j| j != i && road_lane.holds(v.x[j], v.y[j], MARGIN)) {
            let at = road_lane.local(v.x[j], v.y[j]).0;
            if s <= at && at <= front.0 {
                front = (at, Some(Neighbour::Vehicle(j)));
            }
            if at < s && at > rear.0 {
                rear = (at, Some(Neighbour::Vehicle(j)));
            }
        }
        (self.obstacle_before(i, lane, front.1), self.obstacle_behind(i, lane, rear.1))
    }

    /// An obstacle, if one is before vehicle `i` and not farther than `front`; else `front`.
    fn obstacle_before(&self, i: usize, lane: usize, front: Option<Neighbour>) -> Option<Neighbour> {
        let v = &self.vehicles;
        let lane = self.road.lane(lane);
        let s = lane.local(v.x[i], v.y[i]).0;
        let mut nearest = match front {
            Some(Neighbour::Vehicle(j)) => (lane.local(v.x[j], v.y[j]).0, front),
            _ => (f64::INFINITY, front),
        };
        for (j, o) in self.road.obstacles.iter().enumerate() {
            let at = lane.local(o.x, o.y).0;
            if lane.holds(o.x, o.y, MARGIN) && s <= at && at <= nearest.0 {
                nearest = (at, Some(Neighbour::Obstacle(j)));
            }
        }
        nearest.1
    }

    /// An obstacle, if one is behind vehicle `i` and nearer than `rear`; else `rear`.
    fn obstacle_behind(&self, i: usize, lane: usize, rear: Option<Neighbour>) -> Option<Neighbour> {
        let v = &self.vehicles;
        let lane = self.road.lane(lane);
        let s = lane.local(v.x[i], v.y[i]).0;
        let mut nearest = match rear {
            Some(Neighbour::Vehicle(j)) => (lane.local(v.x[j], v.y[j]).0, rear),
            _ => (f64::NEG_INFINITY, rear),
        };
        for (j, o) in self.road.obstacles.iter().enumerate() {
            let at = lane.local(o.x, o.y).0;
            if lane.holds(o.x, o.y, MARGIN) && at < s && at > nearest.0 {
                nearest = (at, Some(Neighbour::Obstacle(j)));
            }
        }
        nearest.1
    }

    /// The front neighbour of [`Traffic::neighbours`], faster, while the order is up to date.
    pub(super) fn in_front(&self, i: usize, lane: usize) -> Option<Neighbour> {
        let (v, order) = (&self.vehicles, &self.scratch.order);
        if order.is_tied(i, &v.x) {
            return self.neighbours(i, lane).0;
        }
        let road_lane = self.road.lane(lane);
        let ahead = &order.by_rank[order.rank[i] as usize + 1..];
        let front = ahead.iter().map(|&j| j as usize).find(|&j| road_lane.holds(v.x[j], v.y[j], MARGIN));
        self.obstacle_before(i, lane, front.map(Neighbour::Vehicle))
    }

    /// The rear neighbour of [`Traffic::neighbours`], faster, while the order is up to date.
    pub(super) fn behind(&self, i: usize, lane: usize) -> Option<Neighbour> {
        let (v, order) = (&self.vehicles, &self.scratch.order);
        if order.is_tied(i, &v.x) {
            return self.neighbours(i, lane).1;
        }
        let road_lane = self.road.lane(lane);
        let behind = &order.by_rank[..order.rank[i] as usize];
        let rear = behind.iter().rev().map(|&j| j as usize).find(|&j| road_lane.holds(v.x[j], v.y[j], MARGIN));
        self.obstacle_behind(i, lane, rear.map(Neighbour::Vehicle))
    }

    /// Finds the neighbour in front of every vehicle on its own lane: `in_front` for all of them at once.
    pub(super) fn find_fronts(&mut self) {
        let Self { road, vehicles: v, scratch, .. } = self;
        scratch.order.sort(v);
        let n = v.len();
        let (order, front) = (&mut scratch.order, &mut scratch.front[..n]);
        let (x, y, lane) = (&v.x[..n], &v.y[..n], &v.lane[..n]);
        order.last.clear();
        order.last.resize(road.lanes().len(), NO_NEIGHBOUR);
        let mut tied = false;
        let mut before = f64::NAN;
        for &vehicle in order.by_rank.iter().rev() {
            let i = vehicle as usize;
            let (x, y, lane) = (x[i], y[i], lane[i]);
            tied |= x == before;
            before = x;
            front[i] = order.last[lane];
            if road.only_lane_near(lane, x, y) {
                order.last[lane] = vehicle;
            } else {
                for (other, last) in road.lanes().iter().zip(&mut order.last) {
                    if other.holds(x, y, MARGIN) {
                        *last = vehicle;
                    }
                }
            }
        }
        if !tied && self.road.obstacles.is_empty() {
            return;
        }
        for i in 0..n {
            let lane = self.vehicles.lane[i];
            let front = if self.scratch.order.is_tied(i, &self.vehicles.x) {
                self.neighbours(i, lane).0
            } else {
                self.obstacle_before(i, lane, self.front(i))
            };
            self.scratch.front[i] = match front {
                None => NO_NEIGHBOUR,
                Some(Neighbour::Vehicle(j)) => j as u32,
                Some(Neighbour::Obstacle(j)) => (n + j) as u32,
            };
        }
    }
}

impl<M: RoadMap> Traffic<M> {
    /// The neighbour in front that `find_fronts` found for vehicle `i`.
    #[inline]
    pub(super) fn front(&self, i: usize) -> Option<Neighbour> {
        let (n, front) = (self.vehicles.len(), self.scratch.front[i]);
        match front as usize {
            j if j < n => Some(Neighbour::Vehicle(j)),
            _ if front == NO_NEIGHBOUR => None,
            j => Some(Neighbour::Obstacle(j - n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::lane::Lane;
    use crate::traffic::obstacle::Obstacle;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::{Driver, Vehicle};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        /// Coarse places, so that many are equal; a lane that begins and ends on the way; obstacles.
        #[test]
        fn the_fast_searches_agree_with_the_plain_one(
            places in prop::collection::vec((0u8..40, 0u8..30), 1..14),
            moves in prop::collection::vec((0u8..40, 0u8..30), 1..14),
            obstacles in prop::collection::vec((0u8..40, 0u8..4), 0..3),
        ) {
            let mut lanes = Road::straight(3, 400.0, 30.0).lanes().to_vec();
            lanes.push(Lane::straight(100.0, 250.0, 12.0));
            let at = |(x, y): (u8, u8)| (f64::from(x) * 10.0, f64::from(y) * 0.5 - 1.0);
            let obstacles = obstacles.iter().map(|&(x, lane)| Obstacle::new(f64::from(x) * 10.0, f64::from(lane) * 4.0));
            let mut traffic = Traffic::new(Road::new(lanes, obstacles.collect()), vec![20.0]);
            for &place in &places {
                let (x, y) = at(place);
                traffic.add(&Vehicle::new(Driver::Idm, x, y, 20.0));
            }
            for round in 0..2 {
                traffic.scratch.fit(places.len());
                traffic.find_fronts();
                for i in 0..places.len() {
                    let lane = traffic.vehicles.lane[i];
                    prop_assert_eq!(traffic.front(i), traffic.neighbours(i, lane).0);
                    for lane in 0..4 {
                        let found = (traffic.in_front(i, lane), traffic.behind(i, lane));
                        prop_assert_eq!(found, traffic.neighbours(i, lane), "vehicle {} on lane {}", i, lane);
                    }
                }
                if round == 0 {
                    for (i, &place) in moves.iter().enumerate().take(places.len()) {
                        let (x, y) = at(place);
                        (traffic.vehicles.x[i], traffic.vehicles.y[i]) = (x, y);
                        traffic.vehicles.lane[i] = traffic.road.closest_lane(x, y, 0.0);
                    }
                }
            }
        }
    }
}
