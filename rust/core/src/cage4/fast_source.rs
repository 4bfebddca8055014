//! The fast random source: each decision's number is a function of the seed, the episode, the step, the purpose and what
//! it is about, so a policy that changes does not change what it has no part in. What decides nothing is not drawn.

use serde::{Deserialize, Serialize};

use super::blueprint::{Blueprint, NetworkSource};
use super::scenario::Slot;
use super::source::{Chance, Purpose, RandomSource, index_at};
use crate::rng::Rng;
use crate::streams::{bits, mix};

impl NetworkSource for Rng {
    fn below(&mut self, n: usize) -> usize {
        Rng::below(self, n as u32) as usize
    }
}

/// A random source on functions of counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FastSource {
    seed: u64,
    /// Episodes started.
    episodes: u64,
    /// Stream of the step.
    step: u64,
}

impl FastSource {
    pub fn new(seed: u64) -> Self {
        Self { seed: mix(seed ^ mix(4)), episodes: 0, step: 0 }
    }

    fn word(&self, purpose: Purpose, of: usize) -> u64 {
        bits(self.step, (purpose as i64) << 32 | of as i64)
    }

    fn unit(&self, purpose: Purpose, of: usize) -> f64 {
        (self.word(purpose, of) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

impl RandomSource for FastSource {
    const DRAWS_ALL: bool = false;

    fn network(&mut self) -> Blueprint {
        self.episodes = self.episodes.wrapping_add(1);
        Blueprint::draw(&mut Rng::new(bits(self.seed, self.episodes as i64)))
    }

    fn start_step(&mut self, time: u32) {
        self.step = bits(bits(self.seed, self.episodes as i64), time.into());
    }

    #[inline]
    fn pick(&mut self, purpose: Purpose, of: usize, n: usize) -> usize {
        // Multiplication's bias, below n / 2^64, cannot be seen.
        if n == 1 { 0 } else { ((u128::from(self.word(purpose, of)) * n as u128) >> 64) as usize }
    }

    fn green_actions(&mut self, first: Slot, actions: &mut [u8]) {
        // The digits of a number in base 3: the bias, 3^10 / 2^64, cannot be seen.
        let mut rest = self.word(Purpose::GreenAction, first);
        for action in actions {
            let product = u128::from(rest) * 3;
            (*action, rest) = ((product >> 64) as u8, product as u64);
        }
    }

    #[inline]
    fn chance(&mut self, purpose: Purpose, of: usize, chance: Chance) -> bool {
        self.unit(purpose, of) < chance.probability()
    }

    fn share(&mut self, purpose: Purpose, of: usize, shares: &[f64]) -> usize {
        index_at(self.unit(purpose, of), shares)
    }

    #[inline]
    fn reliable(&mut self, host: Slot, health: u8) -> bool {
        health >= 100 || self.pick(Purpose::GreenReliable, host, 100) < health.into()
    }

    fn pid(&mut self, host: Slot, top: u16) -> u16 {
        1 + self.pick(Purpose::Pid, usize::from(top) << 8 | host, 9) as u16
    }

    fn deception(&mut self, agent: usize, decoys: impl Iterator<Item = bool>) -> bool {
        let unflagged = decoys.fold(1.0, |chance, is_decoy| chance * if is_decoy { 0.5 } else { 0.9 });
        self.unit(Purpose::DeceptionFound, agent) >= unflagged
    }
}
