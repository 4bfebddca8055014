//! CPython's `random.Random`, word for word: MT19937 and the sampling methods built on it.
//!
//! Source: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), and the documented behaviour of
//! Python's `random` module (`_randbelow` by rejection of `getrandbits`, `random()` from 53 bits).
//! It lets a simulator draw the very numbers that a Python reference draws after `random.seed(s)`.

use serde::{Deserialize, Serialize};

const N: usize = 624;
const M: usize = 397;

/// The generator behind Python's `random.seed(n)`, `random.choice`, `random.shuffle` and the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PythonRandom {
    words: Vec<u32>,
    next: usize,
}

impl PythonRandom {
    /// `random.seed(seed)` for a non-negative integer below 2^64.
    pub(crate) fn new(seed: u64) -> Self {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let key: &[u32] = if high == 0 { &[low] } else { &[low, high] };
        let mut words = vec![0u32; N];
        words[0] = 19_650_218;
        for i in 1..N {
            words[i] = 1_812_433_253u32.wrapping_mul(words[i - 1] ^ (words[i - 1] >> 30)).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        for _ in 0..N {
            let mixed = (words[i - 1] ^ (words[i - 1] >> 30)).wrapping_mul(1_664_525);
            words[i] = (words[i] ^ mixed).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            j = (j + 1) % key.len();
            if i == N {
                words[0] = words[N - 1];
                i = 1;
            }
        }
        for _ in 0..N - 1 {
            let mixed = (words[i - 1] ^ (words[i - 1] >> 30)).wrapping_mul(1_566_083_941);
            words[i] = (words[i] ^ mixed).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                words[0] = words[N - 1];
                i = 1;
            }
        }
        words[0] = 0x8000_0000;
        Self { words, next: N }
    }

    /// Returns whether it is a state that the twister can come to: not the one that it never leaves. Any cursor will
    /// do: whatever lies past the end means "twist first".
    pub(crate) fn is_sound(&self) -> bool {
        let moves = |words: &[u32]| words[0] >> 31 != 0 || words[1..].iter().any(|&word| word != 0);
        self.words.len() == N && moves(&self.words)
    }

    /// The next 32 bits of the twister.
    pub(crate) fn next_u32(&mut self) -> u32 {
        if self.next >= N {
            self.twist();
        }
        let mut y = self.words[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.words[i] & 0x8000_0000) | (self.words[(i + 1) % N] & 0x7fff_ffff);
            let matrix = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.words[i] = self.words[(i + M) % N] ^ (y >> 1) ^ matrix;
        }
        self.next = 0;
    }

    /// `random.randrange(n)`, also the index that `random.choice` of `n` items takes (`n > 0`). One item costs words
    /// too.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0);
        let bits = 32 - n.leading_zeros();
        loop {
            let r = self.next_u32() >> (32 - bits);
            if r < n {
                return r;
            }
        }
    }

    /// `random.randrange(low, high)`.
    pub(crate) fn range(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low)
    }

    /// `random.random()`.
    pub(crate) fn unit(&mut self) -> f64 {
        let (a, b) = (self.next_u32() >> 5, self.next_u32() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }

    /// The index that `random.choices` of `n` items with `k=1` takes.
    pub(crate) fn choices_one(&mut self, n: u32) -> u32 {
        (self.unit() * f64::from(n)) as u32
    }

    /// `random.shuffle(items)`.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u32 + 1) as usize);
        }
    }

    /// `random.sample(range(n), k)`.
    pub(crate) fn sample(&mut self, n: u32, k: usize) -> Vec<u32> {
        // Python keeps a pool while it is cheaper than a set of the chosen ones.
        let set_size = 21 + if k > 5 { 4usize.pow((3.0 * k as f64).log(4.0).ceil() as u32) } else { 0 };
        let mut chosen: Vec<u32> = Vec::with_capacity(k);
        if n as usize <= set_size {
            let mut pool: Vec<u32> = (0..n).collect();
            for i in 0..k as u32 {
                let j = self.below(n - i) as usize;
                chosen.push(pool[j]);
                pool[j] = pool[(n - i - 1) as usize];
            }
        } else {
            while chosen.len() < k {
                let j = self.below(n);
                if !chosen.contains(&j) {
                    chosen.push(j);
                }
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected values: what CPython 3.11 prints after random.seed(seed).
    #[test]
    fn words_are_those_of_cpython() {
        let mut r = PythonRandom::new(0);
        assert_eq!((0..3).map(|_| r.next_u32()).collect::<Vec<_>>(), WORDS_0);
        let mut r = PythonRandom::new(1 << 40 | 12345);
        assert_eq!((0..3).map(|_| r.next_u32()).collect::<Vec<_>>(), WORDS_WIDE);
    }

    #[test]
    fn methods_are_those_of_cpython() {
        let mut r = PythonRandom::new(42);
        assert_eq!(r.sample(4096, 3), SAMPLE_WIDE);
        assert_eq!(r.sample(14, 5), SAMPLE_POOL);
        assert_eq!(r.sample(100, 8), SAMPLE_EIGHT);
        assert_eq!((0..5).map(|_| r.below(1)).collect::<Vec<_>>(), [0; 5]);
        assert_eq!(r.range(49_152, 60_000), RANGE);
        assert_eq!(r.choices_one(7), CHOICES);
        let mut items: Vec<u32> = (0..13).collect();
        r.shuffle(&mut items);
        assert_eq!(items, SHUFFLED);
        assert_eq!(r.unit(), UNIT);
    }

    const WORDS_0: [u32; 3] = [3626764237, 1654615998, 3255389356];
    const WORDS_WIDE: [u32; 3] = [1332995613, 1500173691, 493462063];
    const SAMPLE_WIDE: [u32; 3] = [912, 204, 2253];
    const SAMPLE_POOL: [u32; 5] = [3, 13, 2, 1, 8];
    const SAMPLE_EIGHT: [u32; 8] = [11, 75, 54, 4, 3, 27, 29, 64];
    const RANGE: u32 = 58806;
    const CHOICES: u32 = 1;
    const SHUFFLED: [u32; 13] = [9, 3, 10, 8, 12, 7, 1, 11, 4, 5, 6, 2, 0];
    const UNIT: f64 = 0.3589793804846284;
}
