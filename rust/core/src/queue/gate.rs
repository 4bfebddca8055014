//! Shutting a queue down without losing what is being put at that moment.
//!
//! A producer says that it is busy and then looks whether the gate is open; who closes it does so before the consumer
//! looks who is busy. Each side's fence stands between its two steps: either the producer sees that the gate is closed
//! and puts nothing, or the consumer sees that there is something to wait for.

use super::State;
use crate::shm::memory::{Memory, Site, Word};

#[derive(Clone, Debug)]
pub struct Gate {
    pub state: Word,
    /// Of each producer: records that it is about to publish.
    pub busy: Vec<Word>,
}

impl Gate {
    pub fn state(&self, memory: &impl Memory) -> State {
        match memory.load(self.state, Site::StateSeen) {
            0 => State::Open,
            1 => State::Closing,
            _ => State::Closed,
        }
    }

    /// Closes it; what was put before by this thread is visible to who sees it closed.
    pub fn close(&self, memory: &impl Memory, state: State) {
        let found = memory.load(self.state, Site::Plain);
        // At once stays at once.
        if found < state as u64 && memory.exchange(self.state, found, state as u64, Site::State).is_err() {
            self.close(memory, state);
        }
    }

    /// For a producer: begins to put records, unless the gate is closed.
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

    /// For a producer: what it began is published, or given up.
    #[inline]
    pub fn leave(&self, memory: &impl Memory, producer: usize) {
        memory.store(self.busy[producer], 0, Site::Intend);
    }

    /// What a producer had begun.
    pub fn begun(&self, memory: &impl Memory, producer: usize) -> u64 {
        memory.load(self.busy[producer], Site::Plain)
    }

    /// For the consumer, which has seen the gate closed: whether nobody alive is still putting. What they have put is
    /// visible then.
    pub fn is_quiet(&self, memory: &impl Memory, is_alive: impl Fn(usize) -> bool) -> bool {
        memory.fence(Site::Shut);
        let is_busy = |(producer, &word): (usize, &Word)| memory.load(word, Site::Intent) != 0 && is_alive(producer);
        !self.busy.iter().enumerate().any(is_busy)
    }
}
