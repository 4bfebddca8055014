//! `cargo bench`: the CAGE 2 simulator on one core, observations and resets included.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fastrl_core::cage2::red_agents::RedKind;
use fastrl_core::cage2::{Cage2, Config};
use fastrl_core::env::Actions;
use fastrl_core::rng::Rng;
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};

/// Number of steps for which random actions are drawn beforehand; more than an episode has.
const DRAWN_STEPS: usize = 128;

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("cage2 steps, one thread");
    for red in [RedKind::BLine, RedKind::Meander] {
        for envs in [1, 64, 4096] {
            let config = Arc::new(Config { red: vec![(red, 1.0)], ..Config::default() });
            let games = (0..envs).map(|_| Cage2::new(config.clone())).collect();
            let mut venv = VecEnv::new(games, Autoreset::SameStep, 1);
            let seeds: Vec<u64> = (0..envs as u64).collect();
            let mut obs = vec![0.0f32; envs * venv.obs_len()];
            let mut final_obs = obs.clone();
            let (mut rewards, mut terminated, mut truncated) = (vec![0.0f32; envs], vec![0; envs], vec![0; envs]);
            venv.reset(Some(&seeds), None, &mut obs);
            let mut rng = Rng::new(0);
            let actions: Vec<i64> = (0..DRAWN_STEPS * envs).map(|_| i64::from(rng.below(145))).collect();
            let mut round = 0;
            group.throughput(Throughput::Elements(envs as u64));
            group.bench_function(BenchmarkId::new(RedKind::NAMES[red as usize], envs), |b| {
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
