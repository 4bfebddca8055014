//! Green's users: accesses to servers, local work, and the phishing that reaches them.

use super::log::Log;
use super::network::{FULL_HEALTH, MIXED, Up};
use super::red::Red;
use super::rules::Rules;
use super::scenario::{
    GREEN_REACH, GREEN_REACH_BYTES, NUM_NETWORKS, NUM_RED, NUM_SLOTS, OT_SERVICE, Slot, Subnets, Users, hosts_in,
    hosts_with, of_subnet, subnet_of, user, user_bit,
};
use super::sessions::Session;
use super::source::{Purpose, RARELY, RandomSource};
use super::world::World;

/// Actions of a user, in the order in which one is drawn.
const ACCESS: u8 = 0;
const WORK: u8 = 1;
const SLEEP: u8 = 2;

/// Facts of a step on which the users' success depends.
pub(super) struct Green {
    pub(super) phase: usize,
    pub(super) rules: Rules,
}

impl Green {
    /// Users access and work one after another, with all draws of the original. Returns those whose access and whose work
    /// failed.
    pub(super) fn act_in_order(
        &self,
        [access, working]: [Users; 2],
        reds: &mut [Red; NUM_RED],
        world: &mut World,
        random: &mut impl RandomSource,
        log: &mut impl Log,
    ) -> [Users; 2] {
        random.foresee(|random| self.draw([access, working], world, random));
        let mut failed = [0, 0];
        each_awake([access, working], |slot, accesses| {
            let success = if accesses {
                let (server, success) = self.access(slot, world, random);
                log.green(slot, ACCESS, Some(server), Some(success));
                success
            } else {
                let success = work(slot, reds, world, random);
                log.green(slot, WORK, None, Some(success));
                success
            };
            if !success {
                failed[usize::from(!accesses)] |= user_bit(slot);
            }
        });
        let asleep = world.network.user_set() & !(access | working);
        hosts_with(asleep).for_each(|slot| log.green(slot, SLEEP, None, None));
        failed
    }

    /// Draws as [`Green::act_in_order`] does, but for what happens rarely.
    fn draw(&self, [access, working]: [Users; 2], world: &World, random: &mut impl RandomSource) {
        each_awake([access, working], |slot, accesses| {
            if accesses {
                let server = self.server(slot, world, random);
                random.port(server);
                if !is_blocked(slot, server, world) {
                    random.unused();
                }
            } else if serves(slot, slot, world, random) {
                random.unused();
                random.unused();
            }
        });
    }

    /// Actions of the same distribution, where what happens rarely is drawn for all users at once.
    pub(super) fn act_at_once(
        &self,
        [access, mut working]: [Users; 2],
        reds: &mut [Red; NUM_RED],
        world: &mut World,
        random: &mut impl RandomSource,
        log: &mut impl Log,
    ) -> [Users; 2] {
        let mut failed = [0, 0];
        for slot in hosts_with(working & world.network.hampered_users()) {
            if !serves(slot, slot, world, random) {
                failed[1] |= user_bit(slot);
                log.green(slot, WORK, None, Some(false));
            }
        }
        working &= !failed[1];
        hosts_with(random.rarely(Purpose::GreenWorkAlarm, working)).for_each(|slot| world.watch.process(slot));
        hosts_with(random.rarely(Purpose::Phished, working)).for_each(|slot| phish(slot, reds, world, random));
        let walls = walls(&world.blocks);
        for subnet in 0..NUM_NETWORKS {
            // Where nothing can fail it does not matter which server it is.
            if walls[subnet] & GREEN_REACH[self.phase][subnet] == 0 && !self.rules.green_service {
                continue;
            }
            for slot in hosts_in(access, subnet) {
                let server = self.server(slot, world, random);
                let is_blocked = walls[subnet] >> subnet_of(server) & 1 == 1;
                let serves = !self.rules.green_service || serves_access(server, slot, world, random);
                if serves && !is_blocked {
                    continue;
                }
                if serves {
                    world.watch.connection(server);
                }
                failed[0] |= user_bit(slot);
                log.green(slot, ACCESS, Some(server), Some(false));
            }
        }
        for slot in hosts_with(random.rarely(Purpose::GreenAccessAlarm, access & !failed[0])) {
            let server = self.server(slot, world, random);
            world.watch.connection(server);
        }
        failed
    }

    /// The server that a user accesses.
    fn server(&self, slot: Slot, world: &World, random: &mut impl RandomSource) -> Slot {
        let subnets = GREEN_REACH_BYTES[self.phase][subnet_of(slot)];
        world.network.pick_server(subnets, |count| random.pick(Purpose::GreenDestination, slot, count))
    }

    /// A user accesses a server. Returns it, and whether that succeeded.
    fn access(&self, slot: Slot, world: &mut World, random: &mut impl RandomSource) -> (Slot, bool) {
        let server = self.server(slot, world, random);
        if self.rules.green_service && !serves_access(server, slot, world, random) {
            return (server, false);
        }
        random.port(server);
        let is_blocked = is_blocked(slot, server, world);
        if is_blocked || random.chance(Purpose::GreenAccessAlarm, slot, RARELY) {
            world.watch.connection(server);
        }
        (server, !is_blocked)
    }
}

/// Calls `act` with each user who accesses or works, in their order, and whether the user accesses.
#[inline]
fn each_awake([access, working]: [Users; 2], mut act: impl FnMut(Slot, bool)) {
    for subnet in 0..NUM_NETWORKS {
        let accessing = of_subnet(access, subnet);
        for slot in hosts_in(access | working, subnet) {
            act(slot, accessing >> (slot - user(subnet, 0)) & 1 == 1);
        }
    }
}

/// Returns whether the subnet of one of two hosts blocks that of the other.
fn is_blocked(slot: Slot, server: Slot, world: &World) -> bool {
    let (here, there) = (subnet_of(slot), subnet_of(server));
    (world.blocks[there] >> here | world.blocks[here] >> there) & 1 == 1
}

/// The other subnets with which one of the two blocks the traffic, for each subnet.
fn walls(blocks: &[Subnets; NUM_NETWORKS]) -> [Subnets; NUM_NETWORKS] {
    if *blocks == [0; NUM_NETWORKS] {
        return *blocks;
    }
    // The bit of a row and a column changes places with that of the column and the row.
    let bytes = u64::from_le_bytes(blocks.map(|from| from as u8));
    let transposed = [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)];
    let transposed = transposed.into_iter().fold(bytes, |bits: u64, (distance, mask)| {
        let swapped = (bits ^ bits >> distance) & mask;
        bits ^ swapped ^ swapped << distance
    });
    let transposed = transposed.to_le_bytes();
    std::array::from_fn(|here| blocks[here] | Subnets::from(transposed[here]))
}

/// Returns whether a server's OTService, or where it has none one of its services that are up, serves a user.
fn serves_access<R: RandomSource>(server: Slot, user: Slot, world: &World, random: &mut R) -> bool {
    let host = world.network.host(server);
    match host.services().iter().find(|s| s.kind == OT_SERVICE) {
        Some(service) => !host.ot_stopped && random.reliable(user, service.health),
        None => serves(server, user, world, random),
    }
}

/// Returns whether one of a host's services that are up, drawn for a user, serves it.
fn serves<R: RandomSource>(slot: Slot, user: Slot, world: &World, random: &mut R) -> bool {
    let Up { count, health } = world.network.services_up(slot);
    if count == 0 || health == FULL_HEALTH && !R::DRAWS_ALL {
        return count > 0;
    }
    let health = if R::DRAWS_ALL || health == MIXED {
        let nth = random.pick(Purpose::GreenService, user, count.into());
        if health == MIXED { world.network.host(slot).service_up(nth).health } else { health }
    } else {
        health
    };
    random.reliable(user, health)
}

/// A user works with a service of the own host. Returns whether it succeeded.
fn work(slot: Slot, reds: &mut [Red; NUM_RED], world: &mut World, random: &mut impl RandomSource) -> bool {
    if !serves(slot, slot, world, random) {
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

#[cfg(test)]
mod tests {
    use super::super::scenario::NUM_SUBNETS;
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_wall_stands_where_one_of_two_subnets_blocks_the_other() {
        let mut rng = Rng::new(5);
        for _ in 0..100 {
            let blocks: [Subnets; NUM_NETWORKS] = std::array::from_fn(|_| rng.below(1 << NUM_SUBNETS) as Subnets);
            for (here, wall) in walls(&blocks).into_iter().enumerate() {
                assert!((0..NUM_SUBNETS).all(|there| {
                    let is_blocked_there = blocks.get(there).is_some_and(|from| from >> here & 1 == 1);
                    (wall >> there & 1 == 1) == (blocks[here] >> there & 1 == 1 || is_blocked_there)
                }));
            }
        }
    }
}
