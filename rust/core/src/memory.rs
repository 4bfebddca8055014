//! Checks of memory before it is used: where there is too little, a call is refused instead of the process being
//! killed.

use std::collections::TryReserveError;
use std::hint::black_box;

/// Largest overhead of the allocator for an array, bytes.
const EACH: usize = 32;

/// Bytes that a processor fetches at a time.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

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

/// Checks that so many bytes can be allocated now, and frees them at once.
pub(crate) fn ask_for(bytes: usize) -> Result<(), TryReserveError> {
    let mut all: Vec<u8> = Vec::new();
    all.try_reserve_exact(bytes)?;
    // Keeps the compiler from leaving the unused allocation out.
    black_box(&mut all);
    Ok(())
}
