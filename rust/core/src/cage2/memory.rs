//! Blue's memory of an episode: in Scenario 2 values after the 52 bits of an observation that depend on the bits and on
//! blue's own actions alone, and the actions that may have an effect as far as blue knows.
//!
//! [`Layout`] names how many of them an observation has. Each layout is a prefix of the next:
//!
//! ```text
//! Scan    10  per SCAN_HOSTS: 0 never scanned, 1 scanned before, 2 scanned last
//! Decoys  41  per DECOY_PLACES: 1 while the decoy stands there
//! Full   137  per kind of event (Analyse, Remove, Restore, scan activity, exploit activity): 13 ages, 13 counts;
//!             the last action's kind one-hot (Sleep or Monitor, Analyse, Remove, Restore, decoy; zeros before the first
//!             action); 1 if that action could have an effect; steps / 100
//! ```
//!
//! The age of an event on a host is 1 / (1 + steps since the last one), 0 if there was none; the count is that of the
//! episode, at most 10, divided by 10. An action could have an effect if its entry of the action mask was 1 before it.
//!
//! Other scenarios have the layouts None and Scan alone, the latter with a value for every host.

use std::collections::TryReserveError;

use serde::{Deserialize, Serialize};

use super::Ruleset;
use super::blue::{BlueAction, NUM_ACTIONS};
use super::scenario::{DECOYS, DEFENDER, Host, Hosts, IMAGES, NUM_HOSTS, Ports};
use super::tables::Scenario;
use super::view::{WORD_HOSTS, write_bits};
use crate::env::ensure;
use crate::memory::{arrays, ask_for};

/// Hosts whose scans the winners of the challenge remembered; the operational hosts are not among them.
pub const SCAN_HOSTS: [Host; 10] = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12];

/// Pairs of a decoy and a host where it can start.
pub const NUM_DECOYS: usize = 41;

/// Kinds of events that have ages and counts.
const NUM_EVENTS: usize = 5;
const EVENT_SCAN: usize = 3;
const EVENT_EXPLOIT: usize = 4;

/// Kinds of actions in the one-hot code of the last one.
const NUM_KINDS: usize = 5;

/// Counts stop here.
const MAX_COUNT: u8 = 10;

/// The values of memory that an observation has after its 52 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    None,
    Scan,
    Decoys,
    Full,
}

impl Layout {
    pub const ALL: [Self; 4] = [Self::None, Self::Scan, Self::Decoys, Self::Full];
    pub const NAMES: [&str; 4] = ["none", "scan", "decoys", "full"];

    /// Number of values.
    pub const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Scan => SCAN_HOSTS.len(),
            Self::Decoys => SCAN_HOSTS.len() + NUM_DECOYS,
            Self::Full => SCAN_HOSTS.len() + NUM_DECOYS + 2 * NUM_EVENTS * NUM_HOSTS + NUM_KINDS + 2,
        }
    }

    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Decoys and the hosts where they can start, in the order of blue's actions: number of the decoy, host. Elsewhere the
/// host itself listens on the decoy's port or has another operating system.
pub static DECOY_PLACES: [(usize, Host); NUM_DECOYS] = {
    let mut places = [(0, 0); NUM_DECOYS];
    let mut found = 0;
    let mut action = 0;
    while action < DECOYS.len() * NUM_HOSTS {
        let (decoy, host) = (action / NUM_HOSTS, action % NUM_HOSTS);
        let runs = match DECOYS[decoy].windows {
            Some(windows) => windows == IMAGES[host].windows,
            None => true,
        };
        if runs && DECOYS[decoy].checks & IMAGES[host].ports == 0 {
            places[found] = (decoy, host);
            found += 1;
        }
        action += 1;
    }
    assert!(found == NUM_DECOYS);
    places
};

/// Set of places in [`DECOY_PLACES`], and this bit, which is always set.
type Places = u64;
const ALWAYS: Places = 1 << 63;

/// For each action the standing decoys that leave it without an effect; so long that no `u8` needs a check.
fn blocked_by(ruleset: Ruleset) -> &'static [Places; 256] {
    static ORIGINAL: [Places; 256] = blocked(Ruleset::Main);
    static MENDED: [Places; 256] = blocked(Ruleset::PlusPlus);
    if ruleset == Ruleset::PlusPlus { &MENDED } else { &ORIGINAL }
}

const fn blocked(ruleset: Ruleset) -> [Places; 256] {
    let mut blocked = [0; 256];
    // Every step monitors: the action does what Sleep does.
    blocked[BlueAction::Monitor.index()] = ALWAYS;
    // No exploit ever succeeds there, so there is never a file to find.
    blocked[BlueAction::Analyse(DEFENDER).index()] = ALWAYS;
    let mut action = 0;
    while action < DECOYS.len() * NUM_HOSTS {
        blocked[BlueAction::Decoy(action / NUM_HOSTS, action % NUM_HOSTS).index()] = ALWAYS;
        action += 1;
    }
    let mut i = 0;
    while i < NUM_DECOYS {
        let (decoy, host) = DECOY_PLACES[i];
        let mut places = 0;
        let mut j = 0;
        while j < NUM_DECOYS {
            let (other, there) = DECOY_PLACES[j];
            if there == host && DECOYS[other].opens(ruleset) & DECOYS[decoy].checks != 0 {
                places |= 1 << j;
            }
            j += 1;
        }
        blocked[BlueAction::Decoy(decoy, host).index()] = places;
        i += 1;
    }
    blocked
}

/// The place of each action that starts a decoy which can start; 0 for all other actions.
static STARTS: [Places; NUM_ACTIONS] = {
    let mut starts = [0; NUM_ACTIONS];
    let mut i = 0;
    while i < NUM_DECOYS {
        let (decoy, host) = DECOY_PLACES[i];
        starts[BlueAction::Decoy(decoy, host).index()] = 1 << i;
        i += 1;
    }
    starts
};

/// The places on each host.
static PLACES_ON: [Places; NUM_HOSTS] = {
    let mut on = [0; NUM_HOSTS];
    let mut i = 0;
    while i < NUM_DECOYS {
        on[DECOY_PLACES[i].1] |= 1 << i;
        i += 1;
    }
    on
};

const SCANNED: Hosts = {
    let mut hosts = 0;
    let mut i = 0;
    while i < SCAN_HOSTS.len() {
        hosts |= 1 << SCAN_HOSTS[i];
        i += 1;
    }
    hosts
};

/// Counts as they are written, to 15 so that no index needs a check.
static TENTHS: [f32; 16] = {
    let mut tenths = [0.0; 16];
    let mut i = 0;
    while i < tenths.len() {
        tenths[i] = i as f32 / MAX_COUNT as f32;
        i += 1;
    }
    tenths
};

/// See the documentation of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlueMemory {
    /// Hosts of [`SCAN_HOSTS`] that were ever scanned, and those in the last step in which one was.
    scanned: Hosts,
    scanned_last: Hosts,
    /// Places where a decoy stands.
    standing: Places,
    /// Steps taken.
    time: u32,
    /// Only [`Layout::Full`] has it.
    history: Option<Box<History>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    /// When each event last happened: 1 + the steps taken then; 0: never.
    last: [[u32; NUM_HOSTS]; NUM_EVENTS],
    /// Events so far, at most [`MAX_COUNT`].
    counts: [[u8; NUM_HOSTS]; NUM_EVENTS],
    /// The kind of the last action, none before the first one, and whether it could have an effect.
    kind: Option<u8>,
    effective: bool,
}

impl History {
    fn note(&mut self, event: usize, host: Host, time: u32) {
        self.last[event][host] = 1 + time;
        let count = &mut self.counts[event][host];
        *count = (*count + 1).min(MAX_COUNT);
    }

    fn act(&mut self, action: BlueAction, effective: bool, time: u32) {
        let kind = match action {
            BlueAction::Sleep | BlueAction::Monitor => 0,
            BlueAction::Analyse(_) => 1,
            BlueAction::Remove(_) => 2,
            BlueAction::Restore(_) => 3,
            BlueAction::Decoy(..) => 4,
        };
        if let BlueAction::Analyse(host) | BlueAction::Remove(host) | BlueAction::Restore(host) = action {
            self.note(usize::from(kind) - 1, host, time);
        }
        self.kind = Some(kind);
        self.effective = effective;
    }

    fn check(&self, time: u32) -> bool {
        let times = self.last.as_flattened().iter().all(|&last| last <= 1 + time);
        let mut both = self.last.as_flattened().iter().zip(self.counts.as_flattened());
        let counts = both.all(|(&last, &count)| count <= MAX_COUNT && (last == 0) == (count == 0));
        let kind = self.kind.is_none_or(|kind| usize::from(kind) < NUM_KINDS);
        times && counts && kind && self.kind.is_some() == (time > 0) && (time > 0 || !self.effective)
    }

    fn write(&self, time: u32, values: &mut [f32]) {
        // In one piece and of a known length, which takes the compiler to vector instructions.
        let mut ages = [0.0; NUM_EVENTS * NUM_HOSTS];
        for (age, &then) in ages.iter_mut().zip(self.last.as_flattened()) {
            let since = (1 + time).wrapping_sub(then);
            // Signed: there is an instruction that makes a float of it.
            let fresh = 1.0 / (1 + since) as i32 as f32;
            *age = if then == 0 { 0.0 } else { fresh };
        }
        let (events, last) = values.split_at_mut(2 * NUM_EVENTS * NUM_HOSTS);
        let rows = events.chunks_exact_mut(2 * NUM_HOSTS).zip(ages.chunks_exact(NUM_HOSTS)).zip(&self.counts);
        for ((row, ages), counts) in rows {
            row[..NUM_HOSTS].copy_from_slice(ages);
            for (number, &count) in row[NUM_HOSTS..].iter_mut().zip(counts) {
                *number = TENTHS[usize::from(count & 0xf)];
            }
        }
        last.fill(0.0);
        if let Some(kind) = self.kind {
            last[usize::from(kind)] = 1.0;
        }
        last[NUM_KINDS] = f32::from(u8::from(self.effective));
        last[NUM_KINDS + 1] = time as f32 / 100.0;
    }
}

impl BlueMemory {
    pub fn new(layout: Layout) -> Self {
        let history = (layout == Layout::Full).then(Box::default);
        Self { scanned: 0, scanned_last: 0, standing: 0, time: 0, history }
    }

    /// So many of them, once it is known that there is memory for all.
    pub fn many(layout: Layout, count: usize) -> Result<Vec<Self>, TryReserveError> {
        let mut all = Vec::new();
        let each = size_of::<Self>() + arrays(1, Self::heap(layout));
        ask_for(each.saturating_mul(count)).and_then(|()| all.try_reserve_exact(count))?;
        all.resize(count, Self::new(layout));
        Ok(all)
    }

    /// Bytes that it has beside itself.
    pub(super) const fn heap(layout: Layout) -> usize {
        if matches!(layout, Layout::Full) { size_of::<History>() } else { 0 }
    }

    /// Forgets everything: an episode begins.
    pub fn reset(&mut self) {
        let mut history = self.history.take();
        if let Some(history) = &mut history {
            **history = History::default();
        }
        *self = Self { history, ..Self::new(Layout::None) };
    }

    /// Steps taken in this episode.
    pub fn time(&self) -> u32 {
        self.time
    }

    /// The places where a decoy stands, bits by [`DECOY_PLACES`].
    pub fn standing(&self) -> u64 {
        self.standing
    }

    /// Returns whether the action may change anything now. Sleep always counts; Monitor never does, since every step
    /// monitors and it is the same as Sleep.
    pub fn may_have_effect(&self, action: BlueAction, ruleset: Ruleset) -> bool {
        (self.standing | ALWAYS) & blocked_by(ruleset)[action.index()] == 0
    }

    /// Marks with 1 those among actions, indices into the challenge's, that may have an effect now.
    pub fn write_mask(&self, actions: &[u8], mask: &mut [u8], ruleset: Ruleset) {
        let (standing, blocked) = (self.standing | ALWAYS, blocked_by(ruleset));
        for (entry, &action) in mask.iter_mut().zip(actions) {
            *entry = u8::from(standing & blocked[usize::from(action)] == 0);
        }
    }

    /// Ports on which the host listens: its own and those of its decoys.
    fn ports(&self, host: Host, scenario: &Scenario) -> Ports {
        let standing =
            DECOY_PLACES.iter().enumerate().filter(|&(i, place)| place.1 == host && self.standing >> i & 1 == 1);
        standing
            .fold(scenario.images[host].ports, |ports, (_, &(decoy, _))| ports | DECOYS[decoy].opens(scenario.ruleset))
    }

    /// Refuses decoded values that no episode has at that time, in a network with these ports; the error says why.
    pub(super) fn check(&self, layout: Layout, time: u32, ports: &[Ports], scenario: &Scenario) -> Result<(), String> {
        let Self { scanned, scanned_last, standing, time: own_time, history } = self;
        let hosts = if scenario.is_scenario2() { scanned & !SCANNED == 0 } else { scenario.are_hosts(*scanned) };
        let scans = hosts && scanned_last & !scanned == 0 && (*scanned == 0) == (*scanned_last == 0);
        ensure(scans, "blue's memory of scans is impossible")?;
        if !scenario.is_scenario2() {
            let scans_alone = *standing == 0 && *own_time == 0 && history.is_none();
            return ensure(scans_alone, "blue's memory has more than scans");
        }
        let known = standing >> NUM_DECOYS == 0
            && ports[..NUM_HOSTS].iter().enumerate().all(|(host, &open)| self.ports(host, scenario) == open);
        ensure(known, "blue's memory has other decoys than the network")?;
        ensure(*own_time == time, "blue's memory has another time")?;
        ensure(history.is_some() == (layout == Layout::Full), "blue's memory is of another layout")?;
        ensure(history.as_ref().is_none_or(|history| history.check(time)), "blue's memory of events is impossible")
    }

    /// Notes blue's action and the 52 bits after its step.
    pub fn update(&mut self, action: BlueAction, bits: u64, ruleset: Ruleset) {
        self.time += 1;
        let effective = self.may_have_effect(action, ruleset);
        if let Some(history) = &mut self.history {
            history.act(action, effective, self.time);
        }
        match action {
            BlueAction::Decoy(..) if effective => self.standing |= STARTS[action.index()],
            BlueAction::Restore(host) => self.standing &= !PLACES_ON[host],
            _ => {}
        }
        self.note_activity(bits);
    }

    /// Notes the activity in 52 bits: of a step, or before the first action of an episode.
    pub fn note_activity(&mut self, bits: u64) {
        const FIRST: u64 = 0x1_1111_1111_1111;
        let (first, second) = (bits & FIRST, bits >> 1 & FIRST);
        if first == 0 {
            return;
        }
        let scans = hosts_of(first & !second);
        self.note_scanned(scans & SCANNED);
        if let Some(history) = &mut self.history {
            for (event, mut hosts) in [(EVENT_SCAN, scans), (EVENT_EXPLOIT, hosts_of(first & second))] {
                while hosts != 0 {
                    history.note(event, hosts.trailing_zeros() as usize, self.time);
                    hosts &= hosts - 1;
                }
            }
        }
    }

    /// Notes the scans among the bits of an observation of any hosts, [`WORD_HOSTS`] a word.
    pub(super) fn note_scans(&mut self, words: [u64; 2]) {
        const FIRST: u64 = 0x1111_1111_1111_1111;
        let [low, high] = words.map(|bits| hosts_of(bits & FIRST & !(bits >> 1)));
        self.note_scanned(low | high << WORD_HOSTS);
    }

    fn note_scanned(&mut self, scans: Hosts) {
        if scans != 0 {
            self.scanned_last = scans;
            self.scanned |= scans;
        }
    }

    /// 0 for a host that was never scanned, 1 for one that was, 2 for one that was scanned last.
    pub(super) fn scan_mark(&self, host: Host) -> f32 {
        f32::from((self.scanned >> host & 1) as u8 + (self.scanned_last >> host & 1) as u8)
    }

    /// Writes the values of the layout that it was made for.
    pub fn write(&self, layout: Layout, values: &mut [f32]) {
        if layout >= Layout::Scan {
            for (value, host) in values.iter_mut().zip(SCAN_HOSTS) {
                *value = self.scan_mark(host);
            }
        }
        if layout >= Layout::Decoys {
            write_bits(self.standing, &mut values[Layout::Scan.len()..Layout::Decoys.len()]);
        }
        if let Some(history) = &self.history {
            history.write(self.time, &mut values[Layout::Decoys.len()..Layout::Full.len()]);
        }
    }
}

/// The hosts whose first bit of four is set.
fn hosts_of(mut firsts: u64) -> Hosts {
    let mut hosts = 0;
    while firsts != 0 {
        hosts |= 1 << (firsts.trailing_zeros() / 4);
        firsts &= firsts - 1;
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::view::OBS_BITS;

    fn written(memory: &BlueMemory, layout: Layout) -> Vec<f32> {
        let mut values = vec![9.0; layout.len()];
        memory.write(layout, &mut values);
        values
    }

    #[test]
    fn layouts_have_their_lengths() {
        assert_eq!(Layout::ALL.map(|layout| OBS_BITS + layout.len()), [52, 62, 103, 240]);
    }

    #[test]
    fn only_the_last_scan_counts_two() {
        let mut memory = BlueMemory::new(Layout::Scan);
        for host in [9, 4, 12] {
            memory.update(BlueAction::Sleep, 1 << (4 * host), Ruleset::Main);
        }
        assert_eq!(written(&memory, Layout::Scan), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0]);
    }

    #[test]
    fn a_decoy_stands_until_its_host_is_restored() {
        let mut memory = BlueMemory::new(Layout::Decoys);
        let place = DECOY_PLACES.iter().position(|&place| place == (0, 1)).unwrap();
        let (apache, vsftpd) = (BlueAction::Decoy(0, 1), BlueAction::Decoy(7, 1));
        assert!(memory.may_have_effect(apache, Ruleset::Main));
        memory.update(apache, 0, Ruleset::Main);
        assert!(!memory.may_have_effect(apache, Ruleset::Main) && memory.may_have_effect(vsftpd, Ruleset::Main));
        let standing = |memory: &BlueMemory| written(memory, Layout::Decoys)[SCAN_HOSTS.len() + place];
        assert_eq!(standing(&memory), 1.0);
        memory.update(BlueAction::Remove(1), 0, Ruleset::Main);
        memory.update(BlueAction::Restore(2), 0, Ruleset::Main);
        assert_eq!(standing(&memory), 1.0);
        memory.update(BlueAction::Restore(1), 0, Ruleset::Main);
        assert_eq!(standing(&memory), 0.0);
        // Vsftpd takes Apache's port without checking it, again and again.
        memory.update(vsftpd, 0, Ruleset::Main);
        assert!(!memory.may_have_effect(apache, Ruleset::Main) && memory.may_have_effect(vsftpd, Ruleset::Main));
        // In CybORG++ it takes its own.
        assert!(
            memory.may_have_effect(apache, Ruleset::PlusPlus) && !memory.may_have_effect(vsftpd, Ruleset::PlusPlus)
        );
    }

    #[test]
    fn events_age_and_count() {
        let mut memory = BlueMemory::new(Layout::Full);
        let events = Layout::Decoys.len();
        assert!(written(&memory, Layout::Full).iter().all(|&x| x == 0.0));
        memory.update(BlueAction::Restore(3), 0b11 << 20, Ruleset::Main);
        memory.update(BlueAction::Monitor, 0b01 << 20, Ruleset::Main);
        let values = written(&memory, Layout::Full);
        let (age, count) =
            (|event: usize, host| events + 26 * event + host, |event: usize, host| events + 26 * event + 13 + host);
        assert_eq!((values[age(2, 3)], values[count(2, 3)]), (0.5, 0.1));
        assert_eq!((values[age(EVENT_SCAN, 5)], values[count(EVENT_SCAN, 5)]), (1.0, 0.1));
        assert_eq!((values[age(EVENT_EXPLOIT, 5)], values[count(EVENT_EXPLOIT, 5)]), (0.5, 0.1));
        assert_eq!(values[Layout::Full.len() - 7..], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.02]);
    }
}
