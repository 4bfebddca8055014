//! Random numbers that are a function of what they are for.

use std::f64::consts::{FRAC_PI_2, LN_2};

use crate::traffic::math::{log2, sin_cos};

/// The use of a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Innovations of shadowing and of the blockage loss of a pair.
    Shadowing = 1,
    /// Innovation of a pair's line of sight.
    Sight,
    /// Arrival of a message.
    Arrival,
    /// Choice of a resource.
    Resource,
    /// Number of messages for which a resource is kept.
    Keeping,
    /// Decision to keep a resource.
    Decision,
    /// Whether a vehicle has a radio.
    Radio,
}

/// The random numbers of an episode. Equal keys and arguments give equal numbers, in whatever order they are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    key: u64,
}

/// SplitMix64's output function: a bijection that spreads every bit.
#[inline]
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Draws {
    /// The numbers of message number `message` of an episode.
    pub fn new(seed: u64, episode: u32, message: u32) -> Self {
        let start = mixed(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Self { key: mixed(start ^ (u64::from(episode) << 32 | u64::from(message))) }
    }

    #[inline]
    fn bits(self, purpose: Purpose, index: usize) -> u64 {
        let counter = ((index as u64) << 3 | purpose as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed(mixed(self.key.wrapping_add(counter)).wrapping_add(self.key))
    }

    /// Uniform on `[0, 1)`.
    #[inline]
    pub fn unit(self, purpose: Purpose, index: usize) -> f64 {
        (self.bits(purpose, index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform on `0..n`, `n > 0`.
    #[inline]
    pub fn below(self, purpose: Purpose, index: usize, n: usize) -> usize {
        ((u128::from(self.bits(purpose, index)) * n as u128) >> 64) as usize
    }

    /// Two independent standard normal numbers, by Box and Muller.
    #[inline]
    pub fn normals(self, purpose: Purpose, index: usize) -> [f64; 2] {
        let bits = self.bits(purpose, index);
        const UNIT: f64 = 1.0 / (1u64 << 32) as f64;
        // In (0, 1]: the logarithm is finite.
        let radius = (-2.0 * LN_2 * log2(((bits >> 32) + 1) as f64 * UNIT)).sqrt();
        // The angle as quarter turns and a rest of an eighth at most.
        let (quarter, rest) = (bits >> 30 & 3, ((bits & 0x3fff_ffff) as f64 * (4.0 * UNIT) - 0.5) * FRAC_PI_2);
        let (sin, cos) = sin_cos(rest);
        let [a, b] = if quarter & 1 == 0 { [cos, sin] } else { [-sin, cos] };
        let sign = if quarter & 2 == 0 { radius } else { -radius };
        [sign * a, sign * b]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_the_moments_of_the_normal_distribution() {
        let n = 200_000;
        let mut sums = [0.0; 5];
        for i in 0..n {
            let [a, b] = Draws::new(5, 0, (i / 1000) as u32).normals(Purpose::Shadowing, i % 1000);
            for (sum, x) in sums.iter_mut().zip([a, a * a, a.powi(4), a * b, b * b]) {
                *sum += x / n as f64;
            }
        }
        for (sum, expected) in sums.into_iter().zip([0.0, 1.0, 3.0, 0.0, 1.0]) {
            assert!((sum - expected).abs() < 0.04, "{sums:?}");
        }
    }

    #[test]
    fn neighbouring_arguments_are_unrelated() {
        let variants: [fn(u32) -> f64; 4] = [
            |i| Draws::new(u64::from(i), 0, 0).unit(Purpose::Arrival, 0),
            |i| Draws::new(0, i, 0).unit(Purpose::Arrival, 0),
            |i| Draws::new(0, 0, i).unit(Purpose::Arrival, 0),
            |i| Draws::new(0, 0, 0).unit(Purpose::Arrival, i as usize),
        ];
        for draw in variants {
            let x: Vec<f64> = (0..20_000).map(|i| draw(i) - 0.5).collect();
            let mean = x.iter().sum::<f64>() / 2e4;
            let lagged = x.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / 2e4 * 12.0;
            assert!(mean.abs() < 0.01 && lagged.abs() < 0.03, "{mean} {lagged}");
        }
    }
}
