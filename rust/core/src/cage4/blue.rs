//! Blue's actions: their indices, and their effects.

use serde::{Deserialize, Serialize};

use super::network::{Kind, Network};
use super::red::Red;
use super::scenario::{
    BLUE_ZONES, BY_NAME, DECOY_APACHE, DECOY_HARAKA, DECOY_TOMCAT, DECOY_VSFTPD, FIRST_SERVER, FIRST_USER,
    MOST_SERVERS, NUM_BLUE, NUM_RED, NUM_SUBNETS, PORT_25, PORT_80, PORT_443, SUBNET_NAMES, SUBNET_SLOTS, Slot, Subnet,
    WATCHED, server, subnet_of, user, watch_bit,
};
use super::source::{Purpose, RandomSource};
use super::world::World;

/// Actions of the agent with three subnets: the width of every agent's mask.
pub const NUM_ACTIONS: usize = num_actions(NUM_BLUE - 1);

/// Number of an agent's actions. Higher indices are Sleep.
pub const fn num_actions(agent: usize) -> usize {
    BLUE_ZONES[agent].len() * (4 * WATCHED + 2 * (NUM_SUBNETS - 1)) + 2
}

/// An action of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlueAction {
    Sleep,
    Monitor,
    Analyse(u8),
    Remove(u8),
    Restore(u8),
    DeployDecoy(u8),
    /// Lets traffic pass to a subnet from another.
    Allow(u8, u8),
    Block(u8, u8),
}

/// The place of each subnet in the order of names.
const PLACES_BY_NAME: [usize; NUM_SUBNETS] = {
    let mut places = [0; NUM_SUBNETS];
    let mut place = 0;
    while place < NUM_SUBNETS {
        places[BY_NAME[place]] = place;
        place += 1;
    }
    places
};

/// The host of a zone at a place among those that blue watches.
fn watched(zone: &[Subnet], place: usize) -> Slot {
    let (subnet, place) = (zone[place / WATCHED], place % WATCHED);
    if place < MOST_SERVERS { server(subnet, place) } else { user(subnet, place - MOST_SERVERS) }
}

/// The subnets of a traffic rule at a place among those of a zone.
fn rule(zone: &[Subnet], place: usize) -> (u8, u8) {
    let to = zone[place / (NUM_SUBNETS - 1)];
    let place = place % (NUM_SUBNETS - 1);
    let from = BY_NAME[place + usize::from(place >= PLACES_BY_NAME[to])];
    (to as u8, from as u8)
}

impl BlueAction {
    /// The action of an index, whatever hosts there are; Sleep beyond the agent's last.
    pub fn from_index(agent: usize, index: usize) -> Self {
        let zone = BLUE_ZONES[agent];
        let (hosts, rules) = (zone.len() * WATCHED, zone.len() * (NUM_SUBNETS - 1));
        let mut place = index;
        let mut within = |count: usize| {
            let found = (place < count).then_some(place);
            place = place.wrapping_sub(count);
            found
        };
        let host = |place| watched(zone, place) as u8;
        if let Some(place) = within(hosts) {
            Self::Analyse(host(place))
        } else if within(1).is_some() {
            Self::Monitor
        } else if let Some(place) = within(hosts) {
            Self::Remove(host(place))
        } else if let Some(place) = within(hosts) {
            Self::Restore(host(place))
        } else if within(1).is_some() {
            Self::Sleep
        } else if let Some(place) = within(rules) {
            let (to, from) = rule(zone, place);
            Self::Allow(to, from)
        } else if let Some(place) = within(rules) {
            let (to, from) = rule(zone, place);
            Self::Block(to, from)
        } else if let Some(place) = within(hosts) {
            Self::DeployDecoy(host(place))
        } else {
            Self::Sleep
        }
    }

    /// The index of an agent's action: [`Self::from_index`] of it is the action.
    pub fn index(self, agent: usize) -> usize {
        let zone = BLUE_ZONES[agent];
        let (hosts, rules) = (zone.len() * WATCHED, zone.len() * (NUM_SUBNETS - 1));
        let among = |subnet: Subnet| zone.iter().position(|&s| s == subnet).expect("a subnet of the zone");
        let place = |host: u8| {
            let slot = Slot::from(host);
            among(subnet_of(slot)) * WATCHED + watch_bit(slot).trailing_zeros() as usize
        };
        let rule = |to: u8, from: u8| {
            let [own, other] = [to, from].map(|subnet| PLACES_BY_NAME[usize::from(subnet)]);
            among(to.into()) * (NUM_SUBNETS - 1) + other - usize::from(other > own)
        };
        match self {
            Self::Analyse(host) => place(host),
            Self::Monitor => hosts,
            Self::Remove(host) => hosts + 1 + place(host),
            Self::Restore(host) => 2 * hosts + 1 + place(host),
            Self::Sleep => 3 * hosts + 1,
            Self::Allow(to, from) => 3 * hosts + 2 + rule(to, from),
            Self::Block(to, from) => 3 * hosts + 2 + rules + rule(to, from),
            Self::DeployDecoy(host) => 3 * hosts + 2 + 2 * rules + place(host),
        }
    }

    /// The host that it is for.
    pub fn host(self) -> Option<Slot> {
        match self {
            Self::Analyse(host) | Self::Remove(host) | Self::Restore(host) | Self::DeployDecoy(host) => {
                Some(host.into())
            }
            Self::Sleep | Self::Monitor | Self::Allow(..) | Self::Block(..) => None,
        }
    }

    /// Returns whether the host that it is for exists.
    pub(super) fn is_valid(self, network: &Network) -> bool {
        self.host().is_none_or(|slot| network.exists(slot))
    }

    pub(super) fn is_traffic_rule(self) -> bool {
        matches!(self, Self::Allow(..) | Self::Block(..))
    }

    /// Steps that it takes.
    pub(super) fn ticks(self) -> u8 {
        match self {
            Self::Analyse(_) | Self::DeployDecoy(_) => 2,
            Self::Remove(_) => 3,
            Self::Restore(_) => 5,
            Self::Sleep | Self::Monitor | Self::Allow(..) | Self::Block(..) => 1,
        }
    }

    /// The original's name, such as "Restore operational_zone_a_subnet_user_host_3".
    pub fn name(self) -> String {
        let subnet = |s: u8| format!("{}_subnet", SUBNET_NAMES[usize::from(s)]);
        let traffic = |action: &str, to, from| format!("{action} {} <- {}", subnet(to), subnet(from));
        let on = |action: &str, host: u8| format!("{action} {}", host_name(host.into()));
        match self {
            Self::Sleep => "Sleep".into(),
            Self::Monitor => "Monitor".into(),
            Self::Analyse(host) => on("Analyse", host),
            Self::Remove(host) => on("Remove", host),
            Self::Restore(host) => on("Restore", host),
            Self::DeployDecoy(host) => on("DeployDecoy", host),
            Self::Allow(to, from) => traffic("AllowTrafficZone", to, from),
            Self::Block(to, from) => traffic("BlockTrafficZone", to, from),
        }
    }
}

/// The original's name of a host, such as "office_network_subnet_router".
pub fn host_name(slot: Slot) -> String {
    let subnet = SUBNET_NAMES[subnet_of(slot)];
    match slot % SUBNET_SLOTS {
        0 => format!("{subnet}_subnet_router"),
        user @ FIRST_USER..FIRST_SERVER => format!("{subnet}_subnet_user_host_{}", user - FIRST_USER),
        server => format!("{subnet}_subnet_server_host_{}", server - FIRST_SERVER),
    }
}

/// Carries out an action of agent `agent`. Returns whether it succeeded, `None` where the original does not know.
pub(super) fn act(
    agent: usize,
    action: BlueAction,
    reds: &mut [Red; NUM_RED],
    world: &mut World,
    random: &mut impl RandomSource,
) -> Option<bool> {
    match action {
        BlueAction::Sleep => return None,
        BlueAction::Monitor | BlueAction::Analyse(_) => {}
        BlueAction::Allow(to, from) => {
            let blocks = &mut world.blocks[usize::from(to)];
            let is_blocked = *blocks >> from & 1 == 1;
            *blocks &= !(1 << from);
            return Some(is_blocked);
        }
        BlueAction::Block(to, from) => {
            let blocks = &mut world.blocks[usize::from(to)];
            let is_blocked = *blocks >> from & 1 == 1;
            *blocks |= 1 << from;
            return Some(!is_blocked);
        }
        BlueAction::Remove(host) => remove(host.into(), reds, world, random),
        BlueAction::Restore(host) => {
            reds.iter_mut().for_each(|red| red.sessions.end_on(host.into()));
            world.network.restore(host.into());
            random.forget_ports(host.into());
        }
        BlueAction::DeployDecoy(host) => deploy(agent, host.into(), world, random),
    }
    Some(true)
}

/// Ends the processes of a host's marks, but for those of root.
fn remove(slot: Slot, reds: &mut [Red; NUM_RED], world: &mut World, random: &mut impl RandomSource) {
    let mut nth = 0;
    while let Some(pid) = world.watch.nth_mark(slot, nth) {
        nth += 1;
        let Some(process) = world.network.find(slot, pid) else { continue };
        if process.kind == Kind::Shell {
            let owner = reds.iter_mut().find_map(|red| {
                let session = red.sessions.on(slot).find(|s| s.pid == pid).copied();
                session.map(|session| (red, session))
            });
            if let Some((red, session)) = owner {
                if session.root {
                    continue;
                }
                red.sessions.remove(session.id);
            }
        }
        world.network.kill(process, random);
    }
}

/// Starts one of the decoys whose port is free.
fn deploy(agent: usize, slot: Slot, world: &mut World, random: &mut impl RandomSource) {
    let taken = world.network.host(slot).ports;
    // Vsftpd looks at another port than it opens.
    let ports = [(DECOY_APACHE, PORT_80), (DECOY_TOMCAT, PORT_443), (DECOY_HARAKA, PORT_25), (DECOY_VSFTPD, 0)];
    let mut fitting = ports.into_iter().filter(|(_, port)| taken & port == 0).map(|(decoy, _)| decoy);
    let nth = random.pick(Purpose::Decoy, agent, fitting.clone().count());
    if let Some(decoy) = fitting.nth(nth) {
        world.network.start_decoy(slot, decoy, random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_its_action() {
        for agent in 0..NUM_BLUE {
            for index in 0..num_actions(agent) {
                assert_eq!(BlueAction::from_index(agent, index).index(agent), index);
            }
        }
    }
}
