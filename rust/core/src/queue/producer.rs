//! A producer: the writing side of its own ring, or one of many writers of the shared ring.
#![deny(missing_docs)]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::event::Event;
use super::layout::{ProducerWord, QueueWord};
use super::mpsc_ring::MpscWriter;
use super::spsc_ring::SpscWriter;
use super::{Error, Order, Policy, Queue, State, damaged_ring};
use crate::shm::memory::{Memory, Site};
use crate::shm::process::forks;

enum Writer {
    Spsc(SpscWriter),
    Mpsc(MpscWriter),
}

/// A producer of a queue. It belongs to the process that made it: in a forked child every call is
/// [`Error::Forked`]. Dropped, it gives up what is reserved and frees its index.
pub struct Producer {
    queue: Queue,
    /// The index among the queue's producers. This process holds its role as long as the producer lives.
    index: usize,
    /// The writing side of the ring. No other writer of this index exists.
    writer: Writer,
    /// Records that are reserved and neither committed nor aborted. The producer is inside the gate while there are
    /// any.
    reserved: usize,
    /// True if the last wait timed out, so that the next one continues it and is not counted again.
    is_waiting: bool,
    /// [`forks`] of the process that made this producer.
    forks: u64,
}

/// Time that a producer tries to drop the oldest records while the consumer is reading them.
const EVICT_TIMEOUT: Duration = Duration::from_micros(200);
/// Time that a waiting producer polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);

impl Producer {
    pub(super) fn new(queue: Queue) -> Result<Producer, Error> {
        queue.check_here()?;
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let taken = (0..layout.max_producers)
            .find_map(|index| Some((index, queue.take_role(queue.producer_role(index)).ok()?)));
        let Some((index, before)) = taken else {
            return Err(Error::NoProducerLeft { max_producers: layout.max_producers });
        };
        if before.is_some() && layout.order == Order::PerProducer {
            // In total order the consumer counts the positions that it skips.
            let lost = queue.0.gate.pending(memory, index);
            let abandoned = layout.word(QueueWord::Abandoned);
            while let Err(_changed) = {
                let count = memory.load(abandoned, Site::Plain);
                memory.exchange(abandoned, count, count.wrapping_add(lost), Site::Plain)
            } {}
        }
        queue.0.gate.leave(memory, index);
        let writer = match layout.order {
            Order::PerProducer => Writer::Spsc(SpscWriter::new(memory, layout.spsc_ring(index))),
            Order::Total => Writer::Mpsc(MpscWriter::new(memory, layout.mpsc_ring(), index)),
        };
        Ok(Producer { index, writer, reserved: 0, is_waiting: false, forks: forks(), queue })
    }

    /// The index of this producer, from 0 to the largest number of producers - 1.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The queue.
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

    fn count(&self, of: ProducerWord, more: u64) {
        self.queue.count(self.queue.0.layout.producer_word(self.index, of), more);
    }

    fn enter(&self, records: usize) -> Result<(), Error> {
        let is_open = self.queue.0.gate.enter(&self.queue.0.memory, self.index, records as u64);
        if is_open { Ok(()) } else { Err(Error::ShutDown) }
    }

    fn leave(&self) {
        self.queue.0.gate.leave(&self.queue.0.memory, self.index);
    }

    fn notify_consumer(&self) {
        let memory = &self.queue.0.memory;
        Event::fence(memory);
        self.queue.consumer_event().notify(memory);
    }

    fn room(&mut self, wanted: u64) -> u64 {
        let memory = &self.queue.0.memory;
        match &mut self.writer {
            Writer::Spsc(writer) => writer.room(memory, wanted),
            Writer::Mpsc(writer) => writer.room(memory, wanted),
        }
    }

    fn write(&mut self, records: &[u8], least: u64) -> u64 {
        let memory = &self.queue.0.memory;
        let record_size = self.queue.0.layout.record_size;
        match &mut self.writer {
            Writer::Spsc(writer) => {
                if writer.room(memory, least) >= least {
                    writer.write(memory, records, record_size)
                } else {
                    0
                }
            }
            Writer::Mpsc(writer) => writer.write(memory, records, record_size, least),
        }
    }

    /// Makes room by dropping the oldest records. Gives up after [`EVICT_TIMEOUT`] if the consumer holds them.
    fn evict(&mut self, needed: u64) {
        let memory = &self.queue.0.memory;
        let mut dropped = 0;
        let mut since = None;
        loop {
            let room = match &mut self.writer {
                Writer::Spsc(writer) => {
                    dropped += writer.evict(memory, needed);
                    writer.room(memory, needed)
                }
                Writer::Mpsc(writer) => {
                    dropped += writer.evict(memory, needed);
                    writer.room(memory, needed)
                }
            };
            if room >= needed || since.get_or_insert_with(Instant::now).elapsed() > EVICT_TIMEOUT {
                break;
            }
            std::thread::yield_now();
        }
        self.count(ProducerWord::DroppedOldest, dropped);
    }

    /// Puts whole records without waiting. Returns how many were put or dropped: with [`Policy::Block`] as many as
    /// there is room for, perhaps none; with [`Policy::Error`] all, or the error is [`Error::Full`]; with the policies
    /// that drop always all. [`Error::ShutDown`]: the queue was shut down.
    pub fn offer(&mut self, records: &[u8]) -> Result<usize, Error> {
        self.check()?;
        let layout = &self.queue.0.layout;
        let (size, capacity, policy) = (layout.record_size, layout.capacity, layout.policy);
        let count = records.len() / size;
        if count == 0 {
            return Ok(0);
        }
        self.enter(count)?;
        let given = count;
        // Of more records than the ring can hold, the first are the oldest and are dropped.
        let skipped = if policy == Policy::DropOldest { count.saturating_sub(capacity) } else { 0 };
        let records = &records[skipped * size..given * size];
        let count = given - skipped;
        if policy == Policy::DropOldest && self.room(count as u64) < count as u64 {
            self.count(ProducerWord::FullWaits, 1);
            self.evict(count as u64);
        }
        let least = if policy == Policy::Error { count as u64 } else { 0 };
        let written = self.write(records, least);
        self.leave();
        self.count(ProducerWord::Put, written);
        if written > 0 {
            self.notify_consumer();
        }
        self.count(ProducerWord::DroppedOldest, skipped as u64);
        let missing = count as u64 - written;
        match policy {
            Policy::Block => Ok(written as usize),
            Policy::Error if missing > 0 => {
                self.count(ProducerWord::FullWaits, 1);
                Err(Error::Full)
            }
            Policy::DropNewest | Policy::DropOldest => {
                self.count(ProducerWord::DroppedNewest, missing);
                Ok(given)
            }
            Policy::Error => Ok(given),
        }
    }

    /// Reserves memory for `count` records side by side, at most half of the capacity ([`Error::TooMany`]), to be
    /// filled in place until [`Producer::commit`] or [`Producer::abort`]. None if there is no room now.
    pub fn reserve(&mut self, count: usize) -> Result<Option<NonNull<u8>>, Error> {
        self.check()?;
        let (capacity, policy) = (self.queue.0.layout.capacity, self.queue.0.layout.policy);
        if count == 0 || count > capacity / 2 {
            return Err(Error::TooMany(format!(
                "expected to reserve 1 to {} records (half of the capacity), got {count}: use put_many, or a larger queue",
                capacity / 2
            )));
        }
        self.enter(count)?;
        if policy == Policy::DropOldest {
            let needed = match &self.writer {
                Writer::Spsc(writer) => writer.needed(count as u64),
                Writer::Mpsc(writer) => writer.needed(&self.queue.0.memory, count as u64),
            };
            if self.room(needed) < needed {
                self.count(ProducerWord::FullWaits, 1);
                self.evict(needed);
            }
        }
        let memory = &self.queue.0.memory;
        let slot = match &mut self.writer {
            Writer::Spsc(writer) => writer.reserve(memory, count as u64),
            Writer::Mpsc(writer) => writer.reserve(memory, count as u64),
        };
        let Some(slot) = slot else {
            self.leave();
            if policy == Policy::Error {
                self.count(ProducerWord::FullWaits, 1);
                return Err(Error::Full);
            }
            return Ok(None);
        };
        self.reserved = count;
        Ok(Some(self.queue.0.memory.place(slot)))
    }

    /// Counts records that the caller has dropped because [`Producer::reserve`] found no room.
    pub fn drop_newest(&mut self, count: usize) {
        self.count(ProducerWord::DroppedNewest, count as u64);
    }

    /// Publishes the reserved records, which must be filled.
    pub fn commit(&mut self) {
        self.finish(true);
    }

    /// Gives up the reserved records.
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
            Writer::Spsc(writer) if is_filled => writer.commit(memory),
            Writer::Spsc(writer) => {
                writer.abort();
                0
            }
            Writer::Mpsc(writer) => writer.finish(memory, is_filled),
        };
        self.leave();
        self.count(ProducerWord::Put, published);
        self.notify_consumer();
    }

    /// Blocks until there may be room for `count` records side by side, at most `timeout`; false if it timed out.
    /// [`Error::ShutDown`]: the queue was shut down.
    pub fn wait(&mut self, count: usize, timeout: Duration) -> Result<bool, Error> {
        self.check()?;
        let start = Instant::now();
        if !self.is_waiting {
            self.count(ProducerWord::FullWaits, 1);
        }
        let queue = self.queue.clone();
        let memory = &queue.0.memory;
        let event = queue.producer_event(self.index);
        let is_ready = loop {
            let needed = match &self.writer {
                Writer::Spsc(writer) => writer.needed(count as u64),
                Writer::Mpsc(writer) => writer.needed(memory, count as u64),
            };
            if queue.state() != State::Open || self.room(needed) >= needed {
                break true;
            }
            match &self.writer {
                Writer::Mpsc(writer) if writer.is_damaged(memory) => return Err(damaged_ring()),
                _ => {}
            }
            let passed = start.elapsed();
            if passed >= timeout {
                break false;
            }
            if passed < SPIN_TIME {
                std::hint::spin_loop();
                continue;
            }
            event.wait(memory, timeout - passed, || queue.state() != State::Open || self.room(needed) >= needed);
        };
        self.is_waiting = !is_ready;
        self.count(ProducerWord::WaitNs, start.elapsed().as_nanos() as u64);
        if is_ready && queue.state() != State::Open { Err(Error::ShutDown) } else { Ok(is_ready) }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.forks != forks() {
            return;
        }
        self.abort();
        self.queue.producer_role(self.index).release(&self.queue.0.memory);
    }
}
