//! Words and records in memory that several threads or processes share, and the one place that states the memory
//! ordering of each access.
//!
//! The algorithms of [`crate::queue`], [`crate::weight_broadcast`] and [`crate::barrier`] are written against
//! [`Memory`], so the same code runs on mapped memory ([`Mapped`]) and, in `rust/loom`, on a model that
//! explores every interleaving and every value that a weak memory may show. Each [`Site`] can be weakened there, and
//! then a model must fail.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// A shared 64-bit word, by its offset in bytes; a multiple of eight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Word(pub usize);

/// The place and purpose of an access to a word. Sites other than [`Site::Plain`] have an ordering that something
/// relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// No ordering: counters, words that only their owner writes, values that are checked again later.
    Plain,
    /// A producer stores its tail, or a record's sequence number: the records before it are complete.
    Publish,
    /// The consumer loads that word: it may read those records.
    Collect,
    /// The consumer stores its head (or claim): it needs the records before it no longer.
    Free,
    /// A producer loads that word: it may overwrite those records.
    Reuse,
    /// A producer drops the oldest records, which others wrote and others will overwrite.
    Drop,
    /// A producer takes a range of the total order; its intent is visible before.
    Take,
    /// The consumer loads up to where the total order is taken, and with it the intents of those producers.
    Taken,
    /// A producer stores its intent, or clears it: what it took before is published.
    Intend,
    /// The consumer loads that word.
    Intent,
    /// A process frees its role.
    HandOver,
    /// The next process takes that role.
    TakeOver,
    /// A waiter announces that it will sleep, then checks its condition once more.
    Sleep,
    /// A process has changed a condition that others may sleep on, then checks whether one does.
    Wake,
    /// A producer announces that it is busy, then checks whether the queue was shut down.
    Busy,
    /// The consumer has seen that the queue was shut down, then checks who is still busy.
    Shut,
    /// A process changes the state of a queue.
    State,
    /// A process loads the state of a queue.
    StateSeen,
    /// A writer marks a page as being written; the version before it is complete.
    Mark,
    /// A reader loads that mark.
    Marked,
    /// The page is written after it was marked.
    Begin,
    /// The page is complete.
    Finish,
    /// A reader loads the newest version; its page was complete.
    Newest,
    /// A reader has copied a page, then checks whether it was written meanwhile.
    Recheck,
    /// A leader starts a round; what it wrote before is visible.
    RoundStart,
    /// A member sees that round.
    RoundSeen,
    /// A member has done its part of a round; what it wrote is visible.
    Done,
    /// The leader sees that.
    DoneSeen,
}

impl Site {
    /// The memory ordering of the access, or of the fence.
    #[inline(always)]
    pub const fn ordering(self) -> Ordering {
        match self {
            Site::Plain => Ordering::Relaxed,
            Site::Publish
            | Site::Free
            | Site::Drop
            | Site::Take
            | Site::Intend
            | Site::HandOver
            | Site::State
            | Site::Mark
            | Site::Finish
            | Site::RoundStart
            | Site::Done => Ordering::Release,
            Site::Collect
            | Site::Reuse
            | Site::Taken
            | Site::Intent
            | Site::TakeOver
            | Site::StateSeen
            | Site::Marked
            | Site::Newest
            | Site::RoundSeen
            | Site::DoneSeen => Ordering::Acquire,
            // Fences. Each of the first four stands between a write of one's own word and a read of the other side's.
            Site::Sleep | Site::Wake | Site::Busy | Site::Shut => Ordering::SeqCst,
            Site::Begin => Ordering::Release,
            Site::Recheck => Ordering::Acquire,
        }
    }
}

/// Shared words and records.
pub trait Memory {
    fn load(&self, word: Word, site: Site) -> u64;
    fn store(&self, word: Word, value: u64, site: Site);
    /// Compare and exchange. The error is the value found, if it was not `current`.
    fn exchange(&self, word: Word, current: u64, new: u64, site: Site) -> Result<(), u64>;
    fn fence(&self, site: Site);
    /// Sleeps while the word has this value, until [`Memory::wake`], at most `timeout`; may return early.
    fn sleep(&self, word: Word, value: u64, timeout: Duration);
    /// Wakes all that sleep on the word.
    fn wake(&self, word: Word);

    /// Copies records into the slots from `slot` on.
    ///
    /// # Safety
    /// The slots exist, and no other thread or process touches them meanwhile.
    unsafe fn write(&self, slot: usize, records: &[u8]);

    /// Copies the records in the slots from `slot` on; `out` holds whole records.
    ///
    /// # Safety
    /// The slots exist, and no thread or process writes to them meanwhile.
    unsafe fn read(&self, slot: usize, out: &mut [MaybeUninit<u8>]);

    /// The address of a slot's record, to be read or written in place under the conditions of `read` and `write`.
    fn place(&self, slot: usize) -> NonNull<u8>;
}

/// Mapped memory: this process's own or shared with others.
pub struct Mapped {
    /// Address of the first byte. The `len` bytes from it stay mapped and writeable: the promise of [`Mapped::new`].
    base: NonNull<u8>,
    len: usize,
    /// Offset of the first record: words lie before it, records behind it.
    records: usize,
    record_size: usize,
}

// SAFETY: words are only touched by atomic operations, records only under the conditions of `read` and `write`.
unsafe impl Send for Mapped {}
// SAFETY: the reason given at `Send` holds for shared references too: no method takes `&mut self`.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    /// `len` bytes from `base` on, which is aligned to 128 bytes, stay mapped and writeable as long as this lives, and
    /// are touched by nothing but `Mapped`s. The records begin at the offset `records`.
    pub unsafe fn new(base: NonNull<u8>, len: usize, records: usize, record_size: usize) -> Mapped {
        assert!(base.as_ptr().cast::<u64>().is_aligned() && records <= len);
        Mapped { base, len, records, record_size }
    }

    #[inline(always)]
    fn word(&self, word: Word) -> &AtomicU64 {
        assert!(word.0.is_multiple_of(8) && word.0 + 8 <= self.records);
        // SAFETY: the assertion puts it inside of the mapping and aligned; all access to words is atomic.
        unsafe { &*self.base.as_ptr().add(word.0).cast() }
    }

    /// The half of a word that holds its low bits, which the kernel compares.
    #[cfg(target_os = "linux")]
    fn half(&self, word: Word) -> &AtomicU32 {
        let low = if cfg!(target_endian = "little") { 0 } else { 4 };
        let address: *const AtomicU64 = self.word(word);
        // SAFETY: `word` gave eight valid bytes, of which these are four, aligned. They are only compared by the
        // kernel; stores go to the whole word, atomically.
        unsafe { &*address.cast::<u8>().add(low).cast() }
    }

    /// The offset of a slot. Panics unless `bytes` bytes from there on lie inside of the mapping.
    #[inline(always)]
    fn offset(&self, slot: usize, bytes: usize) -> usize {
        let offset = self.records + slot * self.record_size;
        assert!(offset + bytes <= self.len);
        offset
    }
}

impl Memory for Mapped {
    #[inline(always)]
    fn load(&self, word: Word, site: Site) -> u64 {
        self.word(word).load(site.ordering())
    }

    #[inline(always)]
    fn store(&self, word: Word, value: u64, site: Site) {
        self.word(word).store(value, site.ordering());
    }

    #[inline(always)]
    fn exchange(&self, word: Word, current: u64, new: u64, site: Site) -> Result<(), u64> {
        self.word(word).compare_exchange(current, new, site.ordering(), Ordering::Relaxed).map(|_| ())
    }

    #[inline(always)]
    fn fence(&self, site: Site) {
        fence(site.ordering());
    }

    #[cfg(target_os = "linux")]
    fn sleep(&self, word: Word, value: u64, timeout: Duration) {
        use rustix::thread::futex;
        let timeout = futex::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // The caller checks its condition again, whatever the reason for the return. Not a private futex: other
        // processes map the same word elsewhere.
        let _ = futex::wait(self.half(word), futex::Flags::empty(), value as u32, Some(&timeout));
    }

    #[cfg(not(target_os = "linux"))]
    fn sleep(&self, word: Word, value: u64, timeout: Duration) {
        let end = std::time::Instant::now() + timeout;
        while self.load(word, Site::Plain) == value && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    #[cfg(target_os = "linux")]
    fn wake(&self, word: Word) {
        use rustix::thread::futex;
        let _ = futex::wake(self.half(word), futex::Flags::empty(), i32::MAX as u32);
    }

    #[cfg(not(target_os = "linux"))]
    fn wake(&self, _word: Word) {}

    #[inline(always)]
    unsafe fn write(&self, slot: usize, records: &[u8]) {
        let offset = self.offset(slot, records.len());
        // SAFETY: `offset` has checked that the bytes lie inside of the mapping; the rest is the caller's promise.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(records.as_ptr(), records.len()) };
    }

    #[inline(always)]
    unsafe fn read(&self, slot: usize, out: &mut [MaybeUninit<u8>]) {
        let offset = self.offset(slot, out.len());
        // SAFETY: `offset` has checked that the bytes lie inside of the mapping; the rest is the caller's promise.
        unsafe { out.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(self.base.as_ptr().add(offset), out.len()) };
    }

    fn place(&self, slot: usize) -> NonNull<u8> {
        let offset = self.offset(slot, self.record_size);
        // SAFETY: `offset` has checked that the bytes lie inside of the mapping.
        unsafe { self.base.add(offset) }
    }
}
