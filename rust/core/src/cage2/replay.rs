//! Replays reference traces: from the recorded decisions, and from nothing but the seed.

use super::Episode;
use super::events::RedAction;
use super::memory::Layout;
use super::python_source::PythonSource;
use super::red_agents::RedKind;
use super::scenario::{EXPLOIT_NAMES, Exploit, Host, Hosts};
use super::source::{NewProcess, RandomSource, split_top};
use super::tables::Scenario;
use super::view::WORD_HOSTS;

/// Bytes of a packed observation of so many hosts.
pub const fn packed_obs(hosts: usize) -> usize {
    (4 * hosts).div_ceil(8)
}

/// The arrays of a trace file, all episodes one after another. S steps, E episodes, N hosts, B bytes of [`packed_obs`].
pub struct Trace<'a> {
    pub scenario: &'a Scenario,
    /// `None`: red's actions are given, `red_kind` and `red_target`; only in Scenario 2.
    pub red: Option<RedKind>,
    pub seed: u64,
    /// Steps of each episode, [E].
    pub length: &'a [i32],
    /// [E], bytes: a process of red's was given an id that Monitor had marked before.
    pub collided: &'a [u8],
    /// [E, B] and [S, B]: 4 N bits, the first one highest in its byte.
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
    /// [S, N].
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

impl<'a> Trace<'a> {
    /// Checks that the arrays fit each other and hold possible values; the error names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        if let Some(bad) = self.length.iter().find(|&&n| n < 0) {
            return Err(format!("an episode has {bad} steps"));
        }
        let (hosts, packed) = (self.scenario.len(), packed_obs(self.scenario.len()));
        let (steps, episodes) = (self.length.iter().map(|&n| n as usize).sum::<usize>(), self.length.len());
        let lengths = [
            ("collided", self.collided.len(), episodes),
            ("reset_obs", self.reset_obs.len(), episodes * packed),
            ("obs", self.obs.len(), steps * packed),
            ("reward", self.reward.len(), steps),
            ("blue_action", self.blue_action.len(), steps),
            ("red_kind", self.red_kind.len(), steps),
            ("red_target", self.red_target.len(), steps),
            ("red_success", self.red_success.len(), steps),
            ("red_known", self.red_known.len(), if self.red.is_none() { steps } else { 0 }),
            ("exploit", self.exploit.len(), steps),
            ("detected", self.detected.len(), steps),
            ("session", self.session.len(), steps),
            ("red_access", self.red_access.len(), steps * hosts),
            ("red_sessions", self.red_sessions.len(), steps * hosts),
            ("processes", self.processes.len(), steps * hosts),
        ];
        for (name, got, expected) in lengths {
            if got != expected {
                return Err(format!("{name} holds {got} values, expected {expected} for {steps} steps"));
            }
        }
        let actions = self.scenario.actions.len();
        if let Some(bad) = self.blue_action.iter().find(|&&a| !(0..actions as i16).contains(&a)) {
            return Err(format!("blue_action holds {bad}, expected 0 to {}", actions - 1));
        }
        let unknown = (0..steps).find(|&i| self.red.is_none() && self.given_red(i).is_none());
        unknown.map_or(Ok(()), |i| {
            let (kind, target) = (self.red_kind[i], self.red_target[i]);
            Err(format!("red_kind and red_target hold {kind} and {target}, which is no action of red's"))
        })
    }

    fn given_red(&self, i: usize) -> Option<RedAction> {
        RedAction::from_code(self.red_kind[i], self.red_target[i], self.scenario)
    }

    /// Replays a checked trace.
    pub fn replay(&self, mode: Mode) -> Report {
        // A collision of process ids changes the outcome but is not among the recorded decisions. The trace tells in
        // which episodes one happens, and a replay from the seed tells the step.
        let mut collisions = vec![false; self.reward.len()];
        let seeded = || PythonSource::new(self.seed, self.scenario.len());
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
                let recorded = |random: &mut RecordedSource<'a>, episode: usize, i| {
                    *random = RecordedSource::of(self, i, self.collided[episode] != 0 && collisions[i]);
                };
                self.run(RecordedSource::new(self.scenario), recorded, |random, _| random.complaint())
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
        let (scenario, packed) = (self.scenario, packed_obs(self.scenario.len()));
        let mut sim = Episode::new(random, Layout::None, scenario);
        let mut report = Report { steps: 0, mismatches: 0, first: None };
        for (episode, &length) in self.length.iter().enumerate() {
            sim.begin(self.red.unwrap_or(RedKind::Sleep), scenario);
            let row = &self.reset_obs[episode * packed..(episode + 1) * packed];
            report.note(episode, None, self.difference_in_obs(unpack(row), sim.view.words()));
            for step in 0..length as usize {
                let i = report.steps;
                before(&mut sim.random, episode, i);
                let blue = scenario.actions[self.blue_action[i] as usize];
                let tenths = match self.red {
                    Some(_) => sim.step(blue, scenario),
                    None => {
                        let red = self.given_red(i).unwrap_or(RedAction::Sleep);
                        sim.step_given(blue, red, scenario)
                    }
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
        let (red, scenario, hosts) = (sim.last_red, self.scenario, self.scenario.len());
        let expected = (self.red_kind[i], self.red_target[i]);
        if (red.kind, red.target) != expected {
            let name = |(kind, target)| {
                RedAction::from_code(kind, target, scenario)
                    .map_or("an invalid action".into(), |action| action.name(scenario))
            };
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
        for (host, name) in scenario.hosts.iter().enumerate() {
            let at = i * hosts + host;
            let network = &sim.network;
            let pairs = [
                ("red access", self.red_access[at], u32::from(network.red_access(host))),
                ("red sessions", self.red_sessions[at], network.sessions_on(host) as u32),
                ("processes", self.processes[at], network.processes(host, scenario)),
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
        let packed = packed_obs(hosts);
        self.difference_in_obs(unpack(&self.obs[i * packed..(i + 1) * packed]), sim.view.words())
    }

    fn difference_in_obs(&self, expected: [u64; 2], got: [u64; 2]) -> Option<String> {
        let word = (0..2).find(|&word| expected[word] != got[word])?;
        let (expected, got) = (expected[word], got[word]);
        let host = (expected ^ got).trailing_zeros() as usize / 4;
        let entries =
            |bits: u64| (0..4).map(|k| if bits >> (4 * host + k) & 1 == 1 { '1' } else { '0' }).collect::<String>();
        let name = self.scenario.hosts.get(WORD_HOSTS * word + host).map_or("no host", String::as_str);
        Some(format!("observation of {name}: expected {}, got {}", entries(expected), entries(got)))
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

fn unpack(bytes: &[u8]) -> [u64; 2] {
    let mut words = [0; 2];
    for (i, byte) in bytes.iter().enumerate() {
        words[i / 8] |= u64::from(byte.reverse_bits()) << (8 * (i % 8));
    }
    words
}

/// The recorded decisions of one step. It notes the first draw that does not fit them.
struct RecordedSource<'a> {
    scenario: &'a Scenario,
    kind: i8,
    target: i8,
    exploit: i8,
    detected: i8,
    session: i8,
    collision: bool,
    used: [bool; 3],
    complaint: Option<String>,
}

impl<'a> RecordedSource<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            kind: 0,
            target: -1,
            exploit: -1,
            detected: -1,
            session: -1,
            collision: false,
            used: [false; 3],
            complaint: None,
        }
    }

    fn of(trace: &Trace<'a>, i: usize, collision: bool) -> Self {
        Self {
            kind: trace.red_kind[i],
            target: trace.red_target[i],
            exploit: trace.exploit[i],
            detected: trace.detected[i],
            session: trace.session[i],
            collision,
            ..Self::new(trace.scenario)
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
        let target = usize::try_from(self.target).ok().filter(|&t| t < self.scenario.len() && hosts >> t & 1 == 1);
        // Any other choice shows as a wrong action of red's.
        target.or_else(|| (hosts != 0).then(|| hosts.trailing_zeros() as Host))
    }
}

impl RandomSource for RecordedSource<'_> {
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
            self.complain(format!("a shell on {} may be detected, nothing is recorded", self.scenario.hosts[host]));
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

    fn bline_target(&mut self, entries: &[u8]) -> u8 {
        *entries.iter().find(|&&host| i8::try_from(host) == Ok(self.target)).unwrap_or(&entries[0])
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
        let recorded = RedAction::from_code(self.kind, self.target, self.scenario);
        let name = recorded.map_or_else(|| "an invalid action".into(), |action| action.name(self.scenario));
        self.complain(format!("red's action: recorded is {name}, the agent chooses {}", chosen.name(self.scenario)));
        recorded.unwrap_or(chosen)
    }
}
