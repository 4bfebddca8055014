//! The model's memory: loom's atomics for the words, loom's checked cells for the records.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;

use fastrl_core::shm::memory::{Memory, Site, Word};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};

/// Bytes of a record here.
pub(crate) const RECORD: usize = 8;

struct Cell {
    value: AtomicU64,
    /// Loom asks of an operation only whether it conflicts with the last one on the same atomic. Where a thread loads a
    /// word, another loads it, and the other then stores to it, the conflict between the first and the last is lost,
    /// and with it orders that should be tried. So every load first does something here that conflicts with all
    /// others, and orders nothing.
    loads: AtomicU64,
}

pub(crate) struct Model {
    words: HashMap<usize, Cell>,
    records: Vec<UnsafeCell<u64>>,
    /// The site whose ordering is weakened to none.
    weakened: Option<Site>,
    /// Models the kernel's lock around a futex.
    lock: Mutex<()>,
    wakes: Condvar,
}

// SAFETY: loom's cells panic when two threads use one without an ordering between them.
unsafe impl Sync for Model {}

impl Model {
    pub(crate) fn new(words: &[Word], records: usize, weakened: Option<Site>) -> Model {
        Model {
            words: words
                .iter()
                .map(|word| (word.0, Cell { value: AtomicU64::new(0), loads: AtomicU64::new(0) }))
                .collect(),
            records: (0..records).map(|_| UnsafeCell::new(0)).collect(),
            weakened,
            lock: Mutex::new(()),
            wakes: Condvar::new(),
        }
    }

    fn ordering(&self, site: Site) -> Ordering {
        if self.weakened == Some(site) { Ordering::Relaxed } else { site.ordering() }
    }
}

impl Memory for Model {
    fn load(&self, word: Word, site: Site) -> u64 {
        let cell = &self.words[&word.0];
        cell.loads.fetch_add(1, Ordering::Relaxed);
        cell.value.load(self.ordering(site))
    }

    fn store(&self, word: Word, value: u64, site: Site) {
        self.words[&word.0].value.store(value, self.ordering(site));
    }

    fn exchange(&self, word: Word, current: u64, new: u64, site: Site) -> Result<(), u64> {
        let order = self.ordering(site);
        self.words[&word.0].value.compare_exchange(current, new, order, Ordering::Relaxed).map(|_| ())
    }

    fn fence(&self, site: Site) {
        if self.weakened != Some(site) {
            fence(site.ordering());
        }
    }

    fn sleep(&self, word: Word, value: u64, _timeout: Duration) {
        let guard = self.lock.lock().unwrap();
        if self.load(word, Site::Plain) == value {
            drop(self.wakes.wait(guard).unwrap());
        }
    }

    fn wake(&self, _word: Word) {
        drop(self.lock.lock().unwrap());
        self.wakes.notify_all();
    }

    unsafe fn write(&self, slot: usize, records: &[u8]) {
        for (i, record) in records.chunks_exact(RECORD).enumerate() {
            let value = u64::from_ne_bytes(record.try_into().unwrap());
            // SAFETY: `with_mut` panics if another thread touches the cell meanwhile.
            self.records[slot + i].with_mut(|cell| unsafe { *cell = value });
        }
    }

    unsafe fn read(&self, slot: usize, out: &mut [MaybeUninit<u8>]) {
        for (i, record) in out.chunks_exact_mut(RECORD).enumerate() {
            // SAFETY: `with` panics if another thread writes to the cell meanwhile.
            let value = self.records[slot + i].with(|cell| unsafe { *cell });
            record.copy_from_slice(&value.to_ne_bytes().map(MaybeUninit::new));
        }
    }

    fn place(&self, _slot: usize) -> NonNull<u8> {
        unreachable!("a slot of the model has no address: use write and read")
    }
}
