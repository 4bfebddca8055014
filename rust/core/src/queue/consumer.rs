//! The consumer: reads all lanes in turn, or the ring.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::lane::LaneReader;
use super::layout::Of;
use super::ring::RingReader;
use super::{Error, Order, Queue, State, damaged_ring};
use crate::queue::bell::Bell;
use crate::shm::memory::{Memory, Site};
use crate::shm::process::forks;

enum Reader {
    Lanes(Vec<LaneReader>),
    Ring { reader: RingReader, stalled: Option<(u64, Instant)>, abandoned: u64 },
}

pub struct Consumer {
    queue: Queue,
    reader: Reader,
    /// The lane that is read next.
    next: usize,
    /// The lane whose records are shown.
    shown: Option<(usize, u64)>,
    forks: u64,
}

/// How long a position may be taken but not published before it is asked whether its producer is dead.
const STALL: Duration = Duration::from_millis(2);
/// How long the consumer looks before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// A producer that dies rings no bell.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

impl Consumer {
    pub(super) fn new(queue: Queue) -> Result<Consumer, Error> {
        queue.check_here()?;
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        queue.take_role(queue.consumer_role()).map_err(|process| Error::Consumer { pid: process.pid() })?;
        let reader = match layout.order {
            Order::Lanes => {
                Reader::Lanes((0..layout.lanes).map(|lane| LaneReader::new(memory, layout.lane(lane))).collect())
            }
            Order::Total => {
                let reader = RingReader::new(memory, layout.ring());
                Reader::Ring { reader, stalled: None, abandoned: 0 }
            }
        };
        Ok(Consumer { reader, next: 0, shown: None, forks: forks(), queue })
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn check(&self) -> Result<(), Error> {
        if self.forks != forks() {
            return Err(Error::Forked("the consumer belongs to the parent process: take records there"));
        }
        if self.shown.is_some() {
            return Err(Error::Borrowed("records are shown: leave the peek(...) block first"));
        }
        match &self.reader {
            Reader::Ring { reader, .. } if reader.is_damaged(&self.queue.0.memory) => Err(damaged_ring()),
            _ => Ok(()),
        }
    }

    /// Copies the records that are there, as many as fit; how many. 0 if there are none now.
    ///
    /// [`Error::ShutDown`] once the queue was shut down and nothing is left, or was shut down at once.
    pub fn take(&mut self, out: &mut [MaybeUninit<u8>]) -> Result<usize, Error> {
        self.check()?;
        self.until_shutdown(|consumer| consumer.read(out))
    }

    /// The oldest records that lie side by side, at most `max`: where, and how many. None if there are none now.
    /// They stay there, and nothing else can be taken, until [`Consumer::release`].
    ///
    /// [`Error::ShutDown`] as for [`Consumer::take`].
    pub fn peek(&mut self, max: usize) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        self.check()?;
        let mut shown = None;
        self.until_shutdown(|consumer| {
            shown = consumer.show(max as u64);
            shown.map_or(0, |(_, count)| count as usize)
        })?;
        Ok(shown.map(|(slot, count)| (self.queue.0.memory.place(slot), count as usize)))
    }

    /// Gives back what was shown.
    pub fn release(&mut self) {
        let Some((lane, count)) = self.shown.take() else { return };
        if self.forks != forks() {
            return;
        }
        let memory = &self.queue.0.memory;
        match &mut self.reader {
            Reader::Lanes(readers) => readers[lane].release(memory),
            Reader::Ring { reader, .. } => reader.release(memory),
        }
        self.account(count);
        self.ring_producers(lane);
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
        // What was begun before the shutdown is still to come.
        let queue = self.queue.clone();
        if !queue.0.gate.is_quiet(&queue.0.memory, |lane| queue.is_alive(lane)) {
            return Ok(0);
        }
        // Looked for once more, because who is no longer busy has published before.
        match take(self) {
            0 if self.is_stalled() => Ok(0),
            0 => Err(Error::ShutDown),
            taken => Ok(taken),
        }
    }

    fn is_stalled(&self) -> bool {
        match &self.reader {
            Reader::Lanes(_) => false,
            Reader::Ring { reader, .. } => reader.stalled(&self.queue.0.memory).is_some(),
        }
    }

    fn account(&mut self, taken: u64) {
        let layout = &self.queue.0.layout;
        self.queue.count(layout.word(Of::Got), taken);
        match &mut self.reader {
            Reader::Lanes(readers) => {
                let high_water = readers.iter().map(|reader| reader.high_water).max().unwrap_or(0);
                raise(&self.queue, high_water);
            }
            Reader::Ring { reader, abandoned, .. } => {
                self.queue.count(layout.word(Of::Abandoned), reader.abandoned - *abandoned);
                *abandoned = reader.abandoned;
            }
        }
    }

    fn ring_producers(&self, lane: usize) {
        let memory = &self.queue.0.memory;
        Bell::after_change(memory);
        match &self.reader {
            Reader::Lanes(_) => self.queue.producer_bell(lane).ring(memory),
            Reader::Ring { .. } => self.queue.ring_producers(),
        }
    }

    fn read(&mut self, out: &mut [MaybeUninit<u8>]) -> usize {
        let queue = self.queue.clone();
        let (memory, layout) = (&queue.0.memory, &queue.0.layout);
        let size = layout.record_size;
        let mut taken = 0;
        match &mut self.reader {
            Reader::Lanes(readers) => {
                let lanes = readers.len();
                for i in 0..lanes {
                    let lane = (self.next + i) % lanes;
                    let count = readers[lane].read(memory, &mut out[taken * size..], size) as usize;
                    if count > 0 {
                        taken += count;
                        Bell::after_change(memory);
                        queue.producer_bell(lane).ring(memory);
                        if taken * size + size > out.len() {
                            // The next one's turn, so that a busy producer does not keep the others out.
                            self.next = (lane + 1) % lanes;
                            break;
                        }
                    }
                }
            }
            Reader::Ring { .. } => {
                let is_alive = |lane| queue.is_alive(lane);
                let is_stalled_long = self.look_at_ring();
                let Reader::Ring { reader, .. } = &mut self.reader else { return 0 };
                let is_alive: Option<&dyn Fn(usize) -> bool> = if is_stalled_long { Some(&is_alive) } else { None };
                taken = reader.read(memory, out, size, is_alive) as usize;
                if taken > 0 {
                    self.ring_producers(0);
                }
            }
        }
        self.account(taken as u64);
        taken
    }

    fn show(&mut self, max: u64) -> Option<(usize, u64)> {
        let queue = self.queue.clone();
        let memory = &queue.0.memory;
        let is_stalled_long = self.look_at_ring();
        let shown = match &mut self.reader {
            Reader::Lanes(readers) => {
                let lanes = readers.len();
                (0..lanes).find_map(|i| {
                    let lane = (self.next + i) % lanes;
                    readers[lane].show(memory, max).map(|shown| (lane, shown))
                })
            }
            Reader::Ring { reader, .. } => {
                let is_alive = |lane| queue.is_alive(lane);
                let is_alive: Option<&dyn Fn(usize) -> bool> = if is_stalled_long { Some(&is_alive) } else { None };
                reader.show(memory, max, is_alive).map(|shown| (0, shown))
            }
        };
        let (lane, (slot, count)) = shown?;
        self.next = (lane + 1) % queue.0.layout.lanes;
        self.shown = Some((lane, count));
        Some((slot, count))
    }

    /// Before the ring is read: notes how full it is. Whether its oldest position has been taken but not published
    /// for so long that it is worth asking who is alive, which takes microseconds.
    fn look_at_ring(&mut self) -> bool {
        let Reader::Ring { reader, stalled, .. } = &mut self.reader else { return false };
        raise(&self.queue, reader.depth(&self.queue.0.memory));
        *stalled = match (reader.stalled(&self.queue.0.memory), *stalled) {
            (Some(position), Some((before, since))) if position == before => Some((before, since)),
            (Some(position), _) => Some((position, Instant::now())),
            (None, _) => None,
        };
        stalled.is_some_and(|(_, since)| since.elapsed() >= STALL)
    }

    fn is_ready(&self) -> bool {
        let memory = &self.queue.0.memory;
        match &self.reader {
            Reader::Lanes(readers) => readers.iter().any(|reader| reader.is_ready(memory)),
            Reader::Ring { reader, .. } => reader.is_ready(memory),
        }
    }

    /// Blocks until something may be there or the queue was shut down, at most `timeout`; false if it took too long.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.check()?;
        let start = Instant::now();
        let (memory, bell) = (&self.queue.0.memory, self.queue.consumer_bell());
        let is_ready = || self.is_ready() || self.queue.state() != State::Open;
        let is_ready = loop {
            if is_ready() {
                break true;
            }
            let passed = start.elapsed();
            if passed >= timeout {
                break false;
            }
            if passed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            bell.sleep(memory, (timeout - passed).min(LONGEST_SLEEP), is_ready);
            if self.is_stalled() {
                break true;
            }
        };
        self.queue.count(self.queue.0.layout.word(Of::ConsumerWaitNs), start.elapsed().as_nanos() as u64);
        Ok(is_ready)
    }
}

/// Raises the high-water mark of the queue.
fn raise(queue: &Queue, depth: u64) {
    let word = queue.0.layout.word(Of::HighWater);
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
        self.queue.consumer_role().give(&self.queue.0.memory);
    }
}
