//! The true state of the hosts: services, processes and pids.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::blueprint::Blueprint;
use super::scenario::{
    MOST_SERVERS, MOST_USERS, NUM_IMAGE_SERVICES, NUM_NETWORKS, NUM_SERVICES, NUM_SLOTS, OT_SERVICE, Ports, SSHD,
    SUBNET_SLOTS, Slot, Subnet, Users, hosts_of, port_of, server, subnet_of, user_bit,
};
use super::source::RandomSource;
use crate::env::ensure;
use crate::memory::prefetch;

pub(super) const FULL_HEALTH: u8 = 100;

/// A service or decoy on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub kind: u8,
    pub health: u8,
}

/// A host. It was never there if it has no slot in its [`Network`]'s numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Highest pid now, and in the image.
    pub top_pid: u16,
    image_top_pid: u16,
    /// Those of the image in the order of their start, then decoys in the order in which their kinds first came.
    services: [Service; NUM_SERVICES],
    num_services: u8,
    num_image_services: u8,
    /// Processes of the sessions that start with the episode.
    start_sessions: u8,
    /// True once Impact has stopped OTService.
    pub ot_stopped: bool,
    /// Open ports.
    pub ports: Ports,
    /// Processes of decoys.
    pub decoys: u16,
}

impl Host {
    /// Services in their order, stopped ones included.
    pub fn services(&self) -> &[Service] {
        &self.services[..usize::from(self.num_services)]
    }

    pub fn has_image_service(&self, kind: u8) -> bool {
        self.services[..usize::from(self.num_image_services)].iter().any(|s| s.kind == kind)
    }

    /// Number of services that are up.
    pub fn services_up(&self) -> usize {
        usize::from(self.num_services) - usize::from(self.ot_stopped)
    }

    /// The `nth` service that is up.
    pub fn service_up(&self, nth: usize) -> Service {
        let up = |s: &&Service| !(self.ot_stopped && s.kind == OT_SERVICE);
        *self.services().iter().filter(up).nth(nth).expect("the caller counted the services")
    }

    fn up(&self) -> Up {
        let mut up = self.services().iter().filter(|s| !(self.ot_stopped && s.kind == OT_SERVICE)).map(|s| s.health);
        let first = up.next().unwrap_or(FULL_HEALTH);
        Up { count: self.services_up() as u8, health: if up.all(|health| health == first) { first } else { MIXED } }
    }

    /// Returns whether a service is stopped or has lost health.
    fn is_hampered(&self) -> bool {
        self.ot_stopped || self.up().health != FULL_HEALTH
    }

    /// Takes health from all services that are up.
    fn degrade(&mut self) {
        for service in &mut self.services[..usize::from(self.num_services)] {
            if !(self.ot_stopped && service.kind == OT_SERVICE) {
                service.health = service.health.saturating_sub(20);
            }
        }
    }

    /// Processes that a host has without decoys and red's shells.
    pub fn image_processes(&self) -> usize {
        usize::from(self.num_image_services + self.start_sessions) - usize::from(self.ot_stopped)
    }

    /// Processes with a port that are no decoys.
    pub(super) fn real_listeners(&self) -> usize {
        usize::from(self.num_image_services) - usize::from(self.ot_stopped)
    }

    fn image_ports(&self) -> Ports {
        self.services[..usize::from(self.num_image_services)].iter().fold(0, |ports, s| ports | port_of(s.kind))
    }

    /// Back to the image.
    fn restore(&mut self) {
        self.num_services = self.num_image_services;
        self.services.iter_mut().for_each(|s| s.health = FULL_HEALTH);
        self.ports = self.image_ports();
        (self.top_pid, self.ot_stopped, self.decoys) = (self.image_top_pid, false, 0);
    }
}

/// The services of a host that are up in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Up {
    pub(super) count: u8,
    /// The health of all of them, or [`MIXED`].
    pub(super) health: u8,
}

/// Stands for services of which some have more health than others.
pub(super) const MIXED: u8 = u8::MAX;

/// The kind of a process that is not of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The process of a red session.
    Shell,
    /// A decoy, and whether it is the process of the service of its name, not of an older one.
    Decoy { service: u8, is_current: bool },
}

/// A process that is not of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub host: u8,
    pub pid: u16,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Network {
    hosts: [[Host; SUBNET_SLOTS]; NUM_NETWORKS],
    /// Services of each host that are up; derived from the hosts.
    services: [[Up; SUBNET_SLOTS]; NUM_NETWORKS],
    /// Processes that are not of an image, in the order of their start.
    processes: SmallVec<[Process; USUAL_PROCESSES]>,
    pub users: [u8; NUM_NETWORKS],
    pub servers: [u8; NUM_NETWORKS],
    /// Users on whose hosts not every service is up with full health; derived from the hosts.
    hampered: Users,
}

const EACH_BYTE: u64 = u64::from_le_bytes([1; NUM_NETWORKS]);
const HIGHEST_BITS: u64 = EACH_BYTE << 7;

/// Places for processes: an episode with more allocates.
const USUAL_PROCESSES: usize = 256;

impl Network {
    pub(super) fn empty() -> Self {
        Self {
            users: [0; NUM_NETWORKS],
            servers: [0; NUM_NETWORKS],
            hosts: [[Host::default(); SUBNET_SLOTS]; NUM_NETWORKS],
            services: [[Up::default(); SUBNET_SLOTS]; NUM_NETWORKS],
            hampered: 0,
            processes: SmallVec::new(),
        }
    }

    /// Becomes the network of a blueprint as it stands when an episode starts; keeps the memory.
    pub(super) fn build(&mut self, plan: &Blueprint) {
        (self.users, self.servers) = (plan.users, plan.servers);
        self.processes.clear();
        self.hampered = 0;
        self.hosts = [[Host::default(); SUBNET_SLOTS]; NUM_NETWORKS];
        for slot in (0..NUM_NETWORKS).flat_map(|s| hosts_of(s, plan.users[s], plan.servers[s])) {
            let host = self.host_mut(slot);
            let has_red = usize::from(plan.red_starts[0]) == slot;
            let sessions = [plan.blue_pids[slot], plan.green_pids[slot], if has_red { plan.red_pid } else { 0 }];
            host.start_sessions = sessions.iter().filter(|&&pid| pid > 0).count() as u8;
            host.image_top_pid = sessions.into_iter().chain(plan.service_pids[slot]).max().unwrap_or(0);
            let kinds = plan.services[slot].iter().filter_map(|&kind| u8::try_from(kind).ok());
            for (service, kind) in host.services.iter_mut().zip(kinds) {
                service.kind = kind;
                host.num_image_services += 1;
            }
            host.restore();
            self.note_services(slot);
        }
    }

    /// Brings into the caches what each step reads.
    pub(super) fn prefetch(&self) {
        prefetch(&self.users);
        prefetch(&self.hampered);
    }

    /// Brings the services into the caches.
    pub(super) fn prefetch_services(&self) {
        prefetch(&self.services);
    }

    /// Brings a host into the caches.
    pub(super) fn prefetch_host(&self, slot: Slot) {
        prefetch(self.host(slot));
    }

    /// Brings the processes into the caches.
    pub(super) fn prefetch_processes(&self) {
        prefetch(&self.processes[..]);
    }

    /// Brings the short form of a host's services up to date.
    fn note_services(&mut self, slot: Slot) {
        let host = self.host(slot);
        let up = host.up();
        let bit = user_bit(slot);
        self.hampered = if host.is_hampered() { self.hampered | bit } else { self.hampered & !bit };
        self.services.as_flattened_mut()[slot] = up;
    }

    /// All users.
    pub(super) fn user_set(&self) -> Users {
        self.users.iter().rev().fold(0, |set, &users| set << MOST_USERS | ((1 << users) - 1))
    }

    /// Users on whose hosts not every service is up with full health.
    pub(super) fn hampered_users(&self) -> Users {
        self.hampered
    }

    /// The host's services that are up.
    #[inline]
    pub(super) fn services_up(&self, slot: Slot) -> Up {
        self.services.as_flattened()[slot]
    }

    /// Takes health from a host's services.
    pub(super) fn degrade(&mut self, slot: Slot) {
        self.host_mut(slot).degrade();
        self.note_services(slot);
    }

    /// Stops a host's OTService.
    pub(super) fn stop_ot_service(&mut self, slot: Slot) {
        self.host_mut(slot).ot_stopped = true;
        self.note_services(slot);
    }

    /// Returns whether the host exists in this episode.
    pub fn exists(&self, slot: Slot) -> bool {
        let (subnet, place) = (subnet_of(slot), slot % SUBNET_SLOTS);
        match place {
            0 => subnet < NUM_NETWORKS,
            1..=MOST_USERS => place <= usize::from(self.users[subnet]),
            _ => place <= MOST_USERS + usize::from(self.servers[subnet]),
        }
    }

    /// Hosts of a subnet in their order: router, users, servers.
    pub fn hosts_of(&self, subnet: Subnet) -> impl Iterator<Item = Slot> + Clone + use<> {
        hosts_of(subnet, self.users[subnet], self.servers[subnet])
    }

    /// All hosts in their order.
    pub fn hosts(&self) -> impl Iterator<Item = Slot> + Clone {
        (0..NUM_NETWORKS).flat_map(|subnet| self.hosts_of(subnet))
    }

    /// One of the servers of some subnets, which `pick` picks out of their number. A subnet is a byte of ones.
    #[inline]
    pub(super) fn pick_server(&self, subnets: u64, pick: impl FnOnce(usize) -> usize) -> Slot {
        // A byte for each subnet: the servers up to it. None is above 127, so a highest bit is free for the comparison.
        let sums = (u64::from_le_bytes(self.servers) & subnets).wrapping_mul(EACH_BYTE);
        let nth = pick((sums >> 56) as usize);
        let above = (sums | HIGHEST_BITS) - (nth as u64 + 1) * EACH_BYTE;
        let subnet = (above & HIGHEST_BITS).trailing_zeros() / 8;
        let before = (sums << 8) >> (8 * subnet) & 0xff;
        server(subnet as usize, nth - before as usize)
    }

    #[inline]
    pub fn host(&self, slot: Slot) -> &Host {
        &self.hosts.as_flattened()[slot]
    }

    #[inline]
    fn host_mut(&mut self, slot: Slot) -> &mut Host {
        &mut self.hosts.as_flattened_mut()[slot]
    }

    /// Processes on the host that are not of its image, in the order of their start.
    pub fn processes_on(&self, slot: Slot) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |p| usize::from(p.host) == slot)
    }

    /// Number of all processes on the host.
    pub fn num_processes(&self, slot: Slot) -> usize {
        self.host(slot).image_processes() + self.processes_on(slot).count()
    }

    /// Starts a process with a new pid, which it returns.
    fn start(&mut self, slot: Slot, kind: Kind, random: &mut impl RandomSource) -> u16 {
        let host = self.host_mut(slot);
        let pid = host.top_pid.saturating_add(random.pid(slot, host.top_pid));
        host.top_pid = pid;
        self.processes.push(Process { host: slot as u8, pid, kind });
        pid
    }

    pub(super) fn start_shell(&mut self, slot: Slot, random: &mut impl RandomSource) -> u16 {
        self.start(slot, Kind::Shell, random)
    }

    /// Starts a decoy and its service, which takes the place of an older one of its name.
    pub(super) fn start_decoy(&mut self, slot: Slot, service: u8, random: &mut impl RandomSource) {
        let host = self.host_mut(slot);
        let count = usize::from(host.num_services);
        let place = host.services[..count].iter().position(|s| s.kind == service);
        if place.is_none() {
            host.num_services += 1;
        }
        host.services[place.unwrap_or(count)] = Service { kind: service, health: FULL_HEALTH };
        host.ports |= port_of(service);
        host.decoys = host.decoys.saturating_add(1);
        if place.is_some() {
            let old = self.processes.iter_mut().filter(|p| usize::from(p.host) == slot);
            old.for_each(|p| {
                if let Kind::Decoy { service: kind, is_current } = &mut p.kind {
                    *is_current &= *kind != service;
                }
            });
        }
        self.start(slot, Kind::Decoy { service, is_current: true }, random);
        self.note_services(slot);
    }

    /// The process of that pid, if it is not of the image.
    pub(super) fn find(&self, slot: Slot, pid: u16) -> Option<Process> {
        self.processes_on(slot).find(|p| p.pid == pid).copied()
    }

    /// Ends a process. That of a decoy's service starts again with a new pid.
    pub(super) fn kill(&mut self, process: Process, random: &mut impl RandomSource) {
        let slot = usize::from(process.host);
        self.processes.retain(|p| *p != process);
        let left = self.processes_on(slot).map(|p| p.pid).max().unwrap_or(0);
        let host = self.host_mut(slot);
        host.top_pid = host.image_top_pid.max(left);
        match process.kind {
            Kind::Shell => {}
            kind @ Kind::Decoy { is_current: true, .. } => {
                self.start(slot, kind, random);
            }
            Kind::Decoy { .. } => {
                let decoys = |ports, p: &Process| match p.kind {
                    Kind::Decoy { service, .. } => ports | port_of(service),
                    Kind::Shell => ports,
                };
                let ports = self.processes_on(slot).fold(0, decoys);
                let host = self.host_mut(slot);
                host.ports = host.image_ports() | ports;
                host.decoys = host.decoys.saturating_sub(1);
            }
        }
    }

    /// Brings a host back to its image.
    pub(super) fn restore(&mut self, slot: Slot) {
        self.processes.retain(|p| usize::from(p.host) != slot);
        self.host_mut(slot).restore();
        self.note_services(slot);
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self) -> Result<(), String> {
        let counts = |counts: &[u8], low, high| counts.iter().all(|&n| (low..=high).contains(&usize::from(n)));
        let sizes = counts(&self.users, 3, MOST_USERS) && counts(&self.servers, 1, MOST_SERVERS);
        ensure(sizes, "a subnet has an impossible number of hosts")?;
        for slot in self.hosts() {
            let host = self.host(slot);
            let image = usize::from(host.num_image_services);
            let num_services = usize::from(host.num_services);
            ensure(image <= NUM_IMAGE_SERVICES && image <= num_services, "a host has too many services")?;
            ensure(num_services <= NUM_SERVICES && host.start_sessions <= 3, "a host has too many services")?;
            ensure(slot % SUBNET_SLOTS == 0 || host.has_image_service(SSHD), "a host has no SSHD")?;
            let kinds = host.services().iter().enumerate().fold(0u16, |kinds, (i, s)| {
                let fits =
                    usize::from(s.kind) < NUM_SERVICES && (usize::from(s.kind) < NUM_IMAGE_SERVICES) == (i < image);
                if fits { kinds | 1 << s.kind } else { kinds }
            });
            ensure(kinds.count_ones() as usize == num_services, "a host has impossible services")?;
            ensure(host.services().iter().all(|s| s.health <= FULL_HEALTH), "a service has too much health")?;
            ensure(!host.ot_stopped || host.has_image_service(OT_SERVICE), "OTService is stopped where there is none")?;
            let hampered = self.hampered & user_bit(slot) != 0;
            let same = self.services_up(slot) == host.up() && (hampered == host.is_hampered() || user_bit(slot) == 0);
            ensure(same, "the services of a host are others than their short form")?;
        }
        ensure(self.hampered & !self.user_set() == 0, "a user is hampered who is not there")?;
        let sound = |p: &Process| {
            let decoys = NUM_IMAGE_SERVICES..NUM_SERVICES;
            let kind = match p.kind {
                Kind::Shell => true,
                Kind::Decoy { service, .. } => decoys.contains(&usize::from(service)),
            };
            kind && usize::from(p.host) < NUM_SLOTS && self.exists(usize::from(p.host))
        };
        ensure(self.processes.iter().all(sound), "an impossible process runs")
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{GREEN_REACH, GREEN_REACH_BYTES};
    use super::*;

    #[test]
    fn servers_are_counted_and_picked_in_their_order() {
        let mut network = Network::empty();
        network.servers = [3, 6, 1, 2, 6, 4, 5, 6];
        for (subnets, bytes) in GREEN_REACH.iter().flatten().zip(GREEN_REACH_BYTES.iter().flatten()) {
            let subnets = (0..NUM_NETWORKS).filter(|s| subnets >> s & 1 == 1);
            let all: Vec<Slot> =
                subnets.flat_map(|s| (0..usize::from(network.servers[s])).map(move |n| server(s, n))).collect();
            for (nth, expected) in all.iter().enumerate() {
                let pick = |count| {
                    assert_eq!(count, all.len());
                    nth
                };
                assert_eq!(network.pick_server(*bytes, pick), *expected);
            }
        }
    }
}
