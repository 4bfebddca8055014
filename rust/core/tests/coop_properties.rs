//! Properties of the cooperative environments that hold for any play, and a slow model of what agents see and get.

use std::f64::consts::PI;
use std::sync::Arc;

use fastrl_core::env::{Actions, AgentRows, Env};
use fastrl_core::rng::Rng;
use fastrl_core::traffic::coop::Coop;
use fastrl_core::traffic::coop::config::{ActionType, Config, Difficulty, Task};
use fastrl_core::traffic::metrics::MAX_TTC;
use fastrl_core::traffic::scene::Scenic;
use fastrl_core::vec_env::{Autoreset, Rows, VecEnv};
use proptest::prelude::*;

const AGENTS: usize = 7;

fn any_config() -> impl Strategy<Value = Config> {
    let task = prop_oneof![Just(Task::Highway), Just(Task::Merge)];
    let actions = prop_oneof![Just(ActionType::Meta), Just(ActionType::Continuous)];
    (task, actions, 1usize..5, 0usize..16, prop_oneof![Just(1u32), Just(5)], 0.0..0.99).prop_map(
        |(task, actions, lanes, background, policy_frequency, cooperation)| Config {
            actions,
            lanes,
            max_agents: AGENTS,
            background,
            policy_frequency,
            cooperation,
            duration: 15.0,
            ..Config::new(task)
        },
    )
}

fn any_difficulty() -> impl Strategy<Value = Difficulty> {
    (1..=AGENTS, 0.0..3.0).prop_map(|(agents, density)| Difficulty { agents, density })
}

/// Random actions of all rows, the dead ones' impossible. Half of the time nothing is done, so that some live long.
struct Player {
    rng: Rng,
    meta: Vec<i64>,
    numbers: Vec<f32>,
}

impl Player {
    fn new(seed: u64, rows: usize) -> Self {
        Self { rng: Rng::new(seed), meta: vec![0; rows], numbers: vec![0.0; 2 * rows] }
    }

    fn draw(&mut self, config: &Config, alive: &[u8]) -> Actions<'_> {
        let idle = self.rng.below(2) == 0;
        for (row, &lives) in alive.iter().enumerate() {
            let lives = lives == 1;
            self.meta[row] = if !lives {
                99
            } else if idle {
                1
            } else {
                i64::from(self.rng.below(5))
            };
            for (number, size) in self.numbers[2 * row..2 * row + 2].iter_mut().zip([1.0, 0.2]) {
                let x = (2.0 * self.rng.unit() - 1.0) * if idle { 0.02 } else { size };
                *number = if lives { x as f32 } else { f32::NAN };
            }
        }
        match config.actions {
            ActionType::Meta => Actions::Discrete(&self.meta),
            ActionType::Continuous => Actions::Box(&self.numbers),
        }
    }
}

/// One environment with the arrays of its rows.
struct Played {
    world: Coop,
    player: Player,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    alive: Vec<u8>,
}

impl Played {
    fn new(config: &Config, difficulty: Difficulty, seed: u64) -> Self {
        let mut world = Coop::new(Arc::new(config.clone()), difficulty);
        world.seed(seed);
        let mut obs = vec![9.0; AGENTS * world.obs_len()];
        let mut alive = vec![9; AGENTS];
        world.reset(&mut obs, &mut alive);
        Self {
            world,
            player: Player::new(seed ^ 1, AGENTS),
            obs,
            rewards: vec![9.0; AGENTS],
            terminated: vec![9; AGENTS],
            truncated: vec![9; AGENTS],
            alive,
        }
    }

    fn step(&mut self) -> bool {
        let actions = self.player.draw(&self.world.config().clone(), &self.alive);
        assert!(self.world.check(actions).is_ok());
        let rows = AgentRows {
            obs: &mut self.obs,
            rewards: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            alive: &mut self.alive,
        };
        self.world.step(actions, rows)
    }

    fn row(&self, row: usize) -> &[f32] {
        let len = self.world.obs_len();
        &self.obs[row * len..(row + 1) * len]
    }
}

/// The lane whose middle is nearest, the side offset from it.
fn lane_of(config: &Config, x: f64, y: f64) -> (usize, f64) {
    let ends = |l: usize| if l == config.lanes { config.ramp_end().unwrap() } else { f64::INFINITY };
    let far = |l: usize| (y - 4.0 * l as f64).abs() + (x - ends(l)).max(0.0);
    let lane = (0..config.all_lanes()).min_by(|&a, &b| far(a).total_cmp(&far(b))).unwrap();
    (lane, y - 4.0 * lane as f64)
}

fn wrapped(angle: f64) -> f64 {
    (angle + PI).rem_euclid(2.0 * PI) - PI
}

/// The observation of the agent of vehicle `me`, by sorting all vehicles.
fn slow_observation(world: &Coop, me: usize) -> Vec<f32> {
    let (config, v) = (world.config(), &world.traffic().vehicles);
    let (lane, lateral) = lane_of(config, v.x[me], v.y[me]);
    let mut out =
        vec![lateral / 2.0, wrapped(v.heading[me]) / (PI / 2.0), v.speed[me] / 40.0, v.target_speed[me] / 40.0];
    out.extend((0..config.all_lanes()).map(|l| if l == lane { 1.0 } else { 0.0 }));
    out.push(config.ramp_end().map_or(1.0, |end| (end - v.x[me]) / 300.0));
    let distance = |i: usize| (v.x[i] - v.x[me]).hypot(v.y[i] - v.y[me]);
    let mut others: Vec<usize> = (0..v.x.len()).filter(|&i| i != me && distance(i) < 150.0).collect();
    others.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    for slot in 0..8 {
        let Some(&i) = others.get(slot) else {
            out.extend([0.0; 7]);
            continue;
        };
        out.extend([
            1.0,
            (v.x[i] - v.x[me]) / 150.0,
            (v.y[i] - v.y[me]) / 12.0,
            (v.speed[i] * v.heading[i].cos() - v.speed[me] * v.heading[me].cos()) / 40.0,
            (v.speed[i] * v.heading[i].sin() - v.speed[me] * v.heading[me].sin()) / 40.0,
            v.heading[i].cos(),
            v.heading[i].sin(),
        ]);
    }
    out.into_iter().map(|x| x.clamp(-1.0, 1.0) as f32).collect()
}

/// The agent's own reward of vehicle `me` in the last step.
fn slow_reward(world: &Coop, me: usize) -> (f64, bool, bool) {
    let (config, v) = (world.config(), &world.traffic().vehicles);
    let (lane, lateral) = lane_of(config, v.x[me], v.y[me]);
    let crashed = v.crashed[me] || lateral.abs() > 6.0;
    let arrived = !crashed && config.task == Task::Merge && v.x[me] >= config.ramp_end().unwrap() + 150.0;
    let speed = v.speed[me] * wrapped(v.heading[me]).cos();
    let fast = if speed < 10.0 { 0.0 } else { ((speed - 10.0) / 20.0).min(1.0) };
    let right = if lane >= config.lanes || config.lanes == 1 { 0.0 } else { lane as f64 / (config.lanes - 1) as f64 };
    let road = if lateral.abs() <= 2.0 { 0.4 * fast + config.weights.lane * right } else { 0.0 };
    (road - f64::from(u8::from(crashed)) + f64::from(u8::from(arrived)), crashed, arrived)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn agents_see_and_get_what_the_slow_model_says(
        config in any_config(), difficulty in any_difficulty(), seed: u64,
    ) {
        let mut played = Played::new(&config, difficulty, seed);
        let mut before: Vec<Option<usize>> = played.world.drivers().to_vec();
        let mut returns = 0.0;
        let (mut crashes, mut successes, mut steps, mut driven) = (0, 0, 0, 0);
        loop {
            for (row, driver) in played.world.drivers().iter().enumerate() {
                if let &Some(me) = driver {
                    let expected = slow_observation(&played.world, me);
                    for (i, (got, want)) in played.row(row).iter().zip(&expected).enumerate() {
                        prop_assert!((got - want).abs() < 1e-5, "row {} number {}: {} {}", row, i, got, want);
                    }
                }
            }
            let count = played.world.traffic().vehicles.x.len();
            let ended = played.step();
            steps += 1;
            driven += before.iter().flatten().count();
            // Vehicles leave before the step, and keep their indices unless one with a smaller index left.
            if played.world.traffic().vehicles.x.len() == count {
                let acting: Vec<(usize, usize)> =
                    before.iter().enumerate().filter_map(|(row, d)| d.map(|me| (row, me))).collect();
                let own: Vec<(f64, bool, bool)> = acting.iter().map(|&(_, me)| slow_reward(&played.world, me)).collect();
                let mean = own.iter().map(|o| o.0).sum::<f64>() / own.len() as f64;
                for (&(row, _), &(own, crashed, arrived)) in acting.iter().zip(&own) {
                    let expected = own * (1.0 - config.cooperation) + mean * config.cooperation;
                    prop_assert!((played.rewards[row] - expected).abs() < 1e-9, "{} {}", played.rewards[row], expected);
                    prop_assert_eq!(played.terminated[row] == 1, crashed || arrived);
                    let late = steps == config.steps();
                    prop_assert_eq!(played.truncated[row] == 1, late && !crashed && !arrived);
                    crashes += usize::from(crashed);
                    successes += usize::from(arrived || (late && !crashed && config.task == Task::Highway));
                }
            } else {
                // Numbers have changed: an agent's own reward, taken out of the mix, tells a crash (-1 and at most
                // 0.45) from an arrival (1 at least). The mean of the mixed rewards is that of the own ones.
                let acted = before.iter().flatten().count() as f64;
                let mean = played.rewards.iter().sum::<f64>() / acted;
                for (row, driver) in before.iter().enumerate() {
                    let (terminated, truncated) = (played.terminated[row] == 1, played.truncated[row] == 1);
                    if driver.is_some() && terminated {
                        let own = (played.rewards[row] - mean * config.cooperation) / (1.0 - config.cooperation);
                        let me_crashed = own < 0.0;
                        crashes += usize::from(me_crashed);
                        successes += usize::from(!me_crashed);
                    }
                    successes += usize::from(truncated && config.task == Task::Highway);
                }
            }
            returns += played.rewards.iter().sum::<f64>();
            before = played.world.drivers().to_vec();
            if ended {
                break;
            }
        }
        let last = played.world.state().last;
        let agents = difficulty.agents as f64;
        prop_assert_eq!(last.length, f64::from(steps));
        prop_assert!((last.return_mean - returns / agents).abs() < 1e-9);
        prop_assert_eq!(last.collision_rate, crashes as f64 / agents);
        prop_assert_eq!(last.success, successes as f64 / agents);
        let seconds = driven as f64 * config.period();
        prop_assert!((last.driving_time - seconds).abs() < 1e-9 * seconds);
        let has_arrived = config.task == Task::Merge && successes > 0;
        prop_assert_eq!(last.arrival_time > 0.0 && last.arrival_time <= f64::from(steps) * config.period(), has_arrived);
        prop_assert_eq!(last.min_ttc == 0.0, crashes > 0);
        prop_assert!((0.0..=MAX_TTC).contains(&last.min_ttc));
    }

    #[test]
    fn rows_that_do_not_live_stay_silent(config in any_config(), difficulty in any_difficulty(), seed: u64) {
        let mut played = Played::new(&config, difficulty, seed);
        for episode in 0..2 {
            let lives: Vec<u8> = (0..AGENTS).map(|row| u8::from(row < difficulty.agents)).collect();
            prop_assert_eq!(&played.alive, &lives);
            loop {
                let before = played.alive.clone();
                let ended = played.step();
                for (row, &lived) in before.iter().enumerate() {
                    let flags = played.terminated[row] + played.truncated[row];
                    prop_assert!(flags <= 1);
                    prop_assert!(played.row(row).iter().all(|x| (-1.0..=1.0).contains(x)));
                    if lived == 0 {
                        prop_assert!(flags == 0 && played.rewards[row] == 0.0);
                        prop_assert!(played.row(row).iter().all(|&x| x == 0.0));
                    }
                    prop_assert_eq!(played.alive[row], lived * (1 - flags), "a dead row lives again");
                }
                prop_assert_eq!(ended, played.alive.iter().all(|&a| a == 0));
                let mut obs = vec![0.0; played.obs.len()];
                let mut alive = vec![7; AGENTS];
                played.world.observe(&mut obs, &mut alive);
                prop_assert_eq!(&alive, &played.alive);
                for row in (0..AGENTS).filter(|&row| alive[row] == 1) {
                    let len = played.world.obs_len();
                    prop_assert_eq!(&obs[row * len..(row + 1) * len], played.row(row));
                }
                if ended {
                    break;
                }
            }
            prop_assert_eq!(played.world.state().finished, episode + 1);
            let Played { world, obs, alive, .. } = &mut played;
            world.reset(obs, alive);
        }
    }

    #[test]
    fn vehicles_are_conserved_and_finite(config in any_config(), difficulty in any_difficulty(), seed: u64) {
        let mut played = Played::new(&config, difficulty, seed);
        let start = difficulty.agents + difficulty.background(&config);
        prop_assert_eq!(played.world.traffic().vehicles.x.len(), start);
        // Steps for which each has lain there, in the order of the list.
        let mut lain = vec![0u32; start];
        let limit = 3 * config.policy_frequency;
        let mut arrived = vec![false; start];
        let mut numbers: Vec<u32> = (0..start as u32).collect();
        loop {
            let acting = played.world.drivers().to_vec();
            // The indices of agents decrease where a vehicle before them leaves.
            let leaves: Vec<bool> = lain.iter().zip(&arrived).map(|(&n, &a)| n >= limit || a).collect();
            let ended = played.step();
            let mut keep = leaves.iter().map(|l| !l);
            lain.retain(|_| keep.next().unwrap());
            let mut keep = leaves.iter().map(|l| !l);
            numbers.retain(|_| keep.next().unwrap());
            let scene = played.world.scene();
            prop_assert_eq!(&scene.cars.iter().map(|car| car.id).collect::<Vec<_>>(), &numbers);
            for car in &scene.cars {
                let row = Some(car.id).filter(|&id| (id as usize) < difficulty.agents);
                prop_assert_eq!(car.agent, row, "agents are known by their rows, dead ones too");
            }
            arrived = vec![false; lain.len()];
            let v = &played.world.traffic().vehicles;
            prop_assert_eq!(v.x.len(), lain.len());
            for (i, lain) in lain.iter_mut().enumerate() {
                *lain += u32::from(v.crashed[i]);
                for x in [v.x[i], v.y[i], v.heading[i], v.speed[i]] {
                    prop_assert!(x.is_finite());
                }
                prop_assert!(v.speed[i].abs() <= 45.0, "{}", v.speed[i]);
            }
            for (row, driver) in acting.iter().enumerate() {
                let Some(me) = *driver else { continue };
                let me = me - leaves[..me].iter().filter(|&&l| l).count();
                arrived[me] = played.terminated[row] == 1 && lain[me] == 0;
            }
            if ended {
                break;
            }
        }
    }

    #[test]
    fn vehicles_that_pass_through_each_other_have_crashed(
        config in any_config(), difficulty in any_difficulty(), seed: u64,
    ) {
        // Every step is a frame.
        let config = Config { policy_frequency: config.simulation_frequency, ..config };
        let mut played = Played::new(&config, difficulty, seed);
        loop {
            let before = played.world.traffic().vehicles.clone();
            let ended = played.step();
            let after = &played.world.traffic().vehicles;
            if after.x.len() == before.x.len() {
                for i in 0..after.x.len() {
                    for j in 0..i {
                        let swapped = (before.x[i] - before.x[j]) * (after.x[i] - after.x[j]) < 0.0;
                        let beside = |y: &[f64]| (y[i] - y[j]).abs() > 1.9;
                        if swapped && !beside(&before.y) && !beside(&after.y) {
                            prop_assert!(after.crashed[i] && after.crashed[j], "{} {}", i, j);
                        }
                    }
                }
            }
            if ended {
                break;
            }
        }
    }

    #[test]
    fn a_saved_world_has_the_same_future(
        config in any_config(), difficulty in any_difficulty(), seed: u64, before in 0usize..30, after in 1usize..40,
    ) {
        let mut venv = vec_env(&config, difficulty, 3, 1);
        let mut player = Player::new(seed, 3 * AGENTS);
        venv.reset(Some(&[seed, seed ^ 7, 3]), None, &mut vec![0.0; 3 * AGENTS * venv.obs_len()]);
        for _ in 0..before {
            step(&mut venv, &config, &mut player);
        }
        let saved = venv.save().unwrap();
        let other_difficulty = Difficulty { agents: 1, density: 0.5 };
        let mut restored = vec_env(&config, other_difficulty, 3, 1);
        restored.load(&saved).unwrap();
        let mut same = Player { rng: player.rng.clone(), ..Player::new(0, 3 * AGENTS) };
        for _ in 0..after {
            prop_assert_eq!(step(&mut venv, &config, &mut player), step(&mut restored, &config, &mut same));
        }
        prop_assert_eq!(venv.save().unwrap(), restored.save().unwrap());
    }

    #[test]
    fn threads_change_nothing(config in any_config(), difficulty in any_difficulty(), seed: u64) {
        let seeds: Vec<u64> = (0..13).map(|i| seed.wrapping_add(i)).collect();
        let mut runs = Vec::new();
        for threads in [1, 2, 3] {
            let mut venv = vec_env(&config, difficulty, 13, threads);
            venv.reset(Some(&seeds), None, &mut vec![0.0; 13 * AGENTS * venv.obs_len()]);
            let mut player = Player::new(seed, 13 * AGENTS);
            runs.push((0..25).map(|_| step(&mut venv, &config, &mut player)).collect::<Vec<_>>());
        }
        prop_assert!(runs[0] == runs[1] && runs[0] == runs[2]);
    }
}

fn vec_env(config: &Config, difficulty: Difficulty, worlds: usize, threads: usize) -> VecEnv<Coop> {
    let config = Arc::new(config.clone());
    let worlds = (0..worlds).map(|_| Coop::new(config.clone(), difficulty)).collect();
    VecEnv::new(worlds, Autoreset::SameStep, threads)
}

type Arrays = (Vec<u32>, Vec<f64>, Vec<u8>, Vec<u8>, Vec<u8>);

fn step(venv: &mut VecEnv<Coop>, config: &Config, player: &mut Player) -> Arrays {
    let n = venv.num_envs() * AGENTS;
    let (mut obs, mut rewards) = (vec![0.0f32; n * venv.obs_len()], vec![0.0; n]);
    let (mut terminated, mut truncated) = (vec![0; n], vec![0; n]);
    let alive = venv.alive().to_vec();
    let rows = Rows {
        obs: &mut obs,
        rewards: &mut rewards,
        terminated: &mut terminated,
        truncated: &mut truncated,
        final_obs: None,
    };
    venv.step(player.draw(config, &alive), rows).unwrap();
    (obs.into_iter().map(f32::to_bits).collect(), rewards, terminated, truncated, venv.alive().to_vec())
}

#[test]
fn the_difficulty_counts_from_the_next_reset() {
    let config = Config { max_agents: AGENTS, ..Config::new(Task::Highway) };
    let mut played = Played::new(&config, Difficulty { agents: 2, density: 1.0 }, 1);
    played.world.set_difficulty(Difficulty { agents: 5, density: 2.0 });
    assert_eq!(played.world.traffic().vehicles.x.len(), 22);
    played.step();
    assert_eq!(played.alive.iter().map(|&a| usize::from(a)).sum::<usize>(), 2);
    let Played { world, obs, alive, .. } = &mut played;
    world.reset(obs, alive);
    assert_eq!((world.traffic().vehicles.x.len(), alive.iter().filter(|&&a| a == 1).count()), (45, 5));
}

#[test]
fn the_obstacle_at_the_end_of_the_ramp_stops_vehicles() {
    let config = Config { max_agents: AGENTS, background: 0, ..Config::new(Task::Merge) };
    let mut played = Played::new(&config, Difficulty { agents: 1, density: 0.0 }, 1);
    let mut ended = false;
    while !ended {
        let rows = AgentRows {
            obs: &mut played.obs,
            rewards: &mut played.rewards,
            terminated: &mut played.terminated,
            truncated: &mut played.truncated,
            alive: &mut played.alive,
        };
        ended = played.world.step(Actions::Discrete(&[1; AGENTS]), rows);
    }
    let last = played.world.state().last;
    assert_eq!((last.collision_rate, last.success, played.terminated[0]), (1.0, 0.0, 1));
}
