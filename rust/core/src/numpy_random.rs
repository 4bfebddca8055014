//! NumPy's `default_rng(seed)`, word for word: `SeedSequence`, PCG64, and the draws of `Generator` built on it.
//!
//! Source: M. O'Neill, "PCG: a family of simple fast space-efficient statistically good algorithms for random number
//! generation" (2014; PCG XSL RR 128/64); NumPy's `bit_generator.pyx` (`SeedSequence`) and `distributions.c`; bounded
//! integers after D. Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019).
//! It lets a simulator draw the very numbers that a Gymnasium environment draws after `reset(seed=s)`.

use serde::{Deserialize, Serialize};

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// The generator behind `numpy.random.Generator(PCG64(SeedSequence(seed)))`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumpyRandom {
    state: u128,
    increment: u128,
    /// The upper half of a word whose lower half was drawn as 32 bits.
    half: Option<u32>,
}

impl NumpyRandom {
    pub fn new(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = seed_words(seed);
        let join = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut rng = Self { state: 0, increment: join(stream_high, stream_low) << 1 | 1, half: None };
        rng.advance();
        rng.state = rng.state.wrapping_add(join(state_high, state_low));
        rng.advance();
        rng
    }

    /// Returns whether it runs through all of its period, as every one does that was made from a seed.
    pub fn is_sound(&self) -> bool {
        self.increment & 1 == 1
    }

    /// The lower and the upper half of the state, as NumPy's `bit_generator.state` has it.
    pub fn words(&self) -> [u64; 2] {
        [self.state as u64, (self.state >> 64) as u64]
    }

    /// The upper half of a word whose lower half was drawn as 32 bits, if it is still to come.
    pub fn half(&self) -> Option<u32> {
        self.half
    }

    #[inline]
    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        let mixed = (self.state >> 64) as u64 ^ self.state as u64;
        mixed.rotate_right((self.state >> 122) as u32)
    }

    /// The next 32 random bits: each word gives two, the lower half first.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let word = self.next_u64();
        self.half = Some((word >> 32) as u32);
        word as u32
    }

    /// `Generator.random()`.
    #[inline]
    pub fn random(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// `Generator.uniform(low, high)`.
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random()
    }

    /// `Generator.integers(n)`, and the index that `Generator.choice` takes from `n` things (`n > 0`). Of one thing it
    /// draws nothing.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0);
        if n == 1 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(n);
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }

    /// The index that `Generator.choice(n, size=1, p=weights / weights.sum())` takes.
    pub fn weighted(&mut self, weights: &[f64]) -> usize {
        let sum: f64 = weights.iter().sum();
        let mut cumulated: Vec<f64> = Vec::with_capacity(weights.len());
        for weight in weights {
            cumulated.push(cumulated.last().unwrap_or(&0.0) + weight / sum);
        }
        let last = cumulated[weights.len() - 1];
        let number = self.random();
        cumulated.iter().take_while(|&&share| share / last <= number).count()
    }

    /// Two different numbers below `n` (at least 2), as `Generator.choice(n, size=2, replace=False)` draws them: by
    /// Floyd's method, then shuffled (J. Bentley, R. Floyd, "A sample of brilliance", CACM 30 (1987)).
    pub fn two_of(&mut self, n: u32) -> [u32; 2] {
        let first = self.below(n - 1);
        let second = self.below(n);
        let second = if second == first { n - 1 } else { second };
        if self.below(2) == 0 { [second, first] } else { [first, second] }
    }

    /// `Generator.shuffle`, whose integers NumPy draws by rejection of masked words.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            things.swap(i, self.masked(i as u32) as usize);
        }
    }

    /// Draws what [`NumpyRandom::shuffle`] of `len` things draws. No branch depends on a number.
    pub fn skip_shuffle(&mut self, len: usize) {
        let mut top = (len as u32).saturating_sub(1);
        while top > 0 {
            let number = self.next_u32() & (u32::MAX >> top.leading_zeros());
            top -= u32::from(number <= top);
        }
    }

    /// Uniform on `0..=top` (`top > 0`) by rejection of masked words.
    #[inline]
    fn masked(&mut self, top: u32) -> u32 {
        let mask = u32::MAX >> top.leading_zeros();
        loop {
            let number = self.next_u32() & mask;
            if number <= top {
                return number;
            }
        }
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut constant = 0x43b0_d7e5u32;
    let mut hash = |mut value: u32| {
        value ^= constant;
        constant = constant.wrapping_mul(0x931e_8875);
        value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = [hash(seed as u32), hash((seed >> 32) as u32), hash(0), hash(0)];
    for from in 0..4 {
        for to in 0..4 {
            if from != to {
                let hashed = hash(pool[from]);
                let mixed = pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(hashed.wrapping_mul(0x4973_f715));
                pool[to] = mixed ^ mixed >> 16;
            }
        }
    }
    let mut constant = 0x8b51_f9ddu32;
    let mut words = [0u64; 4];
    for i in 0..8 {
        let mut value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        value = value.wrapping_mul(constant);
        words[i / 2] |= u64::from(value ^ value >> 16) << (32 * (i % 2));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_numpy_draws() {
        // seed, three of integers(4), random(), uniform(0.9, 1.1), choice(1000003), choice(1), integers(3), random()
        let cases = [
            (0u64, [3, 2, 2], 0.04097352393619469, 0.9033055271057059, 269787, 0, 0.9127555772777217),
            (12345, [2, 0, 3], 0.7973654573327341, 1.035250934150195, 316759, 2, 0.33281392786638453),
            (1099511627783, [0, 3, 2], 0.15379071585298754, 1.0349009091735217, 255305, 2, 0.48999541650863676),
            (18446744073709551615, [2, 2, 3], 0.007403081599260064, 1.0789136252878295, 845314, 1, 0.3188385102672874),
        ];
        for (seed, indices, a, b, index, last, c) in cases {
            let mut rng = NumpyRandom::new(seed);
            assert_eq!([(); 3].map(|()| rng.below(4)), indices, "seed {seed}");
            assert_eq!((rng.random(), rng.uniform(0.9, 1.1)), (a, b), "seed {seed}");
            assert_eq!((rng.below(1_000_003), rng.below(1), rng.below(3)), (index, 0, last), "seed {seed}");
            assert_eq!(rng.random(), c, "seed {seed}");
        }
        let mut rng = NumpyRandom::new(5);
        let weights = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!([(); 8].map(|()| rng.weighted(&weights)), [5, 5, 4, 3, 1, 3, 4, 1]);
        assert_eq!([(); 6].map(|()| rng.two_of(4)), [[3, 0], [2, 0], [0, 2], [1, 3], [0, 3], [0, 2]]);
        let mut things: Vec<usize> = (0..8).collect();
        NumpyRandom::new(7).shuffle(&mut things);
        assert_eq!(things, [0, 6, 7, 2, 4, 5, 1, 3]);
        for len in 0..99 {
            let (mut shuffled, mut skipped) = (NumpyRandom::new(len), NumpyRandom::new(len));
            shuffled.shuffle(&mut vec![(); len as usize]);
            skipped.skip_shuffle(len as usize);
            assert_eq!(shuffled, skipped);
        }
    }
}
