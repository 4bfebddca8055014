//! The fast random source: xoshiro256++, with no draw that decides nothing.

use serde::{Deserialize, Serialize};

use super::scenario::{Exploit, Host, Hosts};
use super::source::{DETECTION, RandomSource, TOP_EXPLOIT, split_top};
use crate::rng::Rng;

/// The `n`th member of the set, counted from 0.
fn nth_host(mut hosts: Hosts, n: u32) -> Host {
    for _ in 0..n {
        hosts &= hosts - 1;
    }
    hosts.trailing_zeros() as Host
}

/// A random source on [`Rng`]. It skips draws that decide nothing, and draws the first of a shuffled set directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastSource(pub Rng);

impl FastSource {
    pub(super) fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    fn any_of(&mut self, hosts: Hosts) -> Option<Host> {
        (hosts != 0).then(|| nth_host(hosts, self.0.below(hosts.count_ones())))
    }
}

impl RandomSource for FastSource {
    fn red_agent(&mut self, weights: &[f64]) -> usize {
        let mut left = self.0.unit();
        for (i, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return i;
            }
        }
        weights.len() - 1
    }

    fn exploit(&mut self, options: u8) -> Exploit {
        let (others, top) = split_top(options);
        if others == 0 || self.0.unit() < TOP_EXPLOIT {
            return top;
        }
        Exploit::ALL[nth_host(Hosts::from(others), self.0.below(others.count_ones()))]
    }

    fn detected(&mut self, _host: Host, _pid: u16) -> bool {
        self.0.unit() < DETECTION
    }

    fn session(&mut self, n: usize) -> usize {
        self.0.below(n as u32) as usize
    }

    fn bline_target(&mut self, entries: &[u8]) -> u8 {
        entries[self.0.below(entries.len() as u32) as usize]
    }

    fn shuffle_addresses(&mut self) {}

    fn first_address(&mut self, hosts: Hosts) -> Option<Host> {
        self.any_of(hosts)
    }

    fn shuffle_hosts(&mut self) {}

    fn first_host(&mut self, hosts: Hosts) -> Option<Host> {
        self.any_of(hosts)
    }
}
