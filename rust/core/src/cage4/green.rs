//! Green's users: accesses to servers, local work, and the phishing that reaches them.

use super::network::FULL_HEALTH;
use super::red::Red;
use super::scenario::{GREEN_REACH, NUM_RED, NUM_SLOTS, Slot, Subnets, subnet_of};
use super::sessions::Session;
use super::source::{Chance, Purpose, RandomSource};
use super::world::World;

/// Chance of a false alarm of an access or of work, and of phishing.
const RARELY: Chance = Chance::Below(0.01);

/// Actions of a user, in the order in which one is drawn: these and Sleep.
pub(super) const ACCESS: u8 = 0;
pub(super) const WORK: u8 = 1;

/// A user accesses a server. `has_blocks`: blue blocks any traffic. Returns the server, if it was drawn, and whether it
/// succeeded.
pub(super) fn access<R: RandomSource>(
    slot: Slot,
    phase: usize,
    has_blocks: bool,
    world: &mut World,
    random: &mut R,
) -> (Option<Slot>, bool) {
    let subnet = subnet_of(slot);
    let reach = GREEN_REACH[phase][subnet];
    // Without blocks it matters only for an alarm which server it is.
    if !R::DRAWS_ALL && !has_blocks {
        let server = random.chance(Purpose::GreenAccessAlarm, slot, RARELY).then(|| {
            let server = choose_server(slot, reach, world, random);
            world.watch.connection(server);
            server
        });
        return (server, true);
    }
    let server = choose_server(slot, reach, world, random);
    random.port(server);
    let there = subnet_of(server);
    if (world.blocks[there] >> subnet | world.blocks[subnet] >> there) & 1 == 1 {
        world.watch.connection(server);
        return (Some(server), false);
    }
    if random.chance(Purpose::GreenAccessAlarm, slot, RARELY) {
        world.watch.connection(server);
    }
    (Some(server), true)
}

/// One of the servers of some subnets.
fn choose_server(slot: Slot, subnets: Subnets, world: &World, random: &mut impl RandomSource) -> Slot {
    let servers = world.network.servers.iter().enumerate();
    let count = servers.map(|(s, &servers)| if subnets >> s & 1 == 1 { usize::from(servers) } else { 0 }).sum();
    world.network.nth_server(subnets, random.pick(Purpose::GreenDestination, slot, count))
}

/// A user works with a service of the own host. Returns whether it succeeded.
pub(super) fn work<R: RandomSource>(slot: Slot, reds: &mut [Red; NUM_RED], world: &mut World, random: &mut R) -> bool {
    let (count, is_healthy) = world.network.services_up(slot);
    if count == 0 {
        return false;
    }
    if R::DRAWS_ALL || !is_healthy {
        let nth = random.pick(Purpose::GreenService, slot, count);
        let health = if is_healthy { FULL_HEALTH } else { world.network.host(slot).service_up(nth).health };
        if !random.reliable(slot, health) {
            return false;
        }
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
