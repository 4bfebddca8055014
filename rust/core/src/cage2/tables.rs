//! A scenario compiled to the tables that the simulator reads: hosts, subnets, the firewall, and what red's agents head
//! for. Its parts (images, exploits, decoys) are those of [`scenario`](super::scenario).

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::Ruleset;
use super::blue_action::{BlueAction, num_actions};
use super::scenario::{
    AVAILABILITY_TENTHS, CONFIDENTIALITY_TENTHS, DECOYS, DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2, Exploit,
    HOST_NAMES, Host, Hosts, IMAGE_KINDS, Image, MENDED_IMAGE_KINDS, OP_SERVER0, Ports, SUBNET_NAMES, Subnet, USER0,
};

/// The most hosts that a scenario can have: a state has arrays of this length, so that a step allocates nothing.
pub const MAX_HOSTS: usize = 32;
/// The most subnets: sets of them are a byte.
pub const MAX_SUBNETS: usize = 8;

/// The host on which OTService runs and for which red's agents look, by its name.
const TARGET: &str = "Op_Server0";

/// The way in which red reaches a subnet from where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Open,
    /// While red has a session on a host with `Enterprise` in its name.
    Gated,
    Closed,
}

/// A subnet of a [`Description`].
#[derive(Clone, Debug)]
pub struct SubnetDescription {
    pub name: String,
    /// CybORG's measure of how many addresses it has.
    pub size: u32,
    pub hosts: Vec<Host>,
    pub access: Access,
}

/// A scenario as a file names it; hosts are indices into `hosts`.
#[derive(Clone, Debug)]
pub struct Description {
    pub hosts: Vec<String>,
    /// Index into [`IMAGE_KINDS`] of each host.
    pub images: Vec<usize>,
    pub confidentiality_tenths: Vec<i32>,
    /// Cost of a step while OTService is down, in tenths.
    pub availability_tenths: i32,
    /// Results of an escalation on each host: a host with its subnet (true) or its address alone.
    pub info: Vec<Vec<(Host, bool)>>,
    /// Hosts on which an escalation shows OTService.
    pub shows_service: Vec<bool>,
    pub subnets: Vec<SubnetDescription>,
    /// The host on which red's first session stands.
    pub start: Host,
    /// Hosts of blue's sessions in the order in which they are started, the server's first, and of green's.
    pub blue_sessions: Vec<Host>,
    pub green_sessions: Vec<Host>,
}

/// Hosts that an escalation on a host shows red.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub addresses: Hosts,
    pub subnets: u8,
    pub service: bool,
}

/// Where B_line goes from a host that it enters by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    pub enterprise: u8,
    /// The third host of the second one's subnet.
    pub gateway: u8,
    pub subnet: u8,
}

/// The draws with which CybORG numbers a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressDraws {
    pub parts: u32,
    pub addresses: u32,
    pub hosts: usize,
}

/// See the documentation of the module. Arrays by host go on with zeros after the last one.
#[derive(Clone, PartialEq)]
pub struct Scenario {
    pub ruleset: Ruleset,
    pub hosts: Vec<String>,
    /// In the order of their first hosts.
    pub subnets: Vec<String>,
    pub images: [&'static Image; MAX_HOSTS],
    /// Ports on which the images listen.
    pub ports: [Ports; MAX_HOSTS],
    pub subnet_of: [u8; MAX_HOSTS],
    pub members: [Hosts; MAX_SUBNETS],
    /// Hosts that red reaches from its first one, and those that it reaches while it has one of `gateways`.
    pub open: Hosts,
    pub gated: Hosts,
    pub gateways: Hosts,
    pub start: Host,
    /// The host with OTService.
    pub target: Host,
    pub shown: [Shown; MAX_HOSTS],
    /// Cost of a step in tenths while red is root on some hosts: for each byte of the set of them.
    pub root_costs: [[i32; 256]; MAX_HOSTS / 8],
    pub availability_tenths: i32,
    /// The host with two sessions of blue's.
    pub server: Host,
    /// Hosts in the order in which their sessions are started: blue's, green's, red's.
    pub sessions: Vec<u8>,
    /// Processes when an episode begins.
    pub boot_processes: [u32; MAX_HOSTS],
    /// Blocks of addresses to draw from, and the draws of each subnet in the order of the file.
    pub blocks: u32,
    pub address_draws: Vec<AddressDraws>,
    /// Hosts by which B_line enters, in the order from which it draws, or why it cannot play; and the route from each.
    pub entries: Result<Vec<u8>, String>,
    pub routes: [Route; MAX_HOSTS],
    /// Hosts whose loss Meander assumes first after a failure, and second; or why it cannot play.
    pub nearest: Result<[Hosts; 2], String>,
    /// Blue's actions in the challenge's order; each may have an effect while nothing on the host listens on the ports.
    pub actions: Vec<BlueAction>,
    blockers: Vec<(u8, Ports)>,
    /// Tables of blue's memory.
    pub memory: MemoryTables,
    is_scenario2: bool,
}

impl Scenario {
    /// Compiles a description.
    ///
    /// # Errors
    /// What is impossible about it, in a line.
    pub fn new(description: Description, ruleset: Ruleset) -> Result<Self, String> {
        let scenario = Self::without_memory(description, ruleset)?;
        let all = (0..scenario.len()).collect();
        Ok(scenario.remembering(all))
    }

    fn without_memory(description: Description, ruleset: Ruleset) -> Result<Self, String> {
        let kinds = if ruleset == Ruleset::PlusPlus { &MENDED_IMAGE_KINDS } else { &IMAGE_KINDS };
        let Description { hosts, images, subnets: described, start, info, .. } = description;
        let n = hosts.len();
        if !(2..=MAX_HOSTS).contains(&n) {
            return Err(format!("Hosts: expected 2 to {MAX_HOSTS} hosts, got {n}"));
        }
        if !(1..=MAX_SUBNETS).contains(&described.len()) {
            return Err(format!("Subnets: expected 1 to {MAX_SUBNETS} subnets, got {}", described.len()));
        }
        let per_host =
            [images.len(), description.confidentiality_tenths.len(), info.len(), description.shows_service.len()];
        let named =
            described.iter().flat_map(|subnet| &subnet.hosts).chain(info.iter().flatten().map(|(host, _)| host));
        let sessions = description.blue_sessions.iter().chain(&description.green_sessions);
        let indices = named.chain(sessions).chain([&start]);
        if per_host.iter().any(|&len| len != n) || indices.into_iter().any(|&host| host >= n) {
            return Err("Hosts: a list or an index does not fit their number".into());
        }
        let mut owner = vec![None; n];
        for (i, subnet) in described.iter().enumerate() {
            for &host in &subnet.hosts {
                if owner[host].replace(i).is_some() {
                    return Err(format!("Subnets: expected each host once, {} is in two places", hosts[host]));
                }
            }
        }
        if let Some(host) = owner.iter().position(Option::is_none) {
            return Err(format!("Subnets: expected each host in one, {} is in none", hosts[host]));
        }
        let target = hosts.iter().position(|name| name == TARGET);
        let has_service = |host: Host| kinds[images[host]].0 == "OP_Server";
        let Some(target) = target.filter(|&target| (0..n).all(|host| has_service(host) == (host == target))) else {
            return Err(format!("Hosts: expected the image OP_Server on {TARGET} and on no other host"));
        };
        // Subnets are numbered by their first hosts, as Meander scans them.
        let mut order: Vec<usize> = Vec::new();
        for i in owner.into_iter().flatten() {
            if !order.contains(&i) {
                order.push(i);
            }
        }
        if order.len() != described.len() {
            return Err("Subnets: expected at least one host in each".into());
        }
        let mut subnet_of = [0; MAX_HOSTS];
        let mut members = [0; MAX_SUBNETS];
        let (mut open, mut gated) = (0, 0);
        for (number, &i) in order.iter().enumerate() {
            members[number] = described[i].hosts.iter().fold(0, |set, &host| set | 1 << host);
            described[i].hosts.iter().for_each(|&host| subnet_of[host] = number as u8);
            match described[i].access {
                Access::Open => open |= members[number],
                Access::Gated => gated |= members[number],
                Access::Closed => {}
            }
        }
        let bits = |size: u32| (size + 5).ilog2().max(4);
        let largest = described.iter().map(|subnet| bits(subnet.size)).max().unwrap_or(4);
        let mut address_draws = Vec::new();
        for subnet in &described {
            let draws = AddressDraws {
                parts: 1 << (largest - bits(subnet.size)),
                addresses: (1 << bits(subnet.size)) - 2,
                hosts: subnet.hosts.len(),
            };
            if subnet.size > 1000 || draws.hosts > draws.addresses as usize {
                return Err(format!(
                    "Subnets.{}.Size: expected at most 1000, and addresses for {} hosts; {} has {}",
                    subnet.name, draws.hosts, subnet.size, draws.addresses
                ));
            }
            address_draws.push(draws);
        }
        let with = |part: &str| {
            let named = hosts.iter().enumerate().filter(|(_, name)| name.contains(part));
            named.fold(0, |set: Hosts, (host, _)| set | 1 << host)
        };
        let mut shown = [Shown::default(); MAX_HOSTS];
        for host in 0..n {
            let addresses = info[host].iter().fold(0, |set, &(other, _)| set | 1 << other);
            let subnets =
                info[host].iter().filter(|(_, all)| *all).fold(0, |set, &(other, _)| set | 1 << subnet_of[other]);
            shown[host] = Shown { addresses, subnets, service: description.shows_service[host] };
        }
        let sessions = || description.blue_sessions.iter().chain(&description.green_sessions).chain([&start]);
        let mut boot_processes = [0; MAX_HOSTS];
        (0..n).for_each(|host| boot_processes[host] = kinds[images[host]].1.pids.len() as u32);
        sessions().for_each(|&host| boot_processes[host] += 1);
        let server = description.blue_sessions.first().copied().unwrap_or_default();
        for (host, name) in hosts.iter().enumerate() {
            let (got, expected) =
                (description.blue_sessions.iter().filter(|&&h| h == host).count(), 1 + usize::from(host == server));
            if got != expected {
                return Err(format!(
                    "Agents.Blue.starting_sessions: expected one VelociraptorClient on each host, and the server; {} has {got} \
                     sessions",
                    name
                ));
            }
        }
        let mut routes = [Route::default(); MAX_HOSTS];
        let entries = entries(&hosts, &described, &order, &subnet_of, open, start, target, &info, &mut routes);
        let (operational, enterprise) = (with("Op"), with("Ent"));
        let nearest = if (operational | enterprise) >> start & 1 == 1 {
            Err(format!("Meander needs a start whose name has neither Op nor Ent in it, got {}", hosts[start]))
        } else {
            Ok([operational, enterprise])
        };
        let actions: Vec<_> = (0..num_actions(n)).map(|i| BlueAction::from_index(i, n)).collect();
        let image = |host: Host| &kinds[images[host]].1;
        let blockers = actions.iter().map(|&action| blockers(action, image)).collect();
        let tenths = |host: Host| description.confidentiality_tenths.get(host).copied().unwrap_or(0);
        let cost = |byte, set| (0..8).filter(|bit| set >> bit & 1 == 1).map(|bit| tenths(8 * byte + bit)).sum();
        let root_costs = std::array::from_fn(|byte| std::array::from_fn(|set| cost(byte, set)));
        Ok(Self {
            ruleset,
            subnets: order.iter().map(|&i| described[i].name.clone()).collect(),
            images: std::array::from_fn(|host| &kinds[images.get(host).copied().unwrap_or_default()].1),
            ports: std::array::from_fn(|host| if host < n { image(host).ports } else { 0 }),
            subnet_of,
            members,
            open,
            gated,
            gateways: with("Enterprise"),
            start,
            target,
            shown,
            root_costs,
            availability_tenths: description.availability_tenths,
            server,
            sessions: sessions().map(|&host| host as u8).collect(),
            boot_processes,
            blocks: 1 << (16 - largest),
            address_draws,
            entries,
            routes,
            nearest,
            actions,
            blockers,
            memory: MemoryTables::default(),
            is_scenario2: false,
            hosts,
        })
    }

    /// Tables with these hosts as those whose scans blue remembers.
    fn remembering(self, scan_hosts: Vec<Host>) -> Self {
        Self { memory: MemoryTables::new(&self, scan_hosts), ..self }
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns whether the action with this index may have an effect while hosts listen on these ports.
    #[inline]
    pub fn may_have_effect(&self, action: usize, ports: &[Ports; MAX_HOSTS]) -> bool {
        let (host, blockers) = self.blockers[action];
        ports[usize::from(host)] & blockers == 0
    }

    /// Returns whether the set has no other members than there are hosts.
    pub fn are_hosts(&self, hosts: Hosts) -> bool {
        u64::from(hosts) >> self.len() == 0
    }

    /// Returns whether there are no other bits than those of subnets.
    pub fn are_subnets(&self, bits: u8) -> bool {
        u16::from(bits) >> self.subnets.len() == 0
    }

    /// Returns whether this is Scenario 2, by whichever rules.
    pub fn is_scenario2(&self) -> bool {
        self.is_scenario2
    }
}

/// Names it: other scenarios have other texts, which tell saved states apart.
impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ruleset = self.ruleset;
        if self.is_scenario2() {
            return write!(f, "Scenario2 ({ruleset:?})");
        }
        let Self { hosts, images, subnets, subnet_of, open, gated, start, shown, .. } = self;
        let Self { root_costs, availability_tenths, sessions, address_draws, routes, .. } = self;
        let images = &images[..hosts.len()];
        let all = format!(
            "{:?}",
            (
                (hosts, images, subnets, subnet_of, open, gated, start, shown),
                (root_costs, availability_tenths, sessions, address_draws, routes)
            )
        );
        write!(f, "Scenario({ruleset:?}, {} hosts, {:08x})", hosts.len(), crc32fast::hash(all.as_bytes()))
    }
}

/// The ports of the host that must be free for the action to have an effect; all ports where it never has one, since
/// every host listens on some.
fn blockers(action: BlueAction, image: impl Fn(Host) -> &'static Image) -> (u8, Ports) {
    const NEVER: Ports = Ports::MAX;
    match action {
        BlueAction::Sleep => (0, 0),
        // Every step monitors: the action does what Sleep does.
        BlueAction::Monitor => (0, NEVER),
        // No exploit ever succeeds there, so there is never a file to find.
        BlueAction::Analyse(host) => {
            let image = image(host);
            let is_safe = !image.brute_forceable && image.vulnerable & !Exploit::SshBruteForce.bit() == 0;
            (host as u8, if is_safe { NEVER } else { 0 })
        }
        BlueAction::Decoy(decoy, host) => {
            let decoy = &DECOYS[decoy];
            let runs = decoy.windows.is_none_or(|windows| windows == image(host).windows);
            (host as u8, if runs { decoy.checks } else { NEVER })
        }
        BlueAction::Remove(host) | BlueAction::Restore(host) => (host as u8, 0),
    }
}

/// Hosts by which B_line enters, with their routes. Its plan names User0, Op_Server0 and hosts with `Enterprise` in their
/// names, and takes what it has just seen for granted: where that could be missing, CybORG stops with an error.
#[expect(clippy::too_many_arguments, reason = "parts of a scenario that is not there yet")]
fn entries(
    hosts: &[String],
    subnets: &[SubnetDescription],
    order: &[usize],
    subnet_of: &[u8; MAX_HOSTS],
    open: Hosts,
    start: Host,
    target: Host,
    info: &[Vec<(Host, bool)>],
    routes: &mut [Route; MAX_HOSTS],
) -> Result<Vec<u8>, String> {
    let subnet_at = |host: Host| &subnets[order[usize::from(subnet_of[host])]];
    if hosts[start] != "User0" {
        return Err(format!("B_line starts on a host named User0, red starts on {}", hosts[start]));
    }
    let mut entries = Vec::new();
    for &user in subnet_at(start).hosts.iter().filter(|&&host| host != start) {
        let mut seen: Vec<Host> = info[user].iter().map(|&(host, _)| host).collect();
        seen.sort_unstable();
        let mut seen = [user].into_iter().chain(seen);
        let Some(enterprise) = seen.find(|&host| hosts[host].contains("Enterprise")) else {
            return Err(format!("B_line needs a host with Enterprise in its name in the info of {}", hosts[user]));
        };
        let Some(&gateway) = subnet_at(enterprise).hosts.get(2) else {
            return Err(format!("B_line needs three hosts in the subnet of {}", hosts[enterprise]));
        };
        let shows = |host: Host, other: Host, all: bool| info[host].iter().any(|&(h, a)| h == other && a >= all);
        if enterprise == user || !shows(enterprise, enterprise, true) {
            return Err(format!("B_line needs the interfaces of {0} in its info", hosts[enterprise]));
        }
        if !shows(gateway, target, false) {
            return Err(format!("B_line needs {} in the info of {}", hosts[target], hosts[gateway]));
        }
        if [user, enterprise, gateway].iter().any(|host| open >> host & 1 == 0) {
            return Err(format!("B_line needs a way that the firewall leaves open to {}", hosts[enterprise]));
        }
        entries.push(user as u8);
        routes[user] = Route { enterprise: enterprise as u8, gateway: gateway as u8, subnet: subnet_of[enterprise] };
    }
    if entries.is_empty() {
        return Err("B_line needs another host in the subnet of User0".into());
    }
    Ok(entries)
}

/// Scenario 2, the challenge's own, by the rules of its main branch.
pub static SCENARIO2: LazyLock<&Arc<Scenario>> = LazyLock::new(|| Ruleset::Main.scenario2());

/// Scenario 2 in the order of [`Ruleset::ALL`].
static BY_RULESET: LazyLock<[Arc<Scenario>; 3]> = LazyLock::new(|| Ruleset::ALL.map(scenario2));

impl Ruleset {
    /// Scenario 2 by these rules.
    pub fn scenario2(self) -> &'static Arc<Scenario> {
        &BY_RULESET[self as usize]
    }
}

fn scenario2(ruleset: Ruleset) -> Arc<Scenario> {
    let subnet = |i: usize, hosts: &[Host], access| SubnetDescription {
        name: SUBNET_NAMES[i].into(),
        size: [3, 4, 5][i],
        hosts: hosts.to_vec(),
        access,
    };
    let n = HOST_NAMES.len();
    let mut info: Vec<Vec<(Host, bool)>> = (0..n).map(|host| vec![(host, true)]).collect();
    info[DEFENDER].clear();
    for (host, other) in
        [(9, ENTERPRISE1), (10, ENTERPRISE1), (11, ENTERPRISE0), (12, ENTERPRISE0), (ENTERPRISE2, OP_SERVER0)]
    {
        info[host].push((other, false));
    }
    let description = Description {
        hosts: HOST_NAMES.map(Into::into).to_vec(),
        images: vec![7, 0, 2, 2, 0, 0, 0, 1, 3, 3, 4, 5, 6],
        confidentiality_tenths: CONFIDENTIALITY_TENTHS.to_vec(),
        availability_tenths: AVAILABILITY_TENTHS,
        info,
        shows_service: (0..n).map(|host| host == OP_SERVER0).collect(),
        subnets: vec![
            subnet(0, &[1, 2, 3, 0], Access::Open),
            subnet(1, &[7, 4, 5, 6], Access::Gated),
            subnet(2, &[8, 9, 10, 11, 12], Access::Open),
        ],
        start: USER0,
        blue_sessions: vec![0, 8, 9, 10, 11, 12, 1, 2, 3, 0, 7, 4, 5, 6],
        green_sessions: vec![8, 9, 10, 11, 12, 4, 5, 6],
    };
    let scenario = Scenario::without_memory(description, ruleset).expect("Scenario 2 is one");
    Arc::new(Scenario { is_scenario2: true, ..scenario.remembering(SCAN_HOSTS.to_vec()) })
}

/// The subnet of a host of Scenario 2.
pub fn subnet_of(host: Host) -> Subnet {
    usize::from(SCENARIO2.subnet_of[host])
}

/// Hosts of Scenario 2 whose scans the winners of the challenge remembered; the operational hosts are not among them.
pub const SCAN_HOSTS: [Host; 10] = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12];

/// Set of places in [`MemoryTables::decoy_places`].
pub(super) type Places = u128;

/// Tables of a scenario for [`super::memory::BlueMemory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryTables {
    /// Hosts that have a value for their scans, and the set of them.
    pub scan_hosts: Vec<Host>,
    pub(super) scanned: Hosts,
    /// Decoys and the hosts where they can start, in the order of blue's actions: number of the decoy, host. Elsewhere the
    /// host itself listens on the decoy's port or has another operating system.
    pub decoy_places: Vec<(usize, Host)>,
    /// The place of each action that starts a decoy which can start; 0 for all other actions.
    pub(super) starts: Vec<Places>,
    /// The places on each host.
    pub(super) places_on: Vec<Places>,
}

impl MemoryTables {
    /// MemoryTables of a scenario that has all of its parts but these.
    fn new(scenario: &Scenario, scan_hosts: Vec<Host>) -> Self {
        let places = scenario.actions.iter().enumerate().filter_map(|(index, &action)| match action {
            BlueAction::Decoy(decoy, host) if scenario.may_have_effect(index, &scenario.ports) => Some((decoy, host)),
            _ => None,
        });
        let decoy_places: Vec<_> = places.collect();
        // At most four start on a host of any image, on 32 hosts.
        assert!(decoy_places.len() <= Places::BITS as usize, "sets of places have no more bits");
        let where_each = |counts: &dyn Fn(usize, Host) -> bool| {
            let places = decoy_places.iter().enumerate();
            places.fold(0, |set: Places, (i, &(decoy, host))| set | Places::from(counts(decoy, host)) << i)
        };
        let starts = |&action: &BlueAction| match action {
            BlueAction::Decoy(decoy, host) => where_each(&|other, there| (other, there) == (decoy, host)),
            _ => 0,
        };
        Self {
            scanned: scan_hosts.iter().fold(0, |set, &host| set | 1 << host),
            scan_hosts,
            starts: scenario.actions.iter().map(starts).collect(),
            places_on: (0..scenario.len()).map(|host| where_each(&|_, there| there == host)).collect(),
            decoy_places,
        }
    }

    pub(super) fn hosts(&self) -> usize {
        self.places_on.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::scenario::{ENTERPRISE, GATEWAYS, IMAGES, NUM_HOSTS, OPERATIONAL, USER};

    #[test]
    fn scenario2_has_the_tables_of_the_challenge() {
        let scenario = &*SCENARIO2;
        assert!((0..NUM_HOSTS).all(|host| *scenario.images[host] == IMAGES[host]));
        assert_eq!(scenario.boot_processes[..NUM_HOSTS], [29, 2, 6, 6, 3, 3, 3, 3, 5, 4, 5, 6, 7]);
        assert_eq!((scenario.gateways, scenario.gated), (GATEWAYS, 0xf0));
        assert_eq!([ENTERPRISE, OPERATIONAL, USER].map(|i| scenario.members[i]), [0x0f, 0xf0, 0x1f00]);
        assert_eq!(scenario.blocks, 4096);
        assert_eq!(scenario.entries, Ok(vec![9, 10, 11, 12]));
        let hosts = |user: usize| (scenario.routes[user].enterprise, scenario.routes[user].gateway);
        assert_eq!([9, 10, 11, 12].map(hosts), [(2, 3), (2, 3), (1, 3), (1, 3)]);
        let cost = |set: usize| scenario.root_costs[set / 256][set % 256];
        assert_eq!((cost(0b1010), scenario.root_costs[1][0b11], cost(0xff)), (20, 1, 44));
        assert_eq!(format!("{scenario:?}"), "Scenario2 (Main)");
    }
}
