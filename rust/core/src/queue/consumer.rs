//! The consumer: reads the rings of all producers in turn, or the shared ring.
#![deny(missing_docs)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::event::Event;
use super::layout::QueueWord;
use super::mpsc_ring::MpscReader;
use super::spsc_ring::SpscReader;
use super::{Error, Order, Queue, State, damaged_ring};
use crate::shm::memory::{Memory, Site};
use crate::shm::process::forks;

enum Reader {
    Spsc(Vec<SpscReader>),
    Mpsc {
        reader: MpscReader,
        /// The oldest position and when it was first seen taken but not published; None unless it is so now.
        stalled: Option<(u64, Instant)>,
        /// The part of the reader's `abandoned` that the counter of the queue already has.
        abandoned: u64,
    },
}

/// The consumer of a queue. It belongs to the process that made it: in a forked child every call is
/// [`Error::Forked`]. Dropped, it releases what is peeked at and frees its role.
pub struct Consumer {
    queue: Queue,
    /// The reading side of the rings. This process holds the consumer's role, so no other reader exists.
    reader: Reader,
    /// The index of the ring that is read first next time.
    next_ring: usize,
    /// The ring and the number of records that are peeked at and not yet released. Nothing else is taken meanwhile.
    peeked: Option<(usize, u64)>,
    /// [`forks`] of the process that made this consumer.
    forks: u64,
}

/// Time that the oldest position may be taken but not published before the consumer asks whether its producer is dead,
/// which takes microseconds.
const STALL_TIME: Duration = Duration::from_millis(2);
/// Time that the waiting consumer polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Longest sleep: a producer that dies notifies no event.
const MAX_SLEEP: Duration = Duration::from_millis(10);

impl Consumer {
    pub(super) fn new(queue: Queue) -> Result<Consumer, Error> {
        queue.check_here()?;
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        queue.take_role(queue.consumer_role()).map_err(|process| Error::Consumer { pid: process.pid() })?;
        let reader = match layout.order {
            Order::PerProducer => Reader::Spsc(
                (0..layout.max_producers).map(|producer| SpscReader::new(memory, layout.spsc_ring(producer))).collect(),
            ),
            Order::Total => {
                let reader = MpscReader::new(memory, layout.mpsc_ring());
                Reader::Mpsc { reader, stalled: None, abandoned: 0 }
            }
        };
        Ok(Consumer { reader, next_ring: 0, peeked: None, forks: forks(), queue })
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn check(&self) -> Result<(), Error> {
        if self.forks != forks() {
            return Err(Error::Forked("the consumer belongs to the parent process: take records there"));
        }
        if self.peeked.is_some() {
            return Err(Error::Borrowed("records are being peeked at: leave the peek(...) block first"));
        }
        match &self.reader {
            Reader::Mpsc { reader, .. } if reader.is_damaged(&self.queue.0.memory) => Err(damaged_ring()),
            _ => Ok(()),
        }
    }

    /// Copies and frees as many waiting records as `out` has room for. Returns how many; 0 if none wait now.
    ///
    /// [`Error::ShutDown`]: the queue was shut down, and nothing is left or it was immediate.
    pub fn take(&mut self, out: &mut [MaybeUninit<u8>]) -> Result<usize, Error> {
        self.check()?;
        self.until_shutdown(|consumer| consumer.read(out))
    }

    /// The oldest records that lie side by side, at most `max`: the address of the first, and their number. None if
    /// none wait now. They stay untouched, and nothing else can be taken, until [`Consumer::release`].
    ///
    /// [`Error::ShutDown`] as for [`Consumer::take`].
    pub fn peek(&mut self, max: usize) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        self.check()?;
        let mut peeked = None;
        self.until_shutdown(|consumer| {
            peeked = consumer.peek_ring(max as u64);
            peeked.map_or(0, |(_, count)| count as usize)
        })?;
        Ok(peeked.map(|(slot, count)| (self.queue.0.memory.place(slot), count as usize)))
    }

    /// Frees the records that were peeked at.
    pub fn release(&mut self) {
        let Some((ring, count)) = self.peeked.take() else { return };
        if self.forks != forks() {
            return;
        }
        let memory = &self.queue.0.memory;
        match &mut self.reader {
            Reader::Spsc(readers) => readers[ring].release(memory),
            Reader::Mpsc { reader, .. } => reader.release(memory),
        }
        self.account(count);
        self.notify_producers(ring);
    }

    fn until_shutdown(&mut self, mut take: impl FnMut(&mut Consumer) -> usize) -> Result<usize, Error> {
        let state = self.queue.state();
        if state == State::Closed {
            return Err(Error::ShutDown);
        }
        let taken = take(self);
        if taken > 0 || state == State::Open {
            return Ok(taken);
        }
        // Records that were announced before the shutdown are still to come.
        let queue = self.queue.clone();
        if !queue.0.gate.is_quiet(&queue.0.memory, |producer| queue.is_alive(producer)) {
            return Ok(0);
        }
        // Tried once more: a producer that is no longer busy had published before.
        match take(self) {
            0 if self.is_stalled() => Ok(0),
            0 => Err(Error::ShutDown),
            taken => Ok(taken),
        }
    }

    fn is_stalled(&self) -> bool {
        match &self.reader {
            Reader::Spsc(_) => false,
            Reader::Mpsc { reader, .. } => reader.stalled(&self.queue.0.memory).is_some(),
        }
    }

    fn account(&mut self, taken: u64) {
        let layout = &self.queue.0.layout;
        self.queue.count(layout.word(QueueWord::Got), taken);
        match &mut self.reader {
            Reader::Spsc(readers) => {
                let high_water = readers.iter().map(|reader| reader.high_water).max().unwrap_or(0);
                raise_high_water(&self.queue, high_water);
            }
            Reader::Mpsc { reader, abandoned, .. } => {
                self.queue.count(layout.word(QueueWord::Abandoned), reader.abandoned - *abandoned);
                *abandoned = reader.abandoned;
            }
        }
    }

    fn notify_producers(&self, ring: usize) {
        let memory = &self.queue.0.memory;
        Event::fence(memory);
        match &self.reader {
            Reader::Spsc(_) => self.queue.producer_event(ring).notify(memory),
            Reader::Mpsc { .. } => self.queue.notify_producers(),
        }
    }

    fn read(&mut self, out: &mut [MaybeUninit<u8>]) -> usize {
        let queue = self.queue.clone();
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let size = layout.record_size;
        let mut taken = 0;
        match &mut self.reader {
            Reader::Spsc(readers) => {
                let rings = readers.len();
                for i in 0..rings {
                    let ring = (self.next_ring + i) % rings;
                    let count = readers[ring].read(memory, &mut out[taken * size..], size) as usize;
                    if count > 0 {
                        taken += count;
                        Event::fence(memory);
                        queue.producer_event(ring).notify(memory);
                        if taken * size + size > out.len() {
                            // The next producer's turn, so that a busy one does not starve the others.
                            self.next_ring = (ring + 1) % rings;
                            break;
                        }
                    }
                }
            }
            Reader::Mpsc { .. } => {
                let is_alive = |producer| queue.is_alive(producer);
                let is_stalled_long = self.refresh_stall();
                let Reader::Mpsc { reader, .. } = &mut self.reader else { return 0 };
                let is_alive: Option<&dyn Fn(usize) -> bool> = if is_stalled_long { Some(&is_alive) } else { None };
                taken = reader.read(memory, out, size, is_alive) as usize;
                if taken > 0 {
                    self.notify_producers(0);
                }
            }
        }
        self.account(taken as u64);
        taken
    }

    fn peek_ring(&mut self, max: u64) -> Option<(usize, u64)> {
        let queue = self.queue.clone();
        let memory = &queue.0.memory;
        let is_stalled_long = self.refresh_stall();
        let peeked = match &mut self.reader {
            Reader::Spsc(readers) => {
                let rings = readers.len();
                (0..rings).find_map(|i| {
                    let ring = (self.next_ring + i) % rings;
                    readers[ring].peek(memory, max).map(|peeked| (ring, peeked))
                })
            }
            Reader::Mpsc { reader, .. } => {
                let is_alive = |producer| queue.is_alive(producer);
                let is_alive: Option<&dyn Fn(usize) -> bool> = if is_stalled_long { Some(&is_alive) } else { None };
                reader.peek(memory, max, is_alive).map(|peeked| (0, peeked))
            }
        };
        let (ring, (slot, count)) = peeked?;
        self.next_ring = (ring + 1) % queue.0.layout.max_producers;
        self.peeked = Some((ring, count));
        Some((slot, count))
    }

    /// Before the shared ring is read: records its depth, and returns whether its oldest position has been taken but
    /// not published for [`STALL_TIME`].
    fn refresh_stall(&mut self) -> bool {
        let Reader::Mpsc { reader, stalled, .. } = &mut self.reader else { return false };
        raise_high_water(&self.queue, reader.depth(&self.queue.0.memory));
        *stalled = match (reader.stalled(&self.queue.0.memory), *stalled) {
            (Some(position), Some((before, since))) if position == before => Some((before, since)),
            (Some(position), _) => Some((position, Instant::now())),
            (None, _) => None,
        };
        stalled.is_some_and(|(_, since)| since.elapsed() >= STALL_TIME)
    }

    fn is_ready(&self) -> bool {
        let memory = &self.queue.0.memory;
        match &self.reader {
            Reader::Spsc(readers) => readers.iter().any(|reader| reader.is_ready(memory)),
            Reader::Mpsc { reader, .. } => reader.is_ready(memory),
        }
    }

    /// Blocks until a record may be there or the queue was shut down, at most `timeout`; false if it timed out.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.check()?;
        let start = Instant::now();
        let (memory, event) = (&self.queue.0.memory, self.queue.consumer_event());
        let is_ready = || self.is_ready() || self.queue.state() != State::Open;
        let is_ready = loop {
            if is_ready() {
                break true;
            }
            let passed = start.elapsed();
            if passed >= timeout {
                break false;
            }
            if passed < SPIN_TIME {
                std::hint::spin_loop();
                continue;
            }
            event.wait(memory, (timeout - passed).min(MAX_SLEEP), is_ready);
            if self.is_stalled() {
                break true;
            }
        };
        self.queue.count(self.queue.0.layout.word(QueueWord::ConsumerWaitNs), start.elapsed().as_nanos() as u64);
        Ok(is_ready)
    }
}

/// Raises the high-water mark of the queue to `depth`, if that is more.
fn raise_high_water(queue: &Queue, depth: u64) {
    let word = queue.0.layout.word(QueueWord::HighWater);
    if depth > queue.0.memory.load(word, Site::Plain) {
        queue.0.memory.store(word, depth, Site::Plain);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.forks != forks() {
            return;
        }
        self.release();
        self.queue.consumer_role().release(&self.queue.0.memory);
    }
}
