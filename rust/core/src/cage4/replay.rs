//! Replays reference traces: from the recorded network and decisions, and from nothing but the seed.

use super::blue::{NUM_ACTIONS, num_actions};
use super::blueprint::Blueprint;
use super::game::Game;
use super::ledger::Reward;
use super::log::Log;
use super::mind::RedAgent;
use super::network::Network;
use super::numpy_source::NumpySource;
use super::observation::{OBS_LEN, obs_len, write_mask};
use super::recorded_source::{NotingSource, RecordedSource};
use super::red_kind::RedAction;
use super::rules::Rules;
use super::scenario::{
    Exploit, MOST_USERS, NUM_BLUE, NUM_IMAGE_SERVICES, NUM_NETWORKS, NUM_RED, NUM_SERVICES, NUM_SLOTS, OT_SERVICE,
    SUBNET_SLOTS, Slot, subnet_of,
};
use super::source::RandomSource;

/// Hosts in a trace: those with state, and the internet's.
const HOSTS: usize = NUM_SLOTS + 1;
/// Users in a trace.
const USERS: usize = NUM_NETWORKS * MOST_USERS;
/// Bytes of the packed observations of all agents, and of their packed masks.
const PACKED_OBS: usize = 72;
const PACKED_MASK: usize = 72;

/// Calls a macro with the columns of a trace file: name, type and width, of each episode, and of each step those that are
/// read and those that are compared.
#[macro_export]
macro_rules! cage4_columns {
    ($callback:ident) => {
        $callback! {
            episode {
                length: i32, 1;
                host: u8, 137;
                service: i8, 137 * 5;
                service_pid: i16, 137 * 5;
                blue_parent: u8, 5;
                blue_pid: i16, 137;
                green_pid: i16, 137;
                red_start: u8, 6;
                red_pid: i16, 1;
                mask: u8, 72;
                reset_obs: u8, 72;
                reset_rng: u64, 1;
            }
            given {
                blue_action: i16, 5;
                message: u8, 5;
                rng: u64, 1;
                rng_half: i64, 1;
            }
            compared {
                obs: u8, 72;
                phase: u8, 1;
                reward: i16, 1;
                reward_work: i16, 1;
                reward_cost: i16, 1;
                blue_done: i16, 5;
                blue_success: i8, 5;
                green_action: i8, 80;
                green_target: u8, 80;
                green_success: i8, 80;
                red_kind: i8, 6;
                red_target: u8, 6;
                red_session: i16, 6;
                red_done: i8, 6;
                red_done_target: u8, 6;
                red_success: i8, 6;
                exploit: i8, 6;
                services: u8, 137 * 9;
                processes: u8, 137;
                top_pid: u16, 137;
                suspicious: u8, 137;
                blocked: u16, 9;
                fsm: u8, 6 * 137;
                red_active: u8, 6;
                red_ticks: u8, 6;
                red_known_sessions: u8, 6;
            }
        }
    };
}

macro_rules! define {
    (
        episode { $($episode:ident: $episode_type:ty, $episode_width:expr;)* }
        given { $($given:ident: $given_type:ty, $given_width:expr;)* }
        compared { $($name:ident: $type:ty, $width:expr;)* }
    ) => {
        /// The arrays of a trace file, all episodes one after another.
        pub struct Trace<'a> {
            pub red: RedAgent,
            pub seed: u64,
            /// Episodes continue the generator of the first, whose constructor has drawn a network before.
            pub is_chained: bool,
            /// Steps of each episode.
            pub steps: u32,
            $(pub $episode: &'a [$episode_type],)*
            $(pub $given: &'a [$given_type],)*
            $(pub $name: &'a [$type],)*
            /// [T, 7], red's sessions: agent, id, host, abstract, root, without parent, pid.
            pub sessions: &'a [u16],
            /// [S + 1], the first session and the first decision of each step.
            pub sessions_off: &'a [i64],
            pub tape_off: &'a [i64],
            /// [D], the decisions and their purposes.
            pub tape: &'a [u8],
            pub tape_kind: &'a [u8],
        }

        /// A step of a trace.
        struct Row {
            $($name: [$type; $width],)*
            /// A session of each exploit that is run.
            sessions: Vec<u16>,
        }

        impl Row {
            fn empty() -> Self {
                Self { $($name: [0; $width],)* sessions: Vec::new() }
            }

            /// The first thing in which it differs from step `i` of a trace.
            fn difference(&self, trace: &Trace<'_>, i: usize) -> Option<String> {
                $(
                    let expected = &trace.$name[i * $width..(i + 1) * $width];
                    if let Some(place) = (0..$width).find(|&k| expected[k] != self.$name[k]) {
                        let (name, expected, got) = (stringify!($name), expected[place], self.$name[place]);
                        return Some(format!("{name}[{place}]: expected {expected}, got {got}"));
                    }
                )*
                let [first, end] = [i, i + 1].map(|step| 7 * trace.sessions_off[step] as usize);
                let expected = &trace.sessions[first..end];
                (expected != self.sessions)
                    .then(|| format!("sessions: expected {expected:?}, got {:?}", self.sessions))
            }
        }

        impl Trace<'_> {
            /// Names, lengths and expected lengths of the arrays.
            fn lengths(&self, episodes: usize, steps: usize) -> Vec<(&'static str, usize, usize)> {
                vec![
                    $((stringify!($episode), self.$episode.len(), episodes * $episode_width),)*
                    $((stringify!($given), self.$given.len(), steps * $given_width),)*
                    $((stringify!($name), self.$name.len(), steps * $width),)*
                    ("sessions_off", self.sessions_off.len(), steps + 1),
                    ("tape_off", self.tape_off.len(), steps + 1),
                    ("tape_kind", self.tape_kind.len(), self.tape.len()),
                ]
            }
        }
    };
}
cage4_columns!(define);

/// The first place where a replay differs from the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub episode: usize,
    /// Counted from 0; `None` at the reset.
    pub step: Option<usize>,
    /// Name and place of the value, and expected and found value, as text.
    pub what: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub steps: usize,
    /// Steps (and resets) with any difference.
    pub mismatches: usize,
    pub first: Option<Difference>,
}

/// The random source of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The recorded networks and decisions.
    Decisions,
    /// NumPy's generator, seeded as the file says; only blue's actions and messages are read.
    Seed,
}

impl Trace<'_> {
    /// Checks that the arrays fit each other and hold possible values; the error names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        let (episodes, len) = (self.length.len(), self.steps as usize);
        if !(2..=super::MOST_STEPS).contains(&self.steps) {
            return Err(format!("steps is {}, expected 2 to {}", self.steps, super::MOST_STEPS));
        }
        if let Some(bad) = self.length.iter().find(|&&n| n != self.steps as i32) {
            return Err(format!("length holds {bad}, expected {len}"));
        }
        let steps = episodes * len;
        for (name, got, expected) in self.lengths(episodes, steps) {
            if got != expected {
                return Err(format!("{name} holds {got} values, expected {expected} for {steps} steps"));
            }
        }
        let offsets = [
            ("sessions_off", self.sessions_off, self.sessions.len() / 7),
            ("tape_off", self.tape_off, self.tape.len()),
        ];
        for (name, offsets, end) in offsets {
            let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
            if !rises || offsets[0] != 0 || offsets[steps] != end as i64 {
                return Err(format!("{name} does not rise from 0 to {end}"));
            }
        }
        if let Some(bad) = self.blue_action.iter().find(|&&a| !(0..NUM_ACTIONS as i16).contains(&a)) {
            return Err(format!("blue_action holds {bad}, expected 0 to {}", NUM_ACTIONS - 1));
        }
        (0..episodes)
            .try_for_each(|e| self.blueprint(e).map(drop).map_err(|why| format!("the network of episode {e}: {why}")))
    }

    /// The recorded network of an episode.
    fn blueprint(&self, episode: usize) -> Result<Blueprint, String> {
        let mut plan = Blueprint::empty();
        let hosts = &self.host[episode * HOSTS..(episode + 1) * HOSTS];
        for (slot, _) in hosts[..NUM_SLOTS].iter().enumerate().filter(|(_, there)| **there != 0) {
            match slot % SUBNET_SLOTS {
                0 => {}
                user if user <= MOST_USERS => plan.users[subnet_of(slot)] += 1,
                _ => plan.servers[subnet_of(slot)] += 1,
            }
        }
        let pid = |pid: i16| u16::try_from(pid).map_err(|_| format!("a pid is {pid}"));
        for slot in 0..NUM_SLOTS {
            let at = (episode * HOSTS + slot) * NUM_IMAGE_SERVICES;
            for k in 0..NUM_IMAGE_SERVICES {
                plan.services[slot][k] = self.service[at + k];
                plan.service_pids[slot][k] = pid(self.service_pid[at + k])?;
            }
            plan.blue_pids[slot] = pid(self.blue_pid[episode * HOSTS + slot])?;
            plan.green_pids[slot] = pid(self.green_pid[episode * HOSTS + slot])?;
        }
        plan.blue_parents.copy_from_slice(&self.blue_parent[episode * NUM_BLUE..][..NUM_BLUE]);
        plan.red_starts.copy_from_slice(&self.red_start[episode * NUM_RED..][..NUM_RED]);
        plan.red_pid = pid(self.red_pid[episode])?;
        plan.check()?;
        let mut network = Network::empty();
        network.build(&plan);
        network.check()?;
        let same = (0..NUM_SLOTS).all(|slot| (hosts[slot] != 0) == plan.exists(slot));
        if same { Ok(plan) } else { Err("hosts are missing between others".into()) }
    }

    /// Replays a checked trace.
    pub fn replay(&self, mode: Mode) -> Report {
        let mut report = Report::default();
        match mode {
            Mode::Decisions => {
                let mut game = Game::new(RecordedSource::default());
                for episode in 0..self.length.len() {
                    match self.blueprint(episode) {
                        Ok(plan) => game.start(&plan),
                        Err(why) => report.note(episode, None, Some(why)),
                    }
                    self.play(
                        episode,
                        &mut game,
                        &mut report,
                        |game, i| {
                            let decisions = self.decisions(i);
                            game.random =
                                RecordedSource::new(&self.tape_kind[decisions.clone()], &self.tape[decisions]);
                        },
                        |game, _| game.random.complaint(),
                    );
                }
            }
            Mode::Seed => {
                let mut game = Game::new(NotingSource::new(self.seed));
                if self.is_chained {
                    game.random.network();
                }
                for episode in 0..self.length.len() {
                    if !self.is_chained {
                        game.random = NotingSource::new(self.seed.wrapping_add(episode as u64));
                    }
                    let drawn = game.random.network();
                    game.start(&drawn);
                    let expected = self.blueprint(episode);
                    let differs = expected.as_ref() != Ok(&drawn);
                    report.note(episode, None, differs.then(|| "the network differs".into()));
                    let state = game.random.numpy.rng.words()[0];
                    let expected = self.reset_rng[episode];
                    let differs = state != expected;
                    report.note(episode, None, differs.then(|| format!("generator: expected {expected}, got {state}")));
                    self.play(
                        episode,
                        &mut game,
                        &mut report,
                        |game, _| game.random.clear(),
                        |game, i| {
                            let decisions = self.decisions(i);
                            let tape =
                                game.random.difference(&self.tape_kind[decisions.clone()], &self.tape[decisions]);
                            tape.or_else(|| self.generator_difference(i, &game.random.numpy))
                        },
                    );
                }
            }
        }
        report
    }

    fn decisions(&self, i: usize) -> std::ops::Range<usize> {
        self.tape_off[i] as usize..self.tape_off[i + 1] as usize
    }

    fn generator_difference(&self, i: usize, numpy: &NumpySource) -> Option<String> {
        let half = numpy.rng.half().map_or(-1, i64::from);
        let (expected, got) = ((self.rng[i], self.rng_half[i]), (numpy.rng.words()[0], half));
        (expected != got).then(|| format!("generator: expected {expected:?}, got {got:?}"))
    }

    /// Plays an episode that has just started, calling `before` and `after` with the game and the number of the step.
    fn play<R: RandomSource>(
        &self,
        episode: usize,
        game: &mut Game<R>,
        report: &mut Report,
        mut before: impl FnMut(&mut Game<R>, usize),
        mut after: impl FnMut(&Game<R>, usize) -> Option<String>,
    ) {
        let mut obs = vec![0.0; NUM_BLUE * OBS_LEN];
        game.observe(&mut obs);
        let expected = &self.reset_obs[episode * PACKED_OBS..(episode + 1) * PACKED_OBS];
        report.note(episode, None, (expected != pack_obs(&obs)).then(|| "the first observation differs".into()));
        let expected = &self.mask[episode * PACKED_MASK..(episode + 1) * PACKED_MASK];
        report.note(episode, None, (expected != pack_masks(game)).then(|| "the masks differ".into()));
        let mut row = Box::new(Row::empty());
        for step in 0..self.steps as usize {
            let i = episode * self.steps as usize + step;
            before(game, i);
            row.clear();
            let actions = std::array::from_fn(|agent| self.blue_action[i * NUM_BLUE + agent] as u8);
            game.send(std::array::from_fn(|agent| self.message[i * NUM_BLUE + agent]));
            let reward = game.step(actions, self.red, Rules::default(), self.steps, &mut *row);
            row.fill(game, reward.team(), &mut obs);
            let what = row.difference(self, i).or_else(|| after(game, i));
            report.note(episode, Some(step), what);
            report.steps += 1;
        }
    }
}

impl Report {
    fn note(&mut self, episode: usize, step: Option<usize>, what: Option<String>) {
        if let Some(what) = what {
            self.mismatches += 1;
            self.first.get_or_insert(Difference { episode, step, what });
        }
    }
}

/// Packs flags, the first one highest in its byte.
fn pack(flags: impl Iterator<Item = bool>, out: &mut [u8]) {
    out.fill(0);
    flags.enumerate().for_each(|(i, flag)| out[i / 8] |= u8::from(flag) << (7 - i % 8));
}

/// The observations of all agents without their first value.
fn pack_obs(obs: &[f32]) -> [u8; PACKED_OBS] {
    let mut packed = [0; PACKED_OBS];
    let agents = obs.chunks_exact(OBS_LEN).enumerate();
    pack(agents.flat_map(|(agent, obs)| &obs[1..obs_len(agent)]).map(|&value| value != 0.0), &mut packed);
    packed
}

fn pack_masks<R>(game: &Game<R>) -> [u8; PACKED_MASK] {
    let mut packed = [0; PACKED_MASK];
    let mut masks = [[0; NUM_ACTIONS]; NUM_BLUE];
    masks.iter_mut().enumerate().for_each(|(agent, mask)| write_mask(agent, &game.world.network, mask));
    let used = masks.iter().enumerate().flat_map(|(agent, mask)| &mask[..num_actions(agent)]);
    pack(used.map(|&flag| flag != 0), &mut packed);
    packed
}

/// A success as a number: failure, success, unknown.
fn outcome(success: Option<bool>) -> i8 {
    success.map_or(2, i8::from)
}

/// The number of an action that is in progress.
const IN_PROGRESS: i8 = 3;
/// The number of an action that was dropped.
const DROPPED: i8 = 4;
/// Nothing, where a host or a service stands.
const NONE: u8 = u8::MAX;

impl Row {
    /// No events.
    fn clear(&mut self) {
        (self.blue_done, self.blue_success) = ([-1; NUM_BLUE], [IN_PROGRESS; NUM_BLUE]);
        (self.green_action, self.green_target, self.green_success) = ([-1; USERS], [NONE; USERS], [-1; USERS]);
        (self.red_kind, self.red_target, self.red_session) = ([-1; NUM_RED], [NONE; NUM_RED], [-1; NUM_RED]);
        (self.red_done, self.red_done_target) = ([-1; NUM_RED], [NONE; NUM_RED]);
        (self.red_success, self.exploit) = ([-1; NUM_RED], [-1; NUM_RED]);
        self.sessions.clear();
    }

    /// Notes the state after a step.
    fn fill<R: RandomSource>(&mut self, game: &Game<R>, reward: Reward, obs: &mut [f32]) {
        game.observe(obs);
        self.obs = pack_obs(obs);
        self.phase = [game.phase];
        self.reward = [reward.sum() as i16];
        self.reward_cost = [reward.action_cost as i16];
        self.reward_work = [(reward.sum() - reward.action_cost) as i16];
        let world = &game.world;
        self.services.fill(NONE);
        for slot in world.network.hosts() {
            let host = world.network.host(slot);
            for service in host.services() {
                let is_stopped = service.kind == OT_SERVICE && host.ot_stopped;
                self.services[slot * NUM_SERVICES + usize::from(service.kind)] =
                    service.health + if is_stopped { 128 } else { 0 };
            }
            self.processes[slot] = world.network.num_processes(slot) as u8;
            self.top_pid[slot] = host.top_pid;
            self.suspicious[slot] = world.watch.marks_on(slot).count().min(255) as u8;
        }
        self.blocked[..world.blocks.len()].copy_from_slice(&world.blocks);
        for (agent, red) in game.reds.iter().enumerate() {
            for slot in 0..NUM_SLOTS {
                self.fsm[agent * HOSTS + slot] = red.mind.state(slot) as u8;
            }
            self.red_active[agent] = red.is_active.into();
            self.red_ticks[agent] = red.ticks;
            self.red_known_sessions[agent] = red.known_ids().len() as u8;
            for s in red.sessions.list() {
                let flags = [s.is_abstract, s.root, !s.is_child].map(u16::from);
                self.sessions.extend([agent as u16, s.id, s.host.into(), flags[0], flags[1], flags[2], s.pid]);
            }
        }
    }
}

impl Log for Row {
    fn green(&mut self, host: Slot, action: u8, server: Option<Slot>, success: Option<bool>) {
        let place = subnet_of(host) * MOST_USERS + host % SUBNET_SLOTS - 1;
        self.green_action[place] = action as i8;
        self.green_target[place] = server.map_or(NONE, |slot| slot as u8);
        self.green_success[place] = outcome(success);
    }

    fn red_chose(&mut self, agent: usize, action: RedAction) {
        self.red_kind[agent] = action.kind as i8;
        self.red_target[agent] = action.target;
        self.red_session[agent] = action.session as i16;
    }

    fn red_did(&mut self, agent: usize, action: RedAction, success: Option<bool>) {
        self.red_done[agent] = action.kind as i8;
        self.red_done_target[agent] = action.target;
        self.red_success[agent] = success.map_or(DROPPED, i8::from);
    }

    fn red_exploited(&mut self, agent: usize, exploit: Exploit) {
        self.exploit[agent] = exploit as i8;
    }

    fn blue_did(&mut self, agent: usize, index: u8, success: Option<bool>) {
        self.blue_done[agent] = index.into();
        self.blue_success[agent] = outcome(success);
    }
}
