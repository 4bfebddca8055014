//! Right of way: vehicles that come to junctions get permits to cross them, or stop at the line.
//!
//! A vehicle needs a permit for the lane that it wants to cross by. The rules are simpler than SUMO's.

use super::Network;
use super::junctions::Light;
use crate::traffic::Traffic;
use crate::traffic::obstacle::Obstacle;
use crate::traffic::vehicles::{LENGTH, Vehicles};

/// Braking that vehicles plan with before lines and before slower lanes, m/s².
const BRAKING: f64 = 2.5;
const EASY_BRAKING: f64 = 1.2;
/// Braking beyond which a vehicle with a permit drives on at an amber and at a red light, m/s².
const AMBER_BRAKING: f64 = 3.0;
const RED_BRAKING: f64 = 5.0;
/// Others who go first and arrive within this time are waited for, seconds.
const WINDOW: f64 = 4.0;
/// One who lets others go first asks this short before the line, seconds and metres.
const LATE: f64 = 2.5;
const CLOSE: f64 = 12.0;
/// Slower vehicles near their line count as waiting, m/s and metres.
const WAITING: (f64, f64) = (0.5, 10.0);
/// A permit is taken back from one who does not use it, seconds.
const UNUSED: f64 = 8.0;
/// Room that a vehicle needs behind the junction, metres.
const ROOM: f64 = LENGTH + 4.0;
/// Speed at the end of a lane that does not lead on, m/s.
const CREEP: f64 = 5.0;

/// The line before a junction that a vehicle comes to next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LineAhead {
    /// The lane that the line is at the end of, and the one that it wants to cross by.
    pub lane: usize,
    pub crossing: usize,
    /// Metres.
    pub distance: f64,
}

impl LineAhead {
    /// Returns whether it is near enough for one of that speed to think of it.
    fn is_near(&self, speed: f64) -> bool {
        self.distance <= 10.0 + 1.5 * speed.max(0.0) + speed * speed / (2.0 * BRAKING)
    }
}

/// A vehicle in a junction or near one.
struct Comer {
    vehicle: usize,
    line: LineAhead,
    inside: bool,
    light: Option<Light>,
}

impl Comer {
    fn time(&self, v: &Vehicles) -> f64 {
        self.line.distance / v.speed[self.vehicle].max(1.0)
    }

    /// The braking that it needs to stop before the line, m/s².
    fn braking(&self, v: &Vehicles) -> f64 {
        let speed = v.speed[self.vehicle].max(0.0);
        speed * speed / (2.0 * self.line.distance.max(0.01))
    }

    fn waits(&self, v: &Vehicles) -> bool {
        v.speed[self.vehicle] < WAITING.0 && self.line.distance < WAITING.1
    }
}

impl Traffic<Network> {
    /// The line that vehicle `i` comes to next, if its way leads across a junction. In a junction it is the next one's.
    pub(super) fn line_ahead(&self, i: usize) -> Option<LineAhead> {
        let (road, v) = (&self.road, &self.vehicles);
        let junctions = road.junctions.as_ref()?;
        let (mut lane, mut route) = (v.lane[i], &v.route[i][..]);
        let mut distance = road.lane(lane).length() - self.local_on(i, lane).0;
        if junctions.crossing(lane).is_some() {
            (lane, route) = road.link_on(lane, route)?;
            distance += road.lane(lane).length();
        }
        let (crossing, _) = road.link_on(lane, route)?;
        junctions.crossing(crossing)?;
        Some(LineAhead { lane, crossing, distance })
    }

    /// The line that vehicle `i` must stop at.
    pub(super) fn closed_line(&self, i: usize) -> Option<LineAhead> {
        let v = &self.vehicles;
        let line = self.line_ahead(i).filter(|line| line.is_near(v.speed[i]))?;
        (v.permit[i] != Some(line.crossing as u32)).then_some(line)
    }

    /// Returns whether vehicle `i` is in a junction without a permit.
    pub(super) fn violates(&self, i: usize) -> bool {
        let (v, lane) = (&self.vehicles, self.vehicles.lane[i]);
        let crosses = self.road.junctions.as_ref().is_some_and(|all| all.crossing(lane).is_some());
        crosses && v.permit[i] != Some(lane as u32)
    }

    /// Gives permits and takes them back, in the order of the list, and sets the speeds that the way ahead allows the
    /// traffic. `time` and `held` are those of the lights, see [`super::junctions::Junctions::light`].
    pub(super) fn give_way(&mut self, time: f64, held: &[u32]) {
        let Traffic { road, vehicles: v, scratch, .. } = &mut *self;
        let places = v.x.iter().zip(&v.y).zip(&v.lane);
        scratch.own.clear();
        scratch.own.extend(places.map(|((&x, &y), &lane)| road.lane(lane).local(x, y)));
        self.list_places();
        let mut comers: Vec<Comer> = Vec::new();
        for i in 0..self.vehicles.len() {
            self.keep_to_route(i);
            if self.vehicles.driver[i].is_traffic() {
                self.vehicles.target_speed[i] = self.speed_ahead(i);
            }
            let Some(junctions) = &self.road.junctions else { return };
            let (v, lane) = (&self.vehicles, self.vehicles.lane[i]);
            if junctions.crossing(lane).is_some() {
                let line = LineAhead { lane, crossing: lane, distance: 0.0 };
                comers.push(Comer { vehicle: i, line, inside: true, light: None });
                continue;
            }
            match self.line_ahead(i).filter(|line| line.is_near(v.speed[i]) && !v.crashed[i]) {
                Some(line) => {
                    let light = junctions.light(line.crossing, time, held);
                    comers.push(Comer { vehicle: i, line, inside: false, light });
                }
                None => self.vehicles.permit[i] = None,
            }
        }
        let mut by_crossing: Vec<(usize, usize)> = comers.iter().map(|comer| comer.line.crossing).zip(0..).collect();
        by_crossing.sort_unstable();
        for k in 0..comers.len() {
            let comer = &comers[k];
            if !comer.inside {
                let crossing = Some(comer.line.crossing as u32);
                let held = self.vehicles.permit[comer.vehicle] == crossing;
                let may = if held { self.keeps(comer) } else { self.may_enter(&comers, &by_crossing, k) };
                self.vehicles.permit[comer.vehicle] = if may { crossing } else { None };
            }
        }
    }

    /// Returns whether a permit still holds.
    fn keeps(&self, comer: &Comer) -> bool {
        let needs = comer.braking(&self.vehicles);
        match comer.light {
            Some(Light::Red) => needs > RED_BRAKING,
            Some(Light::Amber) => needs > AMBER_BRAKING,
            _ => comer.time(&self.vehicles) < UNUSED,
        }
    }

    /// Returns whether a vehicle may enter the junction. `by_crossing`: crossings and comers, in the order of these.
    fn may_enter(&self, comers: &[Comer], by_crossing: &[(usize, usize)], k: usize) -> bool {
        let (road, v, own) = (&self.road, &self.vehicles, &comers[k]);
        let Some(rules) = road.junctions.as_ref().and_then(|all| all.crossing(own.line.crossing)) else { return true };
        let closed = matches!(own.light, Some(Light::Red | Light::Amber));
        if closed || !self.has_room_behind(own.line.crossing) || self.is_astray(own.vehicle) {
            return false;
        }
        let minor = own.light != Some(Light::Major) && !rules.first.is_empty();
        if minor && own.time(v) > LATE && own.line.distance > CLOSE {
            return false;
        }
        let on = |&foe: &u32| {
            let start = by_crossing.partition_point(|&(crossing, _)| crossing < foe as usize);
            by_crossing[start..].iter().take_while(move |&&(crossing, _)| crossing == foe as usize)
        };
        rules.foes.iter().flat_map(on).all(|&(_, other)| {
            let other = &comers[other];
            let (j, crossing) = (other.vehicle, other.line.crossing as u32);
            if j == own.vehicle {
                return true;
            }
            // An agent may hold a permit and not move.
            let uses = v.driver[j].is_traffic() || v.speed[j] > WAITING.0;
            if other.inside || v.permit[j] == Some(crossing) && uses || other.braking(v) > RED_BRAKING {
                return false;
            }
            let goes_first = minor && rules.first.binary_search(&crossing).is_ok();
            if !goes_first
                || matches!(other.light, Some(Light::Red | Light::Amber))
                || !self.has_room_behind(other.line.crossing)
            {
                return true;
            }
            // Of those who wait for each other the first of the list goes.
            if own.waits(v) && other.waits(v) { own.vehicle < j } else { other.time(v) > WINDOW }
        })
    }

    /// Returns whether there is room for a vehicle where a crossing leads to.
    fn has_room_behind(&self, crossing: usize) -> bool {
        let Some(&next) = self.road.before(crossing).first() else { return true };
        self.first_after(next, f64::NEG_INFINITY, usize::MAX)
            .is_none_or(|(j, s)| s > ROOM || self.vehicles.speed[j] > 3.0)
    }

    /// The speed that the limits of the lanes ahead allow vehicle `i`, m/s.
    fn speed_ahead(&self, i: usize) -> f64 {
        let (road, v) = (&self.road, &self.vehicles);
        let (mut lane, mut route) = (v.lane[i], &v.route[i][..]);
        let limit = |lane: usize| road.lane(lane).speed_limit.unwrap_or(f64::INFINITY);
        let mut allowed = limit(lane);
        let mut distance = road.lane(lane).length() - self.local_on(i, lane).0;
        let horizon = v.speed[i] * v.speed[i] / (2.0 * EASY_BRAKING) + 5.0;
        while distance < horizon {
            let next = road.link_on(lane, route);
            let there = match next {
                Some((next, _)) => limit(next),
                None if route.len() == 1 => break,
                None => CREEP,
            };
            allowed = allowed.min((there * there + 2.0 * EASY_BRAKING * distance.max(0.0)).sqrt());
            let Some(next) = next else { break };
            (lane, route) = next;
            distance += road.lane(lane).length();
        }
        allowed
    }
}

impl Network {
    /// Bars across the ends of lanes that lead to a red or amber light only, for pictures.
    pub(super) fn red_lights(&self, time: f64, held: &[u32]) -> Vec<Obstacle> {
        let Some(junctions) = &self.junctions else { return Vec::new() };
        let is_red = |&lane: &usize| matches!(junctions.light(lane, time, held), Some(Light::Red | Light::Amber));
        let lanes = 0..self.lanes().len();
        let closed = lanes.filter(|&lane| !self.before(lane).is_empty() && self.before(lane).iter().all(is_red));
        closed.map(|lane| self.line_of(lane)).collect()
    }

    /// The line at the end of a lane, as something that stands there.
    pub(super) fn line_of(&self, lane: usize) -> Obstacle {
        let lane = self.lane(lane);
        let ((x, y), heading) = (lane.position(lane.length(), 0.0), lane.heading_at(lane.length()));
        Obstacle { x, y, heading, length: 0.6, width: 0.8 * lane.width }
    }
}
