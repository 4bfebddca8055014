//! Red's view in a game of two agents in Scenario 2: what it has learnt from the results of its actions.
//!
//! Blue may have taken back what red believes to hold: it learns so when an action fails.

use serde::{Deserialize, Serialize};

use super::events::RedAction;
use super::red_actions::Knowledge;
use super::scenario::{
    EXPLOIT_NAMES, GATEWAYS, HOST_NAMES, Host, Hosts, NUM_HOSTS, NUM_SUBNETS, OP_SERVER0, SUBNET_NAMES, USER0,
};
use super::tables::SCENARIO2;
use super::view::write_bits;
use crate::env::ensure;

/// Values of an observation; [`names`] names each of them.
pub const LEN: usize = FLAGS + 8 * NUM_HOSTS + 1;
/// Values before the ports.
const FLAGS: usize = 5 * NUM_HOSTS + 2 * NUM_SUBNETS + 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedView {
    /// Subnets, bit by [`Subnet`](super::scenario::Subnet), and hosts whose scan showed red something.
    swept: u8,
    scanned: Hosts,
    /// Hosts where an exploit has worked, and an escalation, and nothing since has shown that the session is gone.
    exploited: Hosts,
    escalated: Hosts,
    /// An Impact has reported success.
    impacted: bool,
}

impl Default for RedView {
    fn default() -> Self {
        Self { swept: 0, scanned: 0, exploited: 1 << USER0, escalated: 1 << USER0, impacted: false }
    }
}

impl RedView {
    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self) -> Result<(), String> {
        let there =
            SCENARIO2.are_hosts(self.scanned | self.exploited | self.escalated) && SCENARIO2.are_subnets(self.swept);
        ensure(there, "red's view has a host or subnet that is not there")
    }

    /// Hosts where red believes to have a session.
    pub fn exploited(&self) -> Hosts {
        self.exploited
    }

    /// Hosts where red believes to have a root or SYSTEM session. It is not told of those that an exploit gives.
    pub fn escalated(&self) -> Hosts {
        self.escalated
    }

    /// Notes the result of an action that was carried out.
    pub fn learn(&mut self, action: RedAction, knowledge: &Knowledge) {
        let has_worked = knowledge.success == Some(true);
        match action {
            RedAction::Sleep => {}
            RedAction::DiscoverSystems(subnet) if has_worked => self.swept |= 1 << subnet,
            RedAction::DiscoverServices(host) if knowledge.saw_data => self.scanned |= 1 << host,
            // Out of reach: red holds no host any more from which the operational subnet can be reached.
            RedAction::DiscoverSystems(_) | RedAction::DiscoverServices(_) => self.lose(GATEWAYS),
            RedAction::Exploit(host) => self.exploited |= Hosts::from(has_worked) << host,
            RedAction::Escalate(host) if has_worked => {
                self.exploited |= 1 << host;
                self.escalated |= 1 << host;
            }
            RedAction::Escalate(host) => self.lose(1 << host),
            RedAction::Impact(host) => {
                self.impacted |= has_worked;
                if host == OP_SERVER0 && knowledge.ot_service && !has_worked {
                    self.lose(1 << host);
                }
            }
        }
    }

    fn lose(&mut self, hosts: Hosts) {
        self.exploited &= !hosts;
        self.escalated &= !hosts;
    }

    /// Writes the [`LEN`] values. `time` is the share of the episode that is over.
    pub fn write(&self, knowledge: &Knowledge, time: f32, obs: &mut [f32]) {
        let mut flags = 0u128;
        let mut shift = 0;
        let mut put = |bits: Hosts, len: usize| {
            flags |= u128::from(bits) << shift;
            shift += len;
        };
        for hosts in [knowledge.addresses, knowledge.names, self.scanned, self.exploited, self.escalated] {
            put(hosts, NUM_HOSTS);
        }
        for subnets in [knowledge.subnets, self.swept] {
            put(subnets.into(), NUM_SUBNETS);
        }
        let success = knowledge.success;
        for flag in
            [success == Some(true), success == Some(false), knowledge.saw_data, knowledge.ot_service, self.impacted]
        {
            put(flag.into(), 1);
        }
        let (first, rest) = obs.split_at_mut(64);
        write_bits(flags as u64, first);
        write_bits((flags >> 64) as u64, &mut rest[..FLAGS - 64]);
        let (ports, last) = rest[FLAGS - 64..].split_at_mut(8 * NUM_HOSTS);
        for (bits, ports) in knowledge.ports.iter().zip(ports.chunks_exact_mut(8)) {
            write_bits((*bits).into(), ports);
        }
        last[0] = time;
    }
}

/// The names of the values.
pub fn names() -> Vec<String> {
    let per_host = ["address known", "name known", "scanned", "exploited", "escalated"];
    let hosts = per_host.iter().flat_map(|what| HOST_NAMES.iter().map(move |name| format!("{name}: {what}")));
    let per_subnet = ["known", "swept"];
    let subnets = per_subnet.iter().flat_map(|what| SUBNET_NAMES.iter().map(move |name| format!("{name}: {what}")));
    let flags = [
        "the last action worked",
        "the last action failed",
        "the last action showed something",
        "OTService found",
        "an Impact worked",
    ];
    let port = |host: Host| EXPLOIT_NAMES.map(|exploit| format!("{}: port for {exploit} open", HOST_NAMES[host]));
    let ports = (0..NUM_HOSTS).flat_map(port);
    hosts.chain(subnets).chain(flags.map(Into::into)).chain(ports).chain(["share of the episode".into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::scenario::USER;

    #[test]
    fn every_value_has_a_name_of_its_own() {
        let mut names = names();
        assert_eq!(names.len(), LEN);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LEN);
    }

    #[test]
    fn values_stand_where_their_names_do() {
        let names = names();
        let at = |name: &str| names.iter().position(|n| n == name).expect("there is such a value");
        let mut knowledge =
            Knowledge { saw_data: true, success: Some(true), ot_service: true, ..Knowledge::new(&SCENARIO2) };
        knowledge.ports[12] = 1 << 7;
        let mut view = RedView::default();
        view.learn(RedAction::DiscoverSystems(USER), &knowledge);
        view.learn(RedAction::DiscoverServices(12), &knowledge);
        view.learn(RedAction::Exploit(12), &knowledge);
        view.learn(RedAction::Impact(OP_SERVER0), &knowledge);
        let mut obs = [9.0; LEN];
        view.write(&knowledge, 0.25, &mut obs);
        let mut expected = [0.0; LEN];
        for name in [
            "User0: address known",
            "User0: name known",
            "User0: exploited",
            "User0: escalated",
            "User4: scanned",
            "User4: exploited",
            "User4: port for FTPDirectoryTraversal open",
            "User: known",
            "User: swept",
            "the last action worked",
            "the last action showed something",
            "OTService found",
            "an Impact worked",
        ] {
            expected[at(name)] = 1.0;
        }
        expected[LEN - 1] = 0.25;
        assert_eq!(obs, expected);
    }
}
