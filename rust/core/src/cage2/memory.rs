//! Blue's memory of an episode: values after the bits of an observation that depend on the bits and on blue's own actions
//! alone, and the actions that may have an effect as far as blue knows.
//!
//! [`Layout`] names how many of them an observation has. Each layout is a prefix of the next; of Scenario 2 they have so many:
//!
//! ```text
//! Scan    10  per host of [`MemoryTables::scan_hosts`]: 0 never scanned, 1 scanned before, 2 scanned last
//! Decoys  41  per place of [`MemoryTables::decoy_places`]: 1 while the decoy stands there
//! Full   137  per kind of event (Analyse, Remove, Restore, scan activity, exploit activity): an age and a count by host;
//!             the last action's kind one-hot (Sleep or Monitor, Analyse, Remove, Restore, decoy; zeros before the first
//!             action); 1 if that action could have an effect; steps / 100
//! ```
//!
//! The age of an event on a host is 1 / (1 + steps since the last one), 0 if there was none; the count is that of the
//! episode, at most 10, divided by 10. An action could have an effect if its entry of the action mask was 1 before it.

use std::collections::TryReserveError;

use serde::{Deserialize, Serialize};

use super::blue::BlueAction;
use super::scenario::{DECOYS, Host, Hosts, NUM_HOSTS, Ports};
use super::tables::{MAX_HOSTS, MemoryTables, Places, SCAN_HOSTS, Scenario};
use super::view::{WORD_HOSTS, write_bits};
use crate::env::ensure;
use crate::memory::{arrays, ask_for};

/// The set of [`SCAN_HOSTS`].
const SCANNED: Hosts = 0b1_1111_1000_1111;

/// Places of decoys in Scenario 2.
const NUM_DECOYS: usize = 41;

/// Kinds of events that have ages and counts.
const NUM_EVENTS: usize = 5;
const EVENT_SCAN: usize = 3;
const EVENT_EXPLOIT: usize = 4;

/// Kinds of actions in the one-hot code of the last one.
const NUM_KINDS: usize = 5;

/// Counts stop here.
const MAX_COUNT: u8 = 10;

/// The values of memory that an observation has after its bits.
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
    pub fn len(self, tables: &MemoryTables) -> usize {
        let (scans, decoys) = (tables.scan_hosts.len(), tables.decoy_places.len());
        match self {
            Self::None => 0,
            Self::Scan => scans,
            Self::Decoys => scans + decoys,
            Self::Full => scans + decoys + 2 * NUM_EVENTS * tables.hosts() + NUM_KINDS + 2,
        }
    }
}

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
    /// Hosts of [`MemoryTables::scan_hosts`] that were ever scanned, and those in the last step in which one was.
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
    /// When each event last happened: 1 + the steps taken then; 0: never. By event, then by the hosts that there are,
    /// without a gap; zeros after the last one.
    last: [[u32; MAX_HOSTS]; NUM_EVENTS],
    /// Events so far, at most [`MAX_COUNT`], in the same order.
    counts: [[u8; MAX_HOSTS]; NUM_EVENTS],
    /// The kind of the last action, none before the first one, and whether it could have an effect.
    kind: Option<u8>,
    effective: bool,
}

impl History {
    fn note(&mut self, event: usize, host: Host, time: u32, hosts: usize) {
        let place = event * hosts + host;
        self.last.as_flattened_mut()[place] = 1 + time;
        let count = &mut self.counts.as_flattened_mut()[place];
        *count = (*count + 1).min(MAX_COUNT);
    }

    fn act(&mut self, action: BlueAction, effective: bool, time: u32, hosts: usize) {
        let kind = match action {
            BlueAction::Sleep | BlueAction::Monitor => 0,
            BlueAction::Analyse(_) => 1,
            BlueAction::Remove(_) => 2,
            BlueAction::Restore(_) => 3,
            BlueAction::Decoy(..) => 4,
        };
        if let BlueAction::Analyse(host) | BlueAction::Remove(host) | BlueAction::Restore(host) = action {
            self.note(usize::from(kind) - 1, host, time, hosts);
        }
        self.kind = Some(kind);
        self.effective = effective;
    }

    fn check(&self, time: u32, hosts: usize) -> bool {
        let times = self.last.as_flattened().iter().all(|&last| last <= 1 + time);
        let mut both = self.last.as_flattened().iter().zip(self.counts.as_flattened());
        let counts = both.all(|(&last, &count)| count <= MAX_COUNT && (last == 0) == (count == 0));
        let there = self.last.as_flattened()[NUM_EVENTS * hosts..].iter().all(|&last| last == 0);
        let kind = self.kind.is_none_or(|kind| usize::from(kind) < NUM_KINDS);
        times && counts && there && kind && self.kind.is_some() == (time > 0) && (time > 0 || !self.effective)
    }

    fn write(&self, time: u32, hosts: usize, values: &mut [f32]) {
        // A length that the compiler knows, of Scenario 2, makes it faster.
        if hosts == NUM_HOSTS {
            self.write_rows::<{ NUM_EVENTS * NUM_HOSTS }>(time, NUM_HOSTS, values);
        } else {
            self.write_rows::<{ NUM_EVENTS * MAX_HOSTS }>(time, hosts, values);
        }
    }

    /// Has room for `AGES`.
    #[inline(always)]
    fn write_rows<const AGES: usize>(&self, time: u32, hosts: usize, values: &mut [f32]) {
        // In one piece and of a known length, which takes the compiler to vector instructions.
        let mut ages = [0.0; AGES];
        for (age, &then) in ages.iter_mut().zip(self.last.as_flattened()) {
            let since = (1 + time).wrapping_sub(then);
            // Signed: there is an instruction that makes a float of it.
            let fresh = 1.0 / (1 + since) as i32 as f32;
            *age = if then == 0 { 0.0 } else { fresh };
        }
        let (events, last) = values.split_at_mut(2 * NUM_EVENTS * hosts);
        let counts = self.counts.as_flattened().chunks_exact(hosts);
        for ((row, ages), counts) in events.chunks_exact_mut(2 * hosts).zip(ages.chunks_exact(hosts)).zip(counts) {
            row[..hosts].copy_from_slice(ages);
            for (number, &count) in row[hosts..].iter_mut().zip(counts) {
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

    /// The places where a decoy stands, bits by [`MemoryTables::decoy_places`].
    pub fn standing(&self) -> u128 {
        self.standing
    }

    /// Ports on which the hosts listen, as far as blue knows: their own and those of the decoys, for
    /// [`Scenario::may_have_effect`].
    pub fn ports(&self, scenario: &Scenario) -> [Ports; MAX_HOSTS] {
        let mut ports = scenario.ports;
        for (i, &(decoy, host)) in scenario.memory.decoy_places.iter().enumerate() {
            if self.standing >> i & 1 == 1 {
                ports[host] |= DECOYS[decoy].opens(scenario.ruleset);
            }
        }
        ports
    }

    /// Refuses decoded values that no episode has at that time, in a network with these ports; the error says why.
    pub(super) fn check(&self, layout: Layout, time: u32, ports: &[Ports], scenario: &Scenario) -> Result<(), String> {
        let Self { scanned, scanned_last, standing, time: own_time, history } = self;
        let (tables, hosts) = (&scenario.memory, scenario.len());
        let scans = scanned & !tables.scanned == 0 && scanned_last & !scanned == 0;
        ensure(scans && (*scanned == 0) == (*scanned_last == 0), "blue's memory of scans is impossible")?;
        let places = standing.checked_shr(tables.decoy_places.len() as u32).unwrap_or(0) == 0;
        let known = places && self.ports(scenario)[..hosts] == ports[..hosts];
        ensure(known, "blue's memory has other decoys than the network")?;
        ensure(*own_time == time, "blue's memory has another time")?;
        ensure(history.is_some() == (layout == Layout::Full), "blue's memory is of another layout")?;
        let events = history.as_ref().is_none_or(|history| history.check(time, hosts));
        ensure(events, "blue's memory of events is impossible")
    }

    /// Notes blue's action, whether it might have an effect, and the bits of the observation after its step,
    /// [`WORD_HOSTS`] a word.
    pub fn update(&mut self, action: BlueAction, effect: bool, words: [u64; 2], tables: &MemoryTables) {
        self.time += 1;
        if let Some(history) = &mut self.history {
            history.act(action, effect, self.time, tables.hosts());
        }
        match action {
            BlueAction::Decoy(..) if effect => {
                self.standing |= tables.starts[action.index(tables.hosts())];
            }
            BlueAction::Restore(host) => self.standing &= !tables.places_on[host],
            _ => {}
        }
        self.note_activity(words, tables);
    }

    /// Notes the activity in the bits of an observation: of a step, or before the first action of an episode.
    pub fn note_activity(&mut self, words: [u64; 2], tables: &MemoryTables) {
        const FIRST: u64 = 0x1111_1111_1111_1111;
        if (words[0] | words[1]) & FIRST == 0 {
            return;
        }
        let of_all = |[low, high]: [u64; 2]| hosts_of(low) | hosts_of(high) << WORD_HOSTS;
        let scans = of_all(words.map(|bits| bits & FIRST & !(bits >> 1)));
        let remembered = scans & tables.scanned;
        if remembered != 0 {
            self.scanned_last = remembered;
            self.scanned |= remembered;
        }
        if let Some(history) = &mut self.history {
            let exploits = of_all(words.map(|bits| bits & FIRST & bits >> 1));
            for (event, mut hosts) in [(EVENT_SCAN, scans), (EVENT_EXPLOIT, exploits)] {
                while hosts != 0 {
                    history.note(event, hosts.trailing_zeros() as usize, self.time, tables.hosts());
                    hosts &= hosts - 1;
                }
            }
        }
    }

    /// 0 for a host that was never scanned, 1 for one that was, 2 for one that was scanned last.
    pub(super) fn scan_mark(&self, host: Host) -> f32 {
        f32::from((self.scanned >> host & 1) as u8 + (self.scanned_last >> host & 1) as u8)
    }

    /// Never inline: else the compiler makes one loop of it and of that over any hosts.
    #[inline(never)]
    fn write_known_scans(&self, values: &mut [f32]) {
        for (value, host) in values.iter_mut().zip(SCAN_HOSTS) {
            *value = self.scan_mark(host);
        }
    }

    /// Writes the values of the layout that it was made for.
    pub fn write(&self, layout: Layout, values: &mut [f32], tables: &MemoryTables) {
        if layout >= Layout::Scan {
            // Hosts that the compiler knows, of Scenario 2, make it faster.
            if tables.scanned == SCANNED {
                self.write_known_scans(values);
            } else {
                for (value, &host) in values.iter_mut().zip(&tables.scan_hosts) {
                    *value = self.scan_mark(host);
                }
            }
        }
        if layout >= Layout::Decoys {
            let decoys = &mut values[Layout::Scan.len(tables)..Layout::Decoys.len(tables)];
            let [low, high] = [self.standing as u64, (self.standing >> 64) as u64];
            // A length that the compiler knows, of Scenario 2, makes it faster.
            if let Ok(decoys) = <&mut [f32; NUM_DECOYS]>::try_from(&mut *decoys) {
                write_bits(low, decoys);
            } else {
                decoys.chunks_mut(64).zip([low, high]).for_each(|(entries, word)| write_bits(word, entries));
            }
        }
        if let Some(history) = &self.history {
            history.write(self.time, tables.hosts(), &mut values[Layout::Decoys.len(tables)..Layout::Full.len(tables)]);
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
    use crate::cage2::Ruleset;
    use crate::cage2::view::OBS_BITS;

    fn tables(ruleset: Ruleset) -> &'static MemoryTables {
        &ruleset.scenario2().memory
    }

    fn written(memory: &BlueMemory, layout: Layout) -> Vec<f32> {
        let mut values = vec![9.0; layout.len(tables(Ruleset::Main))];
        memory.write(layout, &mut values, tables(Ruleset::Main));
        values
    }

    #[test]
    fn layouts_have_their_lengths() {
        assert_eq!(Layout::ALL.map(|layout| OBS_BITS + layout.len(tables(Ruleset::Main))), [52, 62, 103, 240]);
    }

    #[test]
    fn the_sets_of_scenario2_are_what_is_written_faster() {
        let tables = tables(Ruleset::Main);
        assert_eq!((tables.scanned, tables.decoy_places.len()), (SCANNED, NUM_DECOYS));
        assert_eq!(tables.scan_hosts, SCAN_HOSTS);
    }

    #[test]
    fn only_the_last_scan_counts_two() {
        let mut memory = BlueMemory::new(Layout::Scan);
        for host in [9, 4, 12] {
            memory.update(BlueAction::Sleep, true, [1 << (4 * host), 0], tables(Ruleset::Main));
        }
        assert_eq!(written(&memory, Layout::Scan), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0]);
    }

    #[test]
    fn a_decoy_stands_until_its_host_is_restored() {
        let mut memory = BlueMemory::new(Layout::Decoys);
        let place = tables(Ruleset::Main).decoy_places.iter().position(|&place| place == (0, 1)).unwrap();
        let (apache, vsftpd) = (BlueAction::Decoy(0, 1), BlueAction::Decoy(7, 1));
        let can_start = |memory: &BlueMemory, ruleset: Ruleset| {
            let scenario = ruleset.scenario2();
            let ports = memory.ports(scenario);
            [apache, vsftpd].map(|decoy| scenario.may_have_effect(decoy.index(NUM_HOSTS), &ports))
        };
        let act = |memory: &mut BlueMemory, action| memory.update(action, true, [0, 0], tables(Ruleset::Main));
        assert_eq!(can_start(&memory, Ruleset::Main), [true, true]);
        act(&mut memory, apache);
        assert_eq!(can_start(&memory, Ruleset::Main), [false, true]);
        let standing = |memory: &BlueMemory| written(memory, Layout::Decoys)[SCAN_HOSTS.len() + place];
        assert_eq!(standing(&memory), 1.0);
        act(&mut memory, BlueAction::Remove(1));
        act(&mut memory, BlueAction::Restore(2));
        assert_eq!(standing(&memory), 1.0);
        act(&mut memory, BlueAction::Restore(1));
        assert_eq!(standing(&memory), 0.0);
        // Vsftpd takes Apache's port without checking it, again and again.
        act(&mut memory, vsftpd);
        assert_eq!(can_start(&memory, Ruleset::Main), [false, true]);
        // In CybORG++ it takes its own.
        assert_eq!(can_start(&memory, Ruleset::PlusPlus), [true, false]);
    }

    #[test]
    fn events_age_and_count() {
        let mut memory = BlueMemory::new(Layout::Full);
        let events = Layout::Decoys.len(tables(Ruleset::Main));
        assert!(written(&memory, Layout::Full).iter().all(|&x| x == 0.0));
        memory.update(BlueAction::Restore(3), true, [0b11 << 20, 0], tables(Ruleset::Main));
        memory.update(BlueAction::Monitor, false, [0b01 << 20, 0], tables(Ruleset::Main));
        let values = written(&memory, Layout::Full);
        let (age, count) =
            (|event: usize, host| events + 26 * event + host, |event: usize, host| events + 26 * event + 13 + host);
        assert_eq!((values[age(2, 3)], values[count(2, 3)]), (0.5, 0.1));
        assert_eq!((values[age(EVENT_SCAN, 5)], values[count(EVENT_SCAN, 5)]), (1.0, 0.1));
        assert_eq!((values[age(EVENT_EXPLOIT, 5)], values[count(EVENT_EXPLOIT, 5)]), (0.5, 0.1));
        assert_eq!(values[Layout::Full.len(tables(Ruleset::Main)) - 7..], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.02]);
    }
}
