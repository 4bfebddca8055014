//! The events of a step: red's action, the outcome of blue's, and the traces that red leaves for Monitor.

use super::scenario::{Host, NUM_HOSTS, NUM_SUBNETS, Subnet};
use super::tables::Scenario;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedAction {
    Sleep,
    DiscoverSystems(Subnet),
    DiscoverServices(Host),
    Exploit(Host),
    Escalate(Host),
    /// Stops OTService, which only Op_Server0 has.
    Impact(Host),
}

pub const RED_KIND_NAMES: [&str; 6] = [
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
];

/// Red's actions in Scenario 2: Sleep, and each other kind on each subnet or host.
pub const NUM_RED_ACTIONS: usize = 1 + NUM_SUBNETS + 4 * NUM_HOSTS;

impl RedAction {
    /// The action of Scenario 2 with this index (below [`NUM_RED_ACTIONS`]): by kind in the order of [`RED_KIND_NAMES`], then
    /// by target.
    pub fn from_index(index: usize) -> Option<Self> {
        let Some(i) = index.checked_sub(1 + NUM_SUBNETS) else {
            return Some(index.checked_sub(1).map_or(Self::Sleep, Self::DiscoverSystems));
        };
        let host = i % NUM_HOSTS;
        match i / NUM_HOSTS {
            0 => Some(Self::DiscoverServices(host)),
            1 => Some(Self::Exploit(host)),
            2 => Some(Self::Escalate(host)),
            3 => Some(Self::Impact(host)),
            _ => None,
        }
    }

    /// The inverse of [`RedAction::from_index`].
    pub const fn index(self) -> usize {
        let first = 1 + NUM_SUBNETS;
        match self {
            Self::Sleep => 0,
            Self::DiscoverSystems(subnet) => 1 + subnet,
            Self::DiscoverServices(host) => first + host,
            Self::Exploit(host) => first + NUM_HOSTS + host,
            Self::Escalate(host) => first + 2 * NUM_HOSTS + host,
            Self::Impact(host) => first + 3 * NUM_HOSTS + host,
        }
    }

    /// Index into [`RED_KIND_NAMES`], and the subnet or host (-1 for Sleep): the numbering of the reference traces.
    pub fn code(self) -> (i8, i8) {
        // One match for each half: both are then without a branch.
        let kind = match self {
            Self::Sleep => 0,
            Self::DiscoverSystems(_) => 1,
            Self::DiscoverServices(_) => 2,
            Self::Exploit(_) => 3,
            Self::Escalate(_) => 4,
            Self::Impact(_) => 5,
        };
        let target = match self {
            Self::Sleep => -1,
            Self::DiscoverSystems(target)
            | Self::DiscoverServices(target)
            | Self::Exploit(target)
            | Self::Escalate(target)
            | Self::Impact(target) => target as i8,
        };
        (kind, target)
    }

    /// The action of a code, if it is one in this scenario.
    pub fn from_code(kind: i8, target: i8, scenario: &Scenario) -> Option<Self> {
        let below = |number: usize| usize::try_from(target).ok().filter(|&target| target < number);
        let host = below(scenario.len());
        match kind {
            0 => Some(Self::Sleep),
            1 => below(scenario.subnets.len()).map(Self::DiscoverSystems),
            2 => host.map(Self::DiscoverServices),
            3 => host.map(Self::Exploit),
            4 => host.map(Self::Escalate),
            5 => host.map(Self::Impact),
            _ => None,
        }
    }

    pub fn name(self, scenario: &Scenario) -> String {
        let (kind, target) = self.code();
        let kind = RED_KIND_NAMES[kind as usize];
        match self {
            Self::Sleep => kind.into(),
            Self::DiscoverSystems(_) => format!("{kind} {}", scenario.subnets[target as usize]),
            _ => format!("{kind} {}", scenario.hosts[target as usize]),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::tables::SCENARIO2;

    #[test]
    fn reds_actions_stand_in_order_and_have_codes() {
        let name = |i| RedAction::from_index(i).map(|action| action.name(&SCENARIO2));
        assert_eq!(name(0).as_deref(), Some("Sleep"));
        assert_eq!(name(1).as_deref(), Some("DiscoverRemoteSystems Enterprise"));
        assert_eq!(name(4).as_deref(), Some("DiscoverNetworkServices Defender"));
        assert_eq!(name(29).as_deref(), Some("ExploitRemoteService User4"));
        assert_eq!(name(30).as_deref(), Some("PrivilegeEscalate Defender"));
        assert_eq!(name(50).as_deref(), Some("Impact Op_Server0"));
        assert_eq!(name(NUM_RED_ACTIONS), None);
        for i in 0..NUM_RED_ACTIONS {
            let action = RedAction::from_index(i).expect("it is below their number");
            let (kind, target) = action.code();
            assert_eq!((action.index(), RedAction::from_code(kind, target, &SCENARIO2)), (i, Some(action)));
        }
    }
}
