//! Invariants of traffic, whatever happens on the road.

use std::sync::Arc;

use fastrl_core::env::Actions;
use fastrl_core::traffic::Traffic;
use fastrl_core::traffic::action::{ActionType, Continuous, Span};
use fastrl_core::traffic::controller::Meta;
use fastrl_core::traffic::highway::{Config, Highway};
use fastrl_core::traffic::lane::Lane;
use fastrl_core::traffic::map::RoadMap;
use fastrl_core::traffic::observation::{Column, Feature, Kinematics, Limits, Observation};
use fastrl_core::traffic::obstacle::Obstacle;
use fastrl_core::traffic::road::Road;
use fastrl_core::traffic::vehicles::{Driver, MAX_SPEED, Vehicle};
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};
use proptest::prelude::*;

const DRIVERS: [Driver; 6] =
    [Driver::Meta, Driver::Manual, Driver::Idm, Driver::Linear, Driver::Aggressive, Driver::Defensive];
const METAS: [Meta; 5] = [Meta::LaneLeft, Meta::Idle, Meta::LaneRight, Meta::Faster, Meta::Slower];
const LANES: usize = 3;
const FRAME: f64 = 1.0 / 15.0;

/// Driver, metres, lane, m/s.
type Placed = (usize, f64, usize, f64);

fn placed() -> impl Strategy<Value = Vec<Placed>> {
    prop::collection::vec((0..DRIVERS.len(), 0.0..200.0, 0..LANES + 1, 0.0..MAX_SPEED), 1..16)
}

/// Three lanes, and a fourth that begins and ends on the way, with an obstacle at its end.
fn traffic(placed: &[Placed]) -> Traffic {
    let mut lanes = Road::straight(LANES, 1000.0, 30.0).lanes().to_vec();
    lanes.push(Lane::straight(50.0, 180.0, 12.0));
    let mut traffic = Traffic::new(Road::new(lanes, vec![Obstacle::new(180.0, 12.0)]), vec![20.0, 25.0, 30.0]);
    for &(driver, x, lane, speed) in placed {
        traffic.add(&Vehicle::new(DRIVERS[driver], x, lane as f64 * 4.0, speed));
    }
    traffic
}

/// Commands the vehicles that are driven from outside.
fn command(traffic: &mut Traffic, choice: u8) {
    for i in 0..traffic.vehicles.len() {
        let choice = usize::from(choice) + i;
        match traffic.vehicles.driver[i] {
            Driver::Meta => traffic.command(i, METAS[choice % 5]),
            Driver::Manual => traffic.drive(i, (choice % 11) as f64 - 5.0, (choice % 7) as f64 * 0.05 - 0.15),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn numbers_stay_numbers_and_speeds_bounded(
        placed in placed(),
        choices in prop::collection::vec(0u8..77, 8),
        dt in prop::sample::select(vec![0.2, FRAME]),
    ) {
        let mut traffic = traffic(&placed);
        let drivers = traffic.vehicles.driver.clone();
        for choice in choices {
            command(&mut traffic, choice);
            for _ in 0..10 {
                traffic.frame(dt);
            }
            let v = &traffic.vehicles;
            prop_assert_eq!(&v.driver, &drivers, "vehicles came or went");
            for i in 0..v.len() {
                let numbers = [v.x[i], v.y[i], v.heading[i], v.cos[i], v.sin[i], v.acceleration[i], v.slip[i]];
                prop_assert!(numbers.iter().all(|number| number.is_finite()), "vehicle {}: {:?}", i, numbers);
                // No vehicle speeds up by more than 6 m/s² near the limit, which brakes from the next frame on.
                prop_assert!(v.speed[i].abs() <= MAX_SPEED + 6.0 * dt, "vehicle {}: {} m/s", i, v.speed[i]);
                prop_assert!((v.cos[i].hypot(v.sin[i]) - 1.0).abs() < 1e-12);
                prop_assert!(v.lane[i] <= LANES && v.target_lane[i] <= LANES);
            }
        }
    }

    /// A vehicle that changes places with another one in its lane from frame to frame has crashed.
    #[test]
    fn vehicles_do_not_pass_through_each_other(placed in placed(), choices in prop::collection::vec(0u8..77, 12)) {
        let mut traffic = traffic(&placed);
        for choice in choices {
            command(&mut traffic, choice);
            for _ in 0..5 {
                let before = traffic.vehicles.clone();
                traffic.frame(FRAME);
                let now = &traffic.vehicles;
                for i in 0..now.len() {
                    for j in 0..i {
                        let in_line = |v: &fastrl_core::traffic::vehicles::Vehicles| {
                            (v.y[i] - v.y[j]).abs() < 1.5 && v.heading[i].abs() < 0.1 && v.heading[j].abs() < 0.1
                        };
                        if in_line(&before) && in_line(now) && (before.x[i] < before.x[j]) != (now.x[i] < now.x[j]) {
                            prop_assert!(now.crashed[i] && now.crashed[j], "vehicles {} and {}", i, j);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn removing_a_vehicle_leaves_the_others(placed in placed(), choice in 0u8..77, which in 0usize..16) {
        let mut traffic = traffic(&placed);
        command(&mut traffic, choice);
        traffic.frame(FRAME);
        let mut left = traffic.vehicles.clone();
        let which = which % left.len();
        traffic.remove(which);
        left.remove(which);
        prop_assert_eq!(&traffic.vehicles, &left);
        traffic.frame(FRAME);
        prop_assert_eq!(traffic.vehicles.len(), left.len());
    }
}

fn highway(driver: Driver, numbers: bool, all_collisions: bool) -> Config {
    let within = |limit: f64| Some(Limits { low: -limit, high: limit });
    let columns = [(Feature::X, within(200.0)), (Feature::Y, within(12.0)), (Feature::Vx, None), (Feature::SinH, None)];
    let meta = ActionType::Meta { longitudinal: true, lateral: true };
    let continuous = Continuous {
        longitudinal: true,
        lateral: true,
        acceleration: Span { low: -5.0, high: 5.0, double: false },
        steering: Span { low: -0.1, high: 0.1, double: false },
        clip: true,
        speed: None,
        dynamical: false,
    };
    Config {
        lanes: 3,
        vehicles: 12,
        controlled: 2,
        driver,
        initial_lane: None,
        simulation_frequency: 5.0,
        policy_frequency: 1.0,
        frames: 5,
        duration: 12.0,
        ego_spacing: 1.5,
        density: 1.5,
        collision_reward: -1.0,
        right_lane_reward: 0.1,
        high_speed_reward: 0.4,
        reward_speed_range: [20.0, 30.0],
        normalize_reward: true,
        offroad_terminal: true,
        all_collisions,
        target_speeds: vec![20.0, 25.0, 30.0],
        observation: Observation::Kinematics(Kinematics {
            columns: columns.into_iter().map(|(feature, limits)| Column { feature, limits }).collect(),
            rows: 5,
            absolute: false,
            shuffled: true,
            clip: true,
            see_behind: true,
            intentions: false,
            obstacles: true,
            along: None,
        }),
        action: if numbers { ActionType::Continuous(continuous) } else { meta },
    }
}

/// Highways with what a step of theirs fills.
struct Batch {
    venv: VecEnv<Highway>,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    flags: [Vec<u8>; 2],
}

impl Batch {
    fn new(config: &Config, envs: usize, threads: usize) -> Self {
        let config = Arc::new(config.clone());
        let roads = (0..envs).map(|_| Highway::new(config.clone())).collect();
        let mut venv = VecEnv::new(roads, Autoreset::NextStep, threads);
        let mut obs = vec![0.0; envs * venv.obs_len()];
        let seeds: Vec<u64> = (0..envs as u64).collect();
        venv.reset(Some(&seeds), None, &mut obs);
        Self { venv, obs, rewards: vec![0.0; envs], flags: [vec![0; envs], vec![0; envs]] }
    }

    /// One step; the actions follow from `choice`.
    fn step(&mut self, choice: u64) {
        let envs = self.rewards.len() as u64;
        let numbers: Vec<f32> = (0..2 * envs).map(|i| ((choice + i * 7) % 21) as f32 / 10.0 - 1.0).collect();
        let indices: Vec<i64> = (0..envs).map(|i| ((choice + i * 3) % 5) as i64).collect();
        let meta = matches!(self.venv.env(0).config().action, ActionType::Meta { .. });
        let [terminated, truncated] = &mut self.flags;
        let rows = Rows { obs: &mut self.obs, rewards: &mut self.rewards, terminated, truncated, final_obs: None };
        let actions = if meta { Actions::Discrete(&indices) } else { Actions::Box(&numbers) };
        self.venv.step(actions, rows).unwrap();
    }

    fn seen(&self) -> (Vec<u32>, Vec<u64>, [Vec<u8>; 2]) {
        let obs = self.obs.iter().map(|x| x.to_bits()).collect();
        (obs, self.rewards.iter().map(|x| x.to_bits()).collect(), self.flags.clone())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn threads_make_no_difference(driver in 2usize..6, numbers: bool, all: bool, choices in prop::collection::vec(0u64..1000, 20)) {
        let config = highway(DRIVERS[driver], numbers, all);
        let (mut one, mut three) = (Batch::new(&config, 9, 1), Batch::new(&config, 9, 3));
        for choice in choices {
            one.step(choice);
            three.step(choice);
            prop_assert_eq!(one.seen(), three.seen());
            prop_assert!(one.rewards.iter().all(|r| (0.0..=1.0).contains(r)));
        }
    }

    #[test]
    fn restored_is_never_stopped(driver in 2usize..6, numbers: bool, all: bool, choices in prop::collection::vec(0u64..1000, 20)) {
        let config = highway(DRIVERS[driver], numbers, all);
        let (mut steady, mut other) = (Batch::new(&config, 4, 1), Batch::new(&config, 4, 1));
        for (i, &choice) in choices.iter().enumerate() {
            if i % 4 == 3 {
                // The other one has gone elsewhere meanwhile.
                other.step(choice + 1);
                other.venv.load(&steady.venv.save().unwrap()).unwrap();
            } else if i > 3 {
                other.step(choice);
            }
            if i % 4 != 3 {
                steady.step(choice);
            }
            if i > 3 && i % 4 != 3 {
                prop_assert_eq!(steady.seen(), other.seen());
            }
        }
    }
}

/// Controlled vehicles come evenly among the others, each with a little more room before it.
#[test]
fn several_controlled_vehicles_share_the_others_out() {
    let mut config = highway(Driver::Idm, false, true);
    (config.vehicles, config.controlled) = (11, 3);
    let batch = Batch::new(&config, 1, 1);
    let drivers = &batch.venv.env(0).episode().traffic.vehicles.driver;
    let places: Vec<usize> = (0..drivers.len()).filter(|&i| drivers[i] == Driver::Meta).collect();
    assert_eq!((drivers.len(), places), (14, vec![0, 5, 10]));
}
