//! Threads that do the items of a job together.
//!
//! Items are claimed one by one, so that it depends on the moment which thread does which: what an item computes
//! must not depend on that. The thread that has a job does items itself until all are claimed, and then waits for those
//! that others have claimed. So a job never waits for a thread to wake up, and one that the system keeps from running
//! delays it by one item at most.
//!
//! Waiters poll for a moment, as jobs follow each other closely, and then sleep.

use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time that a waiter polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(50);
const POLLS_PER_CLOCK_READ: usize = 32;
/// A thread that has kept the caller waiting for longer than this and than the caller's own items took was kept from
/// running: another process needs its core.
const DESCHEDULED: Duration = Duration::from_micros(200);
/// For how many times as long the caller then works alone, before it shares jobs again: so little is lost to waiting.
const ALONE: u32 = 20;

/// Bits of the number of an item in [`Shared::claims`].
const BITS: u32 = 16;
const MASK: u64 = (1 << BITS) - 1;

type Work<'a> = &'a (dyn Fn(usize) + Sync);

#[repr(align(128))]
struct Shared {
    /// The number of the job, then the end and the first of the items that nobody has claimed.
    claims: AtomicU64,
    /// The job's function of an item: points to a [`Work`] as long as there are items that are not done.
    work: AtomicPtr<Work<'static>>,
    /// Items that are not done.
    left: AtomicUsize,
    panicked: AtomicBool,
    stopped: AtomicBool,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    leader_sleeps: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
    wake_leader: Condvar,
}

/// Polls for a moment; returns whether `is_ready`.
fn poll(is_ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if is_ready() {
                return true;
            }
            spin_loop();
        }
        if start.elapsed() > SPIN_TIME {
            return false;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there is an item that nobody has claimed, or the team ends.
    fn has_news(&self) -> bool {
        let claims = self.claims.load(Ordering::SeqCst);
        claims & MASK < claims >> BITS & MASK || self.stopped.load(Ordering::SeqCst)
    }

    /// Does items until all are claimed: the caller from the first on, others from the last back. So the data of similar
    /// jobs stay in the caches of the same cores.
    fn work(&self, is_caller: bool) {
        loop {
            let claims = self.claims.load(Ordering::Acquire);
            let (first, end) = (claims & MASK, claims >> BITS & MASK);
            if first >= end {
                return;
            }
            let work = self.work.load(Ordering::Relaxed);
            let (item, rest) = if is_caller { (first, claims + 1) } else { (end - 1, claims - (1 << BITS)) };
            if self.claims.compare_exchange(claims, rest, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: the claim succeeded, so the job is still the one of that number, `work` is its own, and the thread
            // that has the job keeps it until this item is done.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(item as usize) }));
            if done.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 && self.leader_sleeps.load(Ordering::SeqCst) {
                let _lock = self.lock();
                self.wake_leader.notify_one();
            }
        }
    }

    /// A thread's life.
    fn serve(&self) {
        while !self.stopped.load(Ordering::SeqCst) {
            self.work(false);
            if poll(|| self.has_news()) {
                continue;
            }
            let mut lock = self.lock();
            // Counted before it looks again: who brings news after that sees it, and waits for the lock to wake it.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !self.has_news() {
                lock = self.wake.wait(lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _lock = self.lock();
            self.wake.notify_all();
        }
    }

    fn wait_for_others(&self) {
        let is_done = || self.left.load(Ordering::SeqCst) == 0;
        if poll(is_done) {
            return;
        }
        let mut lock = self.lock();
        self.leader_sleeps.store(true, Ordering::SeqCst);
        while !is_done() {
            lock = self.wake_leader.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.leader_sleeps.store(false, Ordering::SeqCst);
    }
}

/// Some threads and the one that it belongs to.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Until then the caller works alone.
    alone_until: Option<Instant>,
    /// The process that made it: threads do not survive a fork, and the caller does all items then.
    owner: u32,
}

impl Team {
    /// A team of up to so many threads with that of the caller; of fewer where the system does not start them.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            claims: AtomicU64::new(0),
            work: AtomicPtr::new(null_mut()),
            left: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            leader_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            wake_leader: Condvar::new(),
        });
        let start = |i: usize| {
            let shared = Arc::clone(&shared);
            Builder::new().name(format!("fastrl-{i}")).spawn(move || shared.serve()).ok()
        };
        Self { threads: (1..threads).map_while(start).collect(), alone_until: None, owner: std::process::id(), shared }
    }

    /// Number of threads with that of the caller.
    #[expect(clippy::len_without_is_empty, reason = "there is a caller")]
    pub fn len(&self) -> usize {
        self.threads.len() + 1
    }

    /// Has so many threads from now on: new ones if it has another number, or belongs to a process of which this is a
    /// fork.
    pub fn resize(&mut self, threads: usize) {
        if self.len() != threads.max(1) || std::process::id() != self.owner {
            *self = Self::new(threads);
        }
    }

    /// Calls `work` with each of the items, in any order and side by side.
    ///
    /// # Panics
    /// One of the calls has panicked.
    pub fn each<T: Send>(&mut self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        self.alone_until = self.alone_until.filter(|&until| Instant::now() < until);
        let alone = self.alone_until.is_some() || std::process::id() != self.owner;
        if alone || self.threads.is_empty() || items.len() < 2 {
            items.iter_mut().for_each(work);
            return;
        }
        for items in items.chunks_mut(MASK as usize) {
            /// Lets threads have it.
            struct Place<T>(*mut T);
            // SAFETY: each item, which is `Send`, is given to one thread.
            unsafe impl<T: Send> Sync for Place<T> {}
            impl<T> Place<T> {
                fn item(&self, i: usize) -> *mut T {
                    self.0.wrapping_add(i)
                }
            }
            let place = Place(items.as_mut_ptr());
            // SAFETY: the numbers are below `items.len()`, and each comes once.
            self.run(items.len(), &|i| work(unsafe { &mut *place.item(i) }));
        }
    }

    fn run(&mut self, items: usize, work: Work<'_>) {
        let shared = &*self.shared;
        shared.left.store(items, Ordering::Relaxed);
        shared.work.store((&raw const work).cast_mut().cast(), Ordering::Relaxed);
        let job = (shared.claims.load(Ordering::Relaxed) >> (2 * BITS)).wrapping_add(1);
        shared.claims.store(job << (2 * BITS) | (items as u64) << BITS, Ordering::SeqCst);
        shared.wake_sleepers();
        let start = Instant::now();
        shared.work(true);
        let worked = start.elapsed();
        shared.wait_for_others();
        let all = start.elapsed();
        if all > 2 * worked + DESCHEDULED {
            self.alone_until = Some(Instant::now() + ALONE * (all - worked));
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a thread has panicked");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if std::process::id() != self.owner {
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for thread in self.threads.drain(..) {
            // It has caught panics.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_done_once() {
        for threads in [1, 2, 3, 16] {
            let mut team = Team::new(threads);
            assert_eq!(team.len(), threads);
            let mut items = vec![0_usize; 100];
            for job in 1..2000 {
                let some = 1 + job * 7 % items.len();
                let before = items.clone();
                team.each(&mut items[..some], |item| *item += job);
                for (i, (item, before)) in items.iter().zip(before).enumerate() {
                    assert_eq!(*item, before + if i < some { job } else { 0 });
                }
                if job % 500 == 0 {
                    // All fall asleep.
                    std::thread::sleep(4 * SPIN_TIME);
                }
            }
        }
    }

    #[test]
    fn a_team_of_another_size_does_all_items() {
        let mut team = Team::new(1);
        for threads in [3, 3, 1, 2] {
            team.resize(threads);
            assert_eq!(team.len(), threads);
            let mut items = [0; 10];
            team.each(&mut items, |item| *item += 1);
            assert_eq!(items, [1; 10]);
        }
    }

    #[test]
    fn more_items_than_a_job_can_have() {
        let mut items = vec![1_u8; 70_000];
        Team::new(2).each(&mut items, |item| *item += 1);
        assert!(items.iter().all(|&item| item == 2));
    }

    #[test]
    fn the_caller_waits_for_slow_items() {
        let mut items = vec![0_u64; 3];
        let mut team = Team::new(3);
        team.each(&mut items, |item| {
            std::thread::sleep(20 * SPIN_TIME);
            *item = 1;
        });
        assert_eq!(items, [1, 1, 1]);
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let mut team = Team::new(2);
        let mut items = [0, 1, 2, 3];
        let work = |item: &mut i32| {
            if *item == 3 {
                std::panic::resume_unwind(Box::new("failed"));
            }
        };
        assert!(catch_unwind(AssertUnwindSafe(|| team.each(&mut items, work))).is_err());
        team.each(&mut items[..3], work);
    }
}
