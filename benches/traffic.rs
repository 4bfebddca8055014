//! `cargo bench --bench traffic`: highways on one core, observations and resets included.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fastrl_core::env::Actions;
use fastrl_core::rng::Rng;
use fastrl_core::traffic::action::ActionType;
use fastrl_core::traffic::highway::{Config, Highway};
use fastrl_core::traffic::observation::{Column, Feature, Kinematics, Limits, Observation};
use fastrl_core::traffic::vehicles::Driver;
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};

/// Number of steps for which actions are drawn beforehand; more than an episode has.
const DRAWN_STEPS: usize = 64;

/// `highway-v0`, or `highway-fast-v0`.
fn config(fast: bool) -> Config {
    let lanes = if fast { 3 } else { 4 };
    let within = |limit: f64| Some(Limits { low: -limit, high: limit });
    let columns = [
        (Feature::Presence, None),
        (Feature::X, within(200.0)),
        (Feature::Y, within(4.0 * f64::from(lanes))),
        (Feature::Vx, within(80.0)),
        (Feature::Vy, within(80.0)),
    ];
    Config {
        lanes: lanes as usize,
        vehicles: if fast { 20 } else { 50 },
        controlled: 1,
        driver: Driver::Idm,
        initial_lane: None,
        simulation_frequency: if fast { 5.0 } else { 15.0 },
        policy_frequency: 1.0,
        frames: if fast { 5 } else { 15 },
        duration: if fast { 30.0 } else { 40.0 },
        ego_spacing: if fast { 1.5 } else { 2.0 },
        density: 1.0,
        collision_reward: -1.0,
        right_lane_reward: 0.1,
        high_speed_reward: 0.4,
        reward_speed_range: [20.0, 30.0],
        normalize_reward: true,
        offroad_terminal: false,
        all_collisions: !fast,
        target_speeds: vec![20.0, 25.0, 30.0],
        observation: Observation::Kinematics(Kinematics {
            columns: columns.into_iter().map(|(feature, limits)| Column { feature, limits }).collect(),
            rows: 5,
            absolute: false,
            shuffled: false,
            clip: true,
            see_behind: false,
            intentions: false,
            obstacles: true,
            along: None,
        }),
        action: ActionType::Meta { longitudinal: true, lateral: true },
    }
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("highway steps, one thread");
    for (id, fast) in [("highway-v0", false), ("highway-fast-v0", true)] {
        // Random actions crash early; an idle car drives on to the end.
        for (policy, idle) in [("random", false), ("idle", true)] {
            let envs = 64;
            let config = Arc::new(config(fast));
            let roads = (0..envs).map(|_| Highway::new(config.clone())).collect();
            let mut venv = VecEnv::new(roads, Autoreset::SameStep, 1);
            let seeds: Vec<u64> = (0..envs as u64).collect();
            let mut obs = vec![0.0f32; envs * venv.obs_len()];
            let mut final_obs = obs.clone();
            let (mut rewards, mut terminated, mut truncated) = (vec![0.0f32; envs], vec![0; envs], vec![0; envs]);
            venv.reset(Some(&seeds), None, &mut obs);
            let mut rng = Rng::new(0);
            let actions: Vec<i64> =
                (0..DRAWN_STEPS * envs).map(|_| if idle { 1 } else { i64::from(rng.below(5)) }).collect();
            let mut round = 0;
            group.throughput(Throughput::Elements(envs as u64));
            group.bench_function(BenchmarkId::new(id, policy), |b| {
                b.iter(|| {
                    round = (round + 1) % DRAWN_STEPS;
                    let rows = Rows {
                        obs: &mut obs,
                        rewards: &mut rewards,
                        terminated: &mut terminated,
                        truncated: &mut truncated,
                        final_obs: Some(&mut final_obs),
                    };
                    venv.step(Actions::Discrete(&actions[round * envs..(round + 1) * envs]), rows)
                        .expect("actions are in range");
                    black_box(&obs);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
