//! Kinds of red's actions, an action, and its outcome.

use serde::{Deserialize, Serialize};

/// Red's actions, numbered as in the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum RedKind {
    /// DiscoverRemoteSystems.
    Sweep,
    AggressiveScan,
    StealthScan,
    Deception,
    Exploit,
    Escalate,
    Impact,
    Degrade,
}

impl RedKind {
    /// The original's names, with those of actions that it never takes.
    pub const NAMES: [&str; 11] = [
        "DiscoverRemoteSystems",
        "AggressiveServiceDiscovery",
        "StealthServiceDiscovery",
        "DiscoverDeception",
        "ExploitRemoteService",
        "PrivilegeEscalate",
        "Impact",
        "DegradeServices",
        "Withdraw",
        "Sleep",
        "InvalidAction",
    ];

    /// Steps that it takes.
    pub(super) fn ticks(self) -> u8 {
        match self {
            Self::Sweep | Self::AggressiveScan => 1,
            Self::Deception | Self::Escalate | Self::Impact | Self::Degrade => 2,
            Self::StealthScan => 3,
            Self::Exploit => 4,
        }
    }
}

/// An action of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedAction {
    pub kind: RedKind,
    /// A host, or a subnet of a sweep.
    pub target: u8,
    /// Id of the session that acts.
    pub session: u16,
}

/// The outcome of an action that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub kind: RedKind,
    /// A host, or a subnet of a sweep.
    pub target: u8,
    pub success: bool,
    /// The target is named in the observation.
    pub names_target: bool,
    /// The host of the session that exploited the target is named.
    pub source: Option<u8>,
    /// First servers of other subnets are named.
    pub names_links: bool,
}
