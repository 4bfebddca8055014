//! Checks of memory before it is used: where there is too little, a call is refused instead of the process being
//! killed.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Largest overhead of the allocator for an array, bytes.
const EACH: usize = 32;

/// Bytes that a processor fetches at a time.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Bytes of a page at least: advice is for whole ones.
#[cfg(target_os = "linux")]
const PAGE: usize = 4096;

/// Bytes that `count` arrays take which together hold `bytes`.
pub(crate) fn arrays(count: usize, bytes: usize) -> usize {
    bytes.saturating_add(count.saturating_mul(EACH))
}

/// Asks for a value to be brought into the caches; the processor goes on meanwhile.
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = std::ptr::from_ref(value).cast::<i8>();
        for line in (0..size_of_val(value)).step_by(CACHE_LINE) {
            // SAFETY: a prefetch reads nothing that the program sees, and no address faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for the first line of a value to be brought into the caches.
#[inline(always)]
pub(crate) fn prefetch_line<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for large pages for an array that is about to be filled, where the system gives them to those who ask: its
/// addresses are found faster then.
pub(crate) fn prefer_large_pages<T>(array: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        let range = array.as_mut_ptr_range();
        let start = range.start.wrapping_byte_add(range.start.addr().wrapping_neg() % PAGE);
        if let Some(len) = range.end.addr().checked_sub(start.addr()) {
            // SAFETY: the advice neither changes nor frees memory, and one that the system does not take has no effect.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = array;
}

/// Checks that so many bytes can be allocated now, and frees them at once.
pub(crate) fn ask_for(bytes: usize) -> Result<(), TryReserveError> {
    let mut all: Vec<u8> = Vec::new();
    all.try_reserve_exact(bytes)?;
    // Keeps the compiler from leaving the unused allocation out.
    black_box(&mut all);
    Ok(())
}
