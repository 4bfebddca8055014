//! The network of an episode as it is drawn: which hosts there are, their services, and where sessions start.

use std::ops::RangeInclusive;

use super::scenario::{
    APACHE, BLUE_DRAWN, MOST_SERVERS, MOST_USERS, MYSQL, NUM_BLUE, NUM_IMAGE_SERVICES, NUM_NETWORKS, NUM_RED,
    NUM_SLOTS, OA, OB, OT_SERVICE, RED_ZONES, SMTP, SSHD, SUBNET_SLOTS, Slot, Subnet, hosts_of, server, subnet_of,
    user,
};
use crate::env::ensure;

/// Fewest users of a subnet.
const FEWEST_USERS: usize = 3;
const FIRST_PID: u16 = 1000;
const NUM_PIDS: usize = 9000;

/// The draws of which a network is made. Those that do nothing by default decide nothing in a game.
pub trait NetworkSource {
    /// Uniform on `0..n`.
    fn below(&mut self, n: usize) -> usize;

    /// The same, but for a label.
    fn label(&mut self, _n: usize) {}

    /// A number that nothing reads.
    fn unused(&mut self) {}

    /// An offset of a process id from the first, below `n`, or none: process ids of services are labels.
    fn pid(&mut self, _n: usize) -> Option<usize> {
        None
    }

    /// The distance of a start session's process id from the highest on its host, 1 to 9.
    fn session_pid(&mut self) -> u16 {
        1
    }
}

/// A drawn network. Pids are 0 where there is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// Numbers of users and servers of each subnet.
    pub users: [u8; NUM_NETWORKS],
    pub servers: [u8; NUM_NETWORKS],
    /// Kinds of services in the order of their start, -1 where there are fewer, and their pids.
    pub services: [[i8; NUM_IMAGE_SERVICES]; NUM_SLOTS],
    pub service_pids: [[u16; NUM_IMAGE_SERVICES]; NUM_SLOTS],
    /// Pids of the start sessions of blue and green.
    pub blue_pids: [u16; NUM_SLOTS],
    pub green_pids: [u16; NUM_SLOTS],
    /// Hosts of the parent sessions of blue's agents.
    pub blue_parents: [u8; NUM_BLUE],
    /// The hosts that red's agents know when the episode starts. The first agent has a session there.
    pub red_starts: [u8; NUM_RED],
    pub red_pid: u16,
}

impl Blueprint {
    pub(super) fn empty() -> Self {
        Self {
            users: [0; NUM_NETWORKS],
            servers: [0; NUM_NETWORKS],
            services: [[-1; NUM_IMAGE_SERVICES]; NUM_SLOTS],
            service_pids: [[0; NUM_IMAGE_SERVICES]; NUM_SLOTS],
            blue_pids: [0; NUM_SLOTS],
            green_pids: [0; NUM_SLOTS],
            blue_parents: [0; NUM_BLUE],
            red_starts: [0; NUM_RED],
            red_pid: 0,
        }
    }

    /// Draws a network.
    pub fn draw(source: &mut impl NetworkSource) -> Self {
        let mut plan = Self::empty();
        let mut used = [0u64; NUM_PIDS.div_ceil(64)];
        // Networks of the nine subnets.
        (248..=256).rev().for_each(|n| source.label(n));
        for subnet in 0..NUM_NETWORKS {
            let mut free = (1..=254).rev();
            let mut address = |source: &mut _| NetworkSource::label(source, free.next().unwrap_or(1));
            address(source);
            source.label(2);
            let users = FEWEST_USERS + source.below(MOST_USERS - FEWEST_USERS + 1);
            for number in 0..users {
                address(source);
                plan.equip(user(subnet, number), source, &mut used);
            }
            let servers = 1 + source.below(MOST_SERVERS);
            for number in 0..servers {
                plan.equip(server(subnet, number), source, &mut used);
            }
            (plan.users[subnet], plan.servers[subnet]) = (users as u8, servers as u8);
        }
        // The internet's host.
        source.label(254);
        source.label(2);
        plan.place_sessions(source);
        plan
    }

    /// Returns whether the host exists.
    pub(super) fn exists(&self, slot: Slot) -> bool {
        let subnet = subnet_of(slot);
        hosts_of(subnet, self.users[subnet], self.servers[subnet]).any(|host| host == slot)
    }

    /// Refuses a network that is never drawn; the error says why.
    pub(super) fn check(&self) -> Result<(), String> {
        let within = |counts: &[u8], range: RangeInclusive<usize>| counts.iter().all(|&n| range.contains(&n.into()));
        let sizes = within(&self.users, FEWEST_USERS..=MOST_USERS) && within(&self.servers, 1..=MOST_SERVERS);
        ensure(sizes, "a subnet has an impossible number of hosts")?;
        let starts = self.red_starts.iter().map(|&slot| usize::from(slot)).zip(RED_ZONES);
        let sound = |(slot, zone): (Slot, &[Subnet])| {
            slot < NUM_SLOTS && slot % SUBNET_SLOTS != 0 && zone.contains(&subnet_of(slot)) && self.exists(slot)
        };
        ensure(starts.into_iter().all(sound), "red starts on a host where it cannot")
    }

    fn equip(&mut self, slot: Slot, source: &mut impl NetworkSource, used: &mut [u64]) {
        source.label(2);
        let mut pid = || {
            loop {
                let Some(offset) = source.pid(NUM_PIDS) else { return 0 };
                let (word, bit) = (offset / 64, 1 << (offset % 64));
                if used[word] & bit == 0 {
                    used[word] |= bit;
                    return FIRST_PID + offset as u16;
                }
            }
        };
        let mut services = [(-1, 0); NUM_IMAGE_SERVICES];
        services[0] = (SSHD as i8, pid());
        let mut count = 1;
        if [OA, OB].contains(&subnet_of(slot)) {
            services[1] = (OT_SERVICE as i8, pid());
            count = 2;
        }
        let mut others = [APACHE, MYSQL, SMTP].map(|kind| (kind as i8, pid()));
        for left in (others.len() - source.below(4) + 1..=others.len()).rev() {
            let chosen = source.below(left);
            services[count] = others[chosen];
            others[chosen..left].rotate_left(1);
            count += 1;
        }
        (0..count).for_each(|_| source.unused());
        (self.services[slot], self.service_pids[slot]) = (services.map(|s| s.0), services.map(|s| s.1));
    }

    fn place_sessions(&mut self, source: &mut impl NetworkSource) {
        for (parent, zone) in self.blue_parents.iter_mut().zip(BLUE_DRAWN) {
            source.label(zone.len());
            // Labels decide the parent, and the parent only the order of pids: drawn as a choice for NumPy's sake.
            let hosts: usize = zone.iter().map(|&s| 1 + usize::from(self.users[s] + self.servers[s])).sum();
            *parent = nth_host(&self.users, &self.servers, zone, source.below(hosts)) as u8;
        }
        for (start, zone) in self.red_starts.iter_mut().zip(RED_ZONES) {
            let subnet = zone[source.below(zone.len())];
            let hosts = usize::from(self.users[subnet] + self.servers[subnet]);
            *start = nth_host(&self.users, &self.servers, &[subnet], 1 + source.below(hosts)) as u8;
        }
        let mut tops = self.service_pids.map(|pids| pids.into_iter().max().unwrap_or(0));
        let mut start = |slot: Slot| {
            tops[slot] += source.session_pid();
            tops[slot]
        };
        for (&parent, zone) in self.blue_parents.iter().zip(BLUE_DRAWN) {
            let parent = usize::from(parent);
            self.blue_pids[parent] = start(parent);
            for slot in zone.iter().flat_map(|&s| hosts_of(s, self.users[s], self.servers[s])).filter(|&s| s != parent)
            {
                self.blue_pids[slot] = start(slot);
            }
        }
        for subnet in 0..NUM_NETWORKS {
            for number in 0..usize::from(self.users[subnet]) {
                let slot = user(subnet, number);
                self.green_pids[slot] = start(slot);
            }
        }
        self.red_pid = start(usize::from(self.red_starts[0]));
    }
}

fn nth_host(users: &[u8; NUM_NETWORKS], servers: &[u8; NUM_NETWORKS], zone: &[Subnet], n: usize) -> Slot {
    let mut hosts = zone.iter().flat_map(|&s| hosts_of(s, users[s], servers[s]));
    hosts.nth(n).expect("the caller counted the hosts")
}
