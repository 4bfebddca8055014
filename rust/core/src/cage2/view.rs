//! Blue's view: the 52 bits of the challenge's wrapper, and which hosts were scanned.
//!
//! Four bits a host: activity (none 00, scan 10, exploit 11), then compromise (no 00, unknown 10, user 01,
//! privileged 11).

use serde::{Deserialize, Serialize};

use super::events::{Activity, BlueOutcome, Traces};
use super::scenario::{Host, Hosts, NUM_HOSTS, are_hosts};
use crate::env::ensure;

/// Bits of an observation.
pub const OBS_BITS: usize = 4 * NUM_HOSTS;
/// Hosts whose scans the winners of the challenge remembered; the operational hosts are not among them.
pub const SCAN_HOSTS: [Host; 10] = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12];

/// The values are the two bits of the observation, the first one lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compromise {
    No = 0b00,
    Unknown = 0b01,
    User = 0b10,
    Privileged = 0b11,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Bit `4 * host + k` is bit `k` of the host.
    bits: u64,
    /// Per [`SCAN_HOSTS`]: 0 never scanned, 1 scanned before, 2 scanned last.
    scans: [u8; SCAN_HOSTS.len()],
    /// Hosts where Monitor named a suspicious process in the last step. CybORG's raw observation has them, the 52 bits
    /// do not; the scripted baselines of the challenge rely on them.
    alerts: Hosts,
}

impl View {
    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self) -> Result<(), String> {
        let there = self.bits >> OBS_BITS == 0 && are_hosts(self.alerts) && self.scans.iter().all(|&scan| scan <= 2);
        ensure(there, "blue's view is impossible")
    }

    /// The observation; bit `i` is its entry `i`.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    pub fn alerts(&self) -> Hosts {
        self.alerts
    }

    pub fn activity(&self, host: Host) -> Activity {
        match self.bits >> (4 * host) & 0b11 {
            0b00 => Activity::None,
            0b01 => Activity::Scan,
            _ => Activity::Exploit,
        }
    }

    pub fn compromise(&self, host: Host) -> Compromise {
        match self.bits >> (4 * host + 2) & 0b11 {
            0b00 => Compromise::No,
            0b01 => Compromise::Unknown,
            0b10 => Compromise::User,
            _ => Compromise::Privileged,
        }
    }

    pub fn set_compromise(&mut self, host: Host, compromise: Compromise) {
        let shift = 4 * host + 2;
        self.bits = self.bits & !(0b11 << shift) | (compromise as u64) << shift;
    }

    /// Monitor at the end of a step: red's traces become activity, and what Analyse found is noted.
    pub fn monitor(&mut self, traces: Traces, blue: BlueOutcome) {
        const ACTIVITY: u64 = 0x3_3333_3333_3333;
        self.bits &= !ACTIVITY;
        self.alerts = Hosts::from(traces.shell) << traces.host;
        let activity = traces.activity(blue.decoy_on);
        self.bits |= (activity as u64) << (4 * traces.host);
        match activity {
            Activity::Exploit => self.set_compromise(traces.host, Compromise::User),
            Activity::Scan => self.note_scan(traces.host),
            Activity::None => {}
        }
        if let Some(host) = blue.file_on {
            self.set_compromise(host, Compromise::Privileged);
        }
    }

    fn note_scan(&mut self, host: Host) {
        if let Some(place) = SCAN_HOSTS.iter().position(|&h| h == host) {
            for scan in &mut self.scans {
                *scan = (*scan).min(1);
            }
            self.scans[place] = 2;
        }
    }

    /// Writes the 52 bits as 0.0 and 1.0 and, if there is room for them, the ten scan values.
    pub fn write(&self, obs: &mut [f32]) {
        let (bits, scans) = obs.split_at_mut(OBS_BITS);
        for (host, entries) in bits.chunks_exact_mut(4).enumerate() {
            entries.copy_from_slice(&NIBBLES[(self.bits >> (4 * host) & 0xf) as usize]);
        }
        for (entry, &scan) in scans.iter_mut().zip(&self.scans) {
            *entry = f32::from(scan);
        }
    }
}

/// The four entries of every four bits.
static NIBBLES: [[f32; 4]; 16] = {
    let mut table = [[0.0; 4]; 16];
    let mut i = 0;
    while i < 64 {
        table[i / 4][i % 4] = ((i / 4) >> (i % 4) & 1) as f32;
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

    #[test]
    fn only_the_last_scan_counts_two() {
        let mut view = View::default();
        view.note_scan(9);
        view.note_scan(4);
        view.note_scan(12);
        let mut obs = [9.0; OBS_BITS + 10];
        view.write(&mut obs);
        assert_eq!(obs[OBS_BITS..], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0]);
    }
}
