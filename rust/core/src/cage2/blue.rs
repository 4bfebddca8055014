//! What blue's actions do.

pub use super::blue_action::{BlueAction, NUM_ACTIONS, num_actions};
use super::events::BlueOutcome;
use super::network::Network;
use super::scenario::{DECOYS, Host, Hosts, RESTORE_TENTHS};
use super::source::RandomSource;
use super::tables::Scenario;
use super::view::{Compromise, View};

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
            if scenario.may_have_effect(action.index(scenario.len()), &network.ports) {
                random.decoy_process(host);
                let decoy = &DECOYS[decoy];
                let opens = decoy.opens(scenario.ruleset);
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
    use crate::cage2::Ruleset;
    use crate::cage2::tables::SCENARIO2;

    #[test]
    fn a_decoy_starts_once_but_vsftpd_again_and_again() {
        let mut network = Network::new(&SCENARIO2);
        let starts = |decoy, network: &Network| {
            SCENARIO2.may_have_effect(BlueAction::Decoy(decoy, 1).index(SCENARIO2.len()), &network.ports)
        };
        assert!(starts(0, &network));
        network.ports[1] |= DECOYS[0].opens(Ruleset::Main);
        assert!(!starts(0, &network));
        network.ports[1] |= DECOYS[7].opens(Ruleset::Main);
        assert!(starts(7, &network));
        network.ports[1] |= DECOYS[7].opens(Ruleset::PlusPlus);
        assert!(!starts(7, &network));
    }
}
