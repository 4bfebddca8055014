//! The events of a step: red's action, the outcome of blue's, and the traces that red leaves for Monitor.

use super::scenario::{HOST_NAMES, Host, NUM_HOSTS, OP_SERVER0, SUBNET_NAMES, Subnet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedAction {
    Sleep,
    DiscoverSystems(Subnet),
    DiscoverServices(Host),
    Exploit(Host),
    Escalate(Host),
    Impact,
}

pub const RED_KIND_NAMES: [&str; 6] = [
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
];

impl RedAction {
    /// Index into [`RED_KIND_NAMES`], and the subnet or host (-1 for Sleep): the numbering of the reference traces.
    pub fn code(self) -> (i8, i8) {
        match self {
            Self::Sleep => (0, -1),
            Self::DiscoverSystems(subnet) => (1, subnet as i8),
            Self::DiscoverServices(host) => (2, host as i8),
            Self::Exploit(host) => (3, host as i8),
            Self::Escalate(host) => (4, host as i8),
            Self::Impact => (5, OP_SERVER0 as i8),
        }
    }

    /// The action of a code, if it is one.
    pub fn from_code(kind: i8, target: i8) -> Option<Self> {
        let host = usize::try_from(target).ok().filter(|&host| host < NUM_HOSTS);
        match kind {
            0 => Some(Self::Sleep),
            1 => Subnet::ALL.get(usize::try_from(target).ok()?).map(|&subnet| Self::DiscoverSystems(subnet)),
            2 => host.map(Self::DiscoverServices),
            3 => host.map(Self::Exploit),
            4 => host.map(Self::Escalate),
            5 => (host == Some(OP_SERVER0)).then_some(Self::Impact),
            _ => None,
        }
    }

    pub fn name(self) -> String {
        let (kind, target) = self.code();
        let kind = RED_KIND_NAMES[kind as usize];
        match self {
            Self::Sleep => kind.into(),
            Self::DiscoverSystems(_) => format!("{kind} {}", SUBNET_NAMES[target as usize]),
            _ => format!("{kind} {}", HOST_NAMES[target as usize]),
        }
    }
}

/// The outcome of blue's action, as far as the rest of the step depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlueOutcome {
    pub cost_tenths: i32,
    /// A decoy process was started here: blue sees its own process beside red's traces.
    pub decoy_on: Option<Host>,
    /// Analyse found a file of red's here.
    pub file_on: Option<Host>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    None = 0b00,
    Scan = 0b01,
    Exploit = 0b11,
}

/// The connections that Monitor finds on a host after red's action.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traces {
    pub host: Host,
    pub connections: u32,
    /// Different local ports among them.
    pub ports: u32,
    /// A reverse shell was noticed.
    pub shell: bool,
}

impl Traces {
    /// Activity that the challenge's table shows for them. `decoy_on` is the host where blue started a decoy in this
    /// step.
    pub fn activity(self, decoy_on: Option<Host>) -> Activity {
        if self.connections == 0 {
            return Activity::None;
        }
        let own = decoy_on == Some(self.host);
        let many = self.connections + u32::from(own) >= 3;
        if many && self.ports >= 3 {
            Activity::Scan
        } else if self.shell || many && self.ports == 1 {
            Activity::Exploit
        } else if own {
            Activity::None
        } else {
            Activity::Scan
        }
    }
}
