//! `cargo bench`: the CAGE 4 simulator of five agents on one core, observations and resets included.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fastrl_core::cage4::scenario::NUM_BLUE;
use fastrl_core::cage4::{Cage4, Config};
use fastrl_core::env::{Actions, Env};
use fastrl_core::rng::Rng;
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};

/// Number of steps for which random actions are drawn beforehand.
const DRAWN_STEPS: usize = 64;

/// An action that each row's mask allows.
fn allowed_actions(masks: &[u8], mask_len: usize, rng: &mut Rng) -> Vec<i64> {
    let allowed = |mask: &[u8]| -> Vec<usize> { (0..mask_len).filter(|&action| mask[action] != 0).collect() };
    let mut draw = |actions: Vec<usize>| actions[rng.below(actions.len() as u32) as usize] as i64;
    masks.chunks_exact(mask_len).map(|mask| draw(allowed(mask))).collect()
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("cage4 steps, one thread");
    for (mode, numpy_random) in [("fast", false), ("numpy", true)] {
        for envs in [1, 1024] {
            let config = Arc::new(Config { numpy_random, ..Config::default() });
            let games = (0..envs).map(|_| Cage4::new(config.clone())).collect();
            let mut venv = VecEnv::new(games, Autoreset::SameStep, 1);
            let (rows, mask_len) = (envs * NUM_BLUE, venv.env(0).mask_len());
            let seeds: Vec<u64> = (0..envs as u64).collect();
            let mut obs = vec![0.0f32; rows * venv.obs_len()];
            let mut final_obs = obs.clone();
            let (mut rewards, mut terminated, mut truncated) = (vec![0.0f32; rows], vec![0; rows], vec![0; rows]);
            venv.reset(Some(&seeds), None, &mut obs);
            let mut masks = vec![0; rows * mask_len];
            venv.envs().zip(masks.chunks_exact_mut(NUM_BLUE * mask_len)).for_each(|(env, mask)| env.action_mask(mask));
            let mut rng = Rng::new(0);
            let actions: Vec<i64> =
                (0..DRAWN_STEPS).flat_map(|_| allowed_actions(&masks, mask_len, &mut rng)).collect();
            let mut round = 0;
            group.throughput(Throughput::Elements(envs as u64));
            group.bench_function(BenchmarkId::new(mode, envs), |b| {
                b.iter(|| {
                    round = (round + 1) % DRAWN_STEPS;
                    let rows_of_step = Rows {
                        obs: &mut obs,
                        rewards: &mut rewards,
                        terminated: &mut terminated,
                        truncated: &mut truncated,
                        final_obs: Some(&mut final_obs),
                    };
                    venv.step(Actions::Discrete(&actions[round * rows..(round + 1) * rows]), rows_of_step)
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
