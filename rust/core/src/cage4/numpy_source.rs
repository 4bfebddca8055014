//! NumPy's generator, draw for draw: the games of the original after its seed.

use serde::{Deserialize, Serialize};

use super::blueprint::{Blueprint, NetworkSource};
use super::scenario::Slot;
use super::source::{Chance, Purpose, RandomSource, index_at};
use super::used_ports::{NUM_PORTS, UsedPorts};
use crate::numpy_random::NumpyRandom;

impl NetworkSource for NumpyRandom {
    fn below(&mut self, n: usize) -> usize {
        NumpyRandom::below(self, n as u32) as usize
    }

    fn label(&mut self, n: usize) {
        NumpyRandom::below(self, n as u32);
    }

    fn unused(&mut self) {
        self.random();
    }

    fn pid(&mut self, n: usize) -> Option<usize> {
        Some(NumpyRandom::below(self, n as u32) as usize)
    }

    fn session_pid(&mut self) -> u16 {
        1 + NumpyRandom::below(self, 9) as u16
    }
}

/// A random source on [`NumpyRandom`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NumpySource {
    pub rng: NumpyRandom,
    ports: UsedPorts,
    /// During [`RandomSource::foresee`].
    #[serde(skip)]
    foresees: bool,
}

impl NumpySource {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: NumpyRandom::new(seed), ports: UsedPorts::empty(), foresees: false }
    }

    /// Has ports of connections brought into the caches, not taken. Returns the generator as it stands.
    pub(super) fn start_foreseeing(&mut self) -> NumpyRandom {
        self.foresees = true;
        self.rng.clone()
    }

    /// Back to the generator that stood when it started.
    pub(super) fn end_foreseeing(&mut self, rng: NumpyRandom) {
        (self.foresees, self.rng) = (false, rng);
    }

    /// Starts the generator of another seed.
    pub(super) fn seed(&mut self, seed: u64) {
        self.rng = NumpyRandom::new(seed);
    }

    pub(super) fn is_sound(&self) -> bool {
        self.rng.is_sound()
    }

    /// Bytes that it holds beside itself.
    pub(super) const MEMORY: usize = UsedPorts::MEMORY;
}

impl RandomSource for NumpySource {
    fn network(&mut self) -> Blueprint {
        self.ports.clear();
        Blueprint::draw(&mut self.rng)
    }

    fn pick(&mut self, _purpose: Purpose, _of: usize, n: usize) -> usize {
        self.rng.below(n as u32) as usize
    }

    fn chance(&mut self, _purpose: Purpose, _of: usize, chance: Chance) -> bool {
        chance.happens(self.rng.random())
    }

    fn share(&mut self, _purpose: Purpose, _of: usize, shares: &[f64]) -> usize {
        index_at(self.rng.random(), shares)
    }

    fn reliable(&mut self, _host: Slot, health: u8) -> bool {
        self.rng.below(100) < u32::from(health)
    }

    fn pid(&mut self, _host: Slot, _top: u16) -> u16 {
        1 + self.rng.below(9) as u16
    }

    fn deception(&mut self, _agent: usize, decoys: impl Iterator<Item = bool>) -> bool {
        decoys.fold(false, |found, is_decoy| {
            let flagged = self.rng.random() <= 0.5 && is_decoy;
            // The second number is drawn whenever the first does not decide.
            found | (flagged || self.rng.random() <= 0.1 && !is_decoy)
        })
    }

    fn foresee(&mut self, draws: impl FnOnce(&mut Self)) {
        let rng = self.start_foreseeing();
        draws(self);
        self.end_foreseeing(rng);
    }

    fn port(&mut self, host: Slot) {
        let port = self.rng.below(NUM_PORTS as u32);
        if self.foresees {
            self.ports.prefetch(host, port);
        } else if !self.ports.add(host, port) {
            // Again, but not a third time.
            let port = self.rng.below(NUM_PORTS as u32);
            self.ports.add(host, port);
        }
    }

    fn forget_ports(&mut self, host: Slot) {
        self.ports.forget(host);
    }

    fn unused(&mut self) {
        self.rng.random();
    }

    fn shuffle(&mut self, n: usize) {
        self.rng.skip_shuffle(n);
    }
}
