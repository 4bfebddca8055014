//! Blue's view: the bits of the challenge's wrapper, and what else Monitor names.
//!
//! Four bits a host: activity (none 00, scan 10, exploit 11), then compromise (no 00, unknown 10, user 01,
//! privileged 11).

use serde::{Deserialize, Serialize};

use super::events::{Activity, BlueOutcome, Traces};
use super::scenario::{Host, Hosts, NUM_HOSTS};
use super::tables::{MAX_HOSTS, Scenario};
use crate::env::ensure;

/// Bits of an observation of Scenario 2.
pub const OBS_BITS: usize = 4 * NUM_HOSTS;

/// The values are the two bits of the observation, the first one lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compromise {
    No = 0b00,
    Unknown = 0b01,
    User = 0b10,
    Privileged = 0b11,
}

/// Hosts whose bits make a word.
pub const WORD_HOSTS: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Bit `4 * host + k` is bit `k` of the host, of the first [`WORD_HOSTS`] hosts and the next ones.
    bits: [u64; MAX_HOSTS / WORD_HOSTS],
    /// Hosts where Monitor named a suspicious process in the last step. CybORG's raw observation has them, the bits do
    /// not; the scripted baselines of the challenge rely on them.
    alerts: Hosts,
}

impl View {
    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let [first, second] = self.bits;
        let bits = u128::from(second) << 64 | u128::from(first);
        let there = bits.checked_shr(4 * scenario.len() as u32).unwrap_or(0) == 0 && scenario.are_hosts(self.alerts);
        ensure(there, "blue's view is impossible")
    }

    /// The observation of the first [`WORD_HOSTS`] hosts; bit `i` is its entry `i`.
    pub fn bits(&self) -> u64 {
        self.bits[0]
    }

    /// The observation, [`WORD_HOSTS`] hosts a word.
    pub fn words(&self) -> [u64; MAX_HOSTS / WORD_HOSTS] {
        self.bits
    }

    /// The bits of the host and of those after it, its own lowest.
    pub(super) fn of(&self, host: Host) -> u64 {
        self.bits[host / WORD_HOSTS] >> (4 * (host % WORD_HOSTS))
    }

    pub fn alerts(&self) -> Hosts {
        self.alerts
    }

    pub fn activity(&self, host: Host) -> Activity {
        match self.of(host) & 0b11 {
            0b00 => Activity::None,
            0b01 => Activity::Scan,
            _ => Activity::Exploit,
        }
    }

    pub fn compromise(&self, host: Host) -> Compromise {
        match self.of(host) >> 2 & 0b11 {
            0b00 => Compromise::No,
            0b01 => Compromise::Unknown,
            0b10 => Compromise::User,
            _ => Compromise::Privileged,
        }
    }

    pub fn set_compromise(&mut self, host: Host, compromise: Compromise) {
        let shift = 4 * (host % WORD_HOSTS) + 2;
        let word = &mut self.bits[host / WORD_HOSTS];
        *word = *word & !(0b11 << shift) | (compromise as u64) << shift;
    }

    /// Monitor at the end of a step: red's traces become activity, and what Analyse found is noted.
    pub fn monitor(&mut self, traces: Traces, blue: BlueOutcome) {
        const ACTIVITY: u64 = 0x3333_3333_3333_3333;
        self.bits.iter_mut().for_each(|word| *word &= !ACTIVITY);
        self.alerts = Hosts::from(traces.shell) << traces.host;
        let activity = traces.activity(blue.decoy_on);
        self.bits[traces.host / WORD_HOSTS] |= (activity as u64) << (4 * (traces.host % WORD_HOSTS));
        if activity == Activity::Exploit {
            self.set_compromise(traces.host, Compromise::User);
        }
        if let Some(host) = blue.file_on {
            self.set_compromise(host, Compromise::Privileged);
        }
    }

    /// Writes the bits of as many hosts as there is room for.
    pub fn write(&self, obs: &mut [f32]) {
        // A length that the compiler knows, of Scenario 2, makes it faster.
        if let Ok(obs) = <&mut [f32; OBS_BITS]>::try_from(&mut *obs) {
            return write_bits(self.bits[0], obs);
        }
        for (&word, entries) in self.bits.iter().zip(obs.chunks_mut(4 * WORD_HOSTS)) {
            write_bits(word, entries);
        }
    }
}

/// Writes the lowest bits as 0.0 and 1.0.
#[inline]
pub fn write_bits(bits: u64, out: &mut [f32]) {
    let (eights, rest) = out.as_chunks_mut::<8>();
    let mut left = bits;
    for entries in eights {
        *entries = BYTES[(left & 0xff) as usize];
        left >>= 8;
    }
    rest.copy_from_slice(&BYTES[(left & 0xff) as usize][..rest.len()]);
}

/// The eight entries of every byte.
static BYTES: [[f32; 8]; 256] = {
    let mut table = [[0.0; 8]; 256];
    let mut i = 0;
    while i < 8 * 256 {
        table[i / 8][i % 8] = ((i / 8) >> (i % 8) & 1) as f32;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_written_in_order() {
        let mut view = View::default();
        view.set_compromise(3, Compromise::User);
        view.set_compromise(12, Compromise::Privileged);
        let mut obs = [9.0; OBS_BITS];
        view.write(&mut obs);
        let ones: Vec<usize> = (0..OBS_BITS).filter(|&i| obs[i] == 1.0).collect();
        assert_eq!(ones, [15, 50, 51]);
        assert!(obs.iter().all(|&x| x == 0.0 || x == 1.0));
    }
}
