//! Words and records in memory that several threads or processes share, and the one place that says with which
//! memory ordering each of them is touched.
//!
//! The algorithms of [`crate::queue`], [`crate::bulletin`] and [`crate::rounds`] are written against [`Memory`], so that the same code
//! runs on mapped memory ([`Mapped`]) and, in `tests/loom_models.rs`, on a model that explores every interleaving
//! and every value that a weak memory may show. Each [`Site`] can be weakened there, and then a model must fail.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// A shared 64-bit word, by its offset in bytes; a multiple of eight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Word(pub usize);

/// Where and why a word is touched. What is not a [`Site::Plain`] one has an ordering that something depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// No ordering: counters, words that only their owner writes, values that are checked again later.
    Plain,
    /// A producer's tail or a record's sequence number: the records before it are complete.
    Publish,
    /// The consumer reads that word: it may now read those records.
    Collect,
    /// The consumer's head (or claim): it has done with the records before it.
    Free,
    /// A producer reads that word: it may now write over those records.
    Reuse,
    /// A producer drops the oldest records, which others wrote and others will write over.
    Drop,
    /// A producer takes a range of the total order; its intent is visible before.
    Take,
    /// The consumer reads how far the total order is taken, and with it the intents of who took it.
    Taken,
    /// A producer says from where on it will take, or that it is done; what it took before is published.
    Intend,
    /// The consumer reads that word.
    Intent,
    /// A lane changes hands, from a producer that is done with it.
    HandOver,
    /// The next producer takes it.
    TakeOver,
    /// Somebody says that it will sleep, then looks once more.
    Sleep,
    /// Somebody changed what others may sleep for, then looks whether one does.
    Wake,
    /// A producer says that it is busy, then looks whether the queue was shut down.
    Busy,
    /// The queue was shut down; the consumer then looks who is still busy.
    Shut,
    /// The state of a queue is changed.
    State,
    /// The state of a queue is read.
    StateSeen,
    /// A bulletin's page is marked as being written; the version before it is out.
    Mark,
    /// A reader looks at that mark.
    Marked,
    /// The page is written after it was marked.
    Begin,
    /// The page is complete.
    Finish,
    /// A reader learns of a version; its page was complete.
    Newest,
    /// A reader has copied a page, then looks whether it was written meanwhile.
    Recheck,
    /// A leader begins a round; what it wrote before is there.
    Begun,
    /// A member sees that round.
    BegunSeen,
    /// A member has done its part of a round; what it wrote is there.
    Done,
    /// The leader sees that.
    DoneSeen,
}

impl Site {
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
            | Site::Begun
            | Site::Done => Ordering::Release,
            Site::Collect
            | Site::Reuse
            | Site::Taken
            | Site::Intent
            | Site::TakeOver
            | Site::StateSeen
            | Site::Marked
            | Site::Newest
            | Site::BegunSeen
            | Site::DoneSeen => Ordering::Acquire,
            // Fences. Each of the first four is one half of a pair "I write mine, then I read yours".
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
    /// Compare and exchange; the value found if it was not `current`.
    fn exchange(&self, word: Word, current: u64, new: u64, site: Site) -> Result<(), u64>;
    fn fence(&self, site: Site);
    /// Sleeps while the word has this value, until [`Memory::wake`], at most `timeout`; may wake for no reason.
    fn sleep(&self, word: Word, value: u64, timeout: Duration);
    fn wake(&self, word: Word);

    /// Copies records into the slots from `slot` on.
    ///
    /// # Safety
    /// The slots exist, and nobody else touches them meanwhile.
    unsafe fn write(&self, slot: usize, records: &[u8]);

    /// Copies the records in the slots from `slot` on; `out` holds whole records.
    ///
    /// # Safety
    /// The slots exist, and nobody writes to them meanwhile.
    unsafe fn read(&self, slot: usize, out: &mut [MaybeUninit<u8>]);

    /// Where a slot's record lies, for who reads or writes in place, under the conditions of `read` and `write`.
    fn place(&self, slot: usize) -> NonNull<u8>;
}

/// Mapped memory: this process's own or shared with others.
pub struct Mapped {
    base: NonNull<u8>,
    len: usize,
    records: usize,
    record_size: usize,
}

// SAFETY: words are only touched by atomic operations, records only under the conditions of `read` and `write`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
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
        assert!(word.0 % 8 == 0 && word.0 + 8 <= self.records);
        // SAFETY: inside of the mapping, aligned, and only ever used as an atomic.
        unsafe { &*self.base.as_ptr().add(word.0).cast() }
    }

    /// The half of a word that the operating system compares.
    #[cfg(target_os = "linux")]
    fn half(&self, word: Word) -> &AtomicU32 {
        let low = if cfg!(target_endian = "little") { 0 } else { 4 };
        let address: *const AtomicU64 = self.word(word);
        // SAFETY: four of the word's eight bytes, aligned; they are written as a whole word only.
        unsafe { &*address.cast::<u8>().add(low).cast() }
    }

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
        // Whatever the reason for which it returns, the caller looks again. Not the private kind of futex: others
        // map the same word elsewhere.
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
        // SAFETY: checked to be inside of the mapping; the rest is the caller's promise.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(records.as_ptr(), records.len()) };
    }

    #[inline(always)]
    unsafe fn read(&self, slot: usize, out: &mut [MaybeUninit<u8>]) {
        let offset = self.offset(slot, out.len());
        // SAFETY: checked to be inside of the mapping; the rest is the caller's promise.
        unsafe { out.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(self.base.as_ptr().add(offset), out.len()) };
    }

    fn place(&self, slot: usize) -> NonNull<u8> {
        let offset = self.offset(slot, self.record_size);
        // SAFETY: checked to be inside of the mapping.
        unsafe { self.base.add(offset) }
    }
}
