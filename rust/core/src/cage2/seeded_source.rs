//! The random source that an environment's options select.

use serde::{Deserialize, Serialize};

use super::fast_source::FastSource;
use super::python_source::PythonSource;
use super::scenario::{Exploit, Host, Hosts};
use super::source::{Drawing, NewProcess, RandomSource};
use super::tables::Scenario;
use crate::rng::Rng;

/// A random source that a seed fixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeededSource {
    Fast(FastSource),
    Python(Box<PythonSource>),
}

impl SeededSource {
    /// See [`crate::env::Env::reseed`]: the labels of the episode stay.
    pub(super) fn reseed(&mut self, seed: u64) {
        match self {
            Self::Fast(source) => source.0 = Rng::new(seed),
            Self::Python(source) => source.reseed(seed),
        }
    }
}

macro_rules! forward {
    ($($(#[$attr:meta])* fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        impl RandomSource for SeededSource {
            $(
                #[inline]
                fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
                    match self {
                        Self::Fast(source) => source.$name($($arg),*),
                        Self::Python(source) => source.$name($($arg),*),
                    }
                }
            )*

            #[inline(always)]
            fn serve<T: Drawing>(&mut self, drawing: T) -> T::Output {
                match self {
                    Self::Fast(source) => drawing.draw(source),
                    Self::Python(source) => drawing.draw(source.as_mut()),
                }
            }
        }
    };
}

forward! {
    fn start_episode(&mut self, scenario: &Scenario);
    fn blue_session(&mut self, sessions: u32);
    fn decoy_process(&mut self, host: Host);
    fn ephemeral_port(&mut self, host: Host);
    fn red_process(&mut self, host: Host) -> NewProcess;
    fn process_ended(&mut self, host: Host, pid: u16);
    fn host_restored(&mut self, host: Host);
    fn red_agent(&mut self, weights: &[f64]) -> usize;
    fn exploit(&mut self, options: u8) -> Exploit;
    fn detected(&mut self, host: Host, pid: u16) -> bool;
    fn session(&mut self, n: usize) -> usize;
    fn bline_target(&mut self, entries: &[u8]) -> u8;
    fn shuffle_addresses(&mut self);
    fn first_address(&mut self, hosts: Hosts) -> Option<Host>;
    fn shuffle_hosts(&mut self);
    fn first_host(&mut self, hosts: Hosts) -> Option<Host>;
}
