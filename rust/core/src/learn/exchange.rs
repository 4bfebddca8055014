//! Two threads that exchange numbers again and again.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Polls of a waiter before it yields to other threads.
const SPINS: usize = 2000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// The place of the numbers of one side.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    /// Exchanges so far.
    count: AtomicU64,
    /// Of the last exchange of an even, and of an odd number. The other side may still read the one while the next is
    /// written.
    numbers: [AtomicU64; 2],
    flags: [AtomicBool; 2],
    /// It has ended by a panic.
    broken: AtomicBool,
}

pub(crate) struct Exchange {
    slots: [Slot; 2],
}

/// The end of one side.
pub(crate) struct Endpoint<'a> {
    own: &'a Slot,
    other: &'a Slot,
    count: u64,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        Self { slots: [Slot::default(), Slot::default()] }
    }

    pub(crate) fn endpoint(&self, side: Side) -> Endpoint<'_> {
        let [left, right] = &self.slots;
        let (own, other) = if side == Side::Left { (left, right) } else { (right, left) };
        Endpoint { own, other, count: 0 }
    }
}

impl Endpoint<'_> {
    /// Gives a number and a flag to the other side and waits for its own.
    pub(crate) fn swap(&mut self, (number, flag): (f64, bool)) -> (f64, bool) {
        let place = (self.count % 2) as usize;
        self.count += 1;
        self.own.numbers[place].store(number.to_bits(), Ordering::Relaxed);
        self.own.flags[place].store(flag, Ordering::Relaxed);
        self.own.count.store(self.count, Ordering::Release);
        let mut spins = 0;
        while self.other.count.load(Ordering::Acquire) < self.count {
            assert!(!self.other.broken.load(Ordering::Relaxed), "the other thread has panicked");
            spins += 1;
            if spins < SPINS { spin_loop() } else { thread::yield_now() }
        }
        let number = f64::from_bits(self.other.numbers[place].load(Ordering::Relaxed));
        (number, self.other.flags[place].load(Ordering::Relaxed))
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.own.broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_numbers_of_the_other() {
        let exchange = Exchange::new();
        thread::scope(|scope| {
            for side in [Side::Left, Side::Right] {
                let mut end = exchange.endpoint(side);
                let own = if side == Side::Left { 0.5 } else { 0.25 };
                scope.spawn(move || {
                    for i in 0..20_000 {
                        let given = (f64::from(i) + own, i % 3 == 0);
                        assert_eq!(end.swap(given), (f64::from(i) + 0.75 - own, i % 3 == 0));
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let exchange = Exchange::new();
        let ended = thread::scope(|scope| {
            let mut left = exchange.endpoint(Side::Left);
            let right = exchange.endpoint(Side::Right);
            scope
                .spawn(move || {
                    let _right = right;
                    std::panic::resume_unwind(Box::new("failed"));
                })
                .join()
                .expect_err("it panics");
            scope.spawn(move || left.swap((0.0, false))).join().is_err()
        });
        assert!(ended);
    }
}
