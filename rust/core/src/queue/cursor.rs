//! How far a ring of records has been consumed, and who may move that on.
//!
//! Two words. `head` is written by the consumer alone: nobody needs the records before it any more. `claim` is used
//! only where producers may drop the oldest records: twice a position, plus one while the consumer holds records
//! just before that position. Who wants the oldest records exchanges `claim`; so a record is read or dropped, never
//! both, and none is dropped while it is read.
//!
//! - Not held: everything before `claim` is free.
//! - Held: everything before `head` is free, and `head` is where the held records begin. A consumer that dies holding
//!   records leaves it so, and the next one begins there.

use crate::shm::memory::{Memory, Site, Word};

#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    pub head: Word,
    pub claim: Word,
    pub evicts: bool,
}

const HELD: u64 = 1;

impl Cursor {
    /// For producers: a position before which everything is free. May lag behind.
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

    /// For producers: the oldest position that could be dropped now; None while the consumer holds records.
    pub fn oldest(&self, memory: &impl Memory) -> Option<u64> {
        let claim = memory.load(self.claim, Site::Reuse);
        (claim & HELD == 0).then_some(claim >> 1)
    }

    /// For producers: drops the records from `oldest` up to `to`; false if somebody else moved.
    pub fn evict(&self, memory: &impl Memory, oldest: u64, to: u64) -> bool {
        memory.exchange(self.claim, oldest << 1, to << 1, Site::Drop).is_ok()
    }

    /// For the consumer, when it begins: where.
    pub fn resume(&self, memory: &impl Memory) -> u64 {
        let head = memory.load(self.head, Site::Plain);
        if !self.evicts {
            return head;
        }
        let claim = memory.load(self.claim, Site::Plain);
        if claim & HELD == 0 {
            return claim >> 1;
        }
        // Who held these records died with them.
        memory.store(self.claim, head << 1, Site::Free);
        head
    }

    /// For the consumer, which holds nothing: the position of the oldest record.
    #[inline]
    pub fn position(&self, memory: &impl Memory, known: u64) -> u64 {
        if self.evicts { memory.load(self.claim, Site::Plain) >> 1 } else { known }
    }

    /// For the consumer: takes the records from `position` up to `to`, to read them; false if some were dropped.
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
            // Only the consumer sets that, and it holds nothing: a stray write, which would be met here for ever.
            memory.store(self.claim, found & !HELD, Site::Free);
        }
        held.is_ok()
    }

    /// For the consumer: done with everything before `to`.
    #[inline]
    pub fn release(&self, memory: &impl Memory, to: u64) {
        if self.evicts {
            memory.store(self.claim, to << 1, Site::Free);
        }
        memory.store(self.head, to, Site::Free);
    }
}
