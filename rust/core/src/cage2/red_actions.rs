//! Effects of red's actions on the network, and red's knowledge.

use serde::{Deserialize, Serialize};

use super::Ruleset;
use super::events::{RedAction, Traces};
use super::network::{Network, Session};
use super::scenario::{Exploit, Host, Hosts, NUM_HOSTS, NUM_SUBNETS, OT_SERVICE_PID, WEB_PORTS};
use super::source::RandomSource;
use super::tables::{MAX_HOSTS, Scenario};
use crate::env::ensure;

/// Red's knowledge of the network, and the result of its last action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knowledge {
    /// True if the last action worked; nothing is known of a Sleep.
    pub success: Option<bool>,
    /// The last action showed red something.
    pub saw_data: bool,
    /// Hosts whose address is known, and those known by name.
    pub addresses: Hosts,
    pub names: Hosts,
    /// Known subnets, bit by [`Subnet`](super::scenario::Subnet).
    pub subnets: u8,
    /// Ports that red believes open, as far as an exploit needs them.
    pub ports: [u8; MAX_HOSTS],
    /// Red has found OTService.
    pub ot_service: bool,
}

impl Knowledge {
    /// Returns whether red can name the target, so that CybORG carries the action out.
    pub fn allows(&self, action: RedAction) -> bool {
        match action {
            RedAction::Sleep => true,
            RedAction::DiscoverSystems(subnet) => self.subnets >> subnet & 1 == 1,
            RedAction::DiscoverServices(host) | RedAction::Exploit(host) => self.addresses >> host & 1 == 1,
            RedAction::Escalate(host) | RedAction::Impact(host) => self.names >> host & 1 == 1,
        }
    }

    /// Targets that red can name in Scenario 2: a bit for each subnet, then for the address of each host, then for its name.
    pub fn known(&self) -> u32 {
        let addresses = NUM_SUBNETS;
        u32::from(self.subnets) | self.addresses << addresses | self.names << (addresses + NUM_HOSTS)
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let there = scenario.are_hosts(self.addresses | self.names) && scenario.are_subnets(self.subnets);
        ensure(there, "red knows of a host or subnet that is not there")
    }

    /// That of the start of an episode.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            success: None,
            saw_data: false,
            addresses: 1 << scenario.start,
            names: 1 << scenario.start,
            subnets: 1 << scenario.subnet_of[scenario.start],
            ports: [0; MAX_HOSTS],
            ot_service: false,
        }
    }
}

/// Carries the action out.
pub(super) fn act(
    action: RedAction,
    scenario: &Scenario,
    network: &mut Network,
    knowledge: &mut Knowledge,
    random: &mut impl RandomSource,
) -> Traces {
    let mut traces = Traces::default();
    let (success, saw_data) = match action {
        RedAction::Sleep => (None, false),
        RedAction::DiscoverSystems(subnet) => {
            let hosts = scenario.members[subnet];
            let found = network.any_routable(hosts, scenario);
            if found {
                knowledge.addresses |= hosts;
                knowledge.subnets |= 1 << subnet;
            }
            (Some(found), found)
        }
        RedAction::DiscoverServices(host) => {
            let reached = network.routable(host, scenario);
            if reached {
                traces = discover_services(host, scenario, network, knowledge, random);
            }
            // Success even where the host cannot be reached: then it shows nothing.
            (Some(true), reached)
        }
        RedAction::Exploit(host) => {
            let works = exploit(host, scenario, network, knowledge, &mut traces, random);
            if works {
                knowledge.names |= 1 << host;
                knowledge.addresses |= 1 << host;
            }
            (Some(works), works)
        }
        RedAction::Escalate(host) => {
            let works = escalate(host, scenario, network, knowledge, random);
            (Some(works), works)
        }
        RedAction::Impact(host) => (Some(impact(host, scenario, network, knowledge, random)), false),
    };
    knowledge.success = success;
    knowledge.saw_data = saw_data;
    traces
}

fn discover_services(
    host: Host,
    scenario: &Scenario,
    network: &Network,
    knowledge: &mut Knowledge,
    random: &mut impl RandomSource,
) -> Traces {
    let listeners = network.listeners(host, scenario);
    for _ in 0..listeners {
        random.ephemeral_port(host);
    }
    let seen = network.ports[host] as u8;
    match scenario.ruleset {
        Ruleset::Main | Ruleset::PlusPlus => knowledge.ports[host] = seen,
        // Never forgets a port, so it keeps attacking decoys that are gone.
        Ruleset::Leaderboard => knowledge.ports[host] |= seen,
    }
    knowledge.addresses |= 1 << host;
    Traces { host, connections: listeners, ports: network.ports[host].count_ones(), shell: false }
}

fn exploit(
    host: Host,
    scenario: &Scenario,
    network: &mut Network,
    knowledge: &Knowledge,
    traces: &mut Traces,
    random: &mut impl RandomSource,
) -> bool {
    let mut options = knowledge.ports[host];
    if options & WEB_PORTS == 0 {
        options &= !Exploit::SqlInjection.bit();
    }
    if options == 0 {
        return false;
    }
    let exploit = random.exploit(options);
    if !network.routable(host, scenario) {
        return false;
    }
    let image = scenario.images[host];
    let real = image.vulnerable & exploit.bit() != 0;
    let decoy = !real && network.fooled[host] & exploit.bit() != 0;
    if !real && !decoy {
        return false;
    }
    traces.host = host;
    traces.ports = 1;
    if exploit == Exploit::SshBruteForce {
        for _ in 0..10 {
            random.ephemeral_port(scenario.start);
        }
        traces.connections = 10;
        if decoy || !image.brute_forceable {
            return false;
        }
        let process = random.red_process(host);
        network.add_session(Session { host: host as u8, root: false, marked: process.marked, pid: process.pid });
        random.ephemeral_port(host);
        traces.connections += 1;
        return true;
    }
    random.ephemeral_port(host);
    traces.connections = 1;
    if decoy {
        traces.connections = 2;
        return false;
    }
    // A restored host has lost the version of its processes there, and Haraka is attacked by version.
    if exploit == Exploit::HarakaRce && scenario.ruleset == Ruleset::Leaderboard && network.restored >> host & 1 == 1 {
        return false;
    }
    random.ephemeral_port(host);
    network.files |= 1 << host;
    let process = random.red_process(host);
    let detected = random.detected(host, process.pid);
    if detected {
        traces.connections = 2;
        traces.ports = 2;
        traces.shell = true;
    }
    network.add_session(Session {
        host: host as u8,
        root: image.gives_root & exploit.bit() != 0,
        marked: detected || process.marked,
        pid: process.pid,
    });
    true
}

fn escalate(
    host: Host,
    scenario: &Scenario,
    network: &mut Network,
    knowledge: &mut Knowledge,
    random: &mut impl RandomSource,
) -> bool {
    if network.red_on >> host & 1 == 0 {
        return false;
    }
    if network.root_on >> host & 1 == 0 {
        let nth = random.session(network.sessions_on(host));
        network.escalate(host, nth);
        network.files |= 1 << host;
    }
    let shown = &scenario.shown[host];
    knowledge.addresses |= shown.addresses;
    knowledge.subnets |= shown.subnets;
    knowledge.ot_service |= shown.service;
    true
}

fn impact(
    host: Host,
    scenario: &Scenario,
    network: &mut Network,
    knowledge: &Knowledge,
    random: &mut impl RandomSource,
) -> bool {
    if network.red_on >> host & 1 == 0 {
        return false;
    }
    if network.root_on >> host & 1 == 0 {
        // Nothing depends on which session is drawn.
        random.session(network.sessions_on(host));
    }
    if host != scenario.target || !knowledge.ot_service {
        return false;
    }
    let service = &mut network.ot_service;
    if service.stoppable {
        service.stoppable = false;
        if service.pid_known {
            service.up = false;
            random.process_ended(scenario.target, OT_SERVICE_PID);
        }
    }
    true
}
