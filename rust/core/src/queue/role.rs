//! A role that one living process has at a time: a producer of a queue, or its consumer.
#![deny(missing_docs)]

use crate::shm::memory::{Memory, Site, Word};

/// The word of a role.
///
/// It holds the identity of the process that has the role (never 0), or 0. Only a compare-and-exchange takes the role,
/// so of several processes that try one succeeds; only the holder writes 0.
#[derive(Clone, Copy, Debug)]
pub struct Role(pub Word);

impl Role {
    /// Takes the role for `own` if it is free or `is_alive` says that its holder is dead. Returns the dead holder (0 if
    /// the role was free); the error is the living holder. All that the last holder did in the role is visible now.
    pub fn acquire(self, memory: &impl Memory, own: u64, is_alive: impl Fn(u64) -> bool) -> Result<u64, u64> {
        loop {
            let holder = memory.load(self.0, Site::Plain);
            if holder != 0 && is_alive(holder) {
                return Err(holder);
            }
            if memory.exchange(self.0, holder, own, Site::TakeOver).is_ok() {
                return Ok(holder);
            }
        }
    }

    /// Frees the role. Everything done in it is visible to the next holder.
    pub fn release(self, memory: &impl Memory) {
        memory.store(self.0, 0, Site::HandOver);
    }

    /// The identity of the holder; 0 if the role is free.
    pub fn holder(self, memory: &impl Memory) -> u64 {
        memory.load(self.0, Site::Plain)
    }
}
