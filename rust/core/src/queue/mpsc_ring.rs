//! A multi-producer single-consumer (MPSC) ring: all producers share it, and its records have one total order.
//!
//! A producer takes a range of positions by moving `tail`, fills them, and marks each with its sequence number, in an
//! array apart from the records. The consumer reads the records that are marked.
//!
//! Published rings of this kind (Vyukov's, crossbeam's `ArrayQueue`) stop for good when a producer dies between taking
//! and marking. Here a producer first writes its intent: the position from which on it will take. The producer of a
//! position that is taken but not marked has an intent at or before that position. So when every such intent belongs
//! to a dead producer, the position will never be marked, and the consumer skips it.
#![deny(missing_docs)]

use std::mem::MaybeUninit;

use super::cursor::Cursor;
use crate::shm::memory::{Memory, Site, Word};

/// The bit of a sequence number which says that the slot holds no record and is to be skipped.
const VOID: u64 = 1;

/// The words and slots of a ring.
#[derive(Clone, Debug)]
pub struct MpscRing {
    /// The position after the last one taken. Producers exchange it; it never decreases, and never exceeds the cursor's
    /// floor by more than `capacity`.
    pub tail: Word,
    /// The position up to which records are consumed or dropped.
    pub cursor: Cursor,
    /// The sequence number of the first slot; those of the other slots follow, eight bytes each. Twice (position + 1),
    /// plus [`VOID`], once that position is published; before that, what an earlier lap left. Written only by the
    /// producer that took the position.
    pub sequence: Word,
    /// Number of slots, a power of two. The ring has the slots from 0 on.
    pub capacity: u64,
    /// The intent of each producer: a position + 1, at or before every position that it has taken and not published; 0
    /// if there is none. Written by that producer alone, before it takes.
    pub intents: Vec<Word>,
}

impl MpscRing {
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

    /// The mark of a position, true if it is void; None while it is not published.
    #[inline]
    fn mark(&self, memory: &impl Memory, position: u64) -> Option<bool> {
        let mark = memory.load(self.sequence(position), Site::Collect);
        (mark >> 1 == position.wrapping_add(1)).then_some(mark & VOID != 0)
    }

    /// Returns whether more positions are taken than the ring has room for, which no producer does: a stray write has
    /// hit a word, and published positions can no longer be distinguished from others.
    ///
    /// The tail is read before `position`: the producer that moved the tail had seen the floor, which only grows.
    pub fn is_damaged(&self, memory: &impl Memory, position: impl FnOnce() -> u64) -> bool {
        let tail = memory.load(self.tail, Site::Taken);
        tail.saturating_sub(position()) > self.capacity
    }

    /// Positions that are taken and not yet consumed, read at some moment by any process.
    pub fn depth(&self, memory: &impl Memory) -> u64 {
        let floor = self.cursor.floor(memory);
        memory.load(self.tail, Site::Plain).saturating_sub(floor).min(self.capacity)
    }
}

/// A producer's side of a ring.
pub struct MpscWriter {
    ring: MpscRing,
    /// The intent of this producer, one of the ring's `intents`.
    intent: Word,
    /// The largest floor seen so far. Everything before it is free; the true floor may be larger.
    floor: u64,
    /// Positions taken for records that are being filled in place: the beginning of a gap, that of the records, and
    /// their end. The intent stands until they are published.
    reserved: Option<(u64, u64, u64)>,
}

impl MpscWriter {
    /// The writer of a process that has just become producer number `producer`.
    pub fn new(memory: &impl Memory, ring: MpscRing, producer: usize) -> MpscWriter {
        let intent = ring.intents[producer];
        // The intent of a dead predecessor must not pass for this producer's.
        memory.store(intent, 0, Site::Intend);
        let floor = ring.cursor.floor(memory);
        MpscWriter { ring, intent, floor, reserved: None }
    }

    #[inline]
    fn room_at(&mut self, memory: &impl Memory, tail: u64, wanted: u64) -> u64 {
        let room = |floor: u64| self.ring.capacity.saturating_sub(tail.saturating_sub(floor));
        if room(self.floor) < wanted {
            self.floor = self.floor.max(self.ring.cursor.floor(memory));
        }
        self.ring.capacity.saturating_sub(tail.saturating_sub(self.floor))
    }

    /// Slots that are free at some moment. Reads the shared cursor only if fewer than `wanted` are known to be.
    pub fn room(&mut self, memory: &impl Memory, wanted: u64) -> u64 {
        let tail = memory.load(self.ring.tail, Site::Plain);
        self.room_at(memory, tail, wanted)
    }

    /// Takes positions for `least` to `most` records. Returns the beginning of the gap before them (none if it is also
    /// theirs), their beginning and their end; None without room.
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

    fn clear_intent(&self, memory: &impl Memory) {
        memory.store(self.intent, 0, Site::Intend);
    }

    /// Copies as many of `records` as there is room for, at least `least`, and publishes them. Returns how many; 0 if
    /// there is less room.
    pub fn write(&mut self, memory: &impl Memory, records: &[u8], record_size: usize, least: u64) -> u64 {
        let Some((_, begin, end)) = self.take(memory, least, (records.len() / record_size) as u64, false) else {
            return 0;
        };
        let count = end.wrapping_sub(begin);
        let all = count as usize * record_size;
        let first = count.min(self.ring.until_end(begin)) as usize * record_size;
        // SAFETY: `take` gave these positions to this producer alone until they are marked, and their slots are free;
        // both parts end before the ring's end.
        unsafe {
            memory.write(self.ring.slot(begin), &records[..first]);
            if first < all {
                memory.write(0, &records[first..all]);
            }
        }
        self.mark(memory, begin, end, 0);
        self.clear_intent(memory);
        count
    }

    /// Reserves `count` slots side by side, at most half of the capacity. Returns the first slot; None without room.
    pub fn reserve(&mut self, memory: &impl Memory, count: u64) -> Option<usize> {
        self.reserved = self.take(memory, count, count, true);
        self.reserved.map(|(_, begin, _)| self.ring.slot(begin))
    }

    /// [`MpscRing::is_damaged`], as far as a producer can see.
    pub fn is_damaged(&self, memory: &impl Memory) -> bool {
        self.ring.is_damaged(memory, || self.ring.cursor.floor(memory))
    }

    /// Free slots that [`MpscWriter::reserve`] of `count` records may need.
    pub fn needed(&self, memory: &impl Memory, count: u64) -> u64 {
        let end = self.ring.until_end(memory.load(self.ring.tail, Site::Plain));
        if count <= end { count } else { end + count }
    }

    /// Publishes the reserved records, or marks them void. Returns how many were published.
    pub fn finish(&mut self, memory: &impl Memory, is_filled: bool) -> u64 {
        let Some((gap, begin, end)) = self.reserved.take() else { return 0 };
        self.mark(memory, gap, begin, VOID);
        self.mark(memory, begin, end, if is_filled { 0 } else { VOID });
        self.clear_intent(memory);
        if is_filled { end.wrapping_sub(begin) } else { 0 }
    }

    /// Drops the oldest records until `needed` slots are free. Returns how many were dropped; there may be less room
    /// than needed if the consumer holds records, or some are not published yet.
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

/// The consumer's side of a ring.
pub struct MpscReader {
    ring: MpscRing,
    /// The position of the oldest record; with eviction producers may have moved it on.
    position: u64,
    /// The end of the records that are peeked at and not yet released. They stay untouched meanwhile.
    peeked: Option<u64>,
    /// Positions skipped so far because their producers died before they published them.
    pub abandoned: u64,
}

impl MpscReader {
    /// The reader of a process that has just become the consumer.
    pub fn new(memory: &impl Memory, ring: MpscRing) -> MpscReader {
        let position = ring.cursor.resume(memory);
        MpscReader { ring, position, peeked: None, abandoned: 0 }
    }

    /// [`MpscRing::depth`].
    pub fn depth(&self, memory: &impl Memory) -> u64 {
        self.ring.depth(memory)
    }

    /// The oldest position if it is taken but not published: its producer is still writing, or dead.
    pub fn stalled(&self, memory: &impl Memory) -> Option<u64> {
        let position = self.ring.cursor.position(memory, self.position);
        let is_taken = memory.load(self.ring.tail, Site::Taken) > position;
        (is_taken && self.ring.mark(memory, position).is_none()).then_some(position)
    }

    /// [`MpscRing::is_damaged`], seen from the consumer's position.
    pub fn is_damaged(&self, memory: &impl Memory) -> bool {
        self.ring.is_damaged(memory, || self.ring.cursor.position(memory, self.position))
    }

    /// Returns whether every producer that may have taken this unpublished position is dead.
    fn is_abandoned(&self, memory: &impl Memory, position: u64, is_alive: &dyn Fn(usize) -> bool) -> bool {
        let taken = memory.load(self.ring.tail, Site::Taken).saturating_sub(position);
        // A damaged tail must not make the consumer skip more than there ever was.
        if taken == 0 || taken > self.ring.capacity {
            return false;
        }
        let may_be_marked = self.ring.intents.iter().enumerate().any(|(producer, &word)| {
            let intent = memory.load(word, Site::Intent);
            intent != 0 && intent - 1 <= position && is_alive(producer)
        });
        // A producer that cleared its intent meanwhile had published before.
        !may_be_marked && self.ring.mark(memory, position).is_none()
    }

    /// The first slot and the number of the oldest records that lie side by side, at most `max`; None if nothing is
    /// published. They stay untouched until [`MpscReader::release`]. With `is_alive`, of a producer by its number,
    /// positions that dead producers left behind are skipped.
    pub fn peek(
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
                if self.skip(memory, position) {
                    self.abandoned += 1;
                }
                continue;
            };
            if is_void {
                self.skip(memory, position);
                continue;
            }
            let most = max.min(self.ring.until_end(position));
            let mut count = 1;
            while count < most && self.ring.mark(memory, position.wrapping_add(count)) == Some(false) {
                count += 1;
            }
            let end = position.wrapping_add(count);
            if self.ring.cursor.hold(memory, position, end) {
                self.peeked = Some(end);
                return Some((self.ring.slot(position), count));
            }
        }
    }

    fn skip(&mut self, memory: &impl Memory, position: u64) -> bool {
        let next = position.wrapping_add(1);
        let is_ours = self.ring.cursor.hold(memory, position, next);
        if is_ours {
            self.position = next;
            self.ring.cursor.release(memory, next);
        }
        is_ours
    }

    /// Frees the records that were peeked at.
    pub fn release(&mut self, memory: &impl Memory) {
        if let Some(end) = self.peeked.take() {
            self.position = end;
            self.ring.cursor.release(memory, end);
        }
    }

    /// Copies and frees as many records as there are and `out` has room for. Returns how many. `is_alive` as for
    /// [`MpscReader::peek`].
    pub fn read(
        &mut self,
        memory: &impl Memory,
        mut out: &mut [MaybeUninit<u8>],
        record_size: usize,
        is_alive: Option<&dyn Fn(usize) -> bool>,
    ) -> u64 {
        let mut count = 0;
        while out.len() >= record_size {
            let Some((slot, peeked)) = self.peek(memory, (out.len() / record_size) as u64, is_alive) else { break };
            let (now, rest) = out.split_at_mut(peeked as usize * record_size);
            // SAFETY: `peek` gave these slots: their records are published, and no producer writes to them before
            // `release`.
            unsafe { memory.read(slot, now) };
            self.release(memory);
            out = rest;
            count += peeked;
        }
        count
    }

    /// Returns whether the oldest position is published.
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        let position = self.ring.cursor.position(memory, self.position);
        self.ring.mark(memory, position).is_some()
    }
}
