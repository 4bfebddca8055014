//! The source of randomness of an episode. The simulator names each draw by what it decides, so the same rules run on a
//! fast generator, on Python's generator draw for draw, or on recorded decisions.

use super::events::RedAction;
use super::scenario::{Exploit, Host, Hosts};
use super::tables::Scenario;

/// Chance that red takes the exploit it likes best, where it has several.
pub(super) const TOP_EXPLOIT: f64 = 0.75;
/// Chance that Monitor notices a reverse shell.
pub(super) const DETECTION: f64 = 0.95;

/// A process that red just started.
#[derive(Clone, Copy, Debug)]
pub struct NewProcess {
    pub pid: u16,
    /// True if Monitor has marked a process with this id before on this host.
    pub marked: bool,
}

/// The random decisions of an episode. Methods without a result decide nothing but labels (addresses, ports, process
/// ids): only Python's generator must advance for them, so they do nothing by default.
pub trait RandomSource {
    fn start_episode(&mut self, _scenario: &Scenario) {}
    /// Choice of the session of blue's that acts, among so many on the host.
    fn blue_session(&mut self, _sessions: u32) {}
    fn decoy_process(&mut self, _host: Host) {}
    fn ephemeral_port(&mut self, _host: Host) {}
    fn red_process(&mut self, _host: Host) -> NewProcess {
        NewProcess { pid: 0, marked: false }
    }
    fn process_ended(&mut self, _host: Host, _pid: u16) {}
    fn host_restored(&mut self, _host: Host) {}

    /// An index into `weights` (positive, adding up to 1), each with the chance that its weight gives: the episode's
    /// red agent.
    fn red_agent(&mut self, weights: &[f64]) -> usize;
    /// The exploit red tries, out of a set of [`Exploit::bit`]s that is not empty.
    fn exploit(&mut self, options: u8) -> Exploit;
    /// Returns whether Monitor notices the reverse shell `pid`.
    fn detected(&mut self, host: Host, pid: u16) -> bool;
    /// One of `n` sessions, by age.
    fn session(&mut self, n: usize) -> usize;
    /// The host by which B_line enters, one of these.
    fn bline_target(&mut self, entries: &[u8]) -> u8;
    /// Puts the addresses in a new random order, from which [`RandomSource::first_address`] takes.
    fn shuffle_addresses(&mut self);
    /// The first address in the shuffled order that belongs to `hosts`, if any.
    fn first_address(&mut self, hosts: Hosts) -> Option<Host>;
    /// Puts the host names in a new random order, from which [`RandomSource::first_host`] takes.
    fn shuffle_hosts(&mut self);
    /// The first name in the shuffled order that belongs to `hosts`, if any.
    fn first_host(&mut self, hosts: Hosts) -> Option<Host>;
    /// The action that red takes, given the one its agent chose. Only a recording overrides the choice.
    fn red_action(&mut self, chosen: RedAction) -> RedAction {
        chosen
    }

    /// Lets it draw. A source that is one of several passes on the one that it is: the drawing is compiled for each of them,
    /// asks once which one it is, and draws that do nothing cost nothing.
    fn serve<T: Drawing>(&mut self, drawing: T) -> T::Output
    where
        Self: Sized,
    {
        drawing.draw(self)
    }
}

/// A part of a step that draws from any source.
pub trait Drawing {
    type Output;

    fn draw(self, random: &mut impl RandomSource) -> Self::Output;
}

/// The exploits of the set but the one red likes best, which comes second.
pub(super) fn split_top(options: u8) -> (u8, Exploit) {
    let top = Exploit::BY_PREFERENCE.into_iter().find(|e| options & e.bit() != 0).expect("the set is not empty");
    (options & !top.bit(), top)
}
