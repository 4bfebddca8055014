//! Invariants of the ring road for all options and all actions of agents.

use std::sync::Arc;

use fastrl_core::env::{Actions, AgentRows, Env};
use fastrl_core::traffic::ring::config::{Config, Drive};
use fastrl_core::traffic::ring::env::Ring;
use fastrl_core::traffic::ring::platoon::Platoon;
use fastrl_core::traffic::ring::sumo_idm::{Driver, Idm, Integrator};
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};
use proptest::prelude::*;

fn configs() -> impl Strategy<Value = Config> {
    let shape = (2usize..40, 1usize..6, 0.0..60.0, 1.0..150.0, any::<bool>());
    let time = (prop::sample::select(vec![0.1, 0.25, 0.5, 1.0]), 1u32..5, 0u32..40, 1u32..80);
    let drive = (prop::sample::select(Drive::ALL.to_vec()), any::<bool>(), 0.0..1.0, prop::bool::ANY);
    (shape, time, drive).prop_map(
        |((n, agents, bunching, room, ballistic), (dt, sims, warmup, horizon), (drive, safe, noise, remembers))| {
            let low = n as f64 * 7.0 + bunching + room;
            Config {
                num_vehicles: n,
                num_agents: agents.min(n),
                ring_length: (low, low * 1.2),
                dt,
                integrator: if ballistic { Integrator::Ballistic } else { Integrator::Euler },
                sims_per_step: sims,
                warmup_steps: warmup,
                horizon,
                noise,
                bunching,
                memory: if remembers { 15.0 } else { 0.0 },
                safe_speed: safe,
                drive,
                ..Config::default()
            }
        },
    )
}

/// Steps a lone environment with the actions that `choose` gives, until its end. Returns whether it collided.
fn play(ring: &mut Ring, mut choose: impl FnMut() -> f32, mut look: impl FnMut(&Ring, &[f32], f32)) -> bool {
    let agents = ring.num_agents();
    let mut obs = vec![0.0; agents * Env::obs_len(ring)];
    let mut rewards = vec![0.0f32; agents];
    let (mut terminated, mut truncated, mut alive) = (vec![0; agents], vec![0; agents], vec![0; agents]);
    Env::reset(ring, &mut obs, &mut alive);
    assert!(alive.iter().all(|&a| a == 1));
    look(ring, &obs, 0.0);
    loop {
        let actions: Vec<f32> = (0..agents).map(|_| choose()).collect();
        Env::check(ring, Actions::Box(&actions)).unwrap();
        let rows = AgentRows {
            obs: &mut obs,
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            alive: &mut alive,
        };
        let ended = Env::step(ring, Actions::Box(&actions), rows);
        look(ring, &obs, rewards[0]);
        assert!(rewards.iter().all(|r| *r == rewards[0]));
        for k in 0..agents {
            assert_eq!((terminated[k], truncated[k]), (terminated[0], truncated[0]));
            assert_eq!(alive[k], u8::from(!ended));
        }
        if ended {
            assert_eq!(terminated[0] + truncated[0], 1);
            return terminated[0] == 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn vehicles_stay_in_order_on_their_ring_and_numbers_stay_numbers(
        config in configs(), seed: u64, moods in prop::collection::vec(-1.0f32..=1.0, 1..20),
    ) {
        config.check().unwrap();
        let (dt, horizon, safe) = (config.dt, config.horizon, config.safe_speed);
        let (shortest, longest) = config.ring_length;
        let mut ring = Ring::new(Arc::new(config));
        Env::seed(&mut ring, seed);
        let mut turn = 0;
        let mut steps = 0;
        let collided = play(
            &mut ring,
            || { turn += 1; moods[turn % moods.len()] },
            |ring, obs, reward| {
                steps += 1;
                let platoon = ring.platoon();
                let length = ring.ring_length();
                assert!((shortest..=longest).contains(&length));
                assert!(obs.iter().all(|x| x.is_finite()) && reward.is_finite());
                assert!(platoon.v().iter().all(|v| (0.0..=30.0).contains(v)), "{:?}", platoon.v());
                // No vehicle leaves or comes: the distances add up to the ring, and no vehicle is beyond its end.
                let round: f64 = (0..platoon.len()).map(|i| platoon.distance(i)).sum();
                assert!((round - length).abs() < 1e-6, "{round} {length}");
                assert!(platoon.x()[0] < length && platoon.acceleration().iter().all(|a| a.is_finite()));
            },
        );
        let (finished, last) = ring.account();
        let last = *last.unwrap();
        prop_assert_eq!(finished, 1);
        prop_assert_eq!((last.collided, last.length as usize), (collided, steps - 1));
        prop_assert_eq!(collided, ring.platoon().smallest_gap(5.0) < 0.0, "no passing through unnoticed");
        prop_assert!(collided || last.length == horizon);
        // Agents do not collide while SUMO keeps the distance and steps are as long as in Flow.
        prop_assert!(!(collided && safe && dt < 0.2));
    }

    #[test]
    fn platoons_keep_their_order_on_open_roads(
        gaps in prop::collection::vec(2.0..40.0f64, 1..30), speeds in prop::collection::vec(0.0..6.0f64, 31),
        ballistic: bool,
    ) {
        let mut x = vec![0.0];
        gaps.iter().for_each(|gap| x.push(x.last().unwrap() + 5.0 + gap));
        let v = speeds[..x.len()].to_vec();
        let mut platoon = Platoon::new(None, x, v, 5.0).unwrap();
        let integrator = if ballistic { Integrator::Ballistic } else { Integrator::Euler };
        let driver = Driver::new(Idm::HUMAN, 0.1, integrator);
        for _ in 0..2000 {
            platoon.plan(&driver);
            platoon.advance(&driver);
            prop_assert!(platoon.smallest_gap(5.0) > 0.0);
            prop_assert!(platoon.v().iter().all(|v| (0.0..=30.0).contains(v)));
        }
    }
}

fn small() -> Arc<Config> {
    Arc::new(Config { num_agents: 3, warmup_steps: 20, horizon: 25, memory: 10.0, ..Config::default() })
}

/// Steps environments by a rule that depends on what they show; all that is written, as bits.
fn trajectory(venv: &mut VecEnv<Ring>, obs: &mut [f32], steps: usize) -> Vec<u32> {
    let rows = venv.num_envs() * venv.num_agents();
    let mut rewards = vec![0.0f32; rows];
    let (mut terminated, mut truncated) = (vec![0; rows], vec![0; rows]);
    let mut seen = Vec::new();
    for _ in 0..steps {
        let actions: Vec<f32> = obs.chunks(4).map(|row| (row[1] * 5.0).clamp(-1.0, 1.0)).collect();
        let fill = Rows {
            obs: &mut *obs,
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: None,
        };
        venv.step(Actions::Box(&actions), fill).unwrap();
        seen.extend(obs.iter().chain(&rewards).map(|x| x.to_bits()));
        seen.extend(truncated.iter().map(|&t| u32::from(t)));
    }
    seen
}

fn rings(threads: usize) -> (VecEnv<Ring>, Vec<f32>) {
    let envs = (0..70).map(|_| Ring::new(small())).collect();
    let mut venv = VecEnv::new(envs, Autoreset::SameStep, threads);
    let mut obs = vec![0.0; 70 * 3 * 4];
    let seeds: Vec<u64> = (0..70).collect();
    venv.reset(Some(&seeds), None, &mut obs);
    (venv, obs)
}

#[test]
fn any_number_of_threads_gives_the_same() {
    let (mut alone, mut obs) = rings(1);
    let expected = trajectory(&mut alone, &mut obs, 60);
    for threads in [2, 3, 4] {
        let (mut venv, mut obs) = rings(threads);
        assert!(trajectory(&mut venv, &mut obs, 60) == expected, "{threads} threads");
    }
}

#[test]
fn a_restored_state_continues_as_the_original() {
    for steps in [0, 7, 25, 40] {
        let (mut first, mut obs) = rings(1);
        trajectory(&mut first, &mut obs, steps);
        let (saved, mut at) = (first.save().unwrap(), obs.clone());
        let expected = trajectory(&mut first, &mut obs, 60);
        let (mut second, _) = rings(1);
        second.load(&saved).unwrap();
        assert!(trajectory(&mut second, &mut at, 60) == expected, "after {steps} steps");
    }
}

#[test]
fn a_state_of_other_options_is_refused() {
    let (venv, _) = rings(1);
    let other = Arc::new(Config { noise: 0.1, ..(*small()).clone() });
    let envs = (0..70).map(|_| Ring::new(other.clone())).collect();
    let mut other = VecEnv::new(envs, Autoreset::SameStep, 1);
    assert!(other.load(&venv.save().unwrap()).unwrap_err().to_string().contains("noise"));
}

#[test]
fn an_agent_that_races_without_sumo_s_care_collides_and_the_world_ends() {
    let config = Config { safe_speed: false, warmup_steps: 0, bunching: 0.0, ..Config::default() };
    let mut ring = Ring::new(Arc::new(config));
    Env::seed(&mut ring, 1);
    let mut last = f32::NAN;
    assert!(play(&mut ring, || 1.0, |_, _, reward| last = reward));
    assert_eq!(last, 0.0);
    let episode = ring.account().1.unwrap();
    assert!(episode.crashed == 1 && episode.min_ttc < 1.0, "{episode:?}");
}

#[test]
fn impossible_actions_are_refused_with_the_agent_s_number() {
    let ring = Ring::new(small());
    for wrong in [f32::NAN, f32::INFINITY, 1.001, -2.0] {
        let refused = Env::check(&ring, Actions::Box(&[0.0, wrong, 0.0])).unwrap_err();
        assert!(refused.agent == 1 && refused.expected.contains("-1 to 1"), "{refused:?}");
    }
    assert!(Env::check(&ring, Actions::Box(&[-1.0, 1.0, 0.5])).is_ok());
}
