//! Ephemeral ports that hosts have used since they were last restored: an exact set of some thousands of pairs in few
//! cache lines.
//!
//! Most are ports of servers, of which there are 48 at most. A server that uses a port has an id, and the pair of both is
//! a number of 19 bits, of which an odd factor makes another one of 19 bits, evenly spread. Its upper bits are those of a
//! line, the next ones those of a part of it, and the line holds the lowest 8. The ids of restored servers become stale,
//! and their entries go when ids run out. What a full line has no place for, and ports of other hosts, are in a list.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::scenario::{FIRST_SERVER, MOST_SERVERS, NUM_NETWORKS, NUM_SLOTS, SUBNET_SLOTS, Slot, subnet_of};
use crate::memory::prefetch;

/// Ephemeral ports, of which a connection takes one.
pub(super) const NUM_PORTS: usize = 10848;
const NUM_SERVERS: usize = NUM_NETWORKS * MOST_SERVERS;
const KEY_BITS: u32 = 19;
const KEYS: u32 = 1 << KEY_BITS;
const _: () = assert!(NUM_SERVERS * NUM_PORTS <= KEYS as usize);
/// The factor of keys and its inverse.
const SPREAD: u32 = 0x9e37_79b1;
const GATHER: u32 = {
    // Newton's method: each round doubles the number of right bits, of which an odd number has three.
    let mut inverse = SPREAD;
    let mut round = 0;
    while round < 4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};
/// Lines by their number of bits: at the end of 500 steps of a usual game nearly all have room. Longer ones fill the list.
const LINE_BITS: u32 = 8;
const NUM_LINES: usize = 1 << LINE_BITS;
const PART_BITS: u32 = KEY_BITS - LINE_BITS - 8;
const PARTS: usize = 1 << PART_BITS;
/// Entries of a line.
const PLACES: usize = 64 - PARTS;
/// Entries that are compared at a time, and a number with a one in the byte of each.
const AT_ONCE: usize = 8;
const EACH_BYTE: u64 = u64::from_le_bytes([1; AT_ONCE]);
/// Places reserved in the list: an episode with more allocates.
const USUAL_OTHERS: usize = 512;
/// The id of a server without one.
const NO_ID: u8 = u8::MAX;

/// Entries in the order of their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Line {
    /// The place after the last entry of each part.
    ends: [u8; PARTS],
    entries: [u8; PLACES],
}

impl Line {
    const EMPTY: Self = Self { ends: [0; PARTS], entries: [0; PLACES] };

    fn len(&self) -> usize {
        self.ends[PARTS - 1].into()
    }

    /// Places of the entries of a part.
    fn part(&self, part: usize) -> std::ops::Range<usize> {
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        start.into()..self.ends[part].into()
    }

    fn contains(&self, part: usize, entry: u8) -> bool {
        // Most parts have at most eight entries. The branch for more is foreseen well, other than a loop over entries.
        let mut range = self.part(part);
        while !range.is_empty() {
            let first = range.start.min(PLACES - AT_ONCE);
            let (&entries, _) = self.entries[first..].split_first_chunk().expect("eight places are left");
            let differing = u64::from_le_bytes(entries) ^ (EACH_BYTE * u64::from(entry));
            // The highest bit of each byte without a difference.
            let low_bits = EACH_BYTE * 0x7f;
            let same = !(((differing & low_bits) + low_bits) | differing | low_bits);
            let (before, count) = (range.start - first, range.len().min(first + AT_ONCE - range.start));
            if same >> (8 * before) << (8 * (AT_ONCE - count)) != 0 {
                return true;
            }
            range.start += count;
        }
        false
    }

    /// Adds an entry to a line that has room.
    fn add(&mut self, part: usize, entry: u8) {
        // The first entry of each later part moves to its end.
        for later in (part + 1..PARTS).rev() {
            let range = self.part(later);
            self.entries[range.end] = self.entries[range.start];
        }
        self.entries[self.part(part).end] = entry;
        // One is added to the ends of this part and of the later ones.
        let ones = u64::from_le_bytes([1; PARTS]) << (8 * part);
        self.ends = (u64::from_le_bytes(self.ends) + ones).to_le_bytes();
    }
}

/// The set of hosts' ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsedPorts {
    lines: Vec<Line>,
    /// Pairs of other hosts, and keys above them that found their line full.
    others: Vec<u32>,
    /// Ids of servers.
    ids: [u8; NUM_SERVERS],
    /// Ids that no server has: those without entries, and those with entries that no longer count.
    free: u64,
    stale: u64,
}

/// The number of a server; none of another host.
fn server_number(host: Slot) -> Option<usize> {
    (host % SUBNET_SLOTS).checked_sub(FIRST_SERVER).map(|number| subnet_of(host) * MOST_SERVERS + number)
}

const fn pair(host: Slot, port: u32) -> u32 {
    host as u32 * NUM_PORTS as u32 + port
}

/// Keys in the list are above all pairs.
const KEY: u32 = 1 << 31;

fn line_of(key: u32) -> (usize, usize, u8) {
    ((key >> (PART_BITS + 8)) as usize, (key >> 8) as usize % PARTS, key as u8)
}

fn id_of(key: u32) -> u32 {
    (key.wrapping_mul(GATHER) % KEYS) / NUM_PORTS as u32
}

impl UsedPorts {
    /// Bytes that it holds beside itself in usual episodes.
    pub(super) const MEMORY: usize = NUM_LINES * size_of::<Line>() + USUAL_OTHERS * size_of::<u32>();

    pub(super) fn empty() -> Self {
        let others = Vec::with_capacity(USUAL_OTHERS);
        Self {
            lines: vec![Line::EMPTY; NUM_LINES],
            others,
            ids: [NO_ID; NUM_SERVERS],
            free: (1 << NUM_SERVERS) - 1,
            stale: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.lines.fill(Line::EMPTY);
        self.others.clear();
        (self.ids, self.free, self.stale) = ([NO_ID; NUM_SERVERS], (1 << NUM_SERVERS) - 1, 0);
    }

    /// Adds a port of a host. Returns whether it was new.
    pub(super) fn add(&mut self, host: Slot, port: u32) -> bool {
        let Some(number) = server_number(host) else {
            return self.add_other(pair(host, port));
        };
        if self.ids[number] == NO_ID {
            self.ids[number] = self.new_id();
        }
        let key = self.key(number, port);
        let (line, part, entry) = line_of(key);
        let line = &mut self.lines[line];
        if line.contains(part, entry) {
            return false;
        }
        if line.len() == PLACES {
            return self.add_other(KEY | key);
        }
        line.add(part, entry);
        true
    }

    /// Brings into the caches what [`UsedPorts::add`] would read.
    pub(super) fn prefetch(&self, host: Slot, port: u32) {
        if let Some(number) = server_number(host).filter(|&number| self.ids[number] != NO_ID) {
            prefetch(&self.lines[line_of(self.key(number, port)).0]);
        }
    }

    /// Forgets the ports of a host.
    pub(super) fn forget(&mut self, host: Slot) {
        match server_number(host) {
            Some(number) => {
                let id = std::mem::replace(&mut self.ids[number], NO_ID);
                self.stale |= if id == NO_ID { 0 } else { 1 << id };
            }
            None => self.others.retain(|&other| other & KEY != 0 || other / NUM_PORTS as u32 != host as u32),
        }
    }

    /// The key of a server with an id.
    fn key(&self, number: usize, port: u32) -> u32 {
        pair(self.ids[number].into(), port).wrapping_mul(SPREAD) % KEYS
    }

    fn add_other(&mut self, other: u32) -> bool {
        let is_new = !self.others.contains(&other);
        if is_new {
            self.others.push(other);
        }
        is_new
    }

    /// An id without entries.
    fn new_id(&mut self) -> u8 {
        if self.free == 0 {
            self.drop_stale();
        }
        let id = self.free.trailing_zeros();
        self.free &= self.free - 1;
        id as u8
    }

    /// Takes out the entries of stale ids, which are free then.
    fn drop_stale(&mut self) {
        let stale = self.stale;
        let counts = |key: u32| stale >> id_of(key) & 1 == 0;
        for (i, line) in self.lines.iter_mut().enumerate() {
            let old = std::mem::replace(line, Line::EMPTY);
            for part in 0..PARTS {
                let first = (i as u32) << (PART_BITS + 8) | (part as u32) << 8;
                let kept = old.entries[old.part(part)].iter().filter(|&&entry| counts(first | u32::from(entry)));
                kept.for_each(|&entry| line.add(part, entry));
            }
        }
        // A key that is in the list has a full line: where there is room again it moves there.
        let lines = &mut self.lines;
        self.others.retain(|&other| {
            let key = other & !KEY;
            if other & KEY == 0 || !counts(key) {
                return other & KEY == 0;
            }
            let (line, part, entry) = line_of(key);
            let is_full = lines[line].len() == PLACES;
            if !is_full {
                lines[line].add(part, entry);
            }
            is_full
        });
        (self.free, self.stale) = (stale, 0);
    }

    /// All pairs of hosts and ports in their order.
    fn pairs(&self) -> Vec<u32> {
        let mut hosts = [None; NUM_SERVERS];
        let servers = (0..NUM_SLOTS).filter_map(|host| Some((host, self.ids[server_number(host)?])));
        servers.filter(|(_, id)| *id != NO_ID).for_each(|(host, id)| hosts[usize::from(id)] = Some(host));
        let of_key =
            |key: u32| Some(pair(hosts[id_of(key) as usize]?, key.wrapping_mul(GATHER) % KEYS % NUM_PORTS as u32));
        let entries = self.lines.iter().enumerate().flat_map(|(i, line)| {
            (0..PARTS).flat_map(move |part| {
                let first = (i as u32) << (PART_BITS + 8) | (part as u32) << 8;
                line.entries[line.part(part)].iter().map(move |&entry| first | u32::from(entry))
            })
        });
        let others = self.others.iter().filter_map(|&o| if o & KEY == 0 { Some(o) } else { of_key(o & !KEY) });
        let mut pairs: Vec<u32> = entries.filter_map(of_key).chain(others).collect();
        pairs.sort_unstable();
        pairs
    }
}

/// As a list of distances between pairs, which take fewer bytes.
impl Serialize for UsedPorts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut last = 0;
        let distance = |pair| pair - std::mem::replace(&mut last, pair);
        serializer.collect_seq(self.pairs().into_iter().map(distance).collect::<Vec<_>>())
    }
}

impl<'de> Deserialize<'de> for UsedPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = UsedPorts;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the ports that hosts have used")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<UsedPorts, A::Error> {
                let mut ports = UsedPorts::empty();
                let mut pair = 0u32;
                while let Some(distance) = list.next_element::<u32>()? {
                    pair = pair.saturating_add(distance);
                    let (host, port) = (pair as usize / NUM_PORTS, pair % NUM_PORTS as u32);
                    if host >= NUM_SLOTS || !ports.add(host, port) {
                        return Err(Error::custom("no such port, or one twice"));
                    }
                }
                Ok(ports)
            }
        }

        deserializer.deserialize_seq(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn is_a_set_of_hosts_and_ports() {
        let mut rng = Rng::new(3);
        let (mut ports, mut model) = (UsedPorts::empty(), BTreeSet::new());
        let mut hosts: Vec<Slot> = (0..NUM_SLOTS).filter(|host| host % 3 != 1).collect();
        hosts.sort_by_key(|host| server_number(*host).is_none());
        for step in 0..40_000 {
            // Few servers are busy, so that ports return and lines are full.
            let host = hosts[rng.below(if step % 8 == 0 { hosts.len() as u32 } else { 9 }) as usize];
            if rng.below(2000) == 0 {
                ports.forget(host);
                model.retain(|&(other, _)| other != host);
            }
            let port = rng.below(NUM_PORTS as u32);
            assert_eq!(ports.add(host, port), model.insert((host, port)), "step {step}");
        }
        let pairs: Vec<u32> = model.iter().map(|&(host, port)| pair(host, port)).collect();
        assert_eq!(ports.pairs(), pairs);
        assert!(ports.others.iter().any(|other| other & KEY != 0), "no line was full");
        let bytes = postcard::to_allocvec(&ports).unwrap();
        assert_eq!(postcard::from_bytes::<UsedPorts>(&bytes).unwrap().pairs(), pairs);
        ports.clear();
        assert_eq!(ports, UsedPorts::empty());
    }
}
