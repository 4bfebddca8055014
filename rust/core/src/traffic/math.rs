//! Functions that a loop over many numbers can compute several at a time: no calls, no branches.
//!
//! Source: the minimax polynomials of Sun's fdlibm (`e_log.c`, `e_asin.c`, `k_sin.c`, `k_cos.c`), and Taylor's series
//! of the exponential. Relative errors are some 1e-15, which the tests measure.

use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E, PI, SQRT_2};

/// Compiles a function for processors with and without AVX2 and picks when it is called. Multiplications and additions
/// are not fused: results are the same to the last bit.
macro_rules! vectorized {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "arrays that are known not to overlap")]
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "the arguments of the outer function")]
            fn plain($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                /// # Safety
                /// The processor has AVX2.
                #[target_feature(enable = "avx2")]
                #[allow(clippy::too_many_arguments, reason = "the arguments of the outer function")]
                unsafe fn wide($($argument: $type),*) {
                    plain($($argument),*);
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has AVX2.
                    return unsafe { wide($($argument),*) };
                }
            }
            plain($($argument),*);
        }
    };
}
pub(super) use vectorized;

/// `x` between two bounds, as one instruction each.
#[inline(always)]
pub(super) fn bounded(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `x`, kept at least 0.01 from zero so that it can be divided by (highway-env's `utils.not_zero`).
#[inline(always)]
pub(super) fn not_zero(x: f64) -> f64 {
    const SMALL: f64 = 1e-2;
    let small = if x >= 0.0 { SMALL } else { -SMALL };
    if x.abs() > SMALL { x } else { small }
}

/// The angle in [-pi, pi) that differs from `angle` by full turns.
#[inline]
pub(super) fn wrap_to_pi(angle: f64) -> f64 {
    let shifted = angle + PI;
    if (0.0..2.0 * PI).contains(&shifted) { shifted - PI } else { shifted.rem_euclid(2.0 * PI) - PI }
}

/// `x` to the power of `y` for `x >= 0` and `y > 0`; `x` below the normal numbers counts as 0, and powers end at
/// 2^1000.
#[inline(always)]
pub(super) fn power(x: f64, y: f64) -> f64 {
    let power = exp2(y * log2(x));
    if x < f64::MIN_POSITIVE { 0.0 } else { power }
}

/// Binary logarithm of a positive, normal number.
#[inline(always)]
pub(super) fn log2(x: f64) -> f64 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits();
    let m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    // The exponent's bits behind those of 2^52 are a number.
    let e = f64::from_bits(bits >> 52 | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 1023.0);
    let high = m > SQRT_2;
    let m = if high { 0.5 * m } else { m };
    let e = if high { e + 1.0 } else { e };
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z
        * (0.666_666_666_666_673_5
            + z * (0.399_999_999_994_094_2
                + z * (0.285_714_287_436_623_9
                    + z * (0.222_221_984_321_497_84
                        + z * (0.181_835_721_616_180_5
                            + z * (0.153_138_376_992_093_73 + z * 0.147_981_986_051_165_86))))));
    let half = 0.5 * f * f;
    let log = f - (half - s * (half + r));
    e + log * LOG2_E
}

/// 2 to the power of `x`, which is taken to be between -1000 and 1000.
#[inline(always)]
pub(super) fn exp2(x: f64) -> f64 {
    let x = bounded(x, -1000.0, 1000.0);
    // Adding 1.5 2^52 rounds to a whole number and leaves it in the lowest bits.
    let shifted = x + 6_755_399_441_055_744.0;
    let t = (x - (shifted - 6_755_399_441_055_744.0)) * LN_2;
    let mut p = 1.0 / 6_227_020_800.0;
    p = p * t + 1.0 / 479_001_600.0;
    p = p * t + 1.0 / 39_916_800.0;
    p = p * t + 1.0 / 3_628_800.0;
    p = p * t + 1.0 / 362_880.0;
    p = p * t + 1.0 / 40_320.0;
    p = p * t + 1.0 / 5_040.0;
    p = p * t + 1.0 / 720.0;
    p = p * t + 1.0 / 120.0;
    p = p * t + 1.0 / 24.0;
    p = p * t + 1.0 / 6.0;
    p = p * t + 0.5;
    p = p * t + 1.0;
    p = p * t + 1.0;
    f64::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 52))
}

/// Arc sine of a number in [-1, 1].
#[inline(always)]
pub(super) fn asin(x: f64) -> f64 {
    let a = x.abs();
    let outer = a > 0.5;
    let t = if outer { ((1.0 - a) * 0.5).sqrt() } else { a };
    let z = t * t;
    let p = z
        * (0.166_666_666_666_666_66
            + z * (-0.325_565_818_622_400_9
                + z * (0.201_212_532_134_862_93
                    + z * (-0.040_055_534_500_679_41
                        + z * (0.000_791_534_994_289_814_5 + z * 3.479_331_075_960_212e-5)))));
    let q = 1.0
        + z * (-2.403_394_911_734_414
            + z * (2.020_945_760_233_505_7 + z * (-0.688_283_971_605_453_3 + z * 0.077_038_150_555_901_94)));
    let inner = t + t * (p / q);
    let angle = if outer { FRAC_PI_2 - 2.0 * inner } else { inner };
    angle.copysign(x)
}

/// Angles up to here are what [`sin_cos`] takes: a little more than pi / 4.
pub(super) const SIN_COS_LIMIT: f64 = 0.79;

/// Sine and cosine of an angle within [`SIN_COS_LIMIT`].
#[inline(always)]
pub(super) fn sin_cos(x: f64) -> (f64, f64) {
    let z = x * x;
    let s = -0.166_666_666_666_666_32
        + z * (0.008_333_333_333_322_49
            + z * (-0.000_198_412_698_298_579_5
                + z * (2.755_731_370_707_006_8e-6 + z * (-2.505_076_025_340_686_3e-8 + z * 1.589_690_995_211_55e-10))));
    let c = 0.041_666_666_666_666_6
        + z * (-0.001_388_888_888_887_411
            + z * (2.480_158_728_947_673e-5
                + z * (-2.755_731_435_139_066_3e-7
                    + z * (2.087_572_321_298_175e-9 + z * -1.135_964_755_778_819_5e-11))));
    (x + x * (z * s), 1.0 - (0.5 * z - z * (z * c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 4e-15 * b.abs()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn powers(x in 0.0f64..4.0, y in 0.5f64..8.0) {
            // The error grows with the exponent.
            let (found, expected) = (power(x, y), x.powf(y));
            let lost = 1e-15 * (2.0 + (y * x.log2()).abs());
            prop_assert!((found - expected).abs() <= lost * expected, "{x}^{y}: {found} not {expected}");
        }

        #[test]
        fn arcs(x in -1.0f64..=1.0) {
            prop_assert!(close(asin(x), x.asin()), "{x}: {} not {}", asin(x), x.asin());
        }

        #[test]
        fn sines(x in -SIN_COS_LIMIT..=SIN_COS_LIMIT) {
            let (sin, cos) = sin_cos(x);
            prop_assert!(close(sin, x.sin()) && close(cos, x.cos()), "{x}: {sin} {cos}");
        }
    }

    #[test]
    fn zero_is_exact() {
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert_eq!(asin(0.0), 0.0);
        assert_eq!([power(0.0, 4.0), power(1.0, 3.7), power(2.0, 3.0)], [0.0, 1.0, 8.0]);
        assert!(close(power(4000.0, 4.5), 4000f64.powf(4.5)));
    }

    #[test]
    fn divisors_keep_off_zero() {
        assert_eq!([not_zero(0.0), not_zero(-0.0), not_zero(-1e-3), not_zero(0.5)], [0.01, 0.01, -0.01, 0.5]);
    }

    #[test]
    fn angles_wrap() {
        for angle in [-20.0, -3.2, -3.0, 0.0, 1e-3, 3.2, 9.5, 40.0] {
            let wrapped = wrap_to_pi(angle);
            assert!((-PI..PI).contains(&wrapped));
            assert!(((angle - wrapped) / (2.0 * PI) - ((angle - wrapped) / (2.0 * PI)).round()).abs() < 1e-12);
        }
    }
}
