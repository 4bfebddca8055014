//! Powers, noise, interference and the probability that a message is decoded.

use std::f64::consts::{LOG2_10, LOG2_E, LOG10_2};

use crate::traffic::math::{exp2, log2};

/// Properties that all radios share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radio {
    /// GHz.
    pub frequency: f64,
    /// Hz, of a resource.
    pub bandwidth: f64,
    /// dB.
    pub noise_figure: f64,
    /// Gain of each antenna, dBi.
    pub antenna_gain: f64,
    /// SINR at which half of the messages are decoded, dB.
    pub threshold: f64,
    /// SINR, in dB from the threshold, at which the odds are e to 1.
    pub slope: f64,
}

impl Default for Radio {
    fn default() -> Self {
        Self { frequency: 5.9, bandwidth: 10e6, noise_figure: 9.0, antenna_gain: 3.0, threshold: 5.0, slope: 1.0 }
    }
}

/// Thermal noise, dBm/Hz.
const THERMAL: f64 = -174.0;

/// dBm of a power in mW, or dB of a ratio. 0 counts as the smallest normal number.
#[inline(always)]
pub fn decibels(ratio: f64) -> f64 {
    10.0 * LOG10_2 * log2(ratio.max(f64::MIN_POSITIVE))
}

/// mW of a power in dBm, or the ratio of dB.
#[inline(always)]
pub fn linear(decibels: f64) -> f64 {
    exp2(decibels * (LOG2_10 / 10.0))
}

impl Radio {
    /// Checks every option; the error names the first that is out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        let options = [
            ("frequency", self.frequency, 0.1, 100.0),
            ("bandwidth", self.bandwidth, 1.0, 1e10),
            ("noise_figure", self.noise_figure, -100.0, 100.0),
            ("antenna_gain", self.antenna_gain, -100.0, 100.0),
            ("sinr_threshold", self.threshold, -100.0, 100.0),
            ("sinr_slope", self.slope, 1e-3, 100.0),
        ];
        for (name, value, low, high) in options {
            if !(low..=high).contains(&value) {
                return Err(format!("{name}: expected {low} to {high}, got {value}"));
            }
        }
        Ok(())
    }

    /// Noise in a resource, mW.
    pub fn noise(&self) -> f64 {
        linear(THERMAL + decibels(self.bandwidth) + self.noise_figure)
    }

    /// Probability that a message is decoded at an SINR in dB.
    #[inline(always)]
    pub fn success(&self, sinr: f64) -> f64 {
        1.0 / (1.0 + exp2((self.threshold - sinr) / self.slope * LOG2_E))
    }
}

/// The stations that send in each resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Senders {
    /// Stations, resource after resource, and where each resource's begin.
    stations: Vec<u32>,
    starts: Vec<u32>,
}

impl Senders {
    /// Sorts the stations that send by their resources, `resource[i]` below `resources`.
    pub(super) fn sort(&mut self, resource: &[u32], sends: impl Fn(usize) -> bool, resources: usize) {
        self.starts.clear();
        self.starts.resize(resources + 1, 0);
        for (i, &r) in resource.iter().enumerate() {
            self.starts[r as usize + 1] += u32::from(sends(i));
        }
        for r in 0..resources {
            self.starts[r + 1] += self.starts[r];
        }
        self.stations.clear();
        self.stations.resize(self.starts[resources] as usize, 0);
        // Filled from the end of each part.
        let mut ends = self.starts[1..].to_vec();
        for (i, &r) in resource.iter().enumerate().rev().filter(|&(i, _)| sends(i)) {
            ends[r as usize] -= 1;
            self.stations[ends[r as usize] as usize] = i as u32;
        }
    }

    /// The stations that send in a resource, in ascending order.
    #[inline]
    pub(super) fn of(&self, resource: usize) -> &[u32] {
        &self.stations[self.starts[resource] as usize..self.starts[resource + 1] as usize]
    }
}

/// Signal to interference and noise, as a ratio, of the message of `sender`, one of `senders` of a resource, at a
/// station that receives `powers` (mW, of all stations).
#[inline]
pub(super) fn ratio(sender: u32, senders: &[u32], powers: &[f64], noise: f64) -> f64 {
    let others = senders.iter().filter(|&&other| other != sender);
    // Summed up without the signal: the difference of two sums would lose a weak interferer.
    let interference = others.map(|&other| powers[other as usize]).fold(0.0, |sum, power| sum + power);
    powers[sender as usize] / (noise + interference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_10_mhz_is_minus_95_dbm() {
        assert!((decibels(Radio::default().noise()) + 95.0).abs() < 1e-9);
    }

    #[test]
    fn half_of_the_messages_arrive_at_the_threshold() {
        let radio = Radio { threshold: 3.0, slope: 2.0, ..Radio::default() };
        assert_eq!(radio.success(3.0), 0.5);
        assert!((radio.success(5.0) - (1.0 - 1.0 / (1.0 + 1.0_f64.exp()))).abs() < 1e-12);
        assert_eq!(radio.success(1e9), 1.0);
        assert!(radio.success(-1e9) < 1e-300);
    }

    #[test]
    fn senders_are_sorted_by_resource() {
        let mut senders = Senders::default();
        senders.sort(&[2, 0, 2, 1, 2], |i| i != 2, 4);
        let all: Vec<&[u32]> = (0..4).map(|r| senders.of(r)).collect();
        assert_eq!(all, [&[1][..], &[3], &[0, 4], &[]]);
    }
}
