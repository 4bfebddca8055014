//! Checks of memory before it is used: where there is too little, a call is refused instead of the process being
//! killed.

use std::collections::TryReserveError;
use std::hint::black_box;

/// Largest overhead of the allocator for an array, bytes.
const EACH: usize = 32;

/// Bytes that `count` arrays take which together hold `bytes`.
pub(crate) fn arrays(count: usize, bytes: usize) -> usize {
    bytes.saturating_add(count.saturating_mul(EACH))
}

/// Checks that so many bytes can be allocated now, and frees them at once.
pub(crate) fn ask_for(bytes: usize) -> Result<(), TryReserveError> {
    let mut all: Vec<u8> = Vec::new();
    all.try_reserve_exact(bytes)?;
    // Keeps the compiler from leaving the unused allocation out.
    black_box(&mut all);
    Ok(())
}
