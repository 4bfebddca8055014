//! States from elsewhere: random bytes, and states of every simulator altered byte by byte with the checksum mended.
//!
//! Any bytes are refused with an error and change nothing, or all that follows works: observations, resets,
//! steps and scenes end, without a panic and without more memory than the environments say that they take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use fastrl_core::cage2::game::Cage2Game;
use fastrl_core::cage2::memory::Layout as MemoryLayout;
use fastrl_core::cage2::red_agents::RedKind;
use fastrl_core::cage2::tables::SCENARIO2;
use fastrl_core::cage2::workflow::WorkflowCage2;
use fastrl_core::cage2::{Cage2, Config as Cage2Config, Game, render};
use fastrl_core::cage4::mind::RedAgent;
use fastrl_core::cage4::{Cage4, Config as Cage4Config};
use fastrl_core::classic::{self, Classic};
use fastrl_core::env::{ActionKind, Actions, Env};
use fastrl_core::rng::Rng;
use fastrl_core::traffic::action::{ActionType, Continuous, Span};
use fastrl_core::traffic::coop::Coop;
use fastrl_core::traffic::coop::config::{self as coop, Difficulty, Task};
use fastrl_core::traffic::highway::{Config, Highway};
use fastrl_core::traffic::links::config as links;
use fastrl_core::traffic::links::path_loss::Surroundings;
use fastrl_core::traffic::observation::{
    Attribute, Attributes, Column, Feature, Goal, Kinematics, Layer, Limits, Observation, OccupancyGrid,
    TimeToCollision,
};
use fastrl_core::traffic::raster::{View, draw};
use fastrl_core::traffic::ring::config::{Config as RingConfig, Drive};
use fastrl_core::traffic::ring::env::Ring;
use fastrl_core::traffic::roads::links::Comms;
use fastrl_core::traffic::roads::scenario::Options;
use fastrl_core::traffic::roads::template::Template;
use fastrl_core::traffic::roads::{Config as RoadConfig, Ends, RoadEnv};
use fastrl_core::traffic::scene::Scenic;
use fastrl_core::traffic::v2x::V2x;
use fastrl_core::traffic::v2x::config::Config as V2xConfig;
use fastrl_core::traffic::vehicles::Driver;
use fastrl_core::vec_env::{Autoreset, Error, Rows, VecEnv};
use proptest::prelude::*;
use proptest::sample::Index;

/// Counts what each thread holds and the most that it has held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Threads that end free memory when their locals are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The result of `work`, and the most bytes that it held at a time beside those before.
fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, (MOST.get() - before) as usize)
}

/// The observable state of an environment beside its observations.
trait Seen {
    fn look(&self);
}

fn look_at_scene(world: &impl Scenic) {
    let view = View { width: 60, height: 20, scaling: 5.5, centering: [0.3, 0.5], legend: true };
    let scene = world.scene();
    draw(&scene, &[&scene], &view, &mut vec![0; 60 * 20 * 3]);
    scene.between(&scene, 0.5);
}

fn look_at_game(game: &impl Game) {
    render::table(game.episode(), &SCENARIO2);
    game.action_mask(&mut vec![0; game.mask_len()]);
    for host in 0..13 {
        let network = &game.episode().network;
        let _ = (network.red_access(host), network.sessions_on(host), network.processes(host, &SCENARIO2));
    }
}

impl Seen for Cage2 {
    fn look(&self) {
        look_at_game(self);
    }
}

impl Seen for Cage2Game {
    fn look(&self) {
        render::table(self.episode(), &SCENARIO2);
        self.action_mask(&mut vec![0; 2 * self.mask_len()]);
    }
}

impl Seen for WorkflowCage2 {
    fn look(&self) {
        look_at_game(self);
        let _ = self.state().finished.account.compliance();
    }
}

impl Seen for Cage4 {
    fn look(&self) {
        self.action_mask(&mut vec![0; self.num_agents() * self.mask_len()]);
        let network = &self.world().network;
        let _ = network.hosts().map(|slot| network.num_processes(slot)).sum::<usize>();
    }
}

impl Seen for Highway {
    fn look(&self) {
        look_at_scene(self);
        if !self.episode().traffic.vehicles.is_empty() {
            self.parts();
        }
        self.action_mask(&mut vec![0; self.mask_len()]);
    }
}

impl Seen for Coop {
    fn look(&self) {
        look_at_scene(self);
    }
}

impl Seen for RoadEnv {
    fn look(&self) {
        look_at_scene(self);
        if self.has_vehicles() {
            self.parts();
            self.has_succeeded(0);
            self.observe_double(&mut vec![0.0; self.num_agents() * self.obs_len()]);
        }
        self.action_mask(&mut vec![0; self.num_agents() * self.mask_len()]);
    }
}

impl Seen for V2x {
    fn look(&self) {
        look_at_scene(self);
    }
}

impl Seen for Ring {
    fn look(&self) {
        look_at_scene(self);
        self.account();
    }
}

impl Seen for Classic {
    fn look(&self) {
        self.variables();
    }
}

/// Two environments, stepped by random actions.
struct Played<W: Env> {
    venv: VecEnv<W>,
    rng: Rng,
    obs: Vec<f32>,
}

impl<W: Env + Seen> Played<W> {
    fn new(make: impl Fn() -> W, autoreset: Autoreset) -> Self {
        let venv = VecEnv::build(2, make, autoreset, 1).unwrap();
        let obs = vec![0.0; 2 * venv.num_agents() * venv.obs_len()];
        Self { venv, rng: Rng::new(1), obs }
    }

    fn reset(&mut self, seeds: Option<[u64; 2]>) {
        self.venv.reset(seeds.as_ref().map(|seeds| &seeds[..]), None, &mut self.obs);
    }

    fn step(&mut self) -> Result<(), Error> {
        let rows = 2 * self.venv.num_agents();
        let kind = self.venv.env(0).action_kind();
        let meta: Vec<i64> = (0..rows).map(|_| i64::from(self.rng.below(5))).collect();
        let width = if let ActionKind::Box(width) = kind { width } else { 0 };
        let numbers: Vec<f32> = (0..rows * width).map(|_| (2.0 * self.rng.unit() - 1.0) as f32).collect();
        let actions = if width == 0 { Actions::Discrete(&meta) } else { Actions::Box(&numbers) };
        let (mut rewards, mut terminated, mut truncated) = (vec![0f64; rows], vec![0; rows], vec![0; rows]);
        let (rewards, terminated, truncated) = (&mut rewards[..], &mut terminated[..], &mut truncated[..]);
        self.venv.step(actions, Rows { obs: &mut self.obs, rewards, terminated, truncated, final_obs: None })
    }

    /// Does all that can be done. Environments that were never reset or have ended may refuse a step.
    fn go_on(&mut self, steps: usize) {
        self.venv.observe(&mut self.obs);
        self.venv.envs().for_each(Seen::look);
        for _ in 0..steps {
            match self.step() {
                Ok(()) => self.venv.envs().for_each(Seen::look),
                Err(Error::NeverReset { .. } | Error::Ended { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.reset(None);
        self.step().unwrap();
    }
}

/// Mends the checksum of altered bytes.
fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 12 {
        let sum = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
    /// Eight bytes: a float that is none, or as large as there are.
    Float(Index, f64),
}

fn any_change() -> impl Strategy<Value = Change> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(1), Just(0x7f), Just(0xff)];
    let float = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1e308), Just(1e308), Just(-1.0), Just(1e-320)];
    prop_oneof![
        4 => (any::<Index>(), byte.clone()).prop_map(|(at, byte)| Change::Set(at, byte)),
        4 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Change::Flip(at, 1 << bit)),
        1 => (any::<Index>(), byte).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => (any::<Index>(), float).prop_map(|(at, float)| Change::Float(at, float)),
    ]
}

/// Changes what follows the fingerprint.
fn altered(saved: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = saved.to_vec();
    // The length of a fingerprint takes one byte or two here.
    let fixed = match saved[12] {
        short if short < 0x80 => 13 + usize::from(short),
        low => 14 + (usize::from(low & 0x7f) | usize::from(saved[13]) << 7),
    };
    for change in changes {
        let len = bytes.len() - fixed;
        if len < 16 {
            break;
        }
        match change {
            Change::Set(at, byte) => bytes[fixed + at.index(len)] = *byte,
            Change::Flip(at, bit) => bytes[fixed + at.index(len)] ^= bit,
            Change::Insert(at, byte) => bytes.insert(fixed + at.index(len), *byte),
            Change::Remove(at) => drop(bytes.remove(fixed + at.index(len))),
            Change::Cut(at) => bytes.truncate(fixed + at.index(len)),
            Change::Float(at, float) => {
                let at = fixed + at.index(len - 8);
                bytes[at..at + 8].copy_from_slice(&float.to_le_bytes());
            }
        }
    }
    mended(bytes)
}

/// Plays, saves, alters, loads and plays on; then loads random bytes.
fn attack<W: Env + Seen>(
    make: impl Fn() -> W + Copy,
    autoreset: Autoreset,
    steps: usize,
    changes: &[Change],
    noise: &[u8],
) -> Result<(), TestCaseError> {
    let mut played = Played::new(make, autoreset);
    played.reset(Some([3, 4]));
    for _ in 0..steps {
        if played.step().is_err() {
            break;
        }
    }
    let saved = played.venv.save().unwrap();
    let mut other = Played::new(make, autoreset);
    let before = other.venv.save();
    let bytes = altered(&saved, changes);
    let allowed = 4 * 2 * other.venv.env(0).memory() + 8 * bytes.len() + (64 << 10);
    let (loaded, held) = most_held(|| other.venv.load(&bytes));
    prop_assert!(held <= allowed, "{held} bytes for {}", bytes.len());
    match loaded {
        Ok(()) => other.go_on(4),
        Err(Error::State(why)) => {
            prop_assert!(why.starts_with("this environment state cannot be restored: "), "{why}");
            prop_assert_eq!(other.venv.save(), before, "refused, and yet something changed");
        }
        Err(error) => prop_assert!(false, "{error}"),
    }
    let mut random = saved[..saved.len().min(12)].to_vec();
    random.extend_from_slice(noise);
    prop_assert!(matches!(other.venv.load(&mended(random)), Err(Error::State(_))));
    other.venv.load(&saved).unwrap();
    prop_assert_eq!(other.venv.save().unwrap(), saved);
    other.go_on(2);
    Ok(())
}

fn cage2(python_random: bool) -> Cage2 {
    Cage2::new(cage2_config(python_random))
}

fn cage2_game(python_random: bool) -> Cage2Game {
    Cage2Game::new(cage2_config(python_random))
}

fn cage2_config(python_random: bool) -> Arc<Cage2Config> {
    let red = if python_random {
        vec![(RedKind::Meander, 1.0)]
    } else {
        vec![(RedKind::BLine, 0.5), (RedKind::Meander, 0.5)]
    };
    Arc::new(Cage2Config {
        red,
        python_random,
        memory: MemoryLayout::Full,
        truth: true,
        episode_length: 30,
        ..Cage2Config::default()
    })
}

fn cage4(numpy_random: bool) -> Cage4 {
    let red = if numpy_random { RedAgent::FiniteState } else { RedAgent::Discovery };
    Cage4::new(Arc::new(Cage4Config {
        red,
        numpy_random,
        steps: 11,
        host_view: !numpy_random,
        messages: if numpy_random { 0 } else { 2 },
        ..Cage4Config::default()
    }))
}

fn columns() -> Vec<Column> {
    let limits = Some(Limits { low: -100.0, high: 100.0 });
    Feature::ALL.into_iter().map(|feature| Column { feature, limits }).collect()
}

fn kinematics(shuffled: bool) -> Observation {
    Observation::Kinematics(Kinematics {
        columns: columns(),
        rows: 5,
        absolute: false,
        shuffled,
        clip: true,
        see_behind: true,
        intentions: false,
        obstacles: true,
        along: None,
    })
}

fn grid() -> Observation {
    let layers = columns().into_iter().map(Layer::Vehicles).chain([Layer::OnRoad]).collect();
    let (low, step, shape) = ([-27.5; 2], [5.0; 2], [11, 11]);
    Observation::OccupancyGrid(OccupancyGrid {
        layers,
        low,
        step,
        shape,
        places: [None; 2],
        align: true,
        clip: false,
        image: true,
    })
}

fn highway(observation: Observation, action: ActionType) -> Highway {
    Highway::new(Arc::new(Config {
        lanes: 3,
        vehicles: 5,
        controlled: 2,
        driver: Driver::Linear,
        initial_lane: None,
        simulation_frequency: 5.0,
        policy_frequency: 1.0,
        frames: 5,
        duration: 8.0,
        ego_spacing: 1.0,
        density: 2.0,
        collision_reward: -1.0,
        right_lane_reward: 0.1,
        high_speed_reward: 0.4,
        reward_speed_range: [20.0, 30.0],
        normalize_reward: true,
        offroad_terminal: true,
        all_collisions: true,
        target_speeds: vec![20.0, 25.0, 30.0],
        observation,
        action,
    }))
}

fn meta() -> ActionType {
    ActionType::Meta { longitudinal: true, lateral: true }
}

fn continuous() -> ActionType {
    let span = Span { low: -0.5, high: 0.5, double: false };
    ActionType::Continuous(Continuous {
        longitudinal: true,
        lateral: true,
        acceleration: span,
        steering: span,
        clip: true,
        speed: None,
        dynamical: false,
    })
}

fn cooperative(task: Task, actions: coop::ActionType) -> Coop {
    let config = coop::Config { actions, max_agents: 3, background: 4, duration: 10.0, ..coop::Config::new(task) };
    Coop::new(Arc::new(config), Difficulty { agents: 3, density: 1.0 })
}

fn roads(scenario: &str, options: &[(&str, &[f64])], observation: Observation, ends: Ends) -> RoadEnv {
    linked_roads(scenario, options, observation, ends, None)
}

fn linked_roads(
    scenario: &str,
    options: &[(&str, &[f64])],
    observation: Observation,
    ends: Ends,
    comms: Option<Comms>,
) -> RoadEnv {
    let numbers = options.iter().map(|&(key, values)| (key.into(), values.to_vec())).collect();
    let template = Template::new(scenario, Options(numbers));
    let scenario = template.full().unwrap();
    RoadEnv::new(Arc::new(RoadConfig {
        simulation_frequency: 5.0,
        policy_frequency: 1.0,
        frames: 5,
        duration: 8.0,
        agent: Driver::Meta,
        other: Driver::Idm,
        target_speeds: vec![0.0, 4.5, 9.0],
        observation,
        action: meta(),
        agents: scenario.controlled(),
        ends,
        connected: true,
        scenario,
        template,
        comms,
    }))
}

fn merge(observation: Observation) -> RoadEnv {
    let options: &[(&str, &[f64])] = &[
        ("collision_reward", &[-1.0]),
        ("right_lane_reward", &[0.1]),
        ("high_speed_reward", &[0.2]),
        ("reward_speed_range", &[20.0, 30.0]),
        ("merging_speed_reward", &[-0.5]),
        ("lane_change_reward", &[-0.05]),
        ("controlled_vehicles", &[2.0]),
    ];
    roads("merge", options, observation, Ends::Together)
}

fn parking(ends: Ends) -> RoadEnv {
    let options: &[(&str, &[f64])] = &[
        ("collision_reward", &[-5.0]),
        ("success_goal_reward", &[0.12]),
        ("reward_weights", &[1.0, 0.3, 0.0, 0.0, 0.02, 0.02]),
        ("controlled_vehicles", &[2.0]),
        ("vehicles_count", &[6.0]),
        ("add_walls", &[1.0]),
        ("shown_features", &[1.0, 2.0, 3.0, 4.0, 6.0, 7.0]),
        ("shown_scales", &[100.0, 100.0, 5.0, 5.0, 1.0, 1.0]),
    ];
    let features = vec![(Feature::X, 100.0), (Feature::SinH, 1.0)];
    roads("parking", options, Observation::Goal(Goal { features }), ends)
}

/// Of a vehicle that slips, with errors in what it shows.
fn lane_keeping() -> RoadEnv {
    let shown = Attribute::ALL.map(|(_, attribute)| attribute).to_vec();
    let noise = vec![(Attribute::State, 0.05), (Attribute::Derivative, 0.05)];
    let observation = Observation::Attributes(Attributes { shown, noise });
    let base = roads("lane-keeping", &[], observation, Ends::Together);
    let ActionType::Continuous(steered) = continuous() else { unreachable!("it is") };
    let action = ActionType::Continuous(Continuous { dynamical: true, ..steered });
    RoadEnv::new(Arc::new(RoadConfig { agent: Driver::Dynamic, action, ..base.config().clone() }))
}

fn intersection(observation: Observation, ends: Ends) -> RoadEnv {
    crossing(observation, ends, None)
}

/// The same in a city, with radio links.
fn linked_intersection() -> RoadEnv {
    let links = links::Config {
        selection: links::Selection::Sensing,
        surroundings: Surroundings::Urban,
        connected: 0.6,
        ..links::Config::new(links::Channel::Tr37885)
    };
    let comms = Comms { links, period: 1.0, age_reward: -0.1, delivery_reward: 0.1 };
    comms.check().unwrap();
    crossing(kinematics(false), Ends::Each, Some(comms))
}

fn crossing(observation: Observation, ends: Ends, comms: Option<Comms>) -> RoadEnv {
    let options: &[(&str, &[f64])] = &[
        ("collision_reward", &[-5.0]),
        ("high_speed_reward", &[1.0]),
        ("arrived_reward", &[1.0]),
        ("reward_speed_range", &[7.0, 9.0]),
        ("normalize_reward", &[0.0]),
        ("offroad_terminal", &[0.0]),
        ("destination", &[]),
        ("controlled_vehicles", &[3.0]),
        ("initial_vehicle_count", &[8.0]),
        ("spawn_probability", &[0.6]),
    ];
    linked_roads("intersection", options, observation, ends, comms)
}

/// A crossroads with lights: four roads in and four out, one lane each, and the ways between them.
fn trips(observation: Observation, ends: Ends) -> RoadEnv {
    let (mut points, mut lanes, mut sections) = (Vec::new(), Vec::new(), Vec::new());
    let (mut links, mut crossings, mut foes, mut signals) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let turned = |arm: usize, x: f64, y: f64| {
        let (sin, cos) = (arm as f64 * std::f64::consts::FRAC_PI_2).sin_cos();
        [cos * x - sin * y, sin * x + cos * y]
    };
    // Lane 2 a leads in by arm a, lane 2 a + 1 out.
    for arm in 0..4 {
        points.extend([
            turned(arm, 60.0, -2.0),
            turned(arm, 10.0, -2.0),
            turned(arm, 10.0, 2.0),
            turned(arm, 60.0, 2.0),
        ]);
        for k in 0..2 {
            let lane = (2 * arm + k) as f64;
            lanes.extend([2.0, lane, 3.2, 10.0, 2.0, 2.0, 0.0]);
            sections.extend([2.0 * lane, 2.0 * lane + 1.0]);
        }
    }
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let lane = (lanes.len() / 7) as f64;
            let (start, end) = ((2 * from) as f64, (2 * to + 1) as f64);
            points.extend([turned(from, 10.0, -2.0), turned(to, 10.0, 2.0)]);
            lanes.extend([2.0, lane, 3.2, 6.0, 0.0, 0.0, 1.0]);
            sections.extend([2.0 * start + 1.0, 2.0 * end]);
            links.extend([start, lane, lane, end]);
            crossings.push(lane);
            signals.extend([lane, 0.0, (from % 2) as f64]);
        }
    }
    for &a in &crossings {
        for &b in crossings.iter().filter(|&&b| ((a - 8.0) / 3.0) as usize != ((b - 8.0) / 3.0) as usize) {
            foes.extend([a, b, f64::from(a > b)]);
        }
    }
    let points: Vec<f64> = points.into_iter().flatten().collect();
    let options: &[(&str, &[f64])] = &[
        ("points", &points),
        ("lanes", &lanes),
        ("sections", &sections),
        ("links", &links),
        ("crossings", &crossings),
        ("foes", &foes),
        ("signals", &signals),
        ("programs", &[1.0, 2.0, 2.0, 5.0, 3.0, 0.0, 5.0, 0.0, 2.0]),
        ("ends", &[99.0; 6]),
        ("routes", &[2.0, 0.0, 5.0]),
        ("departures", &[0.5, 0.0, 2.0, 0.0]),
        ("flows", &[0.0, 60.0, 0.5, 0.0]),
        ("planned", &[f64::from(ends == Ends::Each)]),
        ("navigates", &[1.0]),
        ("vehicles_count", &[6.0]),
        ("controlled_vehicles", &[3.0]),
        ("warm_up", &[2.0]),
        ("begin", &[0.0]),
        ("collision_reward", &[-1.0]),
        ("high_speed_reward", &[0.1]),
        ("arrived_reward", &[1.0]),
        ("on_road_reward", &[0.0]),
        ("violation_reward", &[-0.2]),
        ("reward_speed_range", &[0.0, 10.0]),
        ("offroad_terminal", &[0.0]),
    ];
    roads("trips", options, observation, ends)
}

/// The same with radio links; `channel` and `connected` as in their options.
fn linked(channel: links::Channel, selection: links::Selection, connected: bool) -> Coop {
    let comms = links::Config {
        selection,
        connected: if connected { 1.0 } else { 0.0 },
        powers: vec![23.0, 0.0],
        slots: 1,
        subchannels: 1,
        blockage: if connected { links::Blockage::Probability } else { links::Blockage::Vehicles },
        ..links::Config::new(channel)
    };
    let config = coop::Config {
        // Of the ten actions the players of this test take the first five.
        max_agents: 3,
        background: 4,
        duration: 10.0,
        comms: Some(comms),
        ..coop::Config::new(Task::Merge)
    };
    config.check().unwrap();
    Coop::new(Arc::new(config), Difficulty { agents: 3, density: 1.0 })
}

fn resources() -> V2x {
    V2x::new(Arc::new(V2xConfig { steps: 7, ..V2xConfig::default() }))
}

fn pendulum() -> Classic {
    Classic::new(classic::task("Pendulum", 10.0).unwrap(), "Pendulum".into(), 8)
}

fn ring(drive: Drive) -> Ring {
    let (num_vehicles, ring_length) = (6, (100.0, 110.0));
    let config = RingConfig {
        num_vehicles,
        num_agents: 2,
        ring_length,
        warmup_steps: 3,
        horizon: 6,
        memory: 2.0,
        drive,
        bunching: 20.0,
        ..RingConfig::default()
    };
    config.check().unwrap();
    Ring::new(Arc::new(config))
}

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_states_are_refused_or_work(
        kind in 0..32usize,
        autoreset in prop_oneof![Just(Autoreset::SameStep), Just(Autoreset::NextStep), Just(Autoreset::Disabled)],
        steps in 0..12usize,
        changes in prop::collection::vec(any_change(), 1..4),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (changes, noise) = (&changes[..], &noise[..]);
        let workflow = || {
            let config = Cage2Config { episode_length: 8, ..Cage2Config::default() };
            WorkflowCage2::new(Arc::new(config), 2.0)
        };
        let times = Observation::TimeToCollision(TimeToCollision { steps: 6, step: 1.0 });
        match kind {
            0 => attack(|| cage2(false), autoreset, steps, changes, noise)?,
            1 => attack(|| cage2(true), autoreset, steps, changes, noise)?,
            2 => attack(workflow, autoreset, steps, changes, noise)?,
            3 => attack(|| highway(kinematics(false), meta()), autoreset, steps, changes, noise)?,
            4 => attack(|| highway(kinematics(true), continuous()), autoreset, steps, changes, noise)?,
            5 => attack(|| highway(grid(), continuous()), autoreset, steps, changes, noise)?,
            6 => attack(|| highway(times.clone(), meta()), autoreset, steps, changes, noise)?,
            7 => attack(|| highway(grid(), ActionType::Table { commands: vec![[1.0, 0.1]; 9], dynamical: true }), autoreset, steps, changes, noise)?,
            8 => attack(|| cooperative(Task::Highway, coop::ActionType::Meta), autoreset, steps, changes, noise)?,
            9 => attack(|| cooperative(Task::Merge, coop::ActionType::Meta), autoreset, steps, changes, noise)?,
            10 => attack(|| cooperative(Task::Merge, coop::ActionType::Continuous), autoreset, steps, changes, noise)?,
            11 => attack(|| ring(Drive::Agents), autoreset, steps, changes, noise)?,
            12 => attack(|| ring(Drive::FollowerStopper), autoreset, steps, changes, noise)?,
            13 => attack(|| merge(kinematics(true)), autoreset, steps, changes, noise)?,
            14 => attack(|| merge(times.clone()), autoreset, steps, changes, noise)?,
            15 => attack(|| intersection(kinematics(false), Ends::Each), autoreset, steps, changes, noise)?,
            16 => attack(|| intersection(grid(), Ends::Wrapped), autoreset, steps, changes, noise)?,
            17 => attack(|| ring(Drive::PiSaturation), autoreset, steps, changes, noise)?,
            18 => {
                let make = || linked(links::Channel::Range, links::Selection::Random, false);
                attack(make, autoreset, steps, changes, noise)?;
            }
            19 => {
                let make = || linked(links::Channel::Tr37885, links::Selection::Agent, false);
                attack(make, autoreset, steps, changes, noise)?;
            }
            20 => {
                let make = || linked(links::Channel::Tr37885, links::Selection::Sensing, true);
                attack(make, autoreset, steps, changes, noise)?;
            }
            21 => attack(|| parking(Ends::Each), autoreset, steps, changes, noise)?,
            22 => attack(linked_intersection, autoreset, steps, changes, noise)?,
            23 => attack(|| trips(kinematics(false), Ends::Each), autoreset, steps, changes, noise)?,
            24 => attack(|| trips(grid(), Ends::Together), autoreset, steps, changes, noise)?,
            25 => attack(|| cage4(false), autoreset, steps, changes, noise)?,
            26 => attack(|| cage4(true), autoreset, steps, changes, noise)?,
            27 => attack(|| cage2_game(false), autoreset, steps, changes, noise)?,
            28 => attack(|| cage2_game(true), autoreset, steps, changes, noise)?,
            29 => attack(pendulum, autoreset, steps, changes, noise)?,
            30 => attack(lane_keeping, autoreset, steps, changes, noise)?,
            _ => attack(resources, autoreset, steps, changes, noise)?,
        }
    }
}

/// The memory that environments announce is the memory that they take.
#[test]
fn worlds_hold_no_more_memory_than_they_say() {
    fn check<W: Env + Seen>(name: &str, make: impl Fn() -> W) {
        // Tables that are worked out once.
        Played::new(&make, Autoreset::SameStep).go_on(1);
        let before = HELD.get();
        let mut played = Played::new(&make, Autoreset::SameStep);
        let said = 2 * (played.venv.env(0).memory() + 2 * size_of::<W>());
        let arrays = 4 * played.obs.len() + 2 * played.venv.num_agents() + 2048;
        played.reset(Some([1, 2]));
        for _ in 0..40 {
            played.step().unwrap();
        }
        let held = (HELD.get() - before) as usize;
        assert!(held <= said + arrays, "{name}: holds {held} bytes, said {said} and {arrays} for arrays");
        assert!(said < 20 * held, "{name}: said {said} bytes, holds {held}");
    }
    check("cage2", || cage2(false));
    check("cage2, Python's generator", || cage2(true));
    check("cage2 of two agents", || cage2_game(false));
    check("cage4", || cage4(false));
    check("cage4, NumPy's generator", || cage4(true));
    check("highway", || highway(kinematics(true), meta()));
    check("coop", || cooperative(Task::Merge, coop::ActionType::Meta));
    check("intersection", || intersection(kinematics(true), Ends::Each));
    check("parking", || parking(Ends::Each));
    check("lane keeping", lane_keeping);
    check("links on roads", linked_intersection);
    check("trips", || trips(kinematics(true), Ends::Each));
    check("links", || linked(links::Channel::Tr37885, links::Selection::Sensing, true));
    check("v2x", resources);
    check("pendulum", pendulum);
    check("ring", || ring(Drive::PiSaturation));
}

#[test]
fn environments_that_exceed_memory_are_refused() {
    let Err(error) = VecEnv::build(1 << 50, || cage2(false), Autoreset::SameStep, 1) else {
        panic!("2^50 games fit into memory")
    };
    assert!(
        matches!(&error, Error::Memory(why) if why.starts_with("1125899906842624 environments need about")),
        "{error}"
    );
}
