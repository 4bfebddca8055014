//! The experience queue: any number of producers, threads or processes, and one consumer of fixed-size records.
//!
//! One implementation over a slice of bytes, this process's own or shared. By default each producer has a [`lane`] of
//! its own, a wait-free ring; [`ring`] is one ring for all of them, in a total order. [`Producer`] and [`Consumer`]
//! add what both need: who owns which side, what happens when there is no room, sleeping, shutting down, counting.
//!
//! What it promises when processes are killed:
//! - a producer, at any instant: at most the batch that it had not yet published is gone, nothing else;
//! - the consumer: the next one goes on where it was, and may get once more the batch that it was taking.

pub mod bell;
mod consumer;
pub mod cursor;
pub mod gate;
pub mod lane;
pub mod layout;
mod producer;
pub mod ring;
pub mod role;
mod stats;

use std::sync::Arc;

pub use consumer::Consumer;
use layout::{Layout, Of, OfLane};
pub use producer::Producer;
pub use stats::{LaneStats, Stats};

pub use crate::shm::Error;
use crate::shm::memory::{Mapped, Memory, Site, Word};
use crate::shm::process::Process;
pub use crate::shm::segment::Shared;
use crate::shm::segment::{Kind, Segment};
use bell::Bell;
use gate::Gate;
use role::Role;

/// What a producer does when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Waits.
    Block,
    /// Refuses, and takes nothing.
    Error,
    /// Drops what it was given, as far as it does not fit.
    DropNewest,
    /// Drops the oldest records that wait; those that the consumer is reading stay, and if nothing else can make room,
    /// what was given is dropped.
    DropOldest,
}

impl Policy {
    pub const ALL: [Policy; 4] = [Policy::Block, Policy::Error, Policy::DropNewest, Policy::DropOldest];
}

/// In which order the consumer gets the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each producer's in the order in which it put them. Producers never wait for each other.
    Lanes,
    /// One order for all. Producers compete for their place.
    Total,
}

impl Order {
    pub const ALL: [Order; 2] = [Order::Lanes, Order::Total];
}

#[derive(Clone, Debug)]
pub struct Options {
    pub record_size: usize,
    /// Says what a record is; kept with the queue for who attaches.
    pub schema: String,
    /// Records that each producer may have waiting; in total order, all of them together. Rounded up to a power of two.
    pub capacity: usize,
    /// The largest number of producers at a time.
    pub lanes: usize,
    pub policy: Policy,
    pub order: Order,
    pub shared: Shared,
}

/// Whether records come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    Open = 0,
    /// Nothing may be put any more; what is there may be taken.
    Closing = 1,
    /// Nothing may be taken either.
    Closed = 2,
}

fn damaged_ring() -> Error {
    Error::Foreign(
        "the queue's memory is damaged: more records are taken than it has room for; make a new queue".into(),
    )
}

struct Inner {
    memory: Mapped,
    layout: Layout,
    gate: Gate,
    schema: String,
    segment: Segment,
}

/// A handle; clones are the same queue. Its memory is there as long as a handle, producer or consumer is.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

impl Queue {
    pub fn create(options: &Options) -> Result<Queue, Error> {
        let layout = Layout::new(options)?;
        let header = layout.header(&options.schema);
        let segment = Segment::create(&header, &options.shared)?;
        Ok(Queue::over(segment, layout, header.schema))
    }

    /// The queue of that name.
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
        // SAFETY: the segment lives as long as the memory does, in the same struct; it is touched in no other way.
        let memory = unsafe { Mapped::new(segment.base(), segment.len(), layout.records, layout.record_size) };
        let gate = layout.gate();
        Queue(Arc::new(Inner { memory, layout, gate, schema, segment }))
    }

    /// Whether head, tail and state can be what a queue has written. Taken one after the other while others write,
    /// heads first, so a good queue always passes.
    fn is_plausible(&self) -> bool {
        let (memory, layout) = (&self.0.memory, &self.0.layout);
        let is_plausible = |head: Word, tail: Word| {
            let head = memory.load(head, Site::Collect);
            let tail = memory.load(tail, Site::Collect);
            head <= tail && tail < 1 << 62
        };
        let rings = match layout.order {
            Order::Lanes => {
                (0..layout.lanes).all(|lane| is_plausible(layout.lane(lane).cursor.head, layout.lane(lane).tail))
            }
            Order::Total => {
                let ring = layout.ring();
                is_plausible(ring.cursor.head, ring.tail) && !ring.is_damaged(memory, || ring.cursor.floor(memory))
            }
        };
        rings && memory.load(layout.word(Of::State), Site::Plain) <= State::Closed as u64
    }

    /// By which other processes attach; None if they cannot.
    pub fn name(&self) -> Option<&str> {
        self.0.segment.name()
    }

    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    pub fn record_size(&self) -> usize {
        self.0.layout.record_size
    }

    pub fn capacity(&self) -> usize {
        self.0.layout.capacity
    }

    pub fn lanes(&self) -> usize {
        self.0.layout.lanes
    }

    pub fn policy(&self) -> Policy {
        self.0.layout.policy
    }

    pub fn order(&self) -> Order {
        self.0.layout.order
    }

    /// A new producer, in a lane that is free or whose producer is dead.
    pub fn producer(&self) -> Result<Producer, Error> {
        Producer::new(self.clone())
    }

    /// The consumer; there is one at a time.
    pub fn consumer(&self) -> Result<Consumer, Error> {
        Consumer::new(self.clone())
    }

    pub fn stats(&self) -> Stats {
        Stats::of(self)
    }

    /// Records that wait. In total order those that are just being published count too.
    pub fn depth(&self) -> usize {
        let (memory, layout) = (&self.0.memory, &self.0.layout);
        let depth: u64 = match layout.order {
            Order::Lanes => (0..layout.lanes).map(|lane| layout.lane(lane).depth(memory)).sum(),
            Order::Total => layout.ring().depth(memory),
        };
        depth as usize
    }

    pub fn state(&self) -> State {
        self.0.gate.state(&self.0.memory)
    }

    /// From now on nothing can be put; with `immediate` nothing can be taken either. Everybody who waits wakes up.
    pub fn shutdown(&self, immediate: bool) {
        let memory = &self.0.memory;
        self.0.gate.close(memory, if immediate { State::Closed } else { State::Closing });
        Bell::after_change(memory);
        self.consumer_bell().ring(memory);
        self.ring_producers();
    }

    /// Takes the name away, in the process that made the queue: nobody can attach any more.
    pub fn unlink(&self) {
        self.0.segment.unlink();
    }

    fn consumer_bell(&self) -> Bell {
        Bell(self.0.layout.word(Of::ConsumerBell))
    }

    fn producer_bell(&self, lane: usize) -> Bell {
        Bell(self.0.layout.lane_word(lane, OfLane::Bell))
    }

    fn ring_producers(&self) {
        for lane in 0..self.0.layout.lanes {
            self.producer_bell(lane).ring(&self.0.memory);
        }
    }

    fn lane_role(&self, lane: usize) -> Role {
        Role(self.0.layout.lane_word(lane, OfLane::Owner))
    }

    fn consumer_role(&self) -> Role {
        Role(self.0.layout.word(Of::Consumer))
    }

    /// Takes a role for this process; who had it.
    fn take_role(&self, role: Role) -> Result<Option<Process>, Process> {
        let is_alive = |word| Process::from_word(word).is_some_and(Process::is_alive);
        match role.take(&self.0.memory, Process::own().word(), is_alive) {
            Ok(before) => Ok(Process::from_word(before)),
            Err(holder) => Err(Process::from_word(holder).unwrap_or_else(Process::own)),
        }
    }

    fn owner(&self, lane: usize) -> Option<Process> {
        Process::from_word(self.lane_role(lane).holder(&self.0.memory))
    }

    fn is_alive(&self, lane: usize) -> bool {
        self.owner(lane).is_some_and(Process::is_alive)
    }

    /// Adds to a counter that only this thread writes.
    fn count(&self, word: Word, more: u64) {
        if more > 0 {
            let memory = &self.0.memory;
            memory.store(word, memory.load(word, Site::Plain).wrapping_add(more), Site::Plain);
        }
    }

    fn check_here(&self) -> Result<(), Error> {
        if self.0.segment.is_left_behind() {
            return Err(Error::Forked(
                "this queue is not shared, and this is a forked child of the process that made it: make it with shared=True",
            ));
        }
        Ok(())
    }
}
