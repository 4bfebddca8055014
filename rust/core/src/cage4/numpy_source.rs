//! NumPy's generator, draw for draw: the games of the original after its seed.

use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::blueprint::{Blueprint, NetworkSource};
use super::scenario::{NUM_SLOTS, Slot};
use super::source::{Chance, Purpose, RandomSource, index_at};
use crate::memory::prefetch;
use crate::numpy_random::NumpyRandom;

/// Ephemeral ports, of which a connection takes one.
const NUM_PORTS: usize = 10848;
const PORT_WORDS: usize = NUM_PORTS.div_ceil(64);

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
    pub fn new(seed: u64) -> Self {
        Self { rng: NumpyRandom::new(seed), ports: UsedPorts(vec![0; NUM_SLOTS * PORT_WORDS]), foresees: false }
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
    pub(super) const MEMORY: usize = NUM_SLOTS * PORT_WORDS * size_of::<u64>();
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
        let words = &mut self.ports.0[host * PORT_WORDS..(host + 1) * PORT_WORDS];
        let mut port = self.rng.below(NUM_PORTS as u32) as usize;
        if self.foresees {
            prefetch(&words[port / 64]);
            return;
        }
        if words[port / 64] >> (port % 64) & 1 == 1 {
            port = self.rng.below(NUM_PORTS as u32) as usize;
        }
        words[port / 64] |= 1 << (port % 64);
    }

    fn forget_ports(&mut self, host: Slot) {
        self.ports.0[host * PORT_WORDS..(host + 1) * PORT_WORDS].fill(0);
    }

    fn unused(&mut self) {
        self.rng.random();
    }

    fn shuffle(&mut self, n: usize) {
        for top in (1..n as u32).rev() {
            self.rng.masked(top);
        }
    }
}

/// Ephemeral ports that hosts have used since they were last restored, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedPorts(Vec<u64>);

impl UsedPorts {
    /// Memory that was never used is not touched: it is not there before that.
    fn clear(&mut self) {
        for host in self.0.chunks_exact_mut(PORT_WORDS).filter(|host| host.iter().any(|&word| word != 0)) {
            host.fill(0);
        }
    }
}

/// As a list of the ports: few of the bits are set.
impl Serialize for UsedPorts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let count = self.0.iter().map(|word| word.count_ones() as usize).sum();
        let mut list = serializer.serialize_seq(Some(count))?;
        let mut last = 0;
        for (i, &word) in self.0.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let port = i as u32 * 64 + left.trailing_zeros();
                // The distance from the one before takes fewer bytes.
                list.serialize_element(&(port - last))?;
                last = port;
                left &= left - 1;
            }
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for UsedPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ports;

        impl<'de> Visitor<'de> for Ports {
            type Value = UsedPorts;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the ports that hosts have used")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<UsedPorts, A::Error> {
                let mut words = vec![0; NUM_SLOTS * PORT_WORDS];
                let mut port = 0_usize;
                while let Some(distance) = list.next_element::<u32>()? {
                    port = port.saturating_add(distance as usize);
                    let word = words.get_mut(port / 64).ok_or_else(|| Error::custom("no such port"))?;
                    *word |= 1 << (port % 64);
                }
                Ok(UsedPorts(words))
            }
        }

        deserializer.deserialize_seq(Ports)
    }
}
