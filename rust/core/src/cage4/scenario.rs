//! The rules of the scenario that no episode changes: subnets, zones, services, prices and what may talk to what.
//!
//! Source: the behaviour of CybORG 4.0 (`cage-challenge/cage-challenge-4`, EnterpriseScenarioGenerator), MIT licence.

/// Index of a subnet.
pub type Subnet = usize;
/// A set of subnets, one bit each.
pub type Subnets = u16;
/// Index of a host: [`SUBNET_SLOTS`] a subnet, first its router, then 10 users, then 6 servers.
pub type Slot = usize;

pub const RA: Subnet = 0;
pub const OA: Subnet = 1;
pub const RB: Subnet = 2;
pub const OB: Subnet = 3;
pub const CON: Subnet = 4;
pub const PUB: Subnet = 5;
pub const ADM: Subnet = 6;
pub const OFF: Subnet = 7;
pub const NET: Subnet = 8;

pub const NUM_SUBNETS: usize = 9;
/// Subnets with hosts that have state: all but the internet.
pub const NUM_NETWORKS: usize = 8;
pub const SUBNET_NAMES: [&str; NUM_SUBNETS] = [
    "restricted_zone_a",
    "operational_zone_a",
    "restricted_zone_b",
    "operational_zone_b",
    "contractor_network",
    "public_access_zone",
    "admin_network",
    "office_network",
    "internet",
];
/// Subnets in the order of their names, which is that of observations and of traffic rules.
pub const BY_NAME: [Subnet; NUM_SUBNETS] = [ADM, CON, NET, OFF, OA, OB, PUB, RA, RB];

pub const SUBNET_SLOTS: usize = 17;
pub const FIRST_USER: usize = 1;
pub const MOST_USERS: usize = 10;
pub const FIRST_SERVER: usize = 11;
pub const MOST_SERVERS: usize = 6;
/// Slots of hosts that have state.
pub const NUM_SLOTS: usize = NUM_NETWORKS * SUBNET_SLOTS;
/// The internet's host: it has no state, and stands on the way between subnets.
pub const ROOT: Slot = NUM_SLOTS;
/// Hosts of a subnet that blue watches: servers, then users.
pub const WATCHED: usize = MOST_SERVERS + MOST_USERS;

pub const fn subnet_of(slot: Slot) -> Subnet {
    slot / SUBNET_SLOTS
}

/// The slot of a server of a subnet.
pub const fn server(subnet: Subnet, number: usize) -> Slot {
    subnet * SUBNET_SLOTS + FIRST_SERVER + number
}

/// The slot of a user of a subnet.
pub const fn user(subnet: Subnet, number: usize) -> Slot {
    subnet * SUBNET_SLOTS + FIRST_USER + number
}

/// A set of users, one bit each in the order of their hosts, [`MOST_USERS`] a subnet.
pub type Users = u128;

/// The bit of a host in a set of users; no bit if it is none.
pub(super) const fn user_bit(slot: Slot) -> Users {
    match slot % SUBNET_SLOTS {
        place @ FIRST_USER..FIRST_SERVER => 1 << (subnet_of(slot) * MOST_USERS + place - FIRST_USER),
        _ => 0,
    }
}

/// Those of a subnet out of some users, the first lowest.
pub(super) const fn of_subnet(users: Users, subnet: Subnet) -> u16 {
    (users >> (subnet * MOST_USERS)) as u16 & ((1 << MOST_USERS) - 1)
}

/// The set of users of a subnet that [`of_subnet`] gives.
pub(super) const fn in_subnet(users: u16, subnet: Subnet) -> Users {
    (users as Users) << (subnet * MOST_USERS)
}

/// The hosts of some users, in their order.
pub(super) fn hosts_with(mut users: Users) -> impl Iterator<Item = Slot> {
    std::iter::from_fn(move || {
        let place = users.trailing_zeros() as usize;
        users &= users.wrapping_sub(1);
        (place < NUM_NETWORKS * MOST_USERS).then(|| user(place / MOST_USERS, place % MOST_USERS))
    })
}

/// The same for those of one subnet.
pub(super) fn hosts_in(users: Users, subnet: Subnet) -> impl Iterator<Item = Slot> {
    let mut left = of_subnet(users, subnet);
    std::iter::from_fn(move || {
        let number = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (number < MOST_USERS).then(|| user(subnet, number))
    })
}

/// Bit of a host in a mask of its subnet's hosts: servers, then users, then the router.
pub const fn watch_bit(slot: Slot) -> u32 {
    match slot % SUBNET_SLOTS {
        0 => 1 << WATCHED,
        user @ 1..FIRST_SERVER => 1 << (MOST_SERVERS + user - FIRST_USER),
        server => 1 << (server - FIRST_SERVER),
    }
}

/// Hosts of a subnet: its router, users, servers.
pub(super) fn hosts_of(subnet: Subnet, users: u8, servers: u8) -> impl Iterator<Item = Slot> + Clone {
    let first = subnet * SUBNET_SLOTS;
    let users = (0..usize::from(users)).map(move |number| first + FIRST_USER + number);
    std::iter::once(first).chain(users).chain((0..usize::from(servers)).map(move |number| server(subnet, number)))
}

pub const NUM_BLUE: usize = 5;
pub const NUM_RED: usize = 6;
/// Subnets of each blue agent, in the order of its observation.
pub const BLUE_ZONES: [&[Subnet]; NUM_BLUE] = [&[RA], &[OA], &[RB], &[OB], &[ADM, OFF, PUB]];
/// The same, in the order in which the network is drawn.
pub(super) const BLUE_DRAWN: [&[Subnet]; NUM_BLUE] = [&[RA], &[OA], &[RB], &[OB], &[PUB, ADM, OFF]];
/// Subnets of each red agent.
pub const RED_ZONES: [&[Subnet]; NUM_RED] = [&[CON], &[RA], &[OA], &[RB], &[OB], &[PUB, ADM, OFF]];

/// The red agent whose zone has the subnet.
pub const fn red_of(subnet: Subnet) -> usize {
    match subnet {
        CON => 0,
        RA => 1,
        OA => 2,
        RB => 3,
        OB => 4,
        _ => 5,
    }
}

/// The subnet on the way to the internet.
pub(super) const fn uplink(subnet: Subnet) -> Subnet {
    match subnet {
        OA => RA,
        OB => RB,
        ADM | OFF => PUB,
        _ => NET,
    }
}

/// Subnets whose first servers the first server of a subnet knows, in their order.
const LINKS: [&[Subnet]; NUM_NETWORKS] =
    [&[OA, CON], &[RA], &[OB, CON], &[RB], &[RA, RB, PUB], &[CON, ADM, OFF], &[PUB], &[PUB]];

/// First servers of other subnets that a host's administrator knows.
pub(super) fn links(slot: Slot) -> impl Iterator<Item = Slot> {
    LINKS[subnet_of(slot)].iter().map(|&subnet| server(subnet, 0))
}

/// Subnets with whose servers green of a subnet works in each phase.
pub(super) const GREEN_REACH: [[Subnets; NUM_NETWORKS]; 3] = {
    let headquarters =
        [(PUB, CON), (PUB, RA), (PUB, RB), (ADM, CON), (ADM, RA), (ADM, RB), (OFF, CON), (OFF, RA), (OFF, RB)];
    let phases: [&[(Subnet, Subnet)]; 3] =
        [&[(RA, CON), (OA, RA), (RB, CON), (RB, RA), (OB, RB)], &[(RB, CON), (OB, RB)], &[(RA, CON), (OA, RA)]];
    let mut reach = [[0; NUM_NETWORKS]; 3];
    let mut phase = 0;
    while phase < 3 {
        let mut subnet = 0;
        while subnet < NUM_NETWORKS {
            reach[phase][subnet] = 1 << subnet;
            subnet += 1;
        }
        let lists: [&[(Subnet, Subnet)]; 2] = [&headquarters, phases[phase]];
        let mut list = 0;
        while list < 2 {
            let mut pair = 0;
            while pair < lists[list].len() {
                let (a, b) = lists[list][pair];
                reach[phase][a] |= 1 << b;
                reach[phase][b] |= 1 << a;
                pair += 1;
            }
            list += 1;
        }
        phase += 1;
    }
    reach
};

/// Reaches of green as a byte of ones for each subnet, the first lowest.
pub(super) const GREEN_REACH_BYTES: [[u64; NUM_NETWORKS]; 3] = {
    let mut all = [[0; NUM_NETWORKS]; 3];
    let mut i = 0;
    while i < 3 * NUM_NETWORKS * NUM_NETWORKS {
        let (phase, from, to) = (i / NUM_NETWORKS / NUM_NETWORKS, i / NUM_NETWORKS % NUM_NETWORKS, i % NUM_NETWORKS);
        if GREEN_REACH[phase][from] >> to & 1 == 1 {
            all[phase][from] |= 0xff << (8 * to);
        }
        i += 1;
    }
    all
};

const fn is_operational(subnet: Subnet) -> bool {
    subnet == OA || subnet == OB
}

/// Returns whether the policy that blue is shown lets two subnets talk.
const fn is_permitted(phase: usize, a: Subnet, b: Subnet) -> bool {
    // The subnet that a phase protects, with its operational zone.
    let cut = match phase {
        1 => Some((RA, OA, RB)),
        2 => Some((RB, OB, RA)),
        _ => None,
    };
    if let Some((zone, operational, other)) = cut {
        let against = if a == zone { b } else { a };
        let is_cut = against == operational || against == other || against == CON || against == NET;
        if (a == zone || b == zone) && is_cut {
            return false;
        }
    }
    if is_operational(a) || is_operational(b) {
        return (a == RA && b == OA) || (a == OA && b == RA) || (a == RB && b == OB) || (a == OB && b == RB);
    }
    a != b
}

/// Subnets with which the policy does not let a subnet talk in each phase: a bit each in the order of [`BY_NAME`].
pub(super) const FORBIDDEN: [[Subnets; NUM_NETWORKS]; 3] = {
    let mut forbidden = [[0; NUM_NETWORKS]; 3];
    let mut phase = 0;
    while phase < 3 {
        let mut subnet = 0;
        while subnet < NUM_NETWORKS {
            let mut name = 0;
            while name < NUM_SUBNETS {
                if !is_permitted(phase, subnet, BY_NAME[name]) {
                    forbidden[phase][subnet] |= 1 << name;
                }
                name += 1;
            }
            subnet += 1;
        }
        phase += 1;
    }
    forbidden
};

/// Prices of an event, by the subnet of the green user or of the target of Impact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    pub(super) work_failed: i32,
    pub(super) access_failed: i32,
    pub(super) impact: i32,
}

/// Prices in each phase.
pub(super) const PRICES: [[Prices; NUM_NETWORKS]; 3] = {
    const fn prices(work_failed: i32, access_failed: i32, impact: i32) -> Prices {
        Prices { work_failed, access_failed, impact }
    }
    let hq = prices(-1, -1, -3);
    let even = prices(-1, -1, -1);
    [
        [prices(-1, -3, -1), even, prices(-1, -3, -1), even, prices(0, -5, -5), hq, hq, hq],
        [prices(-2, -1, -3), prices(-10, 0, -10), even, even, prices(0, 0, 0), hq, hq, hq],
        [prices(-1, -3, -3), even, prices(-2, -1, -3), prices(-10, 0, -10), prices(0, 0, 0), hq, hq, hq],
    ]
};

/// Services of the image of a host, numbered as the traces number them.
pub const SSHD: u8 = 0;
pub const OT_SERVICE: u8 = 1;
pub const APACHE: u8 = 2;
pub const MYSQL: u8 = 3;
pub const SMTP: u8 = 4;
pub const NUM_IMAGE_SERVICES: usize = 5;
/// Decoys, numbered after them.
pub const DECOY_APACHE: u8 = 5;
pub const DECOY_TOMCAT: u8 = 6;
pub const DECOY_HARAKA: u8 = 7;
pub const DECOY_VSFTPD: u8 = 8;
pub const NUM_SERVICES: usize = 9;

/// A set of open ports, one bit each.
pub type Ports = u8;
pub const PORT_80: Ports = 1;
pub const PORT_443: Ports = 2;
pub const PORT_22: Ports = 4;
pub const PORT_3390: Ports = 8;
pub const PORT_25: Ports = 16;
pub const PORT_1: Ports = 32;

/// The port of a service or decoy.
pub const fn port_of(service: u8) -> Ports {
    match service {
        SSHD => PORT_22,
        OT_SERVICE => PORT_1,
        MYSQL => PORT_3390,
        SMTP | DECOY_HARAKA => PORT_25,
        DECOY_TOMCAT => PORT_443,
        _ => PORT_80,
    }
}

/// A way into a host, in the order in which red lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exploit {
    Http,
    Https,
    SshBruteForce,
    Sql,
    Haraka,
}

impl Exploit {
    pub const ALL: [Self; 5] = [Self::Http, Self::Https, Self::SshBruteForce, Self::Sql, Self::Haraka];
    pub const NAMES: [&str; 5] = ["HTTPRFI", "HTTPSRFI", "SSHBruteForce", "SQLInjection", "HarakaRCE"];
    /// All of them, from the heaviest down.
    pub(super) const BY_WEIGHT: [Self; 5] = [Self::Haraka, Self::Sql, Self::Https, Self::Http, Self::SshBruteForce];

    pub(super) const fn port(self) -> Ports {
        match self {
            Self::Http => PORT_80,
            Self::Https => PORT_443,
            Self::SshBruteForce => PORT_22,
            Self::Sql => PORT_3390,
            Self::Haraka => PORT_25,
        }
    }

    /// Returns whether red tries it where it knows these ports.
    pub(super) const fn fits(self, ports: Ports) -> bool {
        ports & self.port() != 0 && (!matches!(self, Self::Sql) || ports & (PORT_80 | PORT_443) != 0)
    }

    /// The real service that answers it.
    pub(super) const fn service(self) -> Option<u8> {
        match self {
            Self::Http => Some(APACHE),
            Self::Https => None,
            Self::SshBruteForce => Some(SSHD),
            Self::Sql => Some(MYSQL),
            Self::Haraka => Some(SMTP),
        }
    }
}

/// Steps of an episode in each of the three phases.
pub(super) const fn phase_lengths(steps: u32) -> [u32; 3] {
    let (third, rest) = (steps / 3, steps % 3);
    [third + (rest > 0) as u32, third + (rest == 2) as u32, third]
}
