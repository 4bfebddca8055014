//! One producer's own ring: a wait-free queue of records between one producer and the consumer.
//!
//! Positions count records since the beginning and never wrap (2^63 of them last for millennia); the slot is the
//! position modulo the capacity, a power of two. The producer owns `tail`, the consumer the [`Cursor`]. A batch is
//! copied first and published by one store of `tail`, so a producer that dies before leaves nothing behind.
//!
//! Somebody who fills records in place needs them side by side. Where the ring's end is in the way, the slots from
//! `void` up to that end are left out, by both sides. At most one such gap lies between head and tail.
//!
//! Whatever a stray write leaves in the words, slots stay within the ring and counts within its capacity: positions are
//! added without a panic, and come out wrong.

use std::mem::MaybeUninit;

use super::cursor::Cursor;
use crate::shm::memory::{Memory, Site, Word};

/// No gap: none ever begins at position 0, where a whole ring lies ahead.
const NO_VOID: u64 = 0;

#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub tail: Word,
    pub void: Word,
    pub cursor: Cursor,
    pub first_slot: usize,
    pub capacity: u64,
}

impl Lane {
    #[inline]
    fn slot(&self, position: u64) -> usize {
        self.first_slot + (position & (self.capacity - 1)) as usize
    }

    /// Slots from a position to the ring's end.
    #[inline]
    fn until_end(&self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }

    /// How many of the positions from `from` up to `to` lie in the gap that begins at `void`.
    fn gap(&self, void: u64, from: u64, to: u64) -> u64 {
        if void == NO_VOID {
            return 0;
        }
        let end = void.saturating_add(self.until_end(void));
        to.min(end).saturating_sub(from.max(void))
    }

    /// Records that wait, as anybody may see it at some moment.
    pub fn depth(&self, memory: &impl Memory) -> u64 {
        let floor = self.cursor.floor(memory);
        let tail = memory.load(self.tail, Site::Plain);
        let void = memory.load(self.void, Site::Plain);
        tail.saturating_sub(floor).saturating_sub(self.gap(void, floor, tail)).min(self.capacity)
    }
}

/// The producer's side.
pub struct LaneWriter {
    lane: Lane,
    tail: u64,
    floor: u64,
    /// Where records that are being filled in place begin.
    reserved: Option<(u64, u64)>,
}

impl LaneWriter {
    /// For who has just become the lane's producer.
    pub fn new(memory: &impl Memory, lane: Lane) -> LaneWriter {
        // Positions are far below that, and a claim has no room for larger ones.
        let tail = memory.load(lane.tail, Site::Plain) & (u64::MAX >> 2);
        // The last producer may have died between saying where a gap begins and publishing what lies behind it.
        if memory.load(lane.void, Site::Plain) >= tail.max(1) {
            memory.store(lane.void, NO_VOID, Site::Plain);
        }
        LaneWriter { lane, tail, floor: lane.cursor.floor(memory), reserved: None }
    }

    /// Slots that are free; looks anew only if fewer than `wanted` were.
    #[inline]
    pub fn room(&mut self, memory: &impl Memory, wanted: u64) -> u64 {
        if self.known_room() < wanted {
            // Only ever forward: the floor that is known was true.
            self.floor = self.floor.max(self.lane.cursor.floor(memory));
        }
        self.known_room()
    }

    /// Between none and all, whatever damaged words say.
    #[inline]
    fn known_room(&self) -> u64 {
        self.lane.capacity.saturating_sub(self.tail.saturating_sub(self.floor))
    }

    /// Copies as many of the records as there is room for, and publishes them; how many.
    #[inline]
    pub fn write(&mut self, memory: &impl Memory, records: &[u8], record_size: usize) -> u64 {
        let wanted = (records.len() / record_size) as u64;
        let count = wanted.min(self.room(memory, wanted));
        let first = count.min(self.lane.until_end(self.tail)) as usize * record_size;
        let all = count as usize * record_size;
        // SAFETY: the slots from tail on are free, so the consumer does not read them, and no other producer writes
        // to this lane; both parts end before the ring's end.
        unsafe {
            memory.write(self.lane.slot(self.tail), &records[..first]);
            if first < all {
                memory.write(self.lane.first_slot, &records[first..all]);
            }
        }
        self.publish(memory, self.tail.wrapping_add(count));
        count
    }

    #[inline]
    fn publish(&mut self, memory: &impl Memory, tail: u64) {
        self.tail = tail;
        memory.store(self.lane.tail, tail, Site::Publish);
    }

    /// Slots that `count` records side by side take, a gap included.
    fn side_by_side(&self, count: u64) -> u64 {
        let end = self.lane.until_end(self.tail);
        if count <= end { count } else { end + count }
    }

    /// A slot from which on there is room for `count` records side by side, at most half of the capacity.
    pub fn reserve(&mut self, memory: &impl Memory, count: u64) -> Option<usize> {
        let needed = self.side_by_side(count);
        if self.room(memory, needed) < needed {
            return None;
        }
        let begin = self.tail.wrapping_add(needed - count);
        self.reserved = Some((begin, count));
        Some(self.lane.slot(begin))
    }

    /// Room that [`LaneWriter::reserve`] waits for.
    pub fn needed(&self, count: u64) -> u64 {
        self.side_by_side(count)
    }

    /// Publishes what was reserved and filled.
    pub fn commit(&mut self, memory: &impl Memory) -> u64 {
        let Some((begin, count)) = self.reserved.take() else { return 0 };
        if begin > self.tail {
            memory.store(self.lane.void, self.tail, Site::Plain);
        }
        self.publish(memory, begin.wrapping_add(count));
        count
    }

    pub fn abort(&mut self) {
        self.reserved = None;
    }

    /// Drops the oldest records until there is room for `needed`; how many were dropped. Fewer than needed may have
    /// gone if the consumer holds some.
    pub fn evict(&mut self, memory: &impl Memory, needed: u64) -> u64 {
        let mut dropped = 0;
        while self.room(memory, needed) < needed {
            let Some(oldest) = self.lane.cursor.oldest(memory) else { break };
            self.floor = self.floor.max(oldest);
            let to = self.tail.saturating_add(needed).saturating_sub(self.lane.capacity).min(self.tail);
            if to > oldest && self.lane.cursor.evict(memory, oldest, to) {
                let void = memory.load(self.lane.void, Site::Plain);
                dropped += to - oldest - self.lane.gap(void, oldest, to);
                self.floor = to;
            }
        }
        dropped
    }
}

/// The consumer's side.
pub struct LaneReader {
    lane: Lane,
    position: u64,
    tail: u64,
    /// Up to where records are shown.
    shown: Option<u64>,
    pub high_water: u64,
}

impl LaneReader {
    pub fn new(memory: &impl Memory, lane: Lane) -> LaneReader {
        let position = lane.cursor.resume(memory);
        LaneReader { lane, position, tail: position, shown: None, high_water: 0 }
    }

    /// The first slot and number of the oldest records that lie side by side, at most `max`. They stay untouched
    /// until [`LaneReader::release`].
    #[inline]
    pub fn show(&mut self, memory: &impl Memory, max: u64) -> Option<(usize, u64)> {
        loop {
            let position = self.lane.cursor.position(memory, self.position);
            if self.tail <= position {
                self.tail = memory.load(self.lane.tail, Site::Collect);
                if self.tail <= position {
                    return None;
                }
                // Whatever the words say, never more than the ring: they may be damaged.
                self.tail = self.tail.min(position.saturating_add(self.lane.capacity));
                self.high_water = self.high_water.max(self.tail - position);
            }
            let void = memory.load(self.lane.void, Site::Plain);
            let begin = if void <= position { position + self.lane.gap(void, position, self.tail) } else { position };
            if begin >= self.tail {
                self.tail = begin;
                self.position = begin;
                if self.lane.cursor.hold(memory, position, begin) {
                    self.lane.cursor.release(memory, begin);
                }
                continue;
            }
            let mut end = self.tail.min(begin.saturating_add(self.lane.until_end(begin)));
            if begin < void {
                end = end.min(void);
            }
            let count = max.min(end - begin);
            if self.lane.cursor.hold(memory, position, begin + count) {
                self.shown = Some(begin + count);
                return Some((self.lane.slot(begin), count));
            }
        }
    }

    /// Done with what was shown.
    #[inline]
    pub fn release(&mut self, memory: &impl Memory) {
        if let Some(end) = self.shown.take() {
            self.position = end;
            self.lane.cursor.release(memory, end);
        }
    }

    /// Copies records, as many as there are and fit; how many.
    #[inline]
    pub fn read(&mut self, memory: &impl Memory, mut out: &mut [MaybeUninit<u8>], record_size: usize) -> u64 {
        let mut count = 0;
        while out.len() >= record_size {
            let Some((slot, shown)) = self.show(memory, (out.len() / record_size) as u64) else { break };
            let (now, rest) = out.split_at_mut(shown as usize * record_size);
            // SAFETY: these slots were shown: published, and not written to before they are released.
            unsafe { memory.read(slot, now) };
            self.release(memory);
            out = rest;
            count += shown;
        }
        count
    }

    /// Whether something may be there.
    #[inline]
    pub fn is_ready(&self, memory: &impl Memory) -> bool {
        let position = self.lane.cursor.position(memory, self.position);
        self.tail > position || memory.load(self.lane.tail, Site::Collect) > position
    }
}
