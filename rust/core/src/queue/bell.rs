//! Sleeping until somebody rings, without a lock and without a ring that is missed.
//!
//! The sleeper raises its flag and then looks once more at what it waits for; the other side changes that and then
//! looks at the flag. Each side's fence stands between its write and its read, so at least one of them sees the
//! other's write.

use std::time::Duration;

use crate::shm::memory::{Memory, Site, Word};

#[derive(Clone, Copy, Debug)]
pub struct Bell(pub Word);

const SLEEPS: u64 = 1;

impl Bell {
    /// Sleeps at most `timeout` unless `is_ready`; may return early for no reason.
    pub fn sleep(self, memory: &impl Memory, timeout: Duration, is_ready: impl FnOnce() -> bool) {
        memory.store(self.0, SLEEPS, Site::Plain);
        memory.fence(Site::Sleep);
        if !is_ready() {
            memory.sleep(self.0, SLEEPS, timeout);
        }
        memory.store(self.0, 0, Site::Plain);
    }

    /// Between a change and [`Bell::ring`]; one fence for any number of bells.
    #[inline]
    pub fn after_change(memory: &impl Memory) {
        memory.fence(Site::Wake);
    }

    /// Wakes the sleeper, if there is one.
    #[inline]
    pub fn ring(self, memory: &impl Memory) {
        if memory.load(self.0, Site::Plain) == SLEEPS {
            memory.store(self.0, 0, Site::Plain);
            memory.wake(self.0);
        }
    }
}
