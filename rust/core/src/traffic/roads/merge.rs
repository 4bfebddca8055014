//! `merge-v0`, `merge-v1` and the generic ones: a highway that an access ramp joins.
//!
//! Source: `highway_env/envs/merge_env.py` (`MergeEnv`, `MergeGenericEnv`). Several agents, which highway-env does not
//! have: the last one drives the vehicle on the ramp. In the plain merge the others drive the first vehicles of the
//! highway, which stand where they stand without agents; in the generic one they start in rows before the first.

use std::f64::consts::{FRAC_PI_2, PI};

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, lane_change, lane_number, share};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};
use crate::traffic::obstacle::Obstacle;
use crate::traffic::vehicles::Vehicle;

/// Amplitude of the ramp's swing towards the highway, metres.
const AMPLITUDE: f64 = 3.25;
/// m/s.
const SPEED: f64 = 30.0;
/// Start of the agent, metres.
const START: f64 = 30.0;
/// Metres between the rows that agents start in (generic).
const ROW: f64 = 25.0;
/// Least room between two vehicles at first, metres, and attempts to find it (generic).
const ROOM: f64 = 15.0;
const TRIES: usize = 10;
/// The generic episode ends this far before the road, metres.
const LEFT_OVER: f64 = 90.0;

#[derive(Debug)]
pub(super) struct Merge {
    collision_reward: f64,
    right_lane_reward: f64,
    high_speed_reward: f64,
    reward_speed_range: [f64; 2],
    merging_speed_reward: f64,
    lane_change_reward: f64,
    /// Lanes of the highway.
    lanes: usize,
    /// Metres before the ramp converges, while it does, beside the highway, and after it.
    lengths: [f64; 4],
    /// Others on the highway; None: the three of the plain merge.
    vehicles: Option<usize>,
    controlled: usize,
    /// x beyond which the ramp is passed, metres.
    end: f64,
}

impl Merge {
    /// highway-env's `merge-v0`.
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            right_lane_reward: options.number("right_lane_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            reward_speed_range: options.pair("reward_speed_range")?,
            merging_speed_reward: options.number("merging_speed_reward")?,
            lane_change_reward: options.number("lane_change_reward")?,
            lanes: 2,
            lengths: [150.0, 80.0, 80.0, 150.0],
            vehicles: None,
            controlled: options.count("controlled_vehicles", 1, 5)?,
            end: 370.0,
        })
    }

    /// `merge-generic-v0`.
    pub(super) fn generic(options: &Options) -> Result<Self, String> {
        let names = ["before_merge_length", "converge_merge_length", "parallel_merge_length", "after_merge_length"];
        let mut lengths = [0.0; 4];
        for ((length, name), least) in lengths.iter_mut().zip(names).zip([1e-3, 1e-3, 1e-3, LEFT_OVER]) {
            *length = options.number(name)?;
            if !(least..=1e6).contains(length) {
                return Err(format!("{name}: expected {least} to 1e6, got {length}"));
            }
        }
        let end = lengths[0] + lengths[1] + lengths[2] + lengths[3] - LEFT_OVER;
        let lanes = options.count("lanes_count", 1, 1000)?;
        let vehicles = Some(options.count("vehicles_count", 0, 100_000)?);
        let rows = ((lengths[0] + lengths[1] + lengths[2] - START) / ROW).max(0.0) as usize + 1;
        let controlled = options.count("controlled_vehicles", 1, (lanes * rows + 1).min(100))?;
        let mut plain = options.clone();
        plain.0.insert("controlled_vehicles".into(), vec![1.0]);
        Ok(Self { lanes, lengths, vehicles, controlled, end, ..Self::new(&plain)? })
    }

    fn is_generic(&self) -> bool {
        self.vehicles.is_some()
    }

    /// The markings of lane `i` of the highway, on the part beside the ramp or elsewhere.
    fn lines(&self, i: usize, beside: bool) -> [Line; 2] {
        let is_last = i + 1 == self.lanes;
        let right = match (self.is_generic(), is_last) {
            (true, true) => Line::Chord,
            (true, false) => Line::None,
            (false, true) => {
                if beside {
                    Line::Striped
                } else {
                    Line::Chord
                }
            }
            (false, false) => Line::Striped,
        };
        let left = match (i, self.is_generic()) {
            (0, _) => Line::Chord,
            (_, true) => Line::Striped,
            (_, false) => Line::None,
        };
        [left, right]
    }

    /// The three vehicles of `merge-v0`, each on one of the two lanes.
    fn place_three(&self, place: &mut Place<'_>) {
        for (number, (x, speed)) in [(90.0, 29.0), (70.0, 31.0), (5.0, 31.5)].into_iter().enumerate() {
            let lane = place.world.traffic.road.find("a", "b", place.rng.below(2) as usize);
            let x = x + place.rng.uniform(-5.0, 5.0);
            let speed = speed + place.rng.uniform(-1.0, 1.0);
            if number + 2 < self.controlled {
                place.agent_on(lane, x, speed);
            } else {
                place.other_on(lane, x, speed);
            }
        }
    }

    fn place_anywhere(&self, vehicles: usize, place: &mut Place<'_>) {
        let farthest = self.lengths[0] + self.lengths[1] + self.lengths[2];
        let mut taken: Vec<Vec<f64>> = vec![Vec::new(); self.lanes];
        for number in 0..(self.controlled - 1).max(1) {
            let (row, lane) = (number / self.lanes, self.lanes - 1 - number % self.lanes);
            taken[lane].push(START + ROW * row as f64);
            if number > 0 {
                let lane = place.world.traffic.road.find("a", "b", lane);
                place.agent_on(lane, START + ROW * row as f64, SPEED);
            }
        }
        for _ in 0..vehicles {
            for _ in 0..TRIES {
                let number = place.rng.below(self.lanes as u32) as usize;
                let x = place.rng.uniform(0.0, farthest);
                if taken[number].iter().all(|other| (x - other).abs() > ROOM) {
                    let lane = place.world.traffic.road.find("a", "b", number);
                    let speed = SPEED + place.rng.uniform(-2.0, 2.0);
                    place.other_on(lane, x, speed);
                    taken[number].push(x);
                    break;
                }
            }
        }
    }
}

impl Scenario for Merge {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        let [before, converging, beside, after] = self.lengths;
        let (joining, parting) = (before + converging, before + converging + beside);
        let limit = if self.is_generic() { SPEED } else { 20.0 };
        let lane = |curve: Curve, lines: [Line; 2], forbidden: bool| {
            let mut lane = Lane::new(curve);
            (lane.lines, lane.speed_limit, lane.forbidden) = (lines, Some(limit), forbidden);
            lane
        };
        for (from, to, [start, end]) in
            [("a", "b", [0.0, joining]), ("b", "c", [joining, parting]), ("c", "d", [parting, parting + after])]
        {
            for i in 0..self.lanes {
                let y = i as f64 * WIDTH;
                let curve = Curve::straight([start, y], [end, y]);
                roads.add(from, to, lane(curve, self.lines(i, from == "b"), false));
            }
        }
        let solid = [Line::Chord; 2];
        let outside = if self.is_generic() { self.lanes as f64 * WIDTH + 2.0 * AMPLITUDE } else { 6.5 + 4.0 + 4.0 };
        roads.add("j", "k", lane(Curve::straight([0.0, outside], [before, outside]), solid, true));
        let (middle, pulsation) = (outside - AMPLITUDE, 2.0 * PI / (2.0 * converging));
        let swing = Curve::sine([before, middle], [joining, middle], AMPLITUDE, pulsation, FRAC_PI_2);
        roads.add("k", "b", lane(swing, solid, true));
        let y = middle + AMPLITUDE * (pulsation * converging + FRAC_PI_2).sin();
        let left = if self.is_generic() { Line::Striped } else { Line::None };
        roads.add("b", "c", lane(Curve::straight([joining, y], [parting, y]), [left, Line::Chord], true));
        let mut network = roads.build(connected);
        network.obstacles.push(Obstacle::new(parting, y));
        network
    }

    fn vehicles(&self) -> usize {
        1 + self.controlled + self.vehicles.unwrap_or(3)
    }

    fn populate(&self, place: &mut Place<'_>) {
        let lane = place.world.traffic.road.find("a", "b", self.lanes - 1);
        place.agent_on(lane, START, SPEED);
        match self.vehicles {
            None => self.place_three(place),
            Some(vehicles) => self.place_anywhere(vehicles, place),
        }
        let ramp = place.world.traffic.road.find("j", "k", 0);
        let x = if self.is_generic() { START + 30.0 } else { 110.0 };
        if self.controlled > 1 {
            place.agent_on(ramp, x, 20.0);
        } else {
            let merging = Vehicle { target_speed: Some(30.0), ..place.on_lane(place.other, ramp, x, 20.0) };
            place.world.add(&merging);
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "right_lane_reward", "high_speed_reward", "lane_change_reward", "merging_speed_reward"]
    }

    fn parts(&self, world: &World, i: usize, action: &LastAction) -> Parts {
        let (road, v) = (&world.traffic.road, &world.traffic.vehicles);
        // The third lane beside the ramp, which is the ramp's own where the highway has two.
        let slowness: f64 = (0..v.len())
            .filter(|&j| v.driver[j].has_targets() && road.index_of(v.lane[j]) == ("b", "c", 2))
            .map(|j| (v.target_speed[j] - v.speed[j]) / v.target_speed[j])
            .sum();
        [
            f64::from(v.crashed[i]),
            lane_number(world, v.lane[i]),
            share(v.speed[i], self.reward_speed_range),
            lane_change(action),
            slowness,
        ]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, right_lane, high_speed, lane_change, merging_speed] = *parts;
        let sum = self.collision_reward * collision
            + self.right_lane_reward * right_lane
            + self.high_speed_reward * high_speed
            + self.lane_change_reward * lane_change
            + self.merging_speed_reward * merging_speed;
        let worst = self.collision_reward + self.merging_speed_reward;
        share(sum, [worst, self.high_speed_reward + self.right_lane_reward])
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn shares_reward(&self) -> bool {
        true
    }

    fn is_over(&self, world: &World) -> bool {
        world.agents().iter().any(|&i| world.traffic.vehicles.crashed[i])
            || world.agents().iter().all(|&i| self.has_succeeded(world, i))
    }

    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i] || self.has_succeeded(world, i)
    }

    fn has_goal(&self) -> bool {
        true
    }

    /// Past the ramp.
    fn has_succeeded(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.x[i] > self.end && !world.traffic.vehicles.crashed[i]
    }
}
