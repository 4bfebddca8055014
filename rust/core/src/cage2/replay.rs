//! Replays reference traces: from the recorded decisions, and from nothing but the seed.

use super::blue::{BlueAction, NUM_ACTIONS};
use super::events::RedAction;
use super::memory::Layout;
use super::python_source::PythonSource;
use super::red_agents::RedKind;
use super::scenario::{EXPLOIT_NAMES, Exploit, HOST_NAMES, Host, Hosts, NUM_HOSTS, USER1};
use super::source::{NewProcess, RandomSource, split_top};
use super::view::OBS_BITS;
use super::{Episode, Ruleset};

/// Bytes of a packed observation.
pub const PACKED_OBS: usize = OBS_BITS.div_ceil(8);

/// The arrays of a trace file, all episodes one after another. S steps, E episodes.
pub struct Trace<'a> {
    pub ruleset: Ruleset,
    /// `None`: red's actions are given, `red_kind` and `red_target`.
    pub red: Option<RedKind>,
    pub seed: u64,
    /// Steps of each episode, [E].
    pub length: &'a [i32],
    /// [E], bytes: a process of red's was given an id that Monitor had marked before.
    pub collided: &'a [u8],
    /// [E, 7] and [S, 7]: 52 bits, the first one highest in its byte.
    pub reset_obs: &'a [u8],
    pub obs: &'a [u8],
    /// [S].
    pub reward: &'a [f32],
    pub blue_action: &'a [i16],
    pub red_kind: &'a [i8],
    pub red_target: &'a [i8],
    pub red_success: &'a [i8],
    /// As [`Knowledge::known`](super::red_actions::Knowledge::known) after the step; empty unless red's actions are given.
    pub red_known: &'a [i32],
    pub exploit: &'a [i8],
    pub detected: &'a [i8],
    pub session: &'a [i8],
    /// [S, 13].
    pub red_access: &'a [u8],
    pub red_sessions: &'a [u8],
    pub processes: &'a [u8],
}

/// The first place where a replay differs from the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub episode: usize,
    /// Counted from 0; `None` at the reset.
    pub step: Option<usize>,
    /// Host, expected and found value, as text.
    pub what: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub steps: usize,
    /// Steps (and resets) with any difference.
    pub mismatches: usize,
    pub first: Option<Difference>,
}

/// The random source of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The recorded decisions; the choice of a red agent is checked against the recorded action.
    Decisions,
    /// Python's generator, seeded as the file says; only blue's actions are read, and red's where they are given.
    Seed,
}

impl Trace<'_> {
    /// Checks that the arrays fit each other and hold possible values; the error names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        if let Some(bad) = self.length.iter().find(|&&n| n < 0) {
            return Err(format!("an episode has {bad} steps"));
        }
        let (steps, episodes) = (self.length.iter().map(|&n| n as usize).sum::<usize>(), self.length.len());
        let lengths = [
            ("collided", self.collided.len(), episodes),
            ("reset_obs", self.reset_obs.len(), episodes * PACKED_OBS),
            ("obs", self.obs.len(), steps * PACKED_OBS),
            ("reward", self.reward.len(), steps),
            ("blue_action", self.blue_action.len(), steps),
            ("red_kind", self.red_kind.len(), steps),
            ("red_target", self.red_target.len(), steps),
            ("red_success", self.red_success.len(), steps),
            ("red_known", self.red_known.len(), if self.red.is_none() { steps } else { 0 }),
            ("exploit", self.exploit.len(), steps),
            ("detected", self.detected.len(), steps),
            ("session", self.session.len(), steps),
            ("red_access", self.red_access.len(), steps * NUM_HOSTS),
            ("red_sessions", self.red_sessions.len(), steps * NUM_HOSTS),
            ("processes", self.processes.len(), steps * NUM_HOSTS),
        ];
        for (name, got, expected) in lengths {
            if got != expected {
                return Err(format!("{name} holds {got} values, expected {expected} for {steps} steps"));
            }
        }
        if let Some(bad) = self.blue_action.iter().find(|&&a| !(0..NUM_ACTIONS as i16).contains(&a)) {
            return Err(format!("blue_action holds {bad}, expected 0 to {}", NUM_ACTIONS - 1));
        }
        let unknown = (0..steps).find(|&i| self.red.is_none() && self.given_red(i).is_none());
        unknown.map_or(Ok(()), |i| {
            let (kind, target) = (self.red_kind[i], self.red_target[i]);
            Err(format!("red_kind and red_target hold {kind} and {target}, which is no action of red's"))
        })
    }

    fn given_red(&self, i: usize) -> Option<RedAction> {
        RedAction::from_code(self.red_kind[i], self.red_target[i])
    }

    /// Replays a checked trace.
    pub fn replay(&self, mode: Mode) -> Report {
        // A collision of process ids changes the outcome but is not among the recorded decisions. The trace tells in
        // which episodes one happens, and a replay from the seed tells the step.
        let mut collisions = vec![false; self.reward.len()];
        let seeded = || PythonSource::new(self.seed);
        match mode {
            Mode::Seed => self.run(seeded(), |_, _, _| {}, |_, _| None),
            Mode::Decisions => {
                if self.collided.iter().any(|&c| c != 0) {
                    self.run(
                        seeded(),
                        |random, _, _| random.collided = false,
                        |random, i| {
                            collisions[i] = random.collided;
                            None
                        },
                    );
                }
                let recorded = |random: &mut RecordedSource, episode: usize, i| {
                    *random = RecordedSource::of(self, i, self.collided[episode] != 0 && collisions[i]);
                };
                self.run(RecordedSource::default(), recorded, |random, _| random.complaint())
            }
        }
    }

    /// Runs through the trace, calling `before` with the random source, the episode and the step, and `after` likewise.
    fn run<D: RandomSource>(
        &self,
        random: D,
        before: impl Fn(&mut D, usize, usize),
        mut after: impl FnMut(&D, usize) -> Option<String>,
    ) -> Report {
        let mut sim = Episode::new(random, Layout::None);
        let mut report = Report { steps: 0, mismatches: 0, first: None };
        for (episode, &length) in self.length.iter().enumerate() {
            sim.begin(self.red.unwrap_or(RedKind::Sleep), self.ruleset);
            let packed = &self.reset_obs[episode * PACKED_OBS..(episode + 1) * PACKED_OBS];
            report.note(episode, None, difference_in_obs(unpack(packed), sim.view.bits()));
            for step in 0..length as usize {
                let i = report.steps;
                before(&mut sim.random, episode, i);
                let blue = BlueAction::from_index(self.blue_action[i] as usize);
                let tenths = match self.red {
                    Some(_) => sim.step(blue, self.ruleset),
                    None => sim.step_given(blue, self.given_red(i).unwrap_or(RedAction::Sleep), self.ruleset),
                };
                let what = after(&sim.random, i).or_else(|| self.difference(i, &sim, tenths));
                report.note(episode, Some(step), what);
                report.steps += 1;
            }
        }
        report
    }

    /// The first thing in which the simulator differs from row `i`.
    fn difference<D: RandomSource>(&self, i: usize, sim: &Episode<D>, tenths: i32) -> Option<String> {
        let red = sim.last_red;
        let expected = (self.red_kind[i], self.red_target[i]);
        if (red.kind, red.target) != expected {
            let name =
                |(kind, target)| RedAction::from_code(kind, target).map_or("an invalid action".into(), RedAction::name);
            return Some(format!("red's action: expected {}, got {}", name(expected), name((red.kind, red.target))));
        }
        if red.success != self.red_success[i] {
            return Some(format!("red's success: expected {}, got {}", self.red_success[i], red.success));
        }
        if let Some(&expected) = self.red_known.get(i)
            && expected as u32 != sim.knowledge.known()
        {
            return Some(format!("red's knowledge: expected {expected:#x}, got {:#x}", sim.knowledge.known()));
        }
        for (host, name) in HOST_NAMES.iter().enumerate() {
            let at = i * NUM_HOSTS + host;
            let network = &sim.network;
            let pairs = [
                ("red access", self.red_access[at], u32::from(network.red_access(host))),
                ("red sessions", self.red_sessions[at], network.sessions_on(host) as u32),
                ("processes", self.processes[at], network.processes(host)),
            ];
            for (what, expected, got) in pairs {
                if u32::from(expected) != got {
                    return Some(format!("{what} on {name}: expected {expected}, got {got}"));
                }
            }
        }
        let reward = (f64::from(tenths) / 10.0) as f32;
        if reward != self.reward[i] {
            return Some(format!("reward: expected {}, got {reward}", self.reward[i]));
        }
        difference_in_obs(unpack(&self.obs[i * PACKED_OBS..(i + 1) * PACKED_OBS]), sim.view.bits())
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

fn unpack(bytes: &[u8]) -> u64 {
    (0..OBS_BITS).fold(0, |bits, i| bits | u64::from(bytes[i / 8] >> (7 - i % 8) & 1) << i)
}

fn difference_in_obs(expected: u64, got: u64) -> Option<String> {
    if expected == got {
        return None;
    }
    let host = (expected ^ got).trailing_zeros() as usize / 4;
    let entries =
        |bits: u64| (0..4).map(|k| if bits >> (4 * host + k) & 1 == 1 { '1' } else { '0' }).collect::<String>();
    Some(format!("observation of {}: expected {}, got {}", HOST_NAMES[host], entries(expected), entries(got)))
}

/// The recorded decisions of one step. It notes the first draw that does not fit them.
#[derive(Default)]
struct RecordedSource {
    kind: i8,
    target: i8,
    exploit: i8,
    detected: i8,
    session: i8,
    collision: bool,
    used: [bool; 3],
    complaint: Option<String>,
}

impl RecordedSource {
    fn of(trace: &Trace<'_>, i: usize, collision: bool) -> Self {
        Self {
            kind: trace.red_kind[i],
            target: trace.red_target[i],
            exploit: trace.exploit[i],
            detected: trace.detected[i],
            session: trace.session[i],
            collision,
            used: [false; 3],
            complaint: None,
        }
    }

    fn complain(&mut self, what: String) {
        self.complaint.get_or_insert(what);
    }

    fn complaint(&self) -> Option<String> {
        let unused = || {
            let recorded = [("exploit", self.exploit), ("detection", self.detected), ("session", self.session)];
            let mut left = recorded.iter().zip(self.used).filter(|((_, value), used)| *value >= 0 && !used);
            left.next().map(|((name, _), _)| format!("the recorded {name} was never asked for"))
        };
        self.complaint.clone().or_else(unused)
    }

    fn target_in(&self, hosts: Hosts) -> Option<Host> {
        let target = usize::try_from(self.target).ok().filter(|&t| t < NUM_HOSTS && hosts >> t & 1 == 1);
        // Any other choice shows as a wrong action of red's.
        target.or_else(|| (hosts != 0).then(|| hosts.trailing_zeros() as Host))
    }
}

impl RandomSource for RecordedSource {
    fn red_process(&mut self, _host: Host) -> NewProcess {
        NewProcess { pid: 0, marked: self.collision }
    }

    fn red_agent(&mut self, _weights: &[f64]) -> usize {
        0
    }

    fn exploit(&mut self, options: u8) -> Exploit {
        self.used[0] = true;
        let recorded = usize::try_from(self.exploit).ok().and_then(|e| Exploit::ALL.get(e).copied());
        match recorded {
            Some(exploit) if options & exploit.bit() != 0 => exploit,
            Some(exploit) => {
                self.complain(format!(
                    "red cannot have drawn {}, it knows no port for it",
                    EXPLOIT_NAMES[exploit as usize]
                ));
                exploit
            }
            None => {
                self.complain("red draws an exploit, none is recorded".into());
                split_top(options).1
            }
        }
    }

    fn detected(&mut self, host: Host, _pid: u16) -> bool {
        self.used[1] = true;
        if self.detected < 0 {
            self.complain(format!("a shell on {} may be detected, nothing is recorded", HOST_NAMES[host]));
        }
        self.detected == 1
    }

    fn session(&mut self, n: usize) -> usize {
        self.used[2] = true;
        match usize::try_from(self.session) {
            Ok(session) if session < n => session,
            _ => {
                self.complain(format!("red draws one of {n} sessions, recorded is {}", self.session));
                0
            }
        }
    }

    fn bline_target(&mut self) -> Host {
        self.target_in(0b1_1110_0000_0000).unwrap_or(USER1)
    }

    fn shuffle_addresses(&mut self) {}

    fn first_address(&mut self, hosts: Hosts) -> Option<Host> {
        self.target_in(hosts)
    }

    fn shuffle_hosts(&mut self) {}

    fn first_host(&mut self, hosts: Hosts) -> Option<Host> {
        self.target_in(hosts)
    }

    fn red_action(&mut self, chosen: RedAction) -> RedAction {
        if chosen.code() == (self.kind, self.target) {
            return chosen;
        }
        let recorded = RedAction::from_code(self.kind, self.target);
        let name = recorded.map_or_else(|| "an invalid action".into(), RedAction::name);
        self.complain(format!("red's action: recorded is {name}, the agent chooses {}", chosen.name()));
        recorded.unwrap_or(chosen)
    }
}
