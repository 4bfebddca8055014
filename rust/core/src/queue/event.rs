//! A futex event: sleeping until another thread or process signals a change, without a lock and without a signal that
//! is missed.
//!
//! The waiter raises its flag and then checks once more whether its condition holds; the other side makes the change
//! and then reads the flag. A sequentially consistent fence stands between the write and the read of each side, so at
//! least one of them sees the other's write (Dekker's pattern).
#![deny(missing_docs)]

use std::time::Duration;

use crate::shm::memory::{Memory, Site, Word};

/// An event that one waiter at a time sleeps on.
///
/// The word is [`SLEEPING`] from before the waiter's last check until it has woken up, and 0 otherwise. A wrong value
/// costs a useless system call or one timeout, never a wrong result: callers check their condition again.
#[derive(Clone, Copy, Debug)]
pub struct Event(pub Word);

const SLEEPING: u64 = 1;

impl Event {
    /// Sleeps until [`Event::notify`], at most `timeout`, unless `is_ready` holds by now; may return early.
    pub fn wait(self, memory: &impl Memory, timeout: Duration, is_ready: impl FnOnce() -> bool) {
        memory.store(self.0, SLEEPING, Site::Plain);
        memory.fence(Site::Sleep);
        if !is_ready() {
            memory.sleep(self.0, SLEEPING, timeout);
        }
        memory.store(self.0, 0, Site::Plain);
    }

    /// The fence between a change and [`Event::notify`]. One fence serves any number of events.
    #[inline]
    pub fn fence(memory: &impl Memory) {
        memory.fence(Site::Wake);
    }

    /// Wakes the waiter, if one sleeps. The change that it waits for and [`Event::fence`] come before.
    #[inline]
    pub fn notify(self, memory: &impl Memory) {
        if memory.load(self.0, Site::Plain) == SLEEPING {
            memory.store(self.0, 0, Site::Plain);
            memory.wake(self.0);
        }
    }
}
