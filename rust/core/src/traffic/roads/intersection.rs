//! `intersection-v0` to `-v2` and the ones of several agents: a crossing of two roads with rights of way.
//!
//! Source: `highway_env/envs/intersection_env.py` (`IntersectionEnv`). highway-env sets the parameters of the IDM on the
//! class of the traffic, so that in one process they hold for all of its environments from then on; here they hold for
//! this one.

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, share};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};
use crate::traffic::vehicles::{LENGTH, Vehicle};
use crate::traffic::{Model, Traffic};

const SPEED_LIMIT: f64 = 10.0;
/// Metres of an arm of the crossing.
const ACCESS: f64 = 100.0;
const RIGHT_TURN: f64 = WIDTH + 5.0;
const LEFT_TURN: f64 = RIGHT_TURN + WIDTH;
/// From the middle to where the arms begin, metres.
const OUTER: f64 = RIGHT_TURN + WIDTH / 2.0;
/// The traffic drives so long before the agents come, seconds.
const WARM_UP: usize = 3;
/// From the middle of a road to the buildings beside it in a city, metres: its lane, and 3 m of pavement as in TR 37.885.
const BUILDINGS: f64 = WIDTH + 3.0;
/// Others keep this far away from where agents start, and from new vehicles, metres.
const ROOM: f64 = 20.0;
const ROOM_OF_NEW: f64 = 15.0;
/// An agent has arrived so far along the road that it leaves by, metres.
const ARRIVAL: f64 = 25.0;
/// The most vehicles that find room on the roads.
const MOST: usize = 100;

#[derive(Debug)]
pub(super) struct Intersection {
    collision_reward: f64,
    high_speed_reward: f64,
    arrived_reward: f64,
    reward_speed_range: [f64; 2],
    normalize_reward: bool,
    offroad_terminal: bool,
    /// Number of the arm that agents want to; drawn for each if there is none.
    destination: Option<usize>,
    controlled: usize,
    /// `initial_vehicle_count`.
    vehicles: usize,
    spawn_probability: f64,
}

/// The random choices of a new vehicle.
struct Spawn {
    longitudinal: f64,
    /// Standard deviations of the place (m) and the speed (m/s).
    deviations: [f64; 2],
    probability: f64,
    go_straight: bool,
}

impl Intersection {
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            arrived_reward: options.number("arrived_reward")?,
            reward_speed_range: options.pair("reward_speed_range")?,
            normalize_reward: options.flag("normalize_reward")?,
            offroad_terminal: options.flag("offroad_terminal")?,
            destination: options.optional_count("destination", 0, 3)?,
            controlled: options.count("controlled_vehicles", 1, 100)?,
            vehicles: options.count("initial_vehicle_count", 0, 10_000)?,
            spawn_probability: options.number("spawn_probability")?,
        })
    }

    /// Adds a vehicle of the traffic, if chance will and there is room (`_spawn_vehicle`).
    fn spawn(place: &mut Place<'_>, spawn: &Spawn) {
        if place.rng.uniform(0.0, 1.0) > spawn.probability {
            return;
        }
        let [from, to] = place.rng.two_of(4);
        let to = if spawn.go_straight { (from + 2) % 4 } else { to };
        let lane = place.world.traffic.road.find(&format!("o{from}"), &format!("ir{from}"), 0);
        let longitudinal = spawn.longitudinal + 5.0 + place.rng.normal() * spawn.deviations[0];
        let speed = 8.0 + place.rng.normal() * spawn.deviations[1];
        let vehicle = place.on_lane(place.other, lane, longitudinal, speed);
        let v = &place.world.traffic.vehicles;
        if (0..v.len()).any(|j| (v.x[j] - vehicle.x).hypot(v.y[j] - vehicle.y) < ROOM_OF_NEW) {
            return;
        }
        let i = place.world.add(&vehicle);
        place.world.traffic.plan_route(i, &format!("o{to}"));
        place.randomize(i);
    }

    fn add_agent(&self, number: usize, place: &mut Place<'_>) {
        let arm = number % 4;
        let lane = place.world.traffic.road.find(&format!("o{arm}"), &format!("ir{arm}"), 0);
        let goal = self.destination.unwrap_or_else(|| 1 + place.rng.below(3) as usize);
        let longitudinal = 60.0 + 5.0 * (1.0 + place.rng.normal());
        let vehicle = Vehicle { ..place.on_lane(place.agent, lane, longitudinal, SPEED_LIMIT) };
        let i = place.world.add_agent(&vehicle);
        if place.agent.has_targets() {
            place.world.traffic.plan_route(i, &format!("o{goal}"));
        }
        place.world.remove_if(|traffic, j| {
            let v = &traffic.vehicles;
            (v.x[j] - vehicle.x).hypot(v.y[j] - vehicle.y) < ROOM
        });
    }

    /// Returns whether vehicle `i` is on a road out of the crossing, at least so far from its end or its start.
    fn is_leaving(traffic: &Traffic<Network>, i: usize, beyond: impl Fn(f64) -> f64) -> bool {
        let v = &traffic.vehicles;
        let (from, to, _) = traffic.road.index_of(v.lane[i]);
        let lane = traffic.road.lane(v.lane[i]);
        from.contains("il") && to.contains('o') && lane.local(v.x[i], v.y[i]).0 >= beyond(lane.length())
    }
}

impl Scenario for Intersection {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        let (none, solid, striped) = (Line::None, Line::Continuous, Line::Striped);
        for corner in 0..4usize {
            let angle = (90.0 * corner as f64).to_radians();
            let (sin, cos) = angle.sin_cos();
            let turned = |[x, y]: [f64; 2]| [cos * x - sin * y, sin * x + cos * y];
            // The horizontal road has the right of way; turns to the left come after the rest of their road.
            let priority = if corner % 2 == 1 { 3 } else { 1 };
            let lane = |curve: Curve, lines: [Line; 2], priority: i32| Lane {
                lines,
                speed_limit: Some(SPEED_LIMIT),
                priority,
                ..Lane::new(curve)
            };
            let straight = |start: [f64; 2], end: [f64; 2]| Curve::straight(turned(start), turned(end));
            let half = WIDTH / 2.0;
            let (ir, il) = (format!("ir{corner}"), |turn: usize| format!("il{}", (corner + turn) % 4));
            let curve = straight([half, ACCESS + OUTER], [half, OUTER]);
            roads.add(&format!("o{corner}"), &ir, lane(curve, [striped, solid], priority));
            let phases = [180.0f64, 270.0].map(|degrees| angle + degrees.to_radians());
            let curve = Curve::circular(turned([OUTER, OUTER]), RIGHT_TURN, phases, true);
            roads.add(&ir, &il(3), lane(curve, [none, solid], priority));
            let phases = [0.0f64, -90.0].map(|degrees| angle + degrees.to_radians());
            let centre = turned([-LEFT_TURN + half, LEFT_TURN - half]);
            let curve = Curve::circular(centre, LEFT_TURN, phases, false);
            roads.add(&ir, &il(1), lane(curve, [none, none], priority - 1));
            let curve = straight([half, OUTER], [half, -OUTER]);
            roads.add(&ir, &il(2), lane(curve, [striped, none], priority));
            let curve = straight([OUTER, half], [ACCESS + OUTER, half]);
            roads.add(&il(3), &format!("o{}", (corner + 3) % 4), lane(curve, [none, solid], priority));
        }
        roads.build(connected)
    }

    fn model(&self) -> Model {
        Model::new(6.0, 3.0, 7.0)
    }

    fn is_regulated(&self) -> bool {
        true
    }

    fn shares_reward(&self) -> bool {
        true
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn vehicles(&self) -> usize {
        self.controlled + self.vehicles.min(MOST) + MOST
    }

    fn is_open(&self) -> bool {
        true
    }

    fn populate(&self, place: &mut Place<'_>) {
        for t in 0..self.vehicles.saturating_sub(1) {
            let longitudinal = t as f64 * (80.0 / (self.vehicles - 1) as f64);
            Self::spawn(place, &Spawn { longitudinal, deviations: [1.0; 2], probability: 0.6, go_straight: false });
        }
        for _ in 0..WARM_UP * place.frames {
            place.world.frame(place.frame);
        }
        let challenger = Spawn { longitudinal: 60.0, deviations: [0.1, 0.0], probability: 1.0, go_straight: true };
        Self::spawn(place, &challenger);
        for number in 0..self.controlled {
            self.add_agent(number, place);
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "high_speed_reward", "arrived_reward", "on_road_reward"]
    }

    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let arrived = f64::from(self.has_succeeded(world, i));
        let speed = share(v.speed[i], self.reward_speed_range).clamp(0.0, 1.0);
        [f64::from(v.crashed[i]), speed, arrived, f64::from(world.is_on_road(i)), 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, high_speed, arrived, on_road, _] = *parts;
        let sum = self.collision_reward * collision + self.high_speed_reward * high_speed;
        let reward = if arrived > 0.0 { self.arrived_reward } else { sum } * on_road;
        if self.normalize_reward { share(reward, [self.collision_reward, self.arrived_reward]) } else { reward }
    }

    fn is_over(&self, world: &World) -> bool {
        world.agents().iter().any(|&i| world.traffic.vehicles.crashed[i])
            || world.agents().iter().all(|&i| self.has_succeeded(world, i))
            || self.offroad_terminal && !world.is_on_road(world.agents()[0])
    }

    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i] || self.has_succeeded(world, i)
    }

    fn has_goal(&self) -> bool {
        true
    }

    fn has_succeeded(&self, world: &World, i: usize) -> bool {
        Self::is_leaving(&world.traffic, i, |_| ARRIVAL)
    }

    /// A building fills each corner, from [`BUILDINGS`] on.
    fn has_building_between(&self, a: [f64; 2], b: [f64; 2]) -> bool {
        [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]].iter().any(|sides| {
            // The part of the way from a (0) to b (1) that is beyond the edge, along both axes.
            let (mut from, mut to) = (0.0f64, 1.0f64);
            for axis in 0..2 {
                let [start, end] = [a[axis], b[axis]].map(|x| sides[axis] * x - BUILDINGS);
                let crossing = start / (start - end);
                match (start > 0.0, end > 0.0) {
                    (true, true) => {}
                    (true, false) => to = to.min(crossing),
                    (false, true) => from = from.max(crossing),
                    (false, false) => return false,
                }
            }
            from < to
        })
    }

    /// Vehicles leave the roads, and perhaps one comes.
    fn after_step(&self, place: &mut Place<'_>) {
        place.world.remove_if(|traffic, i| Self::is_leaving(traffic, i, |length| length - 4.0 * LENGTH));
        let probability = self.spawn_probability;
        Self::spawn(place, &Spawn { longitudinal: 0.0, deviations: [1.0; 2], probability, go_straight: false });
    }
}
