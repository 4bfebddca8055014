//! The true state of a game of Scenario 2 as values after blue's memory in an observation: what no defender can see.
//! Scores of policies that observe it are a bound for those that cannot.
//!
//! Together with the 52 bits these values are all of the state that the future depends on, except for random draws to
//! come, the order of red's sessions, process ids, and counts above 10. [`names`] names each of them.

use super::Episode;
use super::fast_source::FastSource;
use super::memory::{BlueMemory, Layout};
use super::network::Network;
use super::red_actions::Knowledge;
use super::red_agents::{BLine, Meander, PLAN_LEN, RedAgent, RedKind};
use super::scenario::{DECOYS, EXPLOIT_NAMES, HOST_NAMES, Hosts, NUM_HOSTS, SUBNET_NAMES, USER1};
use super::tables::SCENARIO2;
use crate::rng::Rng;

/// Number of values.
pub const LEN: usize = 390;

/// Receives the values in order, each with its name.
trait Sink {
    fn put(&mut self, value: f32, name: impl FnOnce() -> String);

    fn flag(&mut self, value: bool, name: impl FnOnce() -> String) {
        self.put(f32::from(u8::from(value)), name);
    }

    fn hosts(&mut self, hosts: Hosts, what: &str) {
        for (host, name) in HOST_NAMES.iter().enumerate() {
            self.flag(hosts >> host & 1 == 1, || format!("{name}: {what}"));
        }
    }

    fn subnets(&mut self, subnets: u8, what: &str) {
        for (subnet, name) in SUBNET_NAMES.iter().enumerate() {
            self.flag(subnets >> subnet & 1 == 1, || format!("{name}: {what}"));
        }
    }

    /// A count for each host, at most 10, divided by 10.
    fn counts(&mut self, counts: &[u32], what: &str) {
        for (&count, name) in counts.iter().zip(HOST_NAMES) {
            self.put(count.min(10) as f32 / 10.0, || format!("{name}: count of {what}"));
        }
    }
}

struct Values<'a>(std::slice::IterMut<'a, f32>);

impl Sink for Values<'_> {
    fn put(&mut self, value: f32, _: impl FnOnce() -> String) {
        *self.0.next().expect("there is room for all values") = value;
    }
}

struct Names(Vec<String>);

impl Sink for Names {
    fn put(&mut self, _: f32, name: impl FnOnce() -> String) {
        self.0.push(name());
    }
}

/// Writes the [`LEN`] values.
pub fn write<D>(episode: &Episode<D>, values: &mut [f32]) {
    describe(episode, &mut Values(values.iter_mut()));
}

/// The names of the values.
pub fn names() -> Vec<String> {
    let mut names = Names(Vec::with_capacity(LEN));
    describe(&Episode::new(FastSource(Rng::new(0)), Layout::None, &SCENARIO2), &mut names);
    names.0
}

fn describe<D>(episode: &Episode<D>, to: &mut impl Sink) {
    network(&episode.network, to);
    let standing = episode.memory.as_ref().map_or(0, BlueMemory::standing);
    for (i, &(decoy, host)) in SCENARIO2.memory.decoy_places.iter().enumerate() {
        let stands = standing >> i & 1 == 1;
        to.flag(stands, || format!("{}: {} runs", HOST_NAMES[host], DECOYS[decoy].name));
    }
    knowledge(&episode.knowledge, to);
    agent(&episode.agent, to);
    to.put(episode.time as f32 / 100.0, || "steps / 100 (true state)".into());
}

fn network(network: &Network, to: &mut impl Sink) {
    to.hosts(network.red_on, "red has a session");
    to.hosts(network.root_on, "red has a root session");
    let (mut found, mut hidden, mut root) = ([0; NUM_HOSTS], [0; NUM_HOSTS], [0; NUM_HOSTS]);
    for session in &network.sessions {
        let kind = match (session.root, session.marked) {
            (true, _) => &mut root,
            (false, true) => &mut found,
            (false, false) => &mut hidden,
        };
        kind[usize::from(session.host)] += 1;
    }
    to.counts(&found, "red's user sessions that Remove ends");
    to.counts(&hidden, "red's user sessions that Remove leaves");
    to.counts(&root, "red's root sessions");
    to.hosts(network.files, "has a file that Analyse finds");
    to.hosts(network.restored, "was restored");
    to.counts(&network.decoys, "decoy processes");
    to.flag(network.ot_service.up, || "OTService is up".into());
    to.flag(network.ot_service.stoppable, || "Impact still tries to stop OTService".into());
    to.flag(network.ot_service.pid_known, || "Impact can stop OTService".into());
}

fn knowledge(knowledge: &Knowledge, to: &mut impl Sink) {
    to.flag(knowledge.success == Some(true), || "red's last action worked".into());
    to.flag(knowledge.success == Some(false), || "red's last action failed".into());
    to.flag(knowledge.saw_data, || "red's last action showed it something".into());
    to.hosts(knowledge.addresses, "red knows the address");
    to.hosts(knowledge.names, "red knows the name");
    to.subnets(knowledge.subnets, "red knows the subnet");
    for (host, name) in HOST_NAMES.iter().enumerate() {
        for (exploit, exploit_name) in EXPLOIT_NAMES.iter().enumerate() {
            let open = knowledge.ports[host] >> exploit & 1 == 1;
            to.flag(open, || format!("{name}: red knows the port for {exploit_name}"));
        }
    }
    to.flag(knowledge.ot_service, || "red has found OTService".into());
}

/// The red agent and its plans; zeros for the plans of the agents that do not play.
fn agent(agent: &RedAgent, to: &mut impl Sink) {
    for (kind, name) in RedKind::ALL.into_iter().zip(RedKind::NAMES) {
        to.flag(agent.kind() == kind, || format!("the red agent is {name}"));
    }
    let nobody = Meander::default();
    let (bline, meander) = match agent {
        RedAgent::BLine(agent) => (Some(agent), &nobody),
        RedAgent::Meander(agent) => (None, agent),
        RedAgent::Sleep => (None, &nobody),
    };
    for place in 0..PLAN_LEN {
        to.flag(bline.is_some_and(|agent| agent.place == place), || format!("bline: place {place} in its plan"));
    }
    for (host, name) in HOST_NAMES.iter().enumerate().skip(USER1) {
        let user = bline.and_then(|agent: &BLine| agent.user);
        to.flag(user.is_some_and(|user| usize::from(user) == host), || format!("bline: comes in by {name}"));
    }
    to.flag(bline.is_some_and(|agent| agent.server_seen), || "bline: has seen Op_Server0's services".into());
    to.subnets(meander.subnets, "meander scanned the subnet");
    to.hosts(meander.scanned, "meander scanned it");
    to.hosts(meander.exploited, "meander believes it exploited");
    to.hosts(meander.escalated, "meander believes it escalated");
    to.hosts(meander.entered, "meander was ever in");
    let one = |host: Option<u8>| host.map_or(0, |host| 1 << host);
    to.hosts(one(meander.last_exploit), "meander's last action exploited it");
    to.hosts(one(meander.last_escalation), "meander escalated it last");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_name_of_its_own() {
        let mut names = names();
        assert_eq!(names.len(), LEN);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LEN);
    }
}
