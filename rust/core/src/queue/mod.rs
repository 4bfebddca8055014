//! The experience queue: any number of producers, threads or processes, and one consumer of fixed-size records.
//!
//! One implementation over a slice of bytes, which is this process's own or shared. By default each producer has a
//! wait-free ring of its own ([`spsc_ring`]); alternatively all share one ring in a total order ([`mpsc_ring`]).
//! [`Producer`] and [`Consumer`] add what both need: roles that survive dead processes, policies for a full queue,
//! sleeping, shutdown, counters.
//!
//! Guarantees when processes are killed:
//! - a producer, at any instant: at most the batch that it had not yet published is lost, nothing else;
//! - the consumer: the next one continues at the oldest record that was not released, so it may get once more the batch
//!   that the dead one was taking.
//!
//! # Example
//! ```
//! use fastrl_core::queue::{Options, Order, Policy, Queue, Shared};
//!
//! let queue = Queue::create(&Options {
//!     record_size: 4,
//!     schema: "little-endian i32".into(),
//!     capacity: 8,
//!     max_producers: 2,
//!     policy: Policy::Block,
//!     order: Order::PerProducer,
//!     shared: Shared::No,
//! })?;
//! let (mut producer, mut consumer) = (queue.producer()?, queue.consumer()?);
//! assert_eq!(producer.offer(&[1, 0, 0, 0, 2, 0, 0, 0])?, 2);
//! let (records, count) = consumer.peek(10)?.expect("two records wait");
//! assert_eq!(count, 2);
//! // SAFETY: the queue holds `count` records of four bytes there, and leaves them alone until they are released.
//! let bytes = unsafe { std::slice::from_raw_parts(records.as_ptr(), 4 * count) };
//! assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0]);
//! consumer.release();
//! assert_eq!(queue.depth(), 0);
//! # Ok::<(), fastrl_core::shm::Error>(())
//! ```
#![deny(missing_docs)]

mod consumer;
pub mod cursor;
pub mod event;
pub mod gate;
mod layout;
pub mod mpsc_ring;
mod producer;
pub mod role;
pub mod spsc_ring;
mod stats;

use std::sync::Arc;

pub use consumer::Consumer;
use layout::{Layout, ProducerWord, QueueWord};
pub use producer::Producer;
pub use stats::{ProducerStats, Stats};

pub use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::process::Process;
pub use crate::shm::segment::Shared;
use crate::shm::segment::{Kind, Segment};
use event::Event;
use gate::Gate;
use role::Role;

/// The behaviour of a producer when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Waits.
    Block,
    /// Refuses, and takes nothing.
    Error,
    /// Drops the new records that do not fit.
    DropNewest,
    /// Drops the oldest waiting records, but none that the consumer is reading. Where that makes too little room, new
    /// records are dropped.
    DropOldest,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Block, Policy::Error, Policy::DropNewest, Policy::DropOldest];
}

/// The order in which the consumer gets the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The records of each producer in the order in which it put them. Producers never wait for each other.
    PerProducer,
    /// One order for all records. Producers compete for positions.
    Total,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 2] = [Order::PerProducer, Order::Total];
}

/// The options of a new queue.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a record, at least 1.
    pub record_size: usize,
    /// A description of the records, kept with the queue for processes that attach; at most 1 MB.
    pub schema: String,
    /// Records that each producer may have waiting; in total order, all of them together. Rounded up to a power of two.
    pub capacity: usize,
    /// The largest number of producers at a time.
    pub max_producers: usize,
    /// The behaviour of producers when there is no room.
    pub policy: Policy,
    /// The order of the records.
    pub order: Order,
    /// True if other processes can attach.
    pub shared: Shared,
}

/// The state of a queue. It only ever moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Records can be put and taken.
    Open = 0,
    /// No record can be put any more; those that wait can be taken.
    Closing = 1,
    /// No record can be taken either.
    Closed = 2,
}

fn damaged_ring() -> Error {
    Error::Foreign(
        "the queue's memory is damaged: more positions are taken than it has room for; make a new queue".into(),
    )
}

struct Inner {
    /// The bytes of `segment`, touched only through this.
    memory: Mapped,
    /// The place of every word and record in `memory`. Fixed at creation.
    layout: Layout,
    gate: Gate,
    schema: String,
    /// Keeps `memory` mapped.
    segment: Segment,
}

/// A handle to a queue; clones are the same queue. The memory stays mapped as long as a handle, producer or consumer
/// lives.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

impl Queue {
    /// Creates a queue. [`Error::Invalid`]: an option is out of range. Other errors: the memory cannot be had.
    pub fn create(options: &Options) -> Result<Queue, Error> {
        let layout = Layout::new(options)?;
        let header = layout.header(&options.schema);
        let segment = Segment::create(&header, &options.shared)?;
        Ok(Queue::over(segment, layout, header.schema))
    }

    /// Opens the queue of this name. [`Error::NotFound`]: there is none. [`Error::Foreign`]: it is damaged, or no queue
    /// of this version, user and PID namespace.
    pub fn attach(name: &str) -> Result<Queue, Error> {
        let (segment, header) = Segment::attach(Kind::Queue, name)?;
        let damaged = || Error::Foreign(format!("cannot attach to shared memory {name:?}: its header is damaged"));
        let layout = Layout::from_header(&header).ok_or_else(damaged)?;
        let queue = Queue::over(segment, layout, header.schema);
        if !queue.is_plausible() {
            return Err(Error::Foreign(format!("cannot attach to shared memory {name:?}: its counters are damaged")));
        }
        Ok(queue)
    }

    fn over(segment: Segment, layout: Layout, schema: String) -> Queue {
        // SAFETY: `Inner` keeps the segment as long as the memory, and its bytes are touched in no other way.
        let memory = unsafe { Mapped::new(segment.base(), segment.len(), layout.records, layout.record_size) };
        let gate = layout.gate();
        Queue(Arc::new(Inner { memory, layout, gate, schema, segment }))
    }

    /// Returns whether head, tail and state can be values that a queue has written. They are read one after the other
    /// while others write, heads first, so a sound queue always passes.
    fn is_plausible(&self) -> bool {
        let (memory, layout) = (&self.0.memory, &self.0.layout);
        let is_plausible = |head: Word, tail: Word| {
            let head = memory.load(head, Site::Collect);
            let tail = memory.load(tail, Site::Collect);
            head <= tail && tail < 1 << 62
        };
        let rings = match layout.order {
            Order::PerProducer => (0..layout.max_producers)
                .all(|producer| is_plausible(layout.spsc_ring(producer).cursor.head, layout.spsc_ring(producer).tail)),
            Order::Total => {
                let ring = layout.mpsc_ring();
                is_plausible(ring.cursor.head, ring.tail) && !ring.is_damaged(memory, || ring.cursor.floor(memory))
            }
        };
        rings && memory.load(layout.word(QueueWord::State), Site::Plain) <= State::Closed as u64
    }

    /// The name by which other processes attach; None if the queue is not shared.
    pub fn name(&self) -> Option<&str> {
        self.0.segment.name()
    }

    /// The description of the records that the creator gave.
    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    /// Bytes of a record.
    pub fn record_size(&self) -> usize {
        self.0.layout.record_size
    }

    /// Records that each producer may have waiting; in total order, all of them together. A power of two.
    pub fn capacity(&self) -> usize {
        self.0.layout.capacity
    }

    /// The largest number of producers at a time.
    pub fn max_producers(&self) -> usize {
        self.0.layout.max_producers
    }

    /// The behaviour of producers when there is no room.
    pub fn policy(&self) -> Policy {
        self.0.layout.policy
    }

    /// The order of the records.
    pub fn order(&self) -> Order {
        self.0.layout.order
    }

    /// Makes a producer, in a place that is free or whose producer is dead. [`Error::NoProducerLeft`]: there is none.
    pub fn producer(&self) -> Result<Producer, Error> {
        Producer::new(self.clone())
    }

    /// Makes the consumer. [`Error::Consumer`]: a living process has one; there is one at a time.
    pub fn consumer(&self) -> Result<Consumer, Error> {
        Consumer::new(self.clone())
    }

    /// The counters of the queue, readable at any time from any process.
    pub fn stats(&self) -> Stats {
        Stats::of(self)
    }

    /// Records that wait. In total order, records that are being written count too.
    pub fn depth(&self) -> usize {
        let (memory, layout) = (&self.0.memory, &self.0.layout);
        let depth: u64 = match layout.order {
            Order::PerProducer => {
                (0..layout.max_producers).map(|producer| layout.spsc_ring(producer).depth(memory)).sum()
            }
            Order::Total => layout.mpsc_ring().depth(memory),
        };
        depth as usize
    }

    /// Returns whether records can be put and taken.
    pub fn state(&self) -> State {
        self.0.gate.state(&self.0.memory)
    }

    /// Shuts the queue down, for all processes and for good: no record can be put, and with `immediate` none taken
    /// either. All waiting calls return.
    pub fn shutdown(&self, immediate: bool) {
        let memory = &self.0.memory;
        self.0.gate.close(memory, if immediate { State::Closed } else { State::Closing });
        Event::fence(memory);
        self.consumer_event().notify(memory);
        self.notify_producers();
    }

    /// Removes the name, in the process that made the queue: no process can attach any more.
    pub fn unlink(&self) {
        self.0.segment.unlink();
    }

    fn consumer_event(&self) -> Event {
        Event(self.0.layout.word(QueueWord::ConsumerEvent))
    }

    fn producer_event(&self, producer: usize) -> Event {
        Event(self.0.layout.producer_word(producer, ProducerWord::Event))
    }

    fn notify_producers(&self) {
        for producer in 0..self.0.layout.max_producers {
            self.producer_event(producer).notify(&self.0.memory);
        }
    }

    fn producer_role(&self, producer: usize) -> Role {
        Role(self.0.layout.producer_word(producer, ProducerWord::Owner))
    }

    fn consumer_role(&self) -> Role {
        Role(self.0.layout.word(QueueWord::Consumer))
    }

    /// Takes a role for this process. Returns the dead process that had it before; the error is the living one.
    fn take_role(&self, role: Role) -> Result<Option<Process>, Process> {
        let is_alive = |word| Process::from_word(word).is_some_and(Process::is_alive);
        match role.acquire(&self.0.memory, Process::own().word(), is_alive) {
            Ok(before) => Ok(Process::from_word(before)),
            Err(holder) => Err(Process::from_word(holder).unwrap_or_else(Process::own)),
        }
    }

    fn owner(&self, producer: usize) -> Option<Process> {
        Process::from_word(self.producer_role(producer).holder(&self.0.memory))
    }

    fn is_alive(&self, producer: usize) -> bool {
        self.owner(producer).is_some_and(Process::is_alive)
    }

    /// Adds to a counter that only this thread writes: a load and a store, no atomic addition.
    fn count(&self, word: Word, more: u64) {
        if more > 0 {
            let memory = &self.0.memory;
            memory.store(word, memory.load(word, Site::Plain).wrapping_add(more), Site::Plain);
        }
    }

    fn check_here(&self) -> Result<(), Error> {
        if self.0.segment.is_orphaned_by_fork() {
            return Err(Error::Forked(
                "this queue is not shared, and this is a forked child of the process that made it: make it with shared=True",
            ));
        }
        Ok(())
    }
}
