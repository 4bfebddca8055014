//! The fast random source: each decision's number is a function of the seed, the episode, the step, the purpose and what
//! it is about, so a policy that changes does not change what it has no part in. What decides nothing is not drawn.

use serde::{Deserialize, Serialize};

use super::blueprint::{Blueprint, NetworkSource};
use super::scenario::{Slot, Users, hosts_with, user_bit};
use super::source::{Chance, Purpose, RARELY, RandomSource, index_at};
use crate::rng::Rng;
use crate::streams::{bits, mix};

impl NetworkSource for Rng {
    fn below(&mut self, n: usize) -> usize {
        Rng::below(self, n as u32) as usize
    }
}

/// Subjects of the words whose bits are for one user each: above those of hosts and agents.
const LAYERS: usize = 1 << 8;
/// Layers that a user's bits all have to be set in to be a candidate for what happens rarely: one of 64 is.
const CANDIDATE_LAYERS: usize = 6;

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
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed ^ mix(4)), episodes: 0, step: 0 }
    }

    fn word(&self, purpose: Purpose, of: usize) -> u64 {
        bits(self.step, (purpose as i64) << 32 | of as i64)
    }

    /// A random bit for each user, of layer `number`.
    #[inline]
    fn layer(&self, purpose: Purpose, number: usize) -> Users {
        let [low, high] = [0, 1].map(|half| Users::from(self.word(purpose, LAYERS + 2 * number + half)));
        high << 64 | low
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

    fn green_actions(&mut self, users: Users) -> [Users; 2] {
        // Two bits a user, drawn again while both are set.
        let (mut access, mut work, mut left) = (0, 0, users);
        let mut number = 0;
        while left != 0 {
            let [first, second] = [0, 1].map(|bit| self.layer(Purpose::GreenAction, number + bit));
            access |= left & !first & !second;
            work |= left & !first & second;
            left &= first & second;
            number += 2;
        }
        [access, work]
    }

    fn rarely(&mut self, purpose: Purpose, users: Users) -> Users {
        let candidates = (0..CANDIDATE_LAYERS).fold(users, |set, number| set & self.layer(purpose, number));
        let share = Chance::Below(RARELY.probability() * f64::from(1 << CANDIDATE_LAYERS));
        let happens = |slot: &Slot| self.chance(purpose, *slot, share);
        hosts_with(candidates).filter(happens).fold(0, |set, slot| set | user_bit(slot))
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
