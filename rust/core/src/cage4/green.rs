//! Green's users: accesses to servers, local work, and the phishing that reaches them.

use super::World;
use super::red::Red;
use super::scenario::{GREEN_REACH, NUM_RED, NUM_SLOTS, Slot, subnet_of};
use super::sessions::Session;
use super::source::{Chance, Purpose, RandomSource};

/// Chance of a false alarm of an access or of work, and of phishing.
const RARELY: Chance = Chance::Below(0.01);

/// Actions of a user, in the order in which one is drawn: these and Sleep.
pub(super) const NUM_ACTIONS: usize = 3;
pub(super) const ACCESS: u8 = 0;
pub(super) const WORK: u8 = 1;

/// A user accesses a server. Returns the server, and whether it succeeded.
pub(super) fn access(slot: Slot, phase: usize, world: &mut World, random: &mut impl RandomSource) -> (Slot, bool) {
    let subnet = subnet_of(slot);
    let reach = GREEN_REACH[phase][subnet];
    let servers = world.network.servers.iter().enumerate();
    let count = servers.map(|(s, &servers)| if reach >> s & 1 == 1 { usize::from(servers) } else { 0 }).sum();
    let server = world.network.nth_server(reach, random.pick(Purpose::GreenDestination, slot, count));
    random.port(server);
    let there = subnet_of(server);
    if (world.blocks[there] >> subnet | world.blocks[subnet] >> there) & 1 == 1 {
        world.watch.connection(server);
        return (server, false);
    }
    if random.chance(Purpose::GreenAccessAlarm, slot, RARELY) {
        world.watch.connection(server);
    }
    (server, true)
}

/// A user works with a service of the own host. Returns whether it succeeded.
pub(super) fn work(slot: Slot, reds: &mut [Red; NUM_RED], world: &mut World, random: &mut impl RandomSource) -> bool {
    let host = world.network.host(slot);
    let count = host.services_up();
    if count == 0 {
        return false;
    }
    let service = host.service_up(random.pick(Purpose::GreenService, slot, count));
    if !random.reliable(slot, service.health) {
        return false;
    }
    if random.chance(Purpose::GreenWorkAlarm, slot, RARELY) {
        random.port(slot);
        world.watch.process(slot);
    }
    if random.chance(Purpose::Phished, slot, RARELY) {
        phish(slot, reds, world, random);
    }
    true
}

/// An agent of red's gets a session on a host where red has none: one with a session in the same subnet, or any.
fn phish(slot: Slot, reds: &mut [Red; NUM_RED], world: &mut World, random: &mut impl RandomSource) {
    let mut agents = [0u8; NUM_SLOTS];
    for (agent, red) in reds.iter().enumerate() {
        red.sessions.list().iter().for_each(|s| agents[usize::from(s.host)] |= 1 << agent);
    }
    if agents[slot] != 0 {
        return;
    }
    // After a step's hand-over a host has sessions of one agent only, but for those that came in this step.
    let first = |bits: u8| (0..NUM_RED).find(move |agent| bits >> agent & 1 == 1);
    let here = world.network.hosts_of(subnet_of(slot)).filter_map(|host| first(agents[host])).last();
    let phisher = here.or_else(|| {
        let agents = &agents;
        let of = |host: Slot| (0..NUM_RED).filter(move |agent| agents[host] >> agent & 1 == 1);
        let mut all = world.network.hosts().flat_map(of);
        let count = all.clone().count();
        if count == 0 { None } else { all.nth(random.pick(Purpose::Phisher, slot, count)) }
    });
    if let Some(agent) = phisher {
        let pid = world.network.start_shell(slot, random);
        let session = Session { id: 0, pid, host: slot as u8, is_abstract: true, root: false, is_child: false };
        reds[agent].sessions.add(session);
    }
}
