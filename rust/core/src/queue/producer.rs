//! A producer: one side of a lane, or a competitor for the ring.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::lane::LaneWriter;
use super::layout::{Of, OfLane};
use super::ring::RingWriter;
use super::{Error, Order, Policy, Queue, State, damaged_ring};
use crate::shm::memory::{Memory, Site};
use crate::shm::process::forks;

enum Writer {
    Lane(LaneWriter),
    Ring(RingWriter),
}

pub struct Producer {
    queue: Queue,
    lane: usize,
    writer: Writer,
    /// Records reserved and not yet given back.
    reserved: usize,
    /// Whether the last wait was in vain: the next one goes on with it.
    waits: bool,
    forks: u64,
}

/// How long a producer tries to drop the oldest records while the consumer is reading them.
const PATIENCE: Duration = Duration::from_micros(200);
/// How long it looks before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

impl Producer {
    pub(super) fn new(queue: Queue) -> Result<Producer, Error> {
        queue.check_here()?;
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let lane = (0..layout.lanes).find_map(|lane| Some((lane, queue.take_role(queue.lane_role(lane)).ok()?)));
        let Some((lane, before)) = lane else { return Err(Error::NoLane { lanes: layout.lanes }) };
        if before.is_some() && layout.order == Order::Lanes {
            // In total order the consumer counts, where it passes them over.
            let lost = queue.0.gate.begun(memory, lane);
            let abandoned = layout.word(Of::Abandoned);
            while let Err(_changed) = {
                let count = memory.load(abandoned, Site::Plain);
                memory.exchange(abandoned, count, count.wrapping_add(lost), Site::Plain)
            } {}
        }
        queue.0.gate.leave(memory, lane);
        let writer = match layout.order {
            Order::Lanes => Writer::Lane(LaneWriter::new(memory, layout.lane(lane))),
            Order::Total => Writer::Ring(RingWriter::new(memory, layout.ring(), lane)),
        };
        Ok(Producer { lane, writer, reserved: 0, waits: false, forks: forks(), queue })
    }

    pub fn lane(&self) -> usize {
        self.lane
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn check(&self) -> Result<(), Error> {
        if self.forks != forks() {
            return Err(Error::Forked(
                "this producer belongs to the parent process: make one in the forked child with queue.producer()",
            ));
        }
        if self.reserved > 0 {
            return Err(Error::Borrowed("records are reserved: leave the reserve(...) block first"));
        }
        Ok(())
    }

    fn count(&self, of: OfLane, more: u64) {
        self.queue.count(self.queue.0.layout.lane_word(self.lane, of), more);
    }

    fn begin(&self, records: usize) -> Result<(), Error> {
        let is_open = self.queue.0.gate.enter(&self.queue.0.memory, self.lane, records as u64);
        if is_open { Ok(()) } else { Err(Error::ShutDown) }
    }

    fn end(&self) {
        self.queue.0.gate.leave(&self.queue.0.memory, self.lane);
    }

    fn ring_consumer(&self) {
        let memory = &self.queue.0.memory;
        Bell::after_change(memory);
        self.queue.consumer_bell().ring(memory);
    }

    fn room(&mut self, wanted: u64) -> u64 {
        let memory = &self.queue.0.memory;
        match &mut self.writer {
            Writer::Lane(writer) => writer.room(memory, wanted),
            Writer::Ring(writer) => writer.room(memory, wanted),
        }
    }

    fn write(&mut self, records: &[u8], least: u64) -> u64 {
        let memory = &self.queue.0.memory;
        let record_size = self.queue.0.layout.record_size;
        match &mut self.writer {
            Writer::Lane(writer) => {
                if writer.room(memory, least) >= least {
                    writer.write(memory, records, record_size)
                } else {
                    0
                }
            }
            Writer::Ring(writer) => writer.write(memory, records, record_size, least),
        }
    }

    /// Makes room by dropping the oldest, as long as the consumer is not reading just those.
    fn evict(&mut self, needed: u64) {
        let memory = &self.queue.0.memory;
        let mut dropped = 0;
        let mut since = None;
        loop {
            let room = match &mut self.writer {
                Writer::Lane(writer) => {
                    dropped += writer.evict(memory, needed);
                    writer.room(memory, needed)
                }
                Writer::Ring(writer) => {
                    dropped += writer.evict(memory, needed);
                    writer.room(memory, needed)
                }
            };
            if room >= needed || since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                break;
            }
            std::thread::yield_now();
        }
        self.count(OfLane::DroppedOldest, dropped);
    }

    /// Takes whole records as the policy has it; how many are dealt with. Waiting: as many as there is room for, perhaps
    /// none. Error: all, or [`Error::Full`]. Dropping: all of them.
    pub fn offer(&mut self, records: &[u8]) -> Result<usize, Error> {
        self.check()?;
        let layout = &self.queue.0.layout;
        let (size, capacity, policy) = (layout.record_size, layout.capacity, layout.policy);
        let count = records.len() / size;
        if count == 0 {
            return Ok(0);
        }
        self.begin(count)?;
        let given = count;
        // Of more than fit at all, the first are the oldest.
        let skipped = if policy == Policy::DropOldest { count.saturating_sub(capacity) } else { 0 };
        let records = &records[skipped * size..given * size];
        let count = given - skipped;
        if policy == Policy::DropOldest && self.room(count as u64) < count as u64 {
            self.count(OfLane::FullWaits, 1);
            self.evict(count as u64);
        }
        let least = if policy == Policy::Error { count as u64 } else { 0 };
        let written = self.write(records, least);
        self.end();
        self.count(OfLane::Put, written);
        if written > 0 {
            self.ring_consumer();
        }
        self.count(OfLane::DroppedOldest, skipped as u64);
        let missing = count as u64 - written;
        match policy {
            Policy::Block => Ok(written as usize),
            Policy::Error if missing > 0 => {
                self.count(OfLane::FullWaits, 1);
                Err(Error::Full)
            }
            Policy::DropNewest | Policy::DropOldest => {
                self.count(OfLane::DroppedNewest, missing);
                Ok(given)
            }
            Policy::Error => Ok(given),
        }
    }

    /// Room for `count` records side by side, to be filled in place and then given to [`Producer::commit`] or
    /// [`Producer::abort`]. None if there is no room now.
    pub fn reserve(&mut self, count: usize) -> Result<Option<NonNull<u8>>, Error> {
        self.check()?;
        let (capacity, policy) = (self.queue.0.layout.capacity, self.queue.0.layout.policy);
        if count == 0 || count > capacity / 2 {
            return Err(Error::TooMany(format!(
                "expected to reserve 1 to {} records (half of the capacity), got {count}: use put_many, or a larger queue",
                capacity / 2
            )));
        }
        self.begin(count)?;
        if policy == Policy::DropOldest {
            let needed = match &self.writer {
                Writer::Lane(writer) => writer.needed(count as u64),
                Writer::Ring(writer) => writer.needed(&self.queue.0.memory, count as u64),
            };
            if self.room(needed) < needed {
                self.count(OfLane::FullWaits, 1);
                self.evict(needed);
            }
        }
        let memory = &self.queue.0.memory;
        let slot = match &mut self.writer {
            Writer::Lane(writer) => writer.reserve(memory, count as u64),
            Writer::Ring(writer) => writer.reserve(memory, count as u64),
        };
        let Some(slot) = slot else {
            self.end();
            if policy == Policy::Error {
                self.count(OfLane::FullWaits, 1);
                return Err(Error::Full);
            }
            return Ok(None);
        };
        self.reserved = count;
        Ok(Some(self.queue.0.memory.place(slot)))
    }

    /// Counts records that the caller gives up because there is no room and the policy is to drop them.
    pub fn drop_newest(&mut self, count: usize) {
        self.count(OfLane::DroppedNewest, count as u64);
    }

    /// Publishes what was reserved.
    pub fn commit(&mut self) {
        self.finish(true);
    }

    /// Gives back what was reserved.
    pub fn abort(&mut self) {
        self.finish(false);
    }

    fn finish(&mut self, is_filled: bool) {
        if self.reserved == 0 || self.forks != forks() {
            return;
        }
        self.reserved = 0;
        let memory = &self.queue.0.memory;
        let published = match &mut self.writer {
            Writer::Lane(writer) if is_filled => writer.commit(memory),
            Writer::Lane(writer) => {
                writer.abort();
                0
            }
            Writer::Ring(writer) => writer.finish(memory, is_filled),
        };
        self.end();
        self.count(OfLane::Put, published);
        self.ring_consumer();
    }

    /// Blocks until there may be room for `count` records side by side, the queue was shut down (then
    /// [`Error::ShutDown`]), or the time is over (then false).
    pub fn wait(&mut self, count: usize, timeout: Duration) -> Result<bool, Error> {
        self.check()?;
        let start = Instant::now();
        if !self.waits {
            self.count(OfLane::FullWaits, 1);
        }
        let queue = self.queue.clone();
        let memory = &queue.0.memory;
        let bell = queue.producer_bell(self.lane);
        let is_ready = loop {
            let needed = match &self.writer {
                Writer::Lane(writer) => writer.needed(count as u64),
                Writer::Ring(writer) => writer.needed(memory, count as u64),
            };
            if queue.state() != State::Open || self.room(needed) >= needed {
                break true;
            }
            match &self.writer {
                Writer::Ring(writer) if writer.is_damaged(memory) => return Err(damaged_ring()),
                _ => {}
            }
            let passed = start.elapsed();
            if passed >= timeout {
                break false;
            }
            if passed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            bell.sleep(memory, timeout - passed, || queue.state() != State::Open || self.room(needed) >= needed);
        };
        self.waits = !is_ready;
        self.count(OfLane::WaitNs, start.elapsed().as_nanos() as u64);
        if is_ready && queue.state() != State::Open { Err(Error::ShutDown) } else { Ok(is_ready) }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.forks != forks() {
            return;
        }
        self.abort();
        self.queue.lane_role(self.lane).give(&self.queue.0.memory);
    }
}
