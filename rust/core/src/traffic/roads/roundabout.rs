//! `roundabout-v0`, `roundabout-v1` and the generic ones: a roundabout with four roads.
//!
//! Source: `highway_env/envs/roundabout_env.py` (`RoundaboutEnv`, `RoundaboutGenericEnv`). Several agents, which
//! highway-env does not have: in the plain roundabout they drive the first of its vehicles, which stand where they stand
//! without agents; in the generic one they come from all sides, one after the other.

use std::f64::consts::{FRAC_PI_2, PI};

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, lane_change, share};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line};
use crate::traffic::map::RoadMap;
use crate::traffic::vehicles::Driver;

/// The arcs of the circle, against the clock as seen on a screen: nodes (south, east, north, west; entry, exit), and
/// degrees from the x axis to the y axis.
const ARCS: [(&str, &str, [f64; 2]); 8] = [
    ("se", "ex", [90.0 - ALPHA, ALPHA]),
    ("ex", "ee", [ALPHA, -ALPHA]),
    ("ee", "nx", [-ALPHA, -90.0 + ALPHA]),
    ("nx", "ne", [-90.0 + ALPHA, -90.0 - ALPHA]),
    ("ne", "wx", [-90.0 - ALPHA, -180.0 + ALPHA]),
    ("wx", "we", [-180.0 + ALPHA, -180.0 - ALPHA]),
    ("we", "sx", [180.0 - ALPHA, 90.0 + ALPHA]),
    ("sx", "se", [90.0 + ALPHA, 90.0 - ALPHA]),
];
/// Half of the angle between the exit and the entry of a road, degrees.
const ALPHA: f64 = 24.0;
const DESTINATIONS: [&str; 4] = ["exr", "sxr", "nxr", "wxr"];
/// Starts of others in the generic roundabout, beside the lanes that the agent comes from.
const SPAWNS: [(&str, &str); 7] =
    [("we", "sx"), ("sx", "se"), ("ee", "nx"), ("nx", "ne"), ("eer", "ees"), ("ner", "nes"), ("wer", "wes")];
/// The sides that agents come from in turns, and the opposite ways out (generic).
const ENTRIES: [(&str, &str, &str); 4] =
    [("ser", "ses", "nxs"), ("eer", "ees", "wxs"), ("ner", "nes", "sxs"), ("wer", "wes", "exs")];
/// Metres between agents that come from the same side, and the most of all sides (generic).
const ROW: f64 = 15.0;
const MOST_AGENTS: usize = 20;
/// Least room between two vehicles at first, metres, and attempts to find it (generic).
const ROOM: f64 = 7.0;
const TRIES: usize = 10;

#[derive(Debug)]
pub(super) struct Roundabout {
    collision_reward: f64,
    high_speed_reward: f64,
    lane_change_reward: f64,
    normalize_reward: bool,
    /// `incoming_vehicle_destination`.
    destination: Option<usize>,
    /// Radius of the innermost lane, metres.
    radius: f64,
    lanes: usize,
    /// Others; None: the four of the plain roundabout.
    vehicles: Option<usize>,
    controlled: usize,
}

/// Maps a place as seen from the south (x to the right, y outwards) to a side.
type Turn = fn([f64; 2]) -> [f64; 2];

/// A point of the outermost lane.
fn on_circle(radius: f64, degrees: f64) -> [f64; 2] {
    let (sin, cos) = degrees.to_radians().sin_cos();
    [radius * cos, radius * sin]
}

fn lane(curve: Curve, lines: [Line; 2]) -> Lane<Curve> {
    Lane { lines, ..Lane::new(curve) }
}

impl Roundabout {
    /// highway-env's `roundabout-v0`.
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            lane_change_reward: options.number("lane_change_reward")?,
            normalize_reward: options.flag("normalize_reward")?,
            destination: options.optional_count("incoming_vehicle_destination", 0, 1000)?,
            radius: 20.0,
            lanes: 2,
            vehicles: None,
            controlled: options.count("controlled_vehicles", 1, 5)?,
        })
    }

    /// `roundabout-generic-v0`.
    pub(super) fn generic(options: &Options) -> Result<Self, String> {
        let radius = options.number("roundabout_radius")?;
        if !(5.0..=1e4).contains(&radius) {
            return Err(format!("roundabout_radius: expected 5 to 10000, got {radius}"));
        }
        let lanes = options.count("roundabout_lanes", 1, 100)?;
        let vehicles = Some(options.count("vehicles_count", 0, 10_000)?);
        let controlled = options.count("controlled_vehicles", 1, MOST_AGENTS)?;
        let mut plain = options.clone();
        plain.0.insert("controlled_vehicles".into(), vec![1.0]);
        Ok(Self { radius, lanes, vehicles, controlled, ..Self::new(&plain)? })
    }

    fn add_circle(&self, roads: &mut Builder) {
        for i in 0..self.lanes {
            let left = if i == 0 { Line::Continuous } else { Line::None };
            let right = if i + 1 == self.lanes { Line::Continuous } else { Line::Striped };
            let radius = self.radius + 4.0 * i as f64;
            for (from, to, angles) in ARCS {
                let curve = Curve::circular([0.0; 2], radius, angles.map(f64::to_radians), false);
                roads.add(from, to, lane(curve, [left, right]));
            }
        }
    }

    /// The roads of the plain roundabout: straight, then a swing to the circle or from it.
    fn add_plain_access(roads: &mut Builder) {
        let (access, dev, a) = (170.0, 85.0, 5.0);
        let short = 0.2 * dev;
        let (long, w) = (dev - short, 2.0 * PI / dev);
        let solid = [Line::Continuous; 2];
        let (entry, exit) = ([Line::Striped, Line::Continuous], [Line::None, Line::Continuous]);
        let sides: [(&str, Turn); 4] =
            [("s", |[x, y]| [x, y]), ("e", |[x, y]| [y, -x]), ("n", |[x, y]| [-x, -y]), ("w", |[x, y]| [-y, x])];
        for (side, to) in sides {
            let name = |end: &str| format!("{side}{end}");
            let straight = |from: [f64; 2], end: [f64; 2]| Curve::straight(to(from), to(end));
            let swing = |from: [f64; 2], end: [f64; 2], phase: f64| Curve::sine(to(from), to(end), a, w, phase);
            roads.add(&name("er"), &name("es"), lane(straight([2.0, access], [2.0, dev / 2.0]), entry));
            let curve = swing([2.0 + a, dev / 2.0], [2.0 + a, dev / 2.0 - short], -FRAC_PI_2);
            roads.add(&name("es"), &name("e"), lane(curve, solid));
            let curve = swing([-2.0 - a, -dev / 2.0 + long], [-2.0 - a, dev / 2.0], -FRAC_PI_2 + w * long);
            roads.add(&name("x"), &name("xs"), lane(curve, solid));
            roads.add(&name("xs"), &name("xr"), lane(straight([-2.0, dev / 2.0], [-2.0, access]), exit));
        }
    }

    /// The same for a circle of any size: each swing begins or ends on its outermost lane.
    fn add_fitting_access(&self, roads: &mut Builder) {
        let outer = self.radius + 4.0 * (self.lanes - 1) as f64;
        let dev = (2.0 * outer + 40.0).max(100.0);
        let (half, access) = (dev / 2.0, dev + 40.0);
        let solid = [Line::Continuous; 2];
        let (entry, exit) = ([Line::Striped, Line::Continuous], [Line::None, Line::Continuous]);
        // Side, angles of entry and exit, axis of the road, its direction outwards, place of the entry across it, and
        // the sign of a swing to larger coordinates.
        for (side, [entering, leaving], axis, sign, offset, turn) in [
            ("s", [90.0 - ALPHA, 90.0 + ALPHA], 1, 1.0, 2.0, 1.0),
            ("e", [-ALPHA, ALPHA], 0, 1.0, -2.0, -1.0),
            ("n", [-90.0 - ALPHA, -90.0 + ALPHA], 1, -1.0, -2.0, -1.0),
            ("w", [180.0 - ALPHA, -180.0 + ALPHA], 0, -1.0, 2.0, 1.0),
        ] {
            let name = |end: &str| format!("{side}{end}");
            let at = |along: f64, across: f64| if axis == 1 { [across, along] } else { [along, across] };
            let (near, far) = (sign * half, sign * access);
            let straight = |from: f64, to: f64, across: f64| Curve::straight(at(from, across), at(to, across));
            // Between the circle and the straight road at `across`.
            let swing = |angle: f64, across: f64, inwards: bool| {
                let point = on_circle(outer, angle);
                let (along, amplitude) = (point[axis], turn * (point[1 - axis] - across) / 2.0);
                let middle = across + turn * amplitude;
                let ends = if inwards { [near, along] } else { [along, near] };
                let [from, to] = ends.map(|along| at(along, middle));
                Curve::sine(from, to, amplitude, PI / (near - along).abs(), -FRAC_PI_2)
            };
            roads.add(&name("er"), &name("es"), lane(straight(far, near, offset), entry));
            roads.add(&name("es"), &name("e"), lane(swing(entering, offset, true), solid));
            roads.add(&name("x"), &name("xs"), lane(swing(leaving, -offset, false), solid));
            roads.add(&name("xs"), &name("xr"), lane(straight(near, far, -offset), exit));
        }
    }

    /// The four vehicles of the plain roundabout.
    fn place_four(&self, place: &mut Place<'_>) {
        let destinations = &DESTINATIONS[..3];
        let starts = [("we", "sx", 1, 5.0), ("we", "sx", 0, 20.0), ("we", "sx", 0, -20.0), ("eer", "ees", 0, 50.0)];
        for (order, (from, to, number, along)) in starts.into_iter().enumerate() {
            let lane = place.world.traffic.road.find(from, to, number);
            let along = along + place.rng.normal() * 2.0;
            let speed = 16.0 + place.rng.normal() * 2.0;
            let is_agent = order + 1 < self.controlled;
            let i = if is_agent { place.agent_on(lane, along, speed) } else { place.other_on(lane, along, speed) };
            // Only the first one's destination may be given.
            let given = self.destination.filter(|_| number == 1).map(|given| given.min(2));
            let goal = destinations[given.unwrap_or_else(|| place.rng.below(3) as usize)];
            if !is_agent {
                place.world.traffic.plan_route(i, goal);
                place.randomize(i);
            } else if place.agent.has_targets() {
                place.world.traffic.plan_route(i, goal);
            }
        }
    }

    fn place_anywhere(&self, vehicles: usize, place: &mut Place<'_>) {
        let v = &place.world.traffic.vehicles;
        let mut taken: Vec<_> = v.x.iter().zip(&v.y).map(|(&x, &y)| [x, y]).collect();
        for _ in 0..vehicles {
            for _ in 0..TRIES {
                let (from, to) = SPAWNS[place.rng.below(SPAWNS.len() as u32) as usize];
                let first = place.world.traffic.road.find(from, to, 0);
                let beside = place.world.traffic.road.section(first).len();
                let index = first + place.rng.below(beside as u32) as usize;
                let lane = place.world.traffic.road.lane(index);
                let along = place.rng.uniform(5.0, (lane.length() - 5.0).max(5.0));
                let (x, y) = lane.position(along, 0.0);
                let far = |at: &[f64; 2]| ((x - at[0]) * (x - at[0]) + (y - at[1]) * (y - at[1])).sqrt() >= ROOM;
                if !taken.iter().all(far) {
                    continue;
                }
                let speed = 14.0 + place.rng.normal() * 2.0;
                let i = place.other_on(index, along, speed);
                let given = self.destination.map(|given| given.min(3));
                let goal = DESTINATIONS[given.unwrap_or_else(|| place.rng.below(4) as usize)];
                place.world.traffic.plan_route(i, goal);
                place.randomize(i);
                taken.push([x, y]);
                break;
            }
        }
    }
}

impl Scenario for Roundabout {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        self.add_circle(&mut roads);
        if self.vehicles.is_some() {
            self.add_fitting_access(&mut roads)
        } else {
            Self::add_plain_access(&mut roads)
        }
        roads.build(connected)
    }

    fn vehicles(&self) -> usize {
        self.controlled + self.vehicles.unwrap_or(4)
    }

    fn populate(&self, place: &mut Place<'_>) {
        let lane = place.world.traffic.road.find("ser", "ses", 0);
        let end = place.world.traffic.road.lane(lane).length() - 2.5;
        let i = place.agent_on(lane, if self.vehicles.is_some() { end } else { 125.0 }, 8.0);
        if place.agent.has_targets() {
            place.world.traffic.plan_route(i, "nxs");
        }
        match self.vehicles {
            None => self.place_four(place),
            Some(vehicles) => {
                for number in 1..self.controlled {
                    let (from, to, goal) = ENTRIES[number % 4];
                    let lane = place.world.traffic.road.find(from, to, 0);
                    let i = place.agent_on(lane, end - ROW * (number / 4) as f64, 8.0);
                    if place.agent.has_targets() {
                        place.world.traffic.plan_route(i, goal);
                    }
                }
                self.place_anywhere(vehicles, place);
            }
        }
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn shares_reward(&self) -> bool {
        true
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "high_speed_reward", "lane_change_reward", "on_road_reward"]
    }

    fn parts(&self, world: &World, i: usize, action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        // The index of its target speed, or of the nearest of 20, 25 and 30 m/s.
        let index = if v.driver[i] == Driver::Meta {
            v.speed_index[i] as f64
        } else {
            ((v.speed[i] - 20.0) / 10.0 * 2.0).round_ties_even().clamp(0.0, 2.0)
        };
        let on_road = f64::from(world.is_on_road(i));
        [f64::from(v.crashed[i]), index / 2.0, lane_change(action), on_road, 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, high_speed, lane_change, on_road, _] = *parts;
        let sum = self.collision_reward * collision
            + self.high_speed_reward * high_speed
            + self.lane_change_reward * lane_change;
        let sum = if self.normalize_reward { share(sum, [self.collision_reward, self.high_speed_reward]) } else { sum };
        sum * on_road
    }

    fn is_over(&self, world: &World) -> bool {
        world.agents().iter().any(|&i| self.is_done(world, i))
    }
}
