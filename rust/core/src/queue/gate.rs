//! The gate that every `put` passes: it closes without losing records that are being put at that moment.
//!
//! A producer marks itself busy and then checks whether the gate is open; a process that shuts the queue down closes
//! the gate, and the consumer checks who is busy only after it has seen the gate closed. A sequentially consistent
//! fence stands between the two steps of each side: either the producer sees the gate closed and puts nothing, or the
//! consumer sees the producer busy and waits for its records.
#![deny(missing_docs)]

use super::State;
use crate::shm::memory::{Memory, Site, Word};

/// The words of a gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// A [`State`]. It only ever grows: open, closing, closed.
    pub state: Word,
    /// The number of records that each producer is about to publish, 0 while it is outside the gate. Written by
    /// that producer alone; where it died in between, the value stays until the next producer takes its place.
    pub busy: Vec<Word>,
}

impl Gate {
    /// The state of the queue. All that was put before the state changed, by the thread that changed it, is visible.
    pub fn state(&self, memory: &impl Memory) -> State {
        match memory.load(self.state, Site::StateSeen) {
            0 => State::Open,
            1 => State::Closing,
            _ => State::Closed,
        }
    }

    /// Changes the state to `state`, unless it is that or a later one already.
    pub fn close(&self, memory: &impl Memory, state: State) {
        let found = memory.load(self.state, Site::Plain);
        if found < state as u64 && memory.exchange(self.state, found, state as u64, Site::State).is_err() {
            self.close(memory, state);
        }
    }

    /// For a producer: announces `records` and enters; false, and nothing is announced, if the gate is closed.
    #[inline]
    pub fn enter(&self, memory: &impl Memory, producer: usize, records: u64) -> bool {
        memory.store(self.busy[producer], records, Site::Plain);
        memory.fence(Site::Busy);
        let is_open = self.state(memory) == State::Open;
        if !is_open {
            self.leave(memory, producer);
        }
        is_open
    }

    /// For a producer: the records that it announced are published, or given up.
    #[inline]
    pub fn leave(&self, memory: &impl Memory, producer: usize) {
        memory.store(self.busy[producer], 0, Site::Intend);
    }

    /// Records that a producer has announced and neither published nor given up.
    pub fn pending(&self, memory: &impl Memory, producer: usize) -> u64 {
        memory.load(self.busy[producer], Site::Plain)
    }

    /// For the consumer, once it has seen the gate closed: whether no living producer is inside. Then all that was put
    /// is visible, and nothing more will come.
    pub fn is_quiet(&self, memory: &impl Memory, is_alive: impl Fn(usize) -> bool) -> bool {
        memory.fence(Site::Shut);
        let is_busy = |(producer, &word): (usize, &Word)| memory.load(word, Site::Intent) != 0 && is_alive(producer);
        !self.busy.iter().enumerate().any(is_busy)
    }
}
