//! A view of the game for policies: an agent's hosts in rows, the most suspicious first, with what it remembers of
//! them, and actions by row. It depends on the agents' own observations, masks and actions alone, so that a policy
//! that is trained on it can play wherever these are.
//!
//! ```text
//! Observation  5    which agent, one-hot
//!              3    the phase of the next step, one-hot
//!              19   steps / length of the episode; users / 30; servers / 18; steps left of the action in progress / 5;
//!                   Restore, Remove, decoy in progress; traffic rules to set / 8; decoys a host / 4; mean steps since a
//!                   user's last Restore / 250; of users with a process alert, users with a connection alert, servers
//!                   with a connection alert: those of the last step / 4, those of the last 8 steps / 4; the last sign
//!                   of red, faded, 8 / (8 + age), and slowly, 64 / (64 + age); users restored since / users
//!              15   per row: 1; server; process alert, connection alert in the last step; the same faded, 4 / (4 +
//!                   age), and slowly, 32 / (32 + age); numbers of alerts / 4, at most 1; steps since the last Restore
//!                   / 250, at most 1; decoys / 4; a Remove since the last process alert; signs of red in the zone
//!                   since the last Restore / 8, at most 1; the newest of them, slowly faded
//!              N    per other agent, its message, N bits, the first highest
//! Actions      0    Sleep for 5 steps, or until an alert in the zone
//!              1    set the next traffic rule: blocks what green never uses in the present phase and in that 12 steps
//!                   later, lifts other blocks
//!              2    a decoy on the host with the fewest
//!              3+   Restore the host of each of the first 4 rows; Remove there
//!              11+  the same, with the message 1, and so on for all of N bits
//! ```
//!
//! Alerts before a host's last Restore do not count. A sign of red is an alert that red alone causes: of a process on a
//! server, or of a connection to a user. It does not tell which host is red's; those restored since are the least likely.
//!
//! An agent with an action in progress may only sleep, and repeats its message. That Sleep takes as long as Restore makes
//! choices fewer and what follows from each of them larger: of 500 small chances to act
//! a policy gradient learns little.

use serde::{Deserialize, Serialize};

use super::blue::BlueAction;
use super::game::BlueTask;
use super::network::Network;
use super::scenario::{
    BLUE_ZONES, GREEN_REACH, MOST_SERVERS, NUM_BLUE, NUM_NETWORKS, Slot, Subnets, WATCHED, phase_lengths, server, user,
};
use super::world::World;
use crate::env::ensure;

/// Hosts that an agent sees, and those of them on which it acts.
const NUM_ROWS: usize = 8;
const NUM_TARGETS: usize = 4;
const ROW_VALUES: usize = 15;
const ZONE_VALUES: usize = NUM_BLUE + 3 + 19;
/// Length of an agent's observation without messages.
const OBS_LEN: usize = ZONE_VALUES + NUM_ROWS * ROW_VALUES;
/// Actions of an agent, each of which goes with each message.
const NUM_ACTIONS: usize = FIRST_REMOVE + NUM_TARGETS;
/// Most bits of a message.
pub const MOST_BITS: u32 = 4;

/// Length of an agent's observation with messages of so many bits.
pub(super) const fn obs_len(bits: u32) -> usize {
    OBS_LEN + (NUM_BLUE - 1) * bits as usize
}

/// Choices of an agent: action + [`NUM_ACTIONS`] * message.
pub(super) const fn num_choices(bits: u32) -> usize {
    NUM_ACTIONS << bits
}

const RULE: usize = 1;
const DECOY: usize = 2;
const FIRST_RESTORE: usize = 3;
const FIRST_REMOVE: usize = FIRST_RESTORE + NUM_TARGETS;

/// Steps that a Sleep takes if nothing happens.
const SLEEP_TICKS: u8 = 5;
/// Most decoys that it starts on a host.
const MOST_DECOYS: u8 = 4;
/// Counts of alerts and of signs of red stop here.
const MOST_ALERTS: u8 = 4;
const MOST_SIGNS: u8 = 8;
/// Steps before a phase in which blocks are lifted that it should not have.
const LIFT_STEPS: u32 = 12;
/// Steps for which alerts of a zone are recent.
const RECENT: u32 = 8;

/// An agent's memory of a host since its last Restore. Times count the steps taken; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    process: u16,
    connection: u16,
    restored: u16,
    removed: u16,
    num_process: u8,
    num_connection: u8,
    /// Steps since with a sign of red in the zone.
    num_signs: u8,
    decoys: u8,
}

impl Host {
    fn note_process(&mut self, time: u16) {
        self.process = time;
        self.num_process = (self.num_process + 1).min(MOST_ALERTS);
    }

    fn note_connection(&mut self, time: u16) {
        self.connection = time;
        self.num_connection = (self.num_connection + 1).min(MOST_ALERTS);
    }

    /// The order of rows: more is more suspicious. Users are phished without an alert, and servers see false ones of
    /// connections.
    fn suspicion(&self, is_server: bool, time: u32) -> u32 {
        let faded = |weight: u32, then: u16| if then == 0 { 0 } else { weight * 4 / (4 + time - u32::from(then)) };
        let risk = time - u32::from(self.restored);
        if is_server {
            risk / 8 + faded(4000, self.process) + faded(500, self.connection)
        } else {
            risk + faded(2000, self.process) + faded(2000, self.connection)
        }
    }

    fn check(&self, time: u32) -> bool {
        let fits = |then: u16| then == 0 || (then >= self.restored && u32::from(then) <= time);
        let counts = (self.process == 0) == (self.num_process == 0)
            && (self.connection == 0) == (self.num_connection == 0)
            && self.num_process <= MOST_ALERTS
            && self.num_connection <= MOST_ALERTS
            && self.num_signs <= MOST_SIGNS;
        let times = [self.process, self.connection, self.removed].into_iter().all(fits);
        times && counts && u32::from(self.restored) <= time && self.decoys <= MOST_DECOYS
    }

    fn write(&self, is_server: bool, sign: u16, time: u32, out: &mut [f32]) {
        let now = |then: u16| f32::from(u8::from(then != 0 && u32::from(then) == time));
        let faded = |slowness: f32, then: u16| {
            if then == 0 { 0.0 } else { slowness / (slowness + (time - u32::from(then)) as f32) }
        };
        out.copy_from_slice(&[
            1.0,
            f32::from(u8::from(is_server)),
            now(self.process),
            now(self.connection),
            faded(4.0, self.process),
            faded(4.0, self.connection),
            faded(32.0, self.process),
            faded(32.0, self.connection),
            f32::from(self.num_process) / 4.0,
            f32::from(self.num_connection) / 4.0,
            risk(time, self.restored),
            f32::from(self.decoys) / 4.0,
            f32::from(u8::from(self.removed != 0 && self.removed >= self.process)),
            f32::from(self.num_signs) / f32::from(MOST_SIGNS),
            if self.num_signs == 0 { 0.0 } else { faded(32.0, sign) },
        ]);
    }
}

/// Steps since a Restore as they are written.
fn risk(time: u32, restored: u16) -> f32 {
    ((time - u32::from(restored)) as f32 / 250.0).min(1.0)
}

const fn is_server(place: usize) -> bool {
    place % WATCHED < MOST_SERVERS
}

/// The host at a place of a zone.
fn slot_at(agent: usize, place: usize) -> Slot {
    let (subnet, place) = (BLUE_ZONES[agent][place / WATCHED], place % WATCHED);
    if place < MOST_SERVERS { server(subnet, place) } else { user(subnet, place - MOST_SERVERS) }
}

/// A place that no row shows.
const NO_PLACE: u8 = u8::MAX;

/// An agent's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AgentView {
    /// Hosts that exist, a bit for each place.
    exists: u64,
    blocks: [Subnets; 3],
    hosts: Vec<Host>,
    /// Time of the last sign of red in the zone.
    sign: u16,
    /// The action in progress and its steps left.
    task: Option<(BlueAction, u8)>,
    /// Places of rows.
    rows: [u8; NUM_ROWS],
    /// The message to the other agents.
    message: u8,
}

impl AgentView {
    fn new(agent: usize) -> Self {
        let hosts = vec![Host::default(); BLUE_ZONES[agent].len() * WATCHED];
        Self { exists: 0, blocks: [0; 3], hosts, sign: 0, task: None, rows: [NO_PLACE; NUM_ROWS], message: 0 }
    }

    fn start(&mut self, exists: u64) {
        self.hosts.fill(Host::default());
        (self.exists, self.blocks, self.sign) = (exists, [0; 3], 0);
        (self.task, self.message) = (None, 0);
        self.sort(0);
    }

    fn existing(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(place, _)| self.exists >> place & 1 == 1)
    }

    /// Puts the most suspicious hosts into rows, those of equal suspicion by place.
    fn sort(&mut self, time: u32) {
        let mut best = [(0, NO_PLACE); NUM_ROWS];
        let mut count = 0;
        for (place, host) in self.existing() {
            let suspicion = host.suspicion(is_server(place), time);
            let mut at = count;
            while at > 0 && best[at - 1].0 < suspicion {
                if at < NUM_ROWS {
                    best[at] = best[at - 1];
                }
                at -= 1;
            }
            if at < NUM_ROWS {
                best[at] = (suspicion, place as u8);
                count = (count + 1).min(NUM_ROWS);
            }
        }
        self.rows = best.map(|(_, place)| place);
    }

    /// The traffic rules that are not as they should be in some phases: those to lift, then those to set.
    fn rules(&self, agent: usize, phases: [usize; 2]) -> impl Iterator<Item = BlueAction> {
        let subnets = BLUE_ZONES[agent].iter().zip(self.blocks);
        let differing = subnets.map(move |(&to, blocks)| {
            let used = phases.map(|phase| GREEN_REACH[phase][to]);
            let wanted = !(used[0] | used[1]) & ((1 << NUM_NETWORKS) - 1);
            (to as u8, blocks & !wanted, wanted & !blocks)
        });
        let each = |subnets: Subnets| (0..u16::BITS as u8).filter(move |from| subnets >> from & 1 == 1);
        let lifted =
            differing.clone().flat_map(move |(to, lift, _)| each(lift).map(move |from| BlueAction::Allow(to, from)));
        lifted.chain(differing.flat_map(move |(to, _, set)| each(set).map(move |from| BlueAction::Block(to, from))))
    }

    /// The host for the next decoy: one with the fewest.
    fn decoy_place(&self) -> Option<usize> {
        let fitting = self.existing().filter(|(_, host)| host.decoys < MOST_DECOYS);
        fitting.min_by_key(|(_, host)| host.decoys).map(|(place, _)| place)
    }

    fn action(&self, agent: usize, choice: usize, phases: [usize; 2]) -> BlueAction {
        let of_row = |row: usize, act: fn(u8) -> BlueAction| {
            let place = self.rows[row];
            if place == NO_PLACE { BlueAction::Sleep } else { act(slot_at(agent, place.into()) as u8) }
        };
        match choice {
            RULE => self.rules(agent, phases).next().unwrap_or(BlueAction::Sleep),
            DECOY => self
                .decoy_place()
                .map_or(BlueAction::Sleep, |place| BlueAction::DeployDecoy(slot_at(agent, place) as u8)),
            FIRST_RESTORE..FIRST_REMOVE => of_row(choice - FIRST_RESTORE, BlueAction::Restore),
            FIRST_REMOVE..NUM_ACTIONS => of_row(choice - FIRST_REMOVE, BlueAction::Remove),
            _ => BlueAction::Sleep,
        }
    }

    fn note(&mut self, agent: usize, world: &World, time: u32) {
        let now = time as u16;
        if let Some((_, ticks)) = &mut self.task {
            *ticks -= 1;
        }
        if let Some((action, _)) = self.task.take_if(|(_, ticks)| *ticks == 0)
            && let Some(slot) = action.host()
        {
            let place = (0..self.hosts.len()).find(|&place| slot_at(agent, place) == slot);
            let host = &mut self.hosts[place.expect("a host of the zone")];
            match action {
                BlueAction::Restore(_) => *host = Host { restored: now, ..Host::default() },
                BlueAction::Remove(_) => host.removed = now,
                _ => host.decoys = (host.decoys + 1).min(MOST_DECOYS),
            }
        }
        let (mut has_alerts, mut has_sign) = (false, false);
        let (servers, all) = ((1 << MOST_SERVERS) - 1, (1 << WATCHED) - 1);
        for (i, &subnet) in BLUE_ZONES[agent].iter().enumerate() {
            self.blocks[i] = world.blocks[subnet];
            let hosts = &mut self.hosts[i * WATCHED..][..WATCHED];
            for (bits, signs, note) in [
                (world.watch.process_alerts[subnet], servers, Host::note_process as fn(&mut Host, u16)),
                (world.watch.connection_alerts[subnet], all & !servers, Host::note_connection),
            ] {
                let mut left = bits & all;
                has_alerts |= left != 0;
                has_sign |= bits & signs != 0;
                while left != 0 {
                    note(&mut hosts[left.trailing_zeros() as usize], now);
                    left &= left - 1;
                }
            }
        }
        if has_sign {
            self.sign = now;
            for host in &mut self.hosts {
                host.num_signs = (host.num_signs + 1).min(MOST_SIGNS);
            }
        }
        self.task.take_if(|(action, _)| has_alerts && *action == BlueAction::Sleep);
        self.sort(time);
    }

    fn write_mask(&self, agent: usize, phases: [usize; 2], mask: &mut [u8]) {
        mask.fill(0);
        mask[0] = 1;
        if self.task.is_some() {
            return;
        }
        mask[RULE] = self.rules(agent, phases).next().is_some().into();
        mask[DECOY] = self.decoy_place().is_some().into();
        for (row, &place) in self.rows[..NUM_TARGETS].iter().enumerate() {
            mask[FIRST_RESTORE + row] = (place != NO_PLACE).into();
            mask[FIRST_REMOVE + row] = (place != NO_PLACE).into();
        }
    }

    fn write(&self, agent: usize, phases: [usize; 2], time: u32, steps: u32, out: &mut [f32]) {
        let (zone, rows) = out.split_at_mut(ZONE_VALUES);
        zone.fill(0.0);
        zone[agent] = 1.0;
        zone[NUM_BLUE + phases[0]] = 1.0;
        let (mut users, mut servers, mut decoys, mut risks, mut cleaned) = (0.0, 0.0, 0.0, 0.0, 0.0);
        // Users with a process alert, users and servers with a connection alert: now, recently.
        let mut alerts = [[0.0; 2]; 3];
        for (place, host) in self.existing() {
            decoys += f32::from(host.decoys);
            if is_server(place) {
                servers += 1.0;
            } else {
                users += 1.0;
                risks += risk(time, host.restored);
                cleaned += f32::from(u8::from(host.num_signs == 0));
            }
            let kinds = if is_server(place) { [0, host.connection, 2] } else { [host.process, host.connection, 1] };
            for (then, kind) in [(kinds[0], 0), (kinds[1], usize::from(kinds[2]))] {
                let age = time - u32::from(then);
                if then != 0 && age < RECENT {
                    alerts[kind][0] += if age == 0 { 0.25 } else { 0.0 };
                    alerts[kind][1] += 0.25;
                }
            }
        }
        let values = &mut zone[NUM_BLUE + 3..];
        values[0] = time as f32 / steps as f32;
        values[1] = users / 30.0;
        values[2] = servers / 18.0;
        if let Some((action, ticks)) = self.task {
            values[3] = f32::from(ticks) / 5.0;
            match action {
                BlueAction::Restore(_) => values[4] = 1.0,
                BlueAction::Remove(_) => values[5] = 1.0,
                _ => values[6] = 1.0,
            }
        }
        values[7] = self.rules(agent, phases).count() as f32 / 8.0;
        values[8] = decoys / (4.0 * (users + servers));
        values[9] = risks / users;
        values[10..16].copy_from_slice(alerts.as_flattened());
        let since_sign = (time - u32::from(self.sign)) as f32;
        let has_sign = f32::from(u8::from(self.sign != 0));
        values[16..].copy_from_slice(&[
            has_sign * 8.0 / (8.0 + since_sign),
            has_sign * 64.0 / (64.0 + since_sign),
            cleaned / users,
        ]);
        for (row, &place) in rows.chunks_exact_mut(ROW_VALUES).zip(&self.rows) {
            if place == NO_PLACE {
                row.fill(0.0);
            } else {
                let place = usize::from(place);
                self.hosts[place].write(is_server(place), self.sign, time, row);
            }
        }
    }

    /// Returns whether an episode can have it.
    fn check(&self, agent: usize, time: u32, network: &Network, task: Option<BlueTask>) -> bool {
        let hosts = self.hosts.len() == BLUE_ZONES[agent].len() * WATCHED
            && self.exists == hosts_of(agent, network)
            && self.hosts.iter().all(|host| host.check(time));
        let blocks = BLUE_ZONES[agent].iter().zip(self.blocks);
        let blocks = self.blocks.iter().all(|blocks| blocks >> (NUM_NETWORKS + 1) == 0)
            && blocks.into_iter().all(|(to, blocks)| blocks >> to & 1 == 0);
        let signs =
            u32::from(self.sign) <= time && (self.sign != 0 || self.hosts.iter().all(|host| host.num_signs == 0));
        let sleeps = |ticks| (1..SLEEP_TICKS).contains(&ticks) && task.is_none();
        let tasks = match self.task {
            Some((BlueAction::Sleep, ticks)) => sleeps(ticks),
            own => own == task.map(|task| (task.action, task.ticks)),
        };
        hosts && blocks && signs && tasks && {
            let mut sorted = self.clone();
            sorted.sort(time);
            sorted.rows == self.rows
        }
    }
}

/// Hosts of an agent's zone that exist, a bit for each place.
fn hosts_of(agent: usize, network: &Network) -> u64 {
    let places = (0..BLUE_ZONES[agent].len() * WATCHED).filter(|&place| network.exists(slot_at(agent, place)));
    places.fold(0, |bits, place| bits | 1 << place)
}

/// See the documentation of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Steps of an episode, and those taken.
    steps: u32,
    time: u32,
    /// Bits of a message.
    bits: u32,
    agents: Vec<AgentView>,
}

impl HostView {
    /// Bytes that it has beside itself.
    pub(super) const MEMORY: usize = NUM_BLUE * size_of::<AgentView>() + 7 * WATCHED * size_of::<Host>();

    pub fn new(steps: u32, bits: u32) -> Self {
        Self { steps, time: 0, bits, agents: (0..NUM_BLUE).map(AgentView::new).collect() }
    }

    /// The phases of the next step and of that for which blocks are lifted.
    fn phases(&self) -> [usize; 2] {
        let [first, second, _] = phase_lengths(self.steps);
        [self.time, self.time + LIFT_STEPS].map(|time| usize::from(time >= first) + usize::from(time >= first + second))
    }

    pub(super) fn start_on(&mut self, network: &Network) {
        self.time = 0;
        self.agents.iter_mut().enumerate().for_each(|(agent, view)| view.start(hosts_of(agent, network)));
    }

    /// Returns the challenge's actions, by their indices, for choices below [`num_choices`], and notes those that begin.
    /// Agents with an action in progress sleep.
    pub(super) fn act(&mut self, choices: [usize; NUM_BLUE]) -> [usize; NUM_BLUE] {
        let phases = self.phases();
        std::array::from_fn(|agent| {
            let view = &mut self.agents[agent];
            if view.task.is_some() {
                return BlueAction::Sleep.index(agent);
            }
            let action = view.action(agent, choices[agent] % NUM_ACTIONS, phases);
            view.message = (choices[agent] / NUM_ACTIONS) as u8;
            view.task = Some((action, if action == BlueAction::Sleep { SLEEP_TICKS } else { action.ticks() }));
            action.index(agent)
        })
    }

    /// Notes a step after [`Self::act`] by what each agent's observation shows of the subnets of its zone.
    pub(super) fn note(&mut self, world: &World) {
        self.time += 1;
        for (agent, view) in self.agents.iter_mut().enumerate() {
            view.note(agent, world, self.time);
        }
    }

    /// Writes the observations of all agents, [`obs_len`] values each.
    pub fn write(&self, out: &mut [f32]) {
        let phases = self.phases();
        for (agent, (view, out)) in self.agents.iter().zip(out.chunks_exact_mut(obs_len(self.bits))).enumerate() {
            let (own, messages) = out.split_at_mut(OBS_LEN);
            view.write(agent, phases, self.time, self.steps, own);
            let others = self.agents.iter().enumerate().filter(|&(other, _)| other != agent);
            let bits = others.flat_map(|(_, view)| (0..self.bits).rev().map(|bit| view.message >> bit & 1));
            messages.iter_mut().zip(bits).for_each(|(value, bit)| *value = bit.into());
        }
    }

    /// Writes the masks of all agents, [`num_choices`] flags each.
    pub fn write_masks(&self, out: &mut [u8]) {
        let phases = self.phases();
        for (agent, (view, out)) in self.agents.iter().zip(out.chunks_exact_mut(num_choices(self.bits))).enumerate() {
            let (silent, telling) = out.split_at_mut(NUM_ACTIONS);
            view.write_mask(agent, phases, silent);
            if view.task.is_some() {
                telling.fill(0);
            } else {
                telling.chunks_exact_mut(NUM_ACTIONS).for_each(|mask| mask.copy_from_slice(silent));
            }
        }
    }

    /// Refuses a decoded view that a game does not have; the error says why.
    pub(super) fn check(
        &self,
        (steps, bits): (u32, u32),
        time: u32,
        network: &Network,
        tasks: &[Option<BlueTask>; NUM_BLUE],
    ) -> Result<(), String> {
        let agents = self.agents.len() == NUM_BLUE
            && (self.steps, self.bits, self.time) == (steps, bits, time)
            && self.agents.iter().all(|view| view.message >> bits == 0)
            && self.agents.iter().zip(tasks).enumerate().all(|(i, (view, &task))| view.check(i, time, network, task));
        ensure(agents, "blue's view of its hosts is impossible")
    }
}
