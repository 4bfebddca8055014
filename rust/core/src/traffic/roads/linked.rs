//! Ways and neighbours on a network whose lanes are linked one by one, as SUMO's are: from a lane a vehicle comes only to
//! the lanes that it is linked to, and it sees those in front of it along its way, across junctions too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Network;
use super::network::Section;
use crate::traffic::map::{NO_NEIGHBOUR, Neighbour};
use crate::traffic::vehicles::{LENGTH, Step, Vehicles};
use crate::traffic::{Placed, Scratch, Traffic};

/// Others are seen this far ahead and behind along the way, metres.
const AHEAD: f64 = 100.0;
const BEHIND: f64 = 50.0;
/// One who turns off is seen by those behind it until it is so far away from where the ways part, metres.
const PARTING: f64 = LENGTH + 1.0;
/// Changes of lanes are given up so short before a junction, metres.
const LAST_CHANCE: f64 = 8.0;
/// A vehicle that is farther off all lanes near its last one is sought on all lanes, metres.
const LOST: f64 = 10.0;

impl Network {
    /// The lane that follows `lane` on a route, and the rest of the route from there; the first that it is linked to if
    /// the route does not say. None at the end of the route, or if the lane leads nowhere.
    pub(super) fn link_on<'a>(&self, lane: usize, route: &'a [Step]) -> Option<(usize, &'a [Step])> {
        let rest = match route.first() {
            Some(step) if step.section as usize == self.section_of(lane) => &route[1..],
            _ => route,
        };
        if rest.is_empty() && !route.is_empty() {
            return None;
        }
        let planned = rest.first().and_then(|step| self.link_to(lane, step.section as usize));
        planned.or_else(|| self.before(lane).first().copied()).map(|next| (next, rest))
    }

    /// The first lane of a section that `lane` is linked to.
    fn link_to(&self, lane: usize, section: usize) -> Option<usize> {
        self.before(lane).iter().copied().find(|&next| self.section_of(next) == section)
    }

    /// The quickest way from one section to another, both included; None if there is no way.
    pub fn way(&self, from: usize, to: usize) -> Option<Vec<Step>> {
        let mut best: Vec<f64> = vec![f64::INFINITY; self.sections().len()];
        let mut reached_by: Vec<u32> = vec![u32::MAX; best.len()];
        // Positive numbers are in the order of their bits.
        let mut queue = BinaryHeap::from([Reverse((0u64, from))]);
        best[from] = 0.0;
        while let Some(Reverse((bits, section))) = queue.pop() {
            let time = f64::from_bits(bits);
            if section == to {
                let mut way = vec![to];
                while let Some(&last) = way.last().filter(|&&last| last != from) {
                    way.push(reached_by[last] as usize);
                }
                return Some(way.iter().rev().map(|&s| Step { section: s as u32, lane: None }).collect());
            }
            if time > best[section] {
                continue;
            }
            for &next in self.leaving(self.sections()[section].to) {
                let later = time + self.time_on(&self.sections()[next]);
                if later < best[next] {
                    (best[next], reached_by[next]) = (later, section as u32);
                    queue.push(Reverse((later.to_bits(), next)));
                }
            }
        }
        None
    }

    fn time_on(&self, section: &Section) -> f64 {
        let lane = self.lane(section.lanes.start);
        lane.length() / lane.speed_limit.unwrap_or(1.0).max(0.1)
    }

    /// The lane that follows at the end of `lane`; takes the steps that are done off the route. One who could not get to
    /// a lane that leads on along its route plans again from where its lane leads to; without a way it has no route.
    pub(super) fn next_linked(&self, lane: usize, route: &mut Vec<Step>) -> usize {
        let section = self.section_of(lane);
        if route.len() > 1 && route[0].section as usize == section {
            route.remove(0);
        }
        let planned = route.first().filter(|step| step.section as usize != section);
        if let Some(next) = planned.and_then(|step| self.link_to(lane, step.section as usize)) {
            return next;
        }
        if route.last().is_some_and(|step| step.section as usize == section) {
            return lane;
        }
        self.plan_again(lane, route);
        self.link_on(lane, route).map_or(lane, |(next, _)| next)
    }

    /// A new way to the goal of a route from where `lane` leads to, the shortest one; none if there is no way.
    fn plan_again(&self, lane: usize, route: &mut Vec<Step>) {
        let Some(goal) = route.last().map(|step| step.section as usize) else { return };
        let ways = self.before(lane).iter().filter_map(|&next| self.way(self.section_of(next), goal));
        *route = ways.min_by_key(Vec::len).unwrap_or_default();
    }

    /// The number of the nearest lane of the section of `lane` that leads on along the route, if not all of them do.
    pub(super) fn lane_for_route(&self, lane: usize, route: &[Step]) -> Option<u32> {
        let section = self.section_of(lane);
        let next = route.get(1).filter(|_| route[0].section as usize == section)?.section as usize;
        let lanes = self.sections()[section].lanes.clone();
        let leads = |lane: &usize| self.link_to(*lane, next).is_some();
        if lanes.clone().all(|lane| leads(&lane)) {
            return None;
        }
        let nearest = lanes.clone().filter(leads).min_by_key(|other| other.abs_diff(lane))?;
        Some((nearest - lanes.start) as u32)
    }

    /// Where one on a route has to be at the end of its section: on the lane that leads on.
    pub(super) fn waypoint(&self, lane: usize, route: &[Step]) -> [f64; 2] {
        let start = self.sections()[self.section_of(lane)].lanes.start;
        let lane = self.lane(self.lane_for_route(lane, route).map_or(lane, |number| start + number as usize));
        lane.position(lane.length(), 0.0).into()
    }

    /// The lane that vehicle `i` is on: its target lane as soon as it has come there, else the one that it was on, else
    /// the nearest one near that. In a junction one may be beside its lane and is still on it.
    pub(super) fn locate_linked(&self, v: &Vehicles, i: usize) -> usize {
        let (x, y, heading) = (v.x[i], v.y[i], v.heading[i]);
        let is_on = |&lane: &usize| {
            let (s, lateral) = self.lane(lane).local(x, y);
            let reach = if self.lane(lane).forbidden { LOST / 2.0 } else { self.lane(lane).width / 2.0 };
            lateral.abs() <= reach && 0.0 <= s && s <= self.lane(lane).length()
        };
        if v.driver[i].has_targets()
            && let Some(lane) = [v.target_lane[i], v.lane[i]].into_iter().find(is_on)
        {
            return lane;
        }
        let mut best = (f64::INFINITY, v.lane[i]);
        for &lane in self.near(v.lane[i]) {
            let distance = self.lane(lane as usize).distance_with_heading(x, y, heading);
            if distance < best.0 {
                best = (distance, lane as usize);
            }
        }
        if best.0 > LOST { self.closest_to(best.1, x, y, heading) } else { best.1 }
    }
}

impl Traffic<Network> {
    /// Lists where the vehicles are, from lane to lane and along each lane; those that change lanes are on both.
    pub(super) fn list_places(&mut self) {
        let mut listed = std::mem::take(&mut self.scratch.listed);
        let (road, v) = (&self.road, &self.vehicles);
        listed.clear();
        for i in 0..v.len() {
            let (lane, target) = (v.lane[i], v.target_lane[i]);
            let place = |lane: usize| Placed { lane: lane as u32, vehicle: i as u32, along: self.local_on(i, lane).0 };
            listed.push(place(lane));
            if target != lane && road.section_of(target) == road.section_of(lane) {
                listed.push(place(target));
            }
        }
        let Scratch { places, lane_starts: starts, .. } = &mut self.scratch;
        starts.clear();
        starts.resize(road.lanes().len() + 1, 0);
        listed.iter().for_each(|place| starts[place.lane as usize] += 1);
        let mut end = 0;
        for start in &mut *starts {
            end += *start;
            *start = end;
        }
        places.clear();
        places.extend_from_slice(&listed);
        // From the end of each lane, whose start it is when all are there.
        for place in listed.iter().rev() {
            let at = &mut starts[place.lane as usize];
            *at -= 1;
            places[*at as usize] = *place;
        }
        for ends in starts.windows(2).filter(|ends| ends[1] - ends[0] > 1) {
            places[ends[0] as usize..ends[1] as usize].sort_by(|a, b| a.along.total_cmp(&b.along));
        }
        self.scratch.listed = listed;
    }

    /// The places on a lane.
    #[inline]
    fn places_on(&self, lane: usize) -> &[Placed] {
        let Scratch { places, lane_starts, .. } = &self.scratch;
        match lane_starts.get(lane..lane + 2) {
            Some(ends) => &places[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// The first vehicle on a lane from `s` on that is not vehicle `i`, and its place.
    #[inline]
    pub(super) fn first_after(&self, lane: usize, s: f64, i: usize) -> Option<(usize, f64)> {
        let places = self.places_on(lane).iter().skip_while(|p| p.along < s);
        places.map(|p| (p.vehicle as usize, p.along)).find(|&(j, _)| j != i)
    }

    /// The last one before `s`.
    fn last_before(&self, lane: usize, s: f64, i: usize) -> Option<(usize, f64)> {
        let places = self.places_on(lane);
        let before = places[..places.partition_point(|p| p.along < s)].iter().rev();
        before.map(|p| (p.vehicle as usize, p.along)).find(|&(j, _)| j != i)
    }

    /// The next one in front of vehicle `i`, were it on `lane`, along its way, and the gap, centre to centre, metres.
    pub(super) fn next_ahead(&self, i: usize, lane: usize) -> Option<(usize, f64)> {
        let (road, v) = (&self.road, &self.vehicles);
        let s = self.local_on(i, lane).0;
        if let Some((j, at)) = self.first_after(lane, s, i) {
            return Some((j, at - s));
        }
        let (mut lane, mut route) = (lane, &v.route[i][..]);
        let mut offset = road.lane(lane).length() - s;
        while offset < AHEAD {
            let next = road.link_on(lane, route);
            // Those who turn off here, and those who turn off elsewhere.
            let mut nearest: Option<(usize, f64)> = None;
            for &other in road.before(lane) {
                let own = next.is_some_and(|(next, _)| next == other);
                let found = self.first_after(other, f64::NEG_INFINITY, i).filter(|&(_, at)| own || at < PARTING);
                if let Some((j, at)) = found
                    && nearest.is_none_or(|(_, gap)| offset + at < gap)
                {
                    nearest = Some((j, offset + at));
                }
            }
            if nearest.is_some() {
                return nearest;
            }
            (lane, route) = next?;
            offset += road.lane(lane).length();
        }
        None
    }

    /// The next one behind vehicle `i`, were it on `lane`.
    pub(super) fn next_behind(&self, i: usize, lane: usize) -> Option<usize> {
        let road = &self.road;
        let s = self.local_on(i, lane).0;
        if let Some((j, _)) = self.last_before(lane, s, i) {
            return Some(j);
        }
        let mut nearest: Option<(usize, f64)> = None;
        for &back in road.behind(lane).iter().filter(|_| s < BEHIND) {
            let length = road.lane(back).length();
            if let Some((j, at)) = self.last_before(back, f64::INFINITY, i)
                && nearest.is_none_or(|(_, gap)| s + length - at < gap)
            {
                nearest = Some((j, s + length - at));
            }
        }
        nearest.filter(|&(_, gap)| gap < BEHIND).map(|(j, _)| j)
    }

    /// Finds the next one in front of every vehicle of the traffic.
    pub(super) fn find_linked_fronts(&mut self) {
        if self.scratch.own.is_empty() {
            self.list_places();
        }
        for i in 0..self.vehicles.len() {
            let v = &self.vehicles;
            let found = if v.driver[i].is_traffic() { self.next_ahead(i, v.lane[i]) } else { None };
            let (front, gap) = found.map_or((NO_NEIGHBOUR, f64::INFINITY), |(j, gap)| (j as u32, gap));
            (self.scratch.front[i], self.scratch.gap[i]) = (front, gap);
        }
    }

    /// The gap from vehicle `i` to one in front of it, along its way; None if that does not lead there.
    pub(super) fn linked_gap(&self, i: usize, front: Neighbour) -> Option<f64> {
        let Neighbour::Vehicle(j) = front else { return None };
        if self.scratch.front[i] == j as u32 {
            return Some(self.scratch.gap[i]);
        }
        self.next_ahead(i, self.vehicles.lane[i]).filter(|&(found, _)| found == j).map(|(_, gap)| gap)
    }

    /// Returns whether the target lane of vehicle `i` does not lead on along its route, and one beside it does.
    pub(super) fn is_astray(&self, i: usize) -> bool {
        let (road, lane, route) = (&self.road, self.vehicles.target_lane[i], &self.vehicles.route[i]);
        let section = road.section_of(lane);
        let Some(next) = route.get(1).filter(|_| route[0].section as usize == section) else { return false };
        let leads = |lane: usize| road.link_to(lane, next.section as usize).is_some();
        !leads(lane) && road.sections()[section].lanes.clone().any(leads)
    }

    /// Takes the steps off the route of a vehicle that has no target lane when it has driven them. One who comes to a
    /// junction on a lane that does not lead on plans again.
    pub(super) fn keep_to_route(&mut self, i: usize) {
        if self.is_astray(i) && self.line_ahead(i).is_some_and(|line| line.distance < LAST_CHANCE) {
            let Traffic { road, vehicles: v, .. } = self;
            road.plan_again(v.target_lane[i], &mut v.route[i]);
        }
        let v = &mut self.vehicles;
        if !v.driver[i].has_targets() {
            let section = self.road.section_of(v.lane[i]) as u32;
            let done = v.route[i].iter().take(4).position(|step| step.section == section).unwrap_or(0);
            v.route[i].drain(..done);
        }
    }
}
