//! Floats side by side as registers take them, and which registers the processor has.

/// Outputs that are computed together. Widths are rounded up to a multiple.
pub(crate) const LANES: usize = 16;

/// Aligned to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Lanes(pub [f32; LANES]);

/// The floats of lanes.
pub(crate) fn flat(lanes: &[Lanes]) -> &[f32] {
    // SAFETY: lanes are arrays of `LANES` floats side by side.
    unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len() * LANES) }
}

/// The floats of lanes.
pub(crate) fn flat_mut(lanes: &mut [Lanes]) -> &mut [f32] {
    // SAFETY: as of `flat`.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * LANES) }
}

/// Distance between rows of so many lanes: an odd number, as rows at a power of two of cache lines would take each other's
/// places in the cache.
pub(crate) fn spread(lanes: usize) -> usize {
    lanes | 1
}

/// Returns whether loops over registers of 256 bits with fused multiplications can be used.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_fma() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Returns whether loops over registers of 512 bits can be used.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx512() -> bool {
    has_fma()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
}

/// Returns whether there are products of pairs of bfloat16 in registers of 512 bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_bf16() -> bool {
    has_avx512() && is_x86_feature_detected!("avx512bf16")
}
