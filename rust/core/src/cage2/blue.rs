//! Blue's actions and what they do.

use super::events::BlueOutcome;
use super::network::Network;
use super::scenario::{DECOYS, Host, Hosts, NUM_HOSTS, RESTORE_TENTHS};
use super::source::RandomSource;
use super::tables::Scenario;
use super::view::{Compromise, View};

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

    /// The inverse of [`BlueAction::from_index`] for Scenario 2.
    pub const fn index(self) -> usize {
        match self {
            Self::Sleep => 0,
            Self::Monitor => 1,
            Self::Analyse(host) => 2 + host,
            Self::Remove(host) => 2 + NUM_HOSTS + host,
            Self::Decoy(decoy, host) => 2 + (2 + decoy) * NUM_HOSTS + host,
            Self::Restore(host) => 2 + 10 * NUM_HOSTS + host,
        }
    }

    /// The name that the challenge prints.
    pub fn name(self, scenario: &Scenario) -> String {
        let names = &scenario.hosts;
        match self {
            Self::Sleep => "Sleep".into(),
            Self::Monitor => "Monitor".into(),
            Self::Analyse(host) => format!("Analyse {}", names[host]),
            Self::Remove(host) => format!("Remove {}", names[host]),
            Self::Decoy(decoy, host) => format!("{} {}", DECOYS[decoy].name, names[host]),
            Self::Restore(host) => format!("Restore {}", names[host]),
        }
    }
}

/// Returns whether the decoy would start on the host now. Blue knows the answer, see [`super::memory::BlueMemory`]: it
/// knows each host's own services, and which decoys it started.
pub fn decoy_fits(network: &Network, decoy: usize, host: Host, scenario: &Scenario) -> bool {
    let decoy = &DECOYS[decoy];
    network.ports[host] & decoy.checks == 0
        && decoy.windows.is_none_or(|windows| windows == scenario.images[host].windows)
}

// Always: a step must not call it.
#[inline(always)]
pub fn act(
    action: BlueAction,
    scenario: &Scenario,
    network: &mut Network,
    view: &mut View,
    random: &mut impl RandomSource,
) -> BlueOutcome {
    let sessions = |host| 1 + u32::from(host == scenario.server);
    let mut outcome = BlueOutcome::default();
    match action {
        BlueAction::Sleep | BlueAction::Monitor => {}
        BlueAction::Analyse(host) => {
            random.blue_session(sessions(host));
            outcome.file_on = (network.files >> host & 1 == 1).then_some(host);
        }
        BlueAction::Remove(host) => {
            random.blue_session(sessions(host));
            network.end_sessions(host, |s| s.marked && !s.root, |pid| random.process_ended(host, pid));
            if view.compromise(host) != Compromise::No {
                view.set_compromise(host, Compromise::Unknown);
            }
        }
        BlueAction::Decoy(decoy, host) => {
            random.blue_session(sessions(host));
            if decoy_fits(network, decoy, host, scenario) {
                random.decoy_process(host);
                let decoy = &DECOYS[decoy];
                let opens = decoy.opens(scenario.mended);
                network.ports[host] |= opens;
                // Beyond any count that a scan or an observation tells apart.
                network.decoys[host] = network.decoys[host].saturating_add(1);
                network.fooled[host] |= decoy.fools.bit() & opens as u8 & !scenario.images[host].vulnerable;
                outcome.decoy_on = Some(host);
            }
        }
        BlueAction::Restore(host) => {
            random.blue_session(sessions(host));
            outcome.cost_tenths = RESTORE_TENTHS;
            restore(host, scenario, network);
            random.host_restored(host);
            view.set_compromise(host, Compromise::No);
        }
    }
    outcome
}

fn restore(host: Host, scenario: &Scenario, network: &mut Network) {
    let bit: Hosts = 1 << host;
    network.end_sessions(host, |_| true, |_| {});
    network.files &= !bit;
    network.restored |= bit;
    network.ports[host] = scenario.images[host].ports;
    network.decoys[host] = 0;
    network.fooled[host] = 0;
    if host == scenario.target {
        network.ot_service.up = true;
        network.ot_service.stoppable = true;
        network.ot_service.pid_known = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::tables::SCENARIO2;

    #[test]
    fn actions_stand_in_the_order_of_the_challenge() {
        let name = |i: usize| SCENARIO2.actions[i].name(&SCENARIO2);
        assert_eq!(name(0), "Sleep");
        assert_eq!(name(1), "Monitor");
        assert_eq!(name(2), "Analyse Defender");
        assert_eq!(name(27), "Remove User4");
        assert_eq!(name(28), "DecoyApache Defender");
        assert_eq!(name(131), "DecoyVsftpd User4");
        assert_eq!(name(132), "Restore Defender");
        assert_eq!(name(144), "Restore User4");
        assert!((0..NUM_ACTIONS).all(|i| SCENARIO2.actions[i].index() == i));
    }

    #[test]
    fn a_decoy_starts_once_but_vsftpd_again_and_again() {
        let mut network = Network::new(&SCENARIO2);
        assert!(decoy_fits(&network, 0, 1, &SCENARIO2));
        network.ports[1] |= DECOYS[0].opens(false);
        assert!(!decoy_fits(&network, 0, 1, &SCENARIO2));
        network.ports[1] |= DECOYS[7].opens(false);
        assert!(decoy_fits(&network, 7, 1, &SCENARIO2));
        network.ports[1] |= DECOYS[7].opens(true);
        assert!(!decoy_fits(&network, 7, 1, &SCENARIO2));
    }
}
