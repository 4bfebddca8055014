//! Where chance enters. The simulator asks for each draw by what it decides, so the same rules run on a fast
//! generator, on Python's generator draw for draw, or on recorded decisions.

use serde::{Deserialize, Serialize};

use super::python_draws::PythonDraws;
use super::red_actions::RedAction;
use super::scenario::{Exploit, Host, Hosts, USER1};
use crate::rng::Rng;

/// Chance that red takes the exploit it likes best, where it has several.
pub const TOP_EXPLOIT: f64 = 0.75;
/// Chance that Monitor notices a reverse shell.
pub const DETECTION: f64 = 0.95;

/// A process that red just started.
#[derive(Clone, Copy, Debug)]
pub struct NewProcess {
    pub pid: u16,
    /// Its process id happens to be one that Monitor has marked before on this host.
    pub marked: bool,
}

/// The draws of an episode. Those without a result decide nothing but labels (addresses, ports, process ids);
/// only Python's generator must be moved on for them, hence the empty defaults.
pub trait Draws {
    fn begin_episode(&mut self) {}
    /// Which of blue's sessions on the host acts.
    fn blue_session(&mut self, _host: Host) {}
    fn decoy_process(&mut self, _host: Host) {}
    fn ephemeral_port(&mut self, _host: Host) {}
    fn red_process(&mut self, _host: Host) -> NewProcess {
        NewProcess { pid: 0, marked: false }
    }
    fn process_ended(&mut self, _host: Host, _pid: u16) {}
    fn host_restored(&mut self, _host: Host) {}

    /// Which of `weights` (positive, adding up to 1) comes up: the episode's red agent.
    fn red_agent(&mut self, weights: &[f64]) -> usize;
    /// The exploit red tries, out of a set of [`Exploit::bit`]s that is not empty.
    fn exploit(&mut self, options: u8) -> Exploit;
    /// Whether Monitor notices the reverse shell `pid`.
    fn detected(&mut self, host: Host, pid: u16) -> bool;
    /// One of `n` sessions, by age.
    fn session(&mut self, n: usize) -> usize;
    /// The user host that B_line goes for: User1 to User4.
    fn bline_target(&mut self) -> Host;
    /// Puts the addresses in a new random order...
    fn shuffle_addresses(&mut self);
    /// ...of which this is the first that belongs to `hosts`, if any.
    fn first_address(&mut self, hosts: Hosts) -> Option<Host>;
    /// Likewise for host names.
    fn shuffle_hosts(&mut self);
    fn first_host(&mut self, hosts: Hosts) -> Option<Host>;
    /// The action that red takes, having chosen this one.
    fn red_decided(&mut self, chosen: RedAction) -> RedAction {
        chosen
    }
}

/// The exploits of the set but the one red likes best, which comes second.
pub fn split_top(options: u8) -> (u8, Exploit) {
    let top = Exploit::BY_PREFERENCE.into_iter().find(|e| options & e.bit() != 0).expect("there is an option");
    (options & !top.bit(), top)
}

/// The `n`th member of the set, counted from 0.
pub fn nth_host(mut hosts: Hosts, n: u32) -> Host {
    for _ in 0..n {
        hosts &= hosts - 1;
    }
    hosts.trailing_zeros() as Host
}

/// The fast generator. It skips what decides nothing, and picks the first of a shuffled set directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastDraws(pub Rng);

impl FastDraws {
    pub(super) fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    fn any_of(&mut self, hosts: Hosts) -> Option<Host> {
        (hosts != 0).then(|| nth_host(hosts, self.0.below(hosts.count_ones())))
    }
}

impl Draws for FastDraws {
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

    fn bline_target(&mut self) -> Host {
        USER1 + self.0.below(4) as usize
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

/// The generator that an environment was asked to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Fast(FastDraws),
    Python(Box<PythonDraws>),
}

macro_rules! forward {
    ($($(#[$attr:meta])* fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        impl Draws for Source {
            $(
                #[inline]
                fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
                    match self {
                        Self::Fast(draws) => draws.$name($($arg),*),
                        Self::Python(draws) => draws.$name($($arg),*),
                    }
                }
            )*
        }
    };
}

forward! {
    fn begin_episode(&mut self);
    fn blue_session(&mut self, host: Host);
    fn decoy_process(&mut self, host: Host);
    fn ephemeral_port(&mut self, host: Host);
    fn red_process(&mut self, host: Host) -> NewProcess;
    fn process_ended(&mut self, host: Host, pid: u16);
    fn host_restored(&mut self, host: Host);
    fn red_agent(&mut self, weights: &[f64]) -> usize;
    fn exploit(&mut self, options: u8) -> Exploit;
    fn detected(&mut self, host: Host, pid: u16) -> bool;
    fn session(&mut self, n: usize) -> usize;
    fn bline_target(&mut self) -> Host;
    fn shuffle_addresses(&mut self);
    fn first_address(&mut self, hosts: Hosts) -> Option<Host>;
    fn shuffle_hosts(&mut self);
    fn first_host(&mut self, hosts: Hosts) -> Option<Host>;
}
