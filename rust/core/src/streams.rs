//! Random numbers that do not depend on the process, thread or batch that draws them. An episode's seed is a function
//! of the run's seed, an environment index and the episode's number there; the random number of an action is a function
//! of the episode's stream and the step. `fastrl/utils/seeding.py` has the same functions in Python.
//!
//! Source: SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

use crate::dense::ln_normal;
use crate::widest::widest;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's function of a counter.
#[inline(always)]
pub fn mix(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The argument of `env.reset(seed=...)` for episode `number` of environment `env_index`: 31 bits.
pub fn env_seed(seed: u64, env_index: u64, number: u64) -> u64 {
    hash(seed, [1, env_index, number]) >> 33
}

/// The stream from which the actions of an episode are drawn.
pub fn act_stream(seed: u64, env_index: u64, number: u64) -> u64 {
    hash(seed, [2, env_index, number])
}

/// The stream of agent `agent` of an episode, from the episode's own.
pub fn agent_stream(stream: u64, agent: usize) -> u64 {
    mix(stream ^ mix((agent as u64 + 1).wrapping_mul(GOLDEN)))
}

fn hash(seed: u64, indices: [u64; 3]) -> u64 {
    let first = mix(seed.wrapping_add(GOLDEN));
    indices.iter().fold(first, |state, index| mix(state ^ mix(index.wrapping_add(GOLDEN))))
}

/// 64 random bits for step `step` of an episode.
#[inline(always)]
pub fn bits(stream: u64, step: i64) -> u64 {
    mix(stream.wrapping_add((step as u64).wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// The upper 24 bits as a number in `[0, 1 - 2^-24]`.
#[inline(always)]
pub fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 * (1.0 / (1 << 24) as f32)
}

/// Random bits for part `part` of an action, from those of the step.
#[inline(always)]
pub fn part_bits(bits: u64, part: usize) -> u64 {
    mix(bits.wrapping_add((part as u64 + 1).wrapping_mul(GOLDEN)))
}

/// Two independent normal numbers, the `pair`-th of those that the bits of a step give. (G. Box, M. Muller, "A note on
/// the generation of random normal deviates", 1958.)
#[inline]
pub fn normal_pair(bits: u64, pair: usize) -> (f32, f32) {
    let bits = part_bits(bits, pair);
    let (a, b) = (f64::from(unit(bits)), f64::from(unit(bits << 24)));
    let radius = (-2.0 * (1.0 - a).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * b).sin_cos();
    ((radius * cos) as f32, (radius * sin) as f32)
}

widest! {
    /// Fills two rows, the first of which is not longer, with the numbers of [`normal_pair`], up to rounding: a few
    /// nanoseconds each.
    pub fn fill_noise(bits: u64, first: &mut [f32], second: &mut [f32]) {
        for (pair, (x, y)) in first.iter_mut().zip(second).enumerate() {
            let bits = part_bits(bits, pair);
            let radius = (-2.0 * ln_normal(1.0 - unit(bits))).sqrt();
            // An angle in turns: whole quarters, and a rest of at most an eighth.
            let turns = unit(bits << 24);
            let quarters = (4.0 * turns + 0.5) as i32;
            let angle = std::f32::consts::TAU * (turns - 0.25 * quarters as f32);
            let square = angle * angle;
            // Taylor's series; what is left out is below 3e-8.
            let sin = [-1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0]
                .into_iter()
                .fold(1.0 / 362_880.0, |sum: f32, term| sum.mul_add(square, term));
            let cos = [-1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0]
                .into_iter()
                .fold(1.0 / 40_320.0, |sum: f32, term| sum.mul_add(square, term));
            let (sin, cos) = if quarters & 1 == 0 { (sin * angle, cos) } else { (cos, sin * angle) };
            *x = if (quarters + 1) & 2 == 0 { radius * cos } else { -radius * cos };
            *y = if quarters & 2 == 0 { radius * sin } else { -radius * sin };
        }
    }
}

/// So many independent normal numbers of a stream at a step: [`fill_noise`], the first row and then the second one.
pub fn noise(stream: u64, step: i64, count: usize) -> Vec<f32> {
    let half = count.div_ceil(2);
    let mut all = vec![0.0; 2 * half];
    let (first, second) = all.split_at_mut(half);
    fill_noise(bits(stream, step), first, second);
    all.truncate(count);
    all
}

/// Fills a row with independent normal numbers of the bits of a step.
pub fn fill_normals(bits: u64, row: &mut [f32]) {
    for (pair, two) in row.chunks_mut(2).enumerate() {
        let (a, b) = normal_pair(bits, pair);
        two.iter_mut().zip([a, b]).for_each(|(to, x)| *to = x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_splitmix64() {
        // First outputs of the authors' C code from the state 1234567.
        let got: Vec<u64> = (0..3).map(|step| bits(1234567, step)).collect();
        assert_eq!(got, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn seeds_are_those_of_python() {
        // fastrl.utils.seeding.env_seed of the same arguments.
        assert_eq!(
            [env_seed(0, 0, 0), env_seed(7, 3, 12), env_seed(u64::MAX, 1 << 32, 99_999)],
            [1746335285, 240655977, 1268688713]
        );
    }

    #[test]
    fn units_stay_in_range() {
        assert_eq!(unit(0), 0.0);
        assert_eq!(unit(u64::MAX), 1.0 - 1.0 / (1 << 24) as f32);
    }

    #[test]
    fn noise_is_that_of_normal_pairs() {
        let [mut first, mut second] = [vec![0.0; 3001], vec![0.0; 3001]];
        for step in 0..20 {
            fill_noise(bits(7, step), &mut first, &mut second);
            for (pair, (&x, &y)) in first.iter().zip(&second).enumerate() {
                let (a, b) = normal_pair(bits(7, step), pair);
                assert!((x - a).abs() < 2e-6 && (y - b).abs() < 2e-6, "pair {pair}: {x}, {y}, expected {a}, {b}");
            }
        }
    }

    #[test]
    fn normal_numbers_have_the_right_moments_and_are_uncorrelated() {
        let draws: Vec<f64> = (0..50_000)
            .flat_map(|step| (0..2).map(move |pair| normal_pair(bits(7, step), pair)))
            .flat_map(|(a, b)| [f64::from(a), f64::from(b)])
            .collect();
        let n = draws.len() as f64;
        let mean = |f: &dyn Fn(f64) -> f64| draws.iter().map(|&z| f(z)).sum::<f64>() / n;
        assert!(mean(&|z| z).abs() < 0.01);
        assert!((mean(&|z| z * z) - 1.0).abs() < 0.02);
        assert!((mean(&|z| z.powi(4)) - 3.0).abs() < 0.1);
        for lag in 1..4 {
            let product = draws.windows(lag + 1).map(|w| w[0] * w[lag]).sum::<f64>() / n;
            assert!(product.abs() < 0.01, "lag {lag}: {product}");
        }
    }
}
