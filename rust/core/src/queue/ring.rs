//! One ring for all producers, in one total order.
//!
//! A producer takes a range of positions by moving `tail`, fills them, and marks each with its sequence number, in
//! an array apart from the records. The consumer reads the records that are marked.
//!
//! Published rings of this kind (Vyukov's, crossbeam's `ArrayQueue`) stop for good when a producer dies between taking
//! and marking. Here a producer first writes its intent, the position from which on it will take. Of a position that
//! is taken but not marked, whoever took it has an intent at or before it; so when every such intent belongs to the
//! dead, nobody will ever mark that position, and the consumer goes past it.

use std::mem::MaybeUninit;

use super::cursor::Cursor;
use crate::shm::memory::{Memory, Site, Word};

/// In a sequence number: the slot holds no record, go on.
const VOID: u64 = 1;

#[derive(Clone, Debug)]
pub struct Ring {
    pub tail: Word,
    pub cursor: Cursor,
    /// Of the first slot; the others follow, eight bytes each.
    pub sequence: Word,
    pub capacity: u64,
    /// Each producer's intent: a position plus one, or zero.
    pub intents: Vec<Word>,
}

impl Ring {
    #[inline]
    fn slot(&self, position: u64) -> usize {
        (position & (self.capacity - 1)) as usize
    }

    #[inline]
    fn until_end(&self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }

    #[inline]
    fn sequence(&self, position: u64) -> Word {
        Word(self.sequence.0 + 8 * self.slot(position))
    }

    /// Whether the position is marked, and as void.
    #[inline]
    fn mark(&self, memory: &impl Memory, position: u64) -> Option<bool> {
        let mark = memory.load(self.sequence(position), Site::Collect);
        (mark >> 1 == position.wrapping_add(1)).then_some(mark & VOID != 0)
    }

    /// Whether more is taken than the ring has room for, which no producer does: a stray write has hit a word, and what
    /// is published can no longer be told from what is not.
    ///
    /// The tail is read first. Who moved it had seen the floor, and a floor only moves on.
    pub fn is_damaged(&self, memory: &impl Memory, position: impl FnOnce() -> u64) -> bool {
        let tail = memory.load(self.tail, Site::Taken);
        tail.saturating_sub(position()) > self.capacity
    }

    /// Positions that are taken and not yet consumed, as anybody may see it at some moment.
    pub fn depth(&self, memory: &impl Memory) -> u64 {
        let floor = self.cursor.floor(memory);
        memory.load(self.tail, Site::Plain).saturating_sub(floor).min(self.capacity)
    }
}

/// A producer's side.
pub struct RingWriter {
    ring: Ring,
    intent: Word,
    floor: u64,
    /// Taken for records that are being filled in place: a gap's beginning, the records' beginning, their end.
    reserved: Option<(u64, u64, u64)>,
}

impl RingWriter {
    /// For who has just become the producer of this number.
    pub fn new(memory: &impl Memory, ring: Ring, number: usize) -> RingWriter {
        let intent = ring.intents[number];
        // A dead producer's intent must not pass for ours.
        memory.store(intent, 0, Site::Intend);
        let floor = ring.cursor.floor(memory);
        RingWriter { ring, intent, floor, reserved: None }
    }

    #[inline]
    fn room_at(&mut self, memory: &impl Memory, tail: u64, wanted: u64) -> u64 {
        let room = |floor: u64| self.ring.capacity.saturating_sub(tail.saturating_sub(floor));
        if room(self.floor) < wanted {
            self.floor = self.floor.max(self.ring.cursor.floor(memory));
        }
        self.ring.capacity.saturating_sub(tail.saturating_sub(self.floor))
    }

    /// Slots that are free, at some moment.
    pub fn room(&mut self, memory: &impl Memory, wanted: u64) -> u64 {
        let tail = memory.load(self.ring.tail, Site::Plain);
        self.room_at(memory, tail, wanted)
    }

    /// Takes positions for at most `most` and at least `least` records; the first one, and their number.
    fn take(&mut self, memory: &impl Memory, least: u64, most: u64, side_by_side: bool) -> Option<(u64, u64, u64)> {
        let taken = loop {
            let tail = memory.load(self.ring.tail, Site::Plain);
            let end = self.ring.until_end(tail);
            let gap = if side_by_side && most > end { end } else { 0 };
            let room = self.room_at(memory, tail, gap + most);
            let count = most.min(room.saturating_sub(gap));
            if count < least.max(1) {
                break None;
            }
            memory.store(self.intent, tail.wrapping_add(1), Site::Intend);
            let begin = tail.wrapping_add(gap);
            let end = begin.wrapping_add(count);
            if memory.exchange(self.ring.tail, tail, end, Site::Take).is_ok() {
                break Some((tail, begin, end));
            }
        };
        if taken.is_none() {
            memory.store(self.intent, 0, Site::Intend);
        }
        taken
    }

    fn mark(&self, memory: &impl Memory, from: u64, to: u64, flag: u64) {
        for position in from..to {
            memory.store(self.ring.sequence(position), position.wrapping_add(1) << 1 | flag, Site::Publish);
        }
    }

    fn done(&self, memory: &impl Memory) {
        memory.store(self.intent, 0, Site::Intend);
    }

    /// Copies as many of the records as there is room for, at least `least`, and publishes them; how many.
    pub fn write(&mut self, memory: &impl Memory, records: &[u8], record_size: usize, least: u64) -> u64 {
        let Some((_, begin, end)) = self.take(memory, least, (records.len() / record_size) as u64, false) else {
            return 0;
        };
        let count = end.wrapping_sub(begin);
        let all = count as usize * record_size;
        let first = count.min(self.ring.until_end(begin)) as usize * record_size;
        // SAFETY: these positions are ours until they are marked, and their slots are free.
        unsafe {
            memory.write(self.ring.slot(begin), &records[..first]);
            if first < all {
                memory.write(0, &records[first..all]);
            }
        }
        self.mark(memory, begin, end, 0);
        self.done(memory);
        count
    }

    /// A slot from which on there is room for `count` records side by side, at most half of the capacity.
    pub fn reserve(&mut self, memory: &impl Memory, count: u64) -> Option<usize> {
        self.reserved = self.take(memory, count, count, true);
        self.reserved.map(|(_, begin, _)| self.ring.slot(begin))
    }

    /// See [`Ring::is_damaged`].
    pub fn is_damaged(&self, memory: &impl Memory) -> bool {
        self.ring.is_damaged(memory, || self.ring.cursor.floor(memory))
    }

    /// Room that a reservation of `count` may need.
    pub fn needed(&self, memory: &impl Memory, count: u64) -> u64 {
        let end = self.ring.until_end(memory.load(self.ring.tail, Site::Plain));
        if count <= end { count } else { end + count }
    }

    /// Publishes what was reserved and filled, or marks it void.
    pub fn finish(&mut self, memory: &impl Memory, is_filled: bool) -> u64 {
        let Some((gap, begin, end)) = self.reserved.take() else { return 0 };
        self.mark(memory, gap, begin, VOID);
        self.mark(memory, begin, end, if is_filled { 0 } else { VOID });
        self.done(memory);
        if is_filled { end.wrapping_sub(begin) } else { 0 }
    }

    /// Drops the oldest records until there is room for `needed`; how many were dropped. Fewer than needed may have
    /// gone if the consumer holds some, or if some are not published yet.
    pub fn evict(&mut self, memory: &impl Memory, needed: u64) -> u64 {
        let mut dropped = 0;
        loop {
            let tail = memory.load(self.ring.tail, Site::Plain);
            if self.room_at(memory, tail, needed) >= needed {
                break;
            }
            let Some(oldest) = self.ring.cursor.oldest(memory) else { break };
            self.floor = self.floor.max(oldest);
            let to = tail.saturating_add(needed).saturating_sub(self.ring.capacity).min(tail);
            let mut records = 0;
            if to <= oldest {
                continue;
            }
            if !(oldest..to).all(|position| {
                let mark = self.ring.mark(memory, position);
                records += u64::from(mark == Some(false));
                mark.is_some()
            }) {
                break;
            }
            if self.ring.cursor.evict(memory, oldest, to) {
                dropped += records;
                self.floor = to;
            }
        }
        dropped
    }
}

/// The consumer's side.
pub struct RingReader {
    ring: Ring,
    position: u64,
    shown: Option<u64>,
    /// Positions that were taken by producers who died before they had published.
    pub abandoned: u64,
}

impl RingReader {
    pub fn new(memory: &impl Memory, ring: Ring) -> RingReader {
        let position = ring.cursor.resume(memory);
        RingReader { ring, position, shown: None, abandoned: 0 }
    }

    pub fn depth(&self, memory: &impl Memory) -> u64 {
        self.ring.depth(memory)
    }

    /// The position of the oldest record if it is taken but not published: its producer is at work, or dead.
    pub fn stalled(&self, memory: &impl Memory) -> Option<u64> {
        let position = self.ring.cursor.position(memory, self.position);
        let is_taken = memory.load(self.ring.tail, Site::Taken) > position;
        (is_taken && self.ring.mark(memory, position).is_none()).then_some(position)
    }

    /// See [`Ring::is_damaged`].
    pub fn is_damaged(&self, memory: &impl Memory) -> bool {
        self.ring.is_damaged(memory, || self.ring.cursor.position(memory, self.position))
    }

    /// Whether everybody who may have taken this unpublished position is dead.
    fn is_abandoned(&self, memory: &impl Memory, position: u64, is_alive: &dyn Fn(usize) -> bool) -> bool {
        let taken = memory.load(self.ring.tail, Site::Taken).saturating_sub(position);
        // A damaged tail must not have the consumer pass over more than there ever was.
        if taken == 0 || taken > self.ring.capacity {
            return false;
        }
        let somebody = self.ring.intents.iter().enumerate().any(|(number, &word)| {
            let intent = memory.load(word, Site::Intent);
            intent != 0 && intent - 1 <= position && is_alive(number)
        });
        // Who withdrew an intent meanwhile has published before.
        !somebody && self.ring.mark(memory, position).is_none()
    }

    /// As [`super::lane::LaneReader::show`]. With `is_alive`, which says it of a producer by number, positions that
    /// dead producers left behind are passed over.
    pub fn show(
        &mut self,
        memory: &impl Memory,
        max: u64,
        is_alive: Option<&dyn Fn(usize) -> bool>,
    ) -> Option<(usize, u64)> {
        loop {
            let position = self.ring.cursor.position(memory, self.position);
            let Some(is_void) = self.ring.mark(memory, position) else {
                if !self.is_abandoned(memory, position, is_alive?) {
                    return None;
                }
                if self.pass(memory, position) {
                    self.abandoned += 1;
                }
                continue;
            };
            if is_void {
                self.pass(memory, position);
                continue;
            }
            let most = max.min(self.ring.until_end(position));
            let mut count = 1;
            while count < most && self.ring.mark(memory, position.wrapping_add(count)) == Some(false) {
                count += 1;
            }
            let end = position.wrapping_add(count);
            if self.ring.cursor.hold(memory, position, end) {
                self.shown = Some(end);
                return Some((self.ring.slot(position), count));
            }
        }
    }

    fn pass(&mut self, memory: &impl Memory, position: u64) -> bool {
        let next = position.wrapping_add(1);
        let is_ours = self.ring.cursor.hold(memory, position, next);
        if is_ours {
            self.position = next;
            self.ring.cursor.release(memory, next);
        }
        is_ours
    }

    /// Done with what was shown.
    pub fn release(&mut self, memory: &impl Memory) {
        if let Some(end) = self.shown.take() {
            self.position = end;
            self.ring.cursor.release(memory, end);
        }
    }

    /// As [`super::lane::LaneReader::read`].
    pub fn read(
        &mut self,
        memory: &impl Memory,
        mut out: &mut [MaybeUninit<u8>],
        record_size: usize,
        is_alive: Option<&dyn Fn(usize) -> bool>,
    ) -> u64 {
        let mut count = 0;
        while out.len() >= record_size {
            let Some((slot, shown)) = self.show(memory, (out.len() / record_size) as u64, is_alive) else { break };
            let (now, rest) = out.split_at_mut(shown as usize * record_size);
            // SAFETY: these slots were shown: published, and not written to before they are released.
            unsafe { memory.read(slot, now) };
            self.release(memory);
            out = rest;
            count += shown;
        }
        count
    }

    /// Whether the oldest position is published.
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        let position = self.ring.cursor.position(memory, self.position);
        self.ring.mark(memory, position).is_some()
    }
}
