//! The consumer's end of a ring: up to where records are consumed, and the right to move that position.
//!
//! Two words. `head` is written by the consumer alone: the records before it are no longer needed. `claim` is used only
//! where producers may drop the oldest records (eviction). Consumer and producers exchange `claim` to get the oldest
//! records: so a record is read or dropped, never both, and none is dropped while it is read.
//!
//! - Not held: everything before `claim` is free.
//! - Held: everything before `head` is free, and the held records begin at `head`. A consumer that dies holding records
//!   leaves the words like that, and the next consumer begins at `head`.
#![deny(missing_docs)]

use crate::shm::memory::{Memory, Site, Word};

/// The words of a cursor. Positions in them never decrease, except where a held claim goes back to `head` after its
/// consumer died.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The position before which the consumer needs nothing any more. Written by the consumer alone.
    pub head: Word,
    /// Twice a position, plus [`HELD`] while the consumer holds the records from `head` up to that position. Producers
    /// exchange it only while it is not held; used only if `evicts`.
    pub claim: Word,
    /// True if producers may drop the oldest records. The same for all processes: a property of the queue.
    pub evicts: bool,
}

const HELD: u64 = 1;

impl Cursor {
    /// For producers: a position before which all slots are free. The true position may be larger by now.
    #[inline]
    pub fn floor(&self, memory: &impl Memory) -> u64 {
        if self.evicts {
            let claim = memory.load(self.claim, Site::Reuse);
            if claim & HELD == 0 {
                return claim >> 1;
            }
        }
        memory.load(self.head, Site::Reuse)
    }

    /// For producers: the oldest position that can be dropped now; None while the consumer holds records.
    pub fn oldest(&self, memory: &impl Memory) -> Option<u64> {
        let claim = memory.load(self.claim, Site::Reuse);
        (claim & HELD == 0).then_some(claim >> 1)
    }

    /// For producers: drops the records from `oldest` up to `to`; false, and nothing is dropped, if the consumer or
    /// another producer has moved the claim since [`Cursor::oldest`].
    pub fn evict(&self, memory: &impl Memory, oldest: u64, to: u64) -> bool {
        memory.exchange(self.claim, oldest << 1, to << 1, Site::Drop).is_ok()
    }

    /// For a new consumer: the position where it begins. Records that a dead consumer held are given again.
    pub fn resume(&self, memory: &impl Memory) -> u64 {
        let head = memory.load(self.head, Site::Plain);
        if !self.evicts {
            return head;
        }
        let claim = memory.load(self.claim, Site::Plain);
        if claim & HELD == 0 {
            return claim >> 1;
        }
        memory.store(self.claim, head << 1, Site::Free);
        head
    }

    /// For the consumer, while it holds nothing: the position of the oldest record. `known` is where it stopped last;
    /// producers may have dropped records since.
    #[inline]
    pub fn position(&self, memory: &impl Memory, known: u64) -> u64 {
        if self.evicts { memory.load(self.claim, Site::Plain) >> 1 } else { known }
    }

    /// For the consumer: holds the records from `position` up to `to`, to read them; false if some were dropped.
    #[inline]
    pub fn hold(&self, memory: &impl Memory, position: u64, to: u64) -> bool {
        if !self.evicts {
            return true;
        }
        memory.store(self.head, position, Site::Free);
        let held = memory.exchange(self.claim, position << 1, to << 1 | HELD, Site::Plain);
        if let Err(found) = held
            && found & HELD != 0
        {
            // Only the consumer sets that bit, and it holds nothing: a stray write, on which every retry would fail.
            memory.store(self.claim, found & !HELD, Site::Free);
        }
        held.is_ok()
    }

    /// For the consumer: frees everything before `to`.
    #[inline]
    pub fn release(&self, memory: &impl Memory, to: u64) {
        if self.evicts {
            memory.store(self.claim, to << 1, Site::Free);
        }
        memory.store(self.head, to, Site::Free);
    }
}
