//! The events of a step.

use super::red_kind::RedAction;
use super::scenario::{Exploit, Slot};

/// The events of a step, for who wants to know.
pub trait Log {
    /// A user's action, the server that it accessed, and whether it succeeded, if that is known. Sources that draw only
    /// what decides something tell only of failures.
    fn green(&mut self, _host: Slot, _action: u8, _server: Option<Slot>, _success: Option<bool>) {}
    fn red_chose(&mut self, _agent: usize, _action: RedAction) {}
    /// An action of red's that has run to its end; its success, unless it was dropped.
    fn red_did(&mut self, _agent: usize, _action: RedAction, _success: Option<bool>) {}
    fn red_exploited(&mut self, _agent: usize, _exploit: Exploit) {}
    /// An action of blue's that has run to its end, under its index, and its success, if that is known.
    fn blue_did(&mut self, _agent: usize, _index: u8, _success: Option<bool>) {}
}

/// No log.
impl Log for () {}
