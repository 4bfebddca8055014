//! Properties of the CAGE 2 simulator that hold for any play.

use std::collections::HashMap;
use std::sync::Arc;

use fastrl_core::cage2::blue::{BlueAction, NUM_ACTIONS};
use fastrl_core::cage2::events::{NUM_RED_ACTIONS, RedAction};
use fastrl_core::cage2::game::Cage2Game;
use fastrl_core::cage2::memory::{BlueMemory, Layout};
use fastrl_core::cage2::red_agents::RedKind;
use fastrl_core::cage2::replay::{Mode, Trace, packed_obs};
use fastrl_core::cage2::scenario::{DEFENDER, HOST_NAMES, Hosts, NUM_HOSTS, OP_SERVER0, Ports, USER0};
use fastrl_core::cage2::tables::SCENARIO2;
use fastrl_core::cage2::{Cage2, Config, Episode, Game, Ruleset, truth};
use fastrl_core::cage2::{events::Activity, view::Compromise};
use fastrl_core::cage2::{fast_source::FastSource, seeded_source::SeededSource};
use fastrl_core::env::{Actions, AgentRows, Refused};
use fastrl_core::rng::Rng;
use fastrl_core::single_agent::SingleAgentEnv;
use fastrl_core::vec_env::{Autoreset, Error, Rows, VecEnv};
use proptest::prelude::*;

fn any_ruleset() -> impl Strategy<Value = Ruleset> {
    prop::sample::select(Ruleset::ALL.as_slice())
}

fn any_red() -> impl Strategy<Value = RedKind> {
    prop_oneof![Just(RedKind::BLine), Just(RedKind::Meander), Just(RedKind::Sleep)]
}

fn any_layout() -> impl Strategy<Value = Layout> {
    prop::sample::select(Layout::ALL.to_vec())
}

fn any_actions(max: usize) -> impl Strategy<Value = Vec<usize>> {
    // Restores and decoys are what moves the state most: half of the draws fall on few hosts.
    prop::collection::vec(
        prop_oneof![0..NUM_ACTIONS, prop::sample::select(vec![0, 133, 135, 139, 141, 61, 55, 127, 131, 18, 22])],
        1..max,
    )
}

fn check_state(episode: &Episode<FastSource>) -> Result<(), TestCaseError> {
    let network = &episode.network;
    for (host, name) in HOST_NAMES.iter().enumerate() {
        let mine = || network.sessions.iter().filter(|s| usize::from(s.host) == host);
        prop_assert_eq!(network.red_on >> host & 1 == 1, mine().count() > 0, "{} red_on", name);
        prop_assert_eq!(network.root_on >> host & 1 == 1, mine().any(|s| s.root), "{} root_on", name);
        prop_assert!(network.processes(host, &SCENARIO2) as usize >= mine().count());
    }
    // Red never loses its foothold, and never gets into Defender.
    prop_assert_eq!(usize::from(network.sessions[0].host), USER0);
    prop_assert_eq!(network.sessions_on(0), 0);
    prop_assert!(network.ot_service.up || network.ot_service.pid_known, "Impact stops nothing after a Restore");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_play_keeps_the_state_consistent(
        seed: u64, red in any_red(), ruleset in any_ruleset(), actions in any_actions(250),
    ) {
        let scenario = &**ruleset.scenario2();
        let mut episode = Episode::new(FastSource(Rng::new(seed)), Layout::Full, scenario);
        episode.begin(red, scenario);
        prop_assert_eq!(episode.view.bits(), 0);
        for action in actions {
            let action = BlueAction::from_index(action, NUM_HOSTS);
            let tenths = episode.step(action, scenario);
            let own = if matches!(action, BlueAction::Restore(_)) { 10 } else { 0 };
            // All hosts lost, OTService down, and a Restore.
            prop_assert!((-(48 + 100 + 10)..=0).contains(&tenths), "{}", tenths);
            if red == RedKind::Sleep {
                prop_assert_eq!(tenths, -own);
                prop_assert_eq!(episode.view.bits(), 0);
            }
            check_state(&episode)?;
            // Red touches one host a step, so at most one host shows activity, and it is the one that red went for.
            let active: Vec<usize> = (0..NUM_HOSTS).filter(|&h| episode.view.activity(h) != Activity::None).collect();
            prop_assert!(active.len() <= 1);
            for &host in &active {
                prop_assert_eq!(i8::try_from(host).unwrap(), episode.last_red.target);
                prop_assert!([2, 3].contains(&episode.last_red.kind));
                if episode.view.activity(host) == Activity::Exploit {
                    prop_assert!(matches!(episode.view.compromise(host), Compromise::User | Compromise::Privileged));
                }
            }
            if let BlueAction::Restore(host) = action
                && !active.contains(&host)
            {
                prop_assert_eq!(episode.view.compromise(host), Compromise::No);
            }
        }
    }

    /// Blue needs no look at the network to know which actions may have an effect.
    #[test]
    fn blue_remembers_which_decoys_stand(
        seed: u64, red in any_red(), ruleset in any_ruleset(), actions in any_actions(250),
    ) {
        let scenario = &**ruleset.scenario2();
        let mut episode = Episode::new(FastSource(Rng::new(seed)), Layout::None, scenario);
        let mut memory = BlueMemory::new(Layout::Decoys);
        episode.begin(red, scenario);
        for action in actions {
            let ports = memory.ports(scenario);
            prop_assert_eq!(ports, episode.network.ports);
            for i in 0..NUM_ACTIONS {
                let action = BlueAction::from_index(i, NUM_HOSTS);
                let expected = match action {
                    BlueAction::Monitor => false,
                    BlueAction::Analyse(host) => host != DEFENDER,
                    BlueAction::Decoy(..) => continue,
                    BlueAction::Sleep | BlueAction::Remove(_) | BlueAction::Restore(_) => true,
                };
                prop_assert_eq!(scenario.may_have_effect(i, &ports), expected, "{}", action.name(&HOST_NAMES));
            }
            let effect = scenario.may_have_effect(action, &ports);
            let action = BlueAction::from_index(action, NUM_HOSTS);
            episode.step(action, scenario);
            memory.update(action, effect, episode.view.words(), &scenario.memory);
        }
    }

    /// Red's own memory has every host that it holds, and its masks are what CybORG lets it do.
    #[test]
    fn red_never_holds_a_host_that_it_believes_lost(
        seed: u64, ruleset in any_ruleset(), actions in any_actions(250), reds in prop::collection::vec(0..60usize, 250),
    ) {
        use fastrl_core::env::Env;
        let config = Config { scenario: ruleset.scenario2().clone(), episode_length: 250, ..Config::default() };
        let mut game = Cage2Game::new(Arc::new(config));
        let (width, masked) = (game.obs_len(), game.mask_len());
        let (mut obs, mut rewards) = (vec![9.0; 2 * width], [9.0f64; 2]);
        let mut flags = [[1; 2]; 3];
        game.seed(seed);
        game.reset(&mut obs, &mut flags[2]);
        for (blue, draw) in actions.into_iter().zip(reds) {
            let mut masks = vec![9; 2 * masked];
            game.action_mask(&mut masks);
            // One of those that may be taken, now and then any.
            let open: Vec<usize> = (0..masked).filter(|&i| masks[masked + i] == 1).collect();
            let red = if draw < 50 { open[draw * open.len() / 50] } else { draw };
            let before = (game.state().episode.network.clone(), game.state().episode.knowledge.clone());
            let [terminated, truncated, alive] = &mut flags;
            let rows = AgentRows { obs: &mut obs, rewards: &mut rewards, terminated, truncated, alive };
            game.step(Actions::Discrete(&[blue as i64, red as i64]), rows);
            let (episode, view) = (&game.state().episode, &game.state().red);
            prop_assert_eq!(episode.network.red_on & !view.exploited(), 0);
            prop_assert_eq!(rewards[0], -rewards[1]);
            prop_assert!(obs.iter().all(|x| (0.0..=1.0).contains(x)));
            let action = RedAction::from_index(red);
            prop_assert_eq!(action.is_some(), red < NUM_RED_ACTIONS);
            let is_open = masks[masked + red] == 1;
            prop_assert_eq!(is_open, action.is_some_and(|action| before.1.allows(action)));
            if !is_open && matches!(BlueAction::from_index(blue, NUM_HOSTS), BlueAction::Sleep) {
                prop_assert_eq!(&episode.network, &before.0);
                prop_assert_eq!(episode.knowledge.known(), before.1.known());
            }
        }
    }

    /// A game in which red takes the choices of the scripted agent is the game against that agent.
    #[test]
    fn scripted_reds_play_the_same_games_through_the_interface(
        seed: u64, ruleset in any_ruleset(), actions in any_actions(250), red in any_red(), layout in any_layout(),
    ) {
        use fastrl_core::env::Env;
        let red = vec![(red, 0.5), (RedKind::Meander, 0.5)];
        let config = Arc::new(Config { scenario: ruleset.scenario2().clone(), red, memory: layout, truth: true, episode_length: 60, ..Config::default() });
        let (mut game, mut plain) = (Cage2Game::new(config.clone()), Cage2::new(config));
        let (width, plain_width) = (game.obs_len(), SingleAgentEnv::obs_len(&plain));
        let (mut obs, mut plain_obs, mut rewards) = (vec![9.0; 2 * width], vec![9.0; plain_width], [9.0f64; 2]);
        let mut flags = [[1; 2]; 3];
        game.seed(seed);
        SingleAgentEnv::seed(&mut plain, seed);
        for episode in actions.chunks(60) {
            game.reset(&mut obs, &mut flags[2]);
            SingleAgentEnv::reset(&mut plain, &mut plain_obs);
            for &blue in episode {
                prop_assert_eq!(&obs[..plain_width], &plain_obs[..]);
                let red = game.choose_red() as i64;
                let [terminated, truncated, alive] = &mut flags;
                let rows = AgentRows { obs: &mut obs, rewards: &mut rewards, terminated, truncated, alive };
                let has_ended = game.step(Actions::Discrete(&[blue as i64, red]), rows);
                let step = SingleAgentEnv::step(&mut plain, blue as i64, &mut plain_obs);
                prop_assert_eq!((step.reward, step.truncated), (rewards[0], has_ended));
            }
            prop_assert_eq!(&game.state().episode, plain.episode());
        }
    }

    #[test]
    fn availability_costs_ten_until_the_server_is_restored(seed: u64, ruleset in any_ruleset()) {
        let scenario = &**ruleset.scenario2();
        let mut episode = Episode::new(FastSource(Rng::new(seed)), Layout::None, scenario);
        episode.begin(RedKind::BLine, scenario);
        let sleep = BlueAction::Sleep;
        while episode.network.ot_service.up {
            episode.step(sleep, scenario);
            prop_assert!(episode.time < 200, "B_line reaches the server undisturbed");
        }
        prop_assert!(episode.step(sleep, scenario) <= -100);
        let restored = episode.step(BlueAction::Restore(OP_SERVER0), scenario);
        prop_assert!(restored > -100);
        for _ in 0..100 {
            prop_assert!(episode.step(sleep, scenario) > -100, "and then it stays up");
        }
    }

    #[test]
    fn a_saved_environment_has_the_same_future(
        seed: u64, before in 0usize..130, after in 1usize..130, python: bool, memory in any_layout(), truth: bool,
        ruleset in any_ruleset(),
    ) {
        let red = if python { vec![(RedKind::Meander, 1.0)] } else { vec![(RedKind::BLine, 0.5), (RedKind::Meander, 0.5)] };
        let config = Config { scenario: ruleset.scenario2().clone(), red, memory, truth, python_random: python, ..Config::default() };
        let mut venv = vec_env(config.clone(), 3, 1, Autoreset::SameStep);
        let mut actions = Rng::new(seed ^ 1);
        venv.reset(Some(&[seed, seed ^ 7, 3]), None, &mut vec![0.0; 3 * venv.obs_len()]);
        for _ in 0..before {
            step(&mut venv, &mut actions);
        }
        let saved = venv.save().unwrap();
        let mut restored = vec_env(config, 3, 1, Autoreset::SameStep);
        restored.load(&saved).unwrap();
        let mut same_actions = actions.clone();
        for _ in 0..after {
            prop_assert_eq!(step(&mut venv, &mut actions), step(&mut restored, &mut same_actions));
        }
        prop_assert_eq!(venv.save().unwrap(), restored.save().unwrap());
    }

    #[test]
    fn a_damaged_state_is_refused(at in 0usize..10_000, bit in 0u8..8) {
        let mut venv = vec_env(Config::default(), 2, 1, Autoreset::NextStep);
        venv.reset(Some(&[1, 2]), None, &mut [0.0; 104]);
        let mut saved = venv.save().unwrap();
        let at = at % saved.len();
        saved[at] ^= 1 << bit;
        let before = venv.save().unwrap();
        prop_assert!(matches!(venv.load(&saved), Err(Error::State(_))));
        prop_assert!(matches!(venv.load(&saved[..at]), Err(Error::State(_))));
        prop_assert_eq!(venv.save().unwrap(), before);
    }

    #[test]
    fn threads_and_batch_size_change_nothing(seed: u64, envs in 100usize..300) {
        let config = Config { red: vec![(RedKind::BLine, 0.4), (RedKind::Meander, 0.6)], ..Config::default() };
        let seeds: Vec<u64> = (0..envs as u64).map(|i| seed.wrapping_add(i)).collect();
        let mut runs = Vec::new();
        for threads in [1, 2, 3] {
            let mut venv = vec_env(config.clone(), envs, threads, Autoreset::NextStep);
            venv.reset(Some(&seeds), None, &mut vec![0.0; envs * 52]);
            let mut actions = Rng::new(seed);
            runs.push((0..120).map(|_| step(&mut venv, &mut actions)).collect::<Vec<_>>());
        }
        prop_assert!(runs[0] == runs[1] && runs[0] == runs[2]);
        // One environment alone, with the actions it got among the others.
        let i = envs / 2;
        let mut alone = vec_env(config, 1, 1, Autoreset::NextStep);
        alone.reset(Some(&seeds[i..=i]), None, &mut [0.0; 52]);
        let mut actions = Rng::new(seed);
        for all in &runs[0] {
            let drawn: Vec<i64> = (0..envs).map(|_| i64::from(actions.below(145))).collect();
            let one = step_with(&mut alone, &drawn[i..=i]);
            prop_assert_eq!(&one.0[..], &all.0[i * 52..(i + 1) * 52]);
            prop_assert_eq!(one.1[0], all.1[i]);
        }
    }

    #[test]
    fn arbitrary_records_are_refused_or_replayed_without_a_panic(
        kinds in prop_oneof![prop::collection::vec(-3i8..9, 20), prop::collection::vec(2i8..6, 20)],
        targets in prop_oneof![prop::collection::vec(-3i8..15, 20), prop::collection::vec(0i8..13, 20)],
        draws in prop::collection::vec(-2i8..9, 60), blue in prop::collection::vec(-1i16..146, 20), red in any_red(),
        is_given: bool,
    ) {
        let trace = Trace {
            scenario: &SCENARIO2, red: (!is_given).then_some(red), seed: 1, length: &[20], collided: &[1],
            reset_obs: &[0; packed_obs(NUM_HOSTS)], obs: &[0; 20 * packed_obs(NUM_HOSTS)], reward: &[0.0; 20],
            blue_action: &blue, red_kind: &kinds, red_target: &targets, red_success: &[1; 20],
            red_known: &[0; 20][..if is_given { 20 } else { 0 }],
            exploit: &draws[..20], detected: &draws[20..40], session: &draws[40..],
            red_access: &[0; 20 * NUM_HOSTS], red_sessions: &[0; 20 * NUM_HOSTS], processes: &[0; 20 * NUM_HOSTS],
        };
        if trace.check().is_ok() {
            prop_assert!(trace.replay(Mode::Decisions).mismatches > 0);
            prop_assert!(trace.replay(Mode::Seed).mismatches > 0);
        } else {
            let is_red = |(&kind, &target)| RedAction::from_code(kind, target, &SCENARIO2).is_some();
            let are_reds = kinds.iter().zip(&targets).all(is_red);
            prop_assert!(blue.iter().any(|&a| !(0..145).contains(&a)) || is_given && !are_reds);
        }
    }
}

fn vec_env(config: Config, envs: usize, threads: usize, autoreset: Autoreset) -> VecEnv<Cage2> {
    let config = Arc::new(config);
    VecEnv::new((0..envs).map(|_| Cage2::new(config.clone())).collect(), autoreset, threads)
}

type Seen = (Vec<f32>, Vec<f64>, Vec<u8>, Vec<u8>, Vec<f32>);

fn step(venv: &mut VecEnv<Cage2>, actions: &mut Rng) -> Seen {
    let actions: Vec<i64> = (0..venv.num_envs()).map(|_| i64::from(actions.below(145))).collect();
    step_with(venv, &actions)
}

fn step_with(venv: &mut VecEnv<Cage2>, actions: &[i64]) -> Seen {
    let (n, d) = (venv.num_envs(), venv.obs_len());
    let mut seen = (vec![0.0; n * d], vec![0.0; n], vec![0; n], vec![0; n], vec![0.0; n * d]);
    let final_obs = (venv.autoreset() == Autoreset::SameStep).then_some(&mut seen.4[..]);
    let rows =
        Rows { obs: &mut seen.0, rewards: &mut seen.1, terminated: &mut seen.2, truncated: &mut seen.3, final_obs };
    venv.step(Actions::Discrete(actions), rows).unwrap();
    seen
}

/// Episodes whose observations of the true state are equal are in equal states, as far as the future depends on them.
#[test]
fn the_true_state_is_the_whole_state() {
    let mut known: HashMap<Vec<u32>, _> = HashMap::new();
    let mut met = 0;
    let mut random = Rng::new(5);
    for seed in 0..600 {
        let ruleset = if seed % 2 == 0 { Ruleset::Main } else { Ruleset::Leaderboard };
        let scenario = &**ruleset.scenario2();
        let mut episode = Episode::new(FastSource(Rng::new(seed)), Layout::None, scenario);
        episode.begin(RedKind::ALL[seed as usize / 2 % 3], scenario);
        for _ in 0..40 {
            let action = [0, 0, 0, 0, 133, 141, 29, 119, 16][random.below(9) as usize];
            episode.step(BlueAction::from_index(action, NUM_HOSTS), scenario);
            let mut values = [0.0f32; truth::LEN];
            truth::write(&episode, &mut values);
            let bits = episode.view.bits();
            let key: Vec<u32> =
                values.iter().map(|value| value.to_bits()).chain([bits as u32, (bits >> 32) as u32]).collect();
            let state = (bits, episode.knowledge.clone(), episode.agent.clone(), parts(&episode));
            met += usize::from(known.contains_key(&key));
            let first = known.entry(key).or_insert_with(|| state.clone());
            assert_eq!(*first, state);
        }
    }
    assert!(met > 2000, "{met} times a known state was met");
}

type Parts = (Vec<(u8, bool, bool)>, Hosts, Hosts, Vec<Ports>, Vec<u32>, Vec<u8>, OtParts);
type OtParts = (bool, bool, bool);

/// The network without process ids, the order of sessions and counts above 10; Remove asks only of user sessions whether
/// they are marked.
fn parts(episode: &Episode<FastSource>) -> Parts {
    let network = &episode.network;
    let mut sessions: Vec<_> = network.sessions.iter().map(|s| (s.host, s.root, s.marked && !s.root)).collect();
    sessions.sort_unstable();
    let service = &network.ot_service;
    (
        sessions,
        network.files,
        network.restored,
        network.ports.to_vec(),
        network.decoys.iter().map(|&count| count.min(10)).collect(),
        network.fooled.to_vec(),
        (service.up, service.stoppable, service.pid_known),
    )
}

#[test]
fn refused_calls_change_nothing() {
    let mut venv = vec_env(Config { episode_length: 2, ..Config::default() }, 2, 1, Autoreset::Disabled);
    let try_step = |venv: &mut VecEnv<Cage2>, actions: [i64; 2]| {
        let (mut obs, mut rewards, mut ends) = ([0.0; 104], [0.0f32; 2], [[0u8; 2]; 2]);
        let [terminated, truncated] = &mut ends;
        let rows = Rows { obs: &mut obs, rewards: &mut rewards, terminated, truncated, final_obs: None };
        venv.step(Actions::Discrete(&actions), rows)
    };
    assert_eq!(try_step(&mut venv, [0, 0]), Err(Error::NeverReset { env: 0 }));
    venv.reset(Some(&[1, 2]), None, &mut [0.0; 104]);
    let before = venv.save().unwrap();
    let refused = |env| {
        let refused = Refused { agent: 0, expected: "an integer from 0 to 144".to_string() };
        Err(Error::Action { env, refused, alone: true })
    };
    assert_eq!(try_step(&mut venv, [0, 145]), refused(1));
    assert_eq!(try_step(&mut venv, [-1, 0]), refused(0));
    assert_eq!(venv.save().unwrap(), before);
    assert_eq!(try_step(&mut venv, [0, 0]), Ok(()));
    assert_eq!(try_step(&mut venv, [0, 0]), Ok(()));
    assert_eq!(try_step(&mut venv, [0, 0]), Err(Error::Ended { env: 0 }));
    venv.reset(None, Some(&[1, 0]), &mut [0.0; 104]);
    assert_eq!(try_step(&mut venv, [0, 0]), Err(Error::Ended { env: 1 }));
}

#[test]
fn a_state_of_other_options_is_refused() {
    let mut main = vec_env(Config::default(), 1, 1, Autoreset::NextStep);
    let leaderboard = Config { scenario: Ruleset::Leaderboard.scenario2().clone(), ..Config::default() };
    let state = vec_env(leaderboard, 1, 1, Autoreset::NextStep).save().unwrap();
    let Err(Error::State(why)) = main.load(&state) else { panic!("accepted") };
    assert!(why.contains("Leaderboard"), "{why}");
}

#[test]
fn the_mix_has_its_shares() {
    let config = Arc::new(Config { red: vec![(RedKind::BLine, 0.25), (RedKind::Sleep, 0.75)], ..Config::default() });
    let mut env = Cage2::new(config);
    env.seed(11);
    let mut obs = [0.0; 52];
    let blines = (0..4000)
        .filter(|_| {
            env.reset(&mut obs);
            env.episode().agent.kind() == RedKind::BLine
        })
        .count();
    // Mean 1000, standard deviation 27: five of them miss once in a million seeds; the seed is fixed.
    assert!((865..1135).contains(&blines), "{blines}");
    assert!(matches!(env.episode().random, SeededSource::Fast(_)));
}
