//! Blue's actions, in the order of the challenge.

use super::scenario::{DECOYS, Host, NUM_HOSTS};

/// Blue's actions in Scenario 2.
pub const NUM_ACTIONS: usize = num_actions(NUM_HOSTS);

/// Blue's actions in a scenario of so many hosts.
pub const fn num_actions(hosts: usize) -> usize {
    2 + 11 * hosts
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlueAction {
    Sleep,
    Monitor,
    Analyse(Host),
    Remove(Host),
    /// Starts decoy number `.0` on the host.
    Decoy(usize, Host),
    Restore(Host),
}

impl BlueAction {
    /// The action with this index (below [`num_actions`]) in the challenge's list for so many hosts.
    pub fn from_index(index: usize, hosts: usize) -> Self {
        let Some(i) = index.checked_sub(2) else {
            return if index == 0 { Self::Sleep } else { Self::Monitor };
        };
        let host = i % hosts;
        match i / hosts {
            0 => Self::Analyse(host),
            1 => Self::Remove(host),
            10 => Self::Restore(host),
            kind => Self::Decoy(kind - 2, host),
        }
    }

    /// The inverse of [`BlueAction::from_index`].
    pub const fn index(self, hosts: usize) -> usize {
        match self {
            Self::Sleep => 0,
            Self::Monitor => 1,
            Self::Analyse(host) => 2 + host,
            Self::Remove(host) => 2 + hosts + host,
            Self::Decoy(decoy, host) => 2 + (2 + decoy) * hosts + host,
            Self::Restore(host) => 2 + 10 * hosts + host,
        }
    }

    /// The name that the challenge prints, with these names of the hosts.
    pub fn name(self, names: &[impl AsRef<str>]) -> String {
        match self {
            Self::Sleep => "Sleep".into(),
            Self::Monitor => "Monitor".into(),
            Self::Analyse(host) => format!("Analyse {}", names[host].as_ref()),
            Self::Remove(host) => format!("Remove {}", names[host].as_ref()),
            Self::Decoy(decoy, host) => format!("{} {}", DECOYS[decoy].name, names[host].as_ref()),
            Self::Restore(host) => format!("Restore {}", names[host].as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::scenario::HOST_NAMES;

    #[test]
    fn actions_stand_in_the_order_of_the_challenge() {
        let name = |i| BlueAction::from_index(i, NUM_HOSTS).name(&HOST_NAMES);
        assert_eq!(name(0), "Sleep");
        assert_eq!(name(1), "Monitor");
        assert_eq!(name(2), "Analyse Defender");
        assert_eq!(name(27), "Remove User4");
        assert_eq!(name(28), "DecoyApache Defender");
        assert_eq!(name(131), "DecoyVsftpd User4");
        assert_eq!(name(132), "Restore Defender");
        assert_eq!(name(144), "Restore User4");
        assert!((0..NUM_ACTIONS).all(|i| BlueAction::from_index(i, NUM_HOSTS).index(NUM_HOSTS) == i));
    }
}
