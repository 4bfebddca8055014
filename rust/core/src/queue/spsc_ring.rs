//! A single-producer single-consumer (SPSC) ring: a wait-free queue of records between one producer and the consumer.
//!
//! Positions count records since the beginning and never wrap (2^63 of them last for millennia); the slot is the
//! position modulo the capacity, a power of two. The producer owns `tail`, the consumer the [`Cursor`]. A batch is
//! copied first and published by one store of `tail`, so a producer that dies before that leaves nothing behind.
//!
//! Records that are filled in place must lie side by side. Where the end of the ring is in the way, both sides skip the
//! slots from `void` up to that end. At most one such gap lies between head and tail.
//!
//! A stray write into the words can make records come out wrong, but slots stay within the ring and counts within its
//! capacity, and no arithmetic panics.
#![deny(missing_docs)]

use std::mem::MaybeUninit;

use super::cursor::Cursor;
use crate::shm::memory::{Memory, Site, Word};

/// The value of `void` without a gap. No gap begins at position 0, where a whole ring lies ahead.
const NO_VOID: u64 = 0;

/// The words and slots of a ring.
#[derive(Clone, Copy, Debug)]
pub struct SpscRing {
    /// The position after the last published record. Written by the producer alone; never decreases, and never exceeds
    /// the cursor's floor by more than `capacity`.
    pub tail: Word,
    /// The position where the last gap begins, or [`NO_VOID`]. Written by the producer alone, before the `tail` that
    /// makes the gap visible.
    pub void: Word,
    /// The position up to which records are consumed or dropped.
    pub cursor: Cursor,
    /// The slot of position 0: the ring has the slots from there to `first_slot + capacity`.
    pub first_slot: usize,
    /// Number of slots, a power of two.
    pub capacity: u64,
}

impl SpscRing {
    #[inline]
    fn slot(&self, position: u64) -> usize {
        self.first_slot + (position & (self.capacity - 1)) as usize
    }

    /// Slots from a position to the ring's end.
    #[inline]
    fn until_end(&self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }

    /// The number of positions from `from` up to `to` that lie in the gap that begins at `void`.
    fn gap(&self, void: u64, from: u64, to: u64) -> u64 {
        if void == NO_VOID {
            return 0;
        }
        let end = void.saturating_add(self.until_end(void));
        to.min(end).saturating_sub(from.max(void))
    }

    /// Records that wait, read at some moment by any process.
    pub fn depth(&self, memory: &impl Memory) -> u64 {
        let floor = self.cursor.floor(memory);
        let tail = memory.load(self.tail, Site::Plain);
        let void = memory.load(self.void, Site::Plain);
        tail.saturating_sub(floor).saturating_sub(self.gap(void, floor, tail)).min(self.capacity)
    }
}

/// The producer's side of a ring.
pub struct SpscWriter {
    ring: SpscRing,
    /// The ring's `tail`, which no other writes.
    tail: u64,
    /// The largest floor seen so far. Everything before it is free; the true floor may be larger.
    floor: u64,
    /// The first position and the number of records that are being filled in place. Nothing else is written meanwhile.
    reserved: Option<(u64, u64)>,
}

impl SpscWriter {
    /// The writer of a process that has just become the ring's producer.
    pub fn new(memory: &impl Memory, ring: SpscRing) -> SpscWriter {
        // Positions stay far below this, and a claim has no room for larger ones.
        let tail = memory.load(ring.tail, Site::Plain) & (u64::MAX >> 2);
        // The last producer may have died between storing where a gap begins and publishing the records behind it.
        if memory.load(ring.void, Site::Plain) >= tail.max(1) {
            memory.store(ring.void, NO_VOID, Site::Plain);
        }
        SpscWriter { ring, tail, floor: ring.cursor.floor(memory), reserved: None }
    }

    /// Slots that are free. Reads the shared cursor only if fewer than `wanted` are known to be.
    #[inline]
    pub fn room(&mut self, memory: &impl Memory, wanted: u64) -> u64 {
        if self.cached_room() < wanted {
            // A floor that was seen stays true, so it only grows.
            self.floor = self.floor.max(self.ring.cursor.floor(memory));
        }
        self.cached_room()
    }

    /// Free slots by the known floor: from 0 to the capacity even if words are damaged.
    #[inline]
    fn cached_room(&self) -> u64 {
        self.ring.capacity.saturating_sub(self.tail.saturating_sub(self.floor))
    }

    /// Copies as many of `records` as there is room for, and publishes them. Returns how many.
    #[inline]
    pub fn write(&mut self, memory: &impl Memory, records: &[u8], record_size: usize) -> u64 {
        let wanted = (records.len() / record_size) as u64;
        let count = wanted.min(self.room(memory, wanted));
        let first = count.min(self.ring.until_end(self.tail)) as usize * record_size;
        let all = count as usize * record_size;
        // SAFETY: `count` slots from tail on are free (`room`), so the consumer does not read them, and no other
        // producer writes to this ring; both parts end before the ring's end.
        unsafe {
            memory.write(self.ring.slot(self.tail), &records[..first]);
            if first < all {
                memory.write(self.ring.first_slot, &records[first..all]);
            }
        }
        self.publish(memory, self.tail.wrapping_add(count));
        count
    }

    #[inline]
    fn publish(&mut self, memory: &impl Memory, tail: u64) {
        self.tail = tail;
        memory.store(self.ring.tail, tail, Site::Publish);
    }

    /// Slots that `count` records side by side take at the present tail, a gap included.
    fn side_by_side(&self, count: u64) -> u64 {
        let end = self.ring.until_end(self.tail);
        if count <= end { count } else { end + count }
    }

    /// Reserves `count` slots side by side, at most half of the capacity. Returns the first slot; None without room.
    pub fn reserve(&mut self, memory: &impl Memory, count: u64) -> Option<usize> {
        let needed = self.side_by_side(count);
        if self.room(memory, needed) < needed {
            return None;
        }
        let begin = self.tail.wrapping_add(needed - count);
        self.reserved = Some((begin, count));
        Some(self.ring.slot(begin))
    }

    /// Free slots that [`SpscWriter::reserve`] of `count` records needs.
    pub fn needed(&self, count: u64) -> u64 {
        self.side_by_side(count)
    }

    /// Publishes the reserved records. Returns how many.
    pub fn commit(&mut self, memory: &impl Memory) -> u64 {
        let Some((begin, count)) = self.reserved.take() else { return 0 };
        if begin > self.tail {
            memory.store(self.ring.void, self.tail, Site::Plain);
        }
        self.publish(memory, begin.wrapping_add(count));
        count
    }

    /// Gives up the reserved records.
    pub fn abort(&mut self) {
        self.reserved = None;
    }

    /// Drops the oldest records until `needed` slots are free. Returns how many were dropped; there may be less room
    /// than needed if the consumer holds records.
    pub fn evict(&mut self, memory: &impl Memory, needed: u64) -> u64 {
        let mut dropped = 0;
        while self.room(memory, needed) < needed {
            let Some(oldest) = self.ring.cursor.oldest(memory) else { break };
            self.floor = self.floor.max(oldest);
            let to = self.tail.saturating_add(needed).saturating_sub(self.ring.capacity).min(self.tail);
            if to > oldest && self.ring.cursor.evict(memory, oldest, to) {
                let void = memory.load(self.ring.void, Site::Plain);
                dropped += to - oldest - self.ring.gap(void, oldest, to);
                self.floor = to;
            }
        }
        dropped
    }
}

/// The consumer's side of a ring.
pub struct SpscReader {
    ring: SpscRing,
    /// The position of the oldest record; with eviction producers may have moved it on.
    position: u64,
    /// The largest tail seen so far: everything before it is published.
    tail: u64,
    /// The end of the records that are peeked at and not yet released. They stay untouched meanwhile.
    peeked: Option<u64>,
    /// The largest number of positions that were ever seen waiting.
    pub high_water: u64,
}

impl SpscReader {
    /// The reader of a process that has just become the consumer.
    pub fn new(memory: &impl Memory, ring: SpscRing) -> SpscReader {
        let position = ring.cursor.resume(memory);
        SpscReader { ring, position, tail: position, peeked: None, high_water: 0 }
    }

    /// The first slot and the number of the oldest records that lie side by side, at most `max`; None if nothing is
    /// published. They stay untouched until [`SpscReader::release`].
    #[inline]
    pub fn peek(&mut self, memory: &impl Memory, max: u64) -> Option<(usize, u64)> {
        loop {
            let position = self.ring.cursor.position(memory, self.position);
            if self.tail <= position {
                self.tail = memory.load(self.ring.tail, Site::Collect);
                if self.tail <= position {
                    return None;
                }
                // Damaged words must not make it more than the ring holds.
                self.tail = self.tail.min(position.saturating_add(self.ring.capacity));
                self.high_water = self.high_water.max(self.tail - position);
            }
            let void = memory.load(self.ring.void, Site::Plain);
            let begin = if void <= position { position + self.ring.gap(void, position, self.tail) } else { position };
            if begin >= self.tail {
                self.tail = begin;
                self.position = begin;
                if self.ring.cursor.hold(memory, position, begin) {
                    self.ring.cursor.release(memory, begin);
                }
                continue;
            }
            let mut end = self.tail.min(begin.saturating_add(self.ring.until_end(begin)));
            if begin < void {
                end = end.min(void);
            }
            let count = max.min(end - begin);
            if self.ring.cursor.hold(memory, position, begin + count) {
                self.peeked = Some(begin + count);
                return Some((self.ring.slot(begin), count));
            }
        }
    }

    /// Frees the records that were peeked at.
    #[inline]
    pub fn release(&mut self, memory: &impl Memory) {
        if let Some(end) = self.peeked.take() {
            self.position = end;
            self.ring.cursor.release(memory, end);
        }
    }

    /// Copies and frees as many records as there are and `out` has room for. Returns how many.
    #[inline]
    pub fn read(&mut self, memory: &impl Memory, mut out: &mut [MaybeUninit<u8>], record_size: usize) -> u64 {
        let mut count = 0;
        while out.len() >= record_size {
            let Some((slot, peeked)) = self.peek(memory, (out.len() / record_size) as u64) else { break };
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

    /// Returns whether a record, or a gap before one, is published.
    #[inline]
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        let position = self.ring.cursor.position(memory, self.position);
        self.tail > position || memory.load(self.ring.tail, Site::Collect) > position
    }
}
