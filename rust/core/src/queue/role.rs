//! A role that one living process has at a time: the producer of a lane, the consumer of a queue.

use crate::shm::memory::{Memory, Site, Word};

/// The word holds the identity of who has the role, or zero.
#[derive(Clone, Copy, Debug)]
pub struct Role(pub Word);

impl Role {
    /// Takes the role for `own` if nobody has it or `is_alive` says that who has it is dead; who had it before, or who
    /// has it.
    pub fn take(self, memory: &impl Memory, own: u64, is_alive: impl Fn(u64) -> bool) -> Result<u64, u64> {
        loop {
            let found = memory.load(self.0, Site::Plain);
            if found != 0 && is_alive(found) {
                return Err(found);
            }
            if memory.exchange(self.0, found, own, Site::TakeOver).is_ok() {
                return Ok(found);
            }
        }
    }

    /// Gives it back; everything done in it is visible to the next.
    pub fn give(self, memory: &impl Memory) {
        memory.store(self.0, 0, Site::HandOver);
    }

    /// Who has it.
    pub fn holder(self, memory: &impl Memory) -> u64 {
        memory.load(self.0, Site::Plain)
    }
}
