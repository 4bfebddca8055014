//! Memory that is asked for before it is used: where there is not enough, a call is refused and the process lives on.

use std::collections::TryReserveError;
use std::hint::black_box;

/// What the allocator adds to each array at most, bytes.
const EACH: usize = 32;

/// Bytes that a number of arrays takes which together hold so many.
pub(crate) fn arrays(count: usize, bytes: usize) -> usize {
    bytes.saturating_add(count.saturating_mul(EACH))
}

/// Whether so many bytes can be had now. They are given back at once.
pub(crate) fn ask_for(bytes: usize) -> Result<(), TryReserveError> {
    let mut all: Vec<u8> = Vec::new();
    all.try_reserve_exact(bytes)?;
    // Or the compiler leaves out what nobody uses.
    black_box(&mut all);
    Ok(())
}
