//! The true state of the network: what runs where, and which sessions red holds.

use serde::{Deserialize, Serialize};

use super::Ruleset;
use super::scenario::{Host, Hosts, Ports};
use super::tables::{MAX_HOSTS, Scenario};
use crate::env::ensure;

/// One of red's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub host: u8,
    /// Runs as root or SYSTEM.
    pub root: bool,
    /// Monitor has seen its process; only then can Remove find it.
    pub marked: bool,
    pub pid: u16,
}

/// OTService, the target of Impact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtService {
    pub up: bool,
    /// Impact may still try to stop it.
    pub stoppable: bool,
    /// False after a Restore: Impact stops nothing any more.
    pub pid_known: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Red's sessions in the order of their creation. The first one stands where red starts for ever.
    pub sessions: Vec<Session>,
    /// Hosts where red has a session, and those where it has one as root or SYSTEM; derived from `sessions`.
    pub red_on: Hosts,
    pub root_on: Hosts,
    /// Hosts with a file that red left behind.
    pub files: Hosts,
    /// Hosts that blue has restored at least once.
    pub restored: Hosts,
    /// Listening ports, decoys included.
    pub ports: [Ports; MAX_HOSTS],
    /// Decoys running, and the exploits that they fool (where no real service answers first).
    pub decoys: [u32; MAX_HOSTS],
    pub fooled: [u8; MAX_HOSTS],
    pub ot_service: OtService,
}

impl Network {
    pub fn new(scenario: &Scenario) -> Self {
        Self::boot(Vec::with_capacity(16), scenario)
    }

    /// Refuses decoded values that no episode has at that time; the error says why.
    pub(super) fn check(&self, time: u32, scenario: &Scenario) -> Result<(), String> {
        let foothold = self.sessions.first().is_some_and(|s| usize::from(s.host) == scenario.start && s.root);
        ensure(foothold, "red has lost its first session")?;
        ensure(
            self.sessions.iter().all(|s| usize::from(s.host) < scenario.len()),
            "a session is on a host that is not there",
        )?;
        let on = |counts: fn(&Session) -> bool| {
            self.sessions.iter().filter(|s| counts(s)).fold(0, |hosts: Hosts, s| hosts | 1 << s.host)
        };
        let derived = (self.red_on, self.root_on) == (on(|_| true), on(|s| s.root));
        ensure(derived, "red is on other hosts than its sessions are")?;
        ensure(scenario.are_hosts(self.files | self.restored), "a file is on a host that is not there")?;
        ensure(self.decoys.iter().all(|&decoys| decoys <= time), "more decoys run than steps were taken")
    }

    /// Back to the state in which an episode begins; keeps the memory.
    pub fn reset(&mut self, scenario: &Scenario) {
        *self = Self::boot(std::mem::take(&mut self.sessions), scenario);
    }

    fn boot(mut sessions: Vec<Session>, scenario: &Scenario) -> Self {
        sessions.clear();
        sessions.push(Session { host: scenario.start as u8, root: true, marked: false, pid: 0 });
        Self {
            sessions,
            red_on: 1 << scenario.start,
            root_on: 1 << scenario.start,
            files: 0,
            restored: 0,
            ports: scenario.ports,
            decoys: [0; MAX_HOSTS],
            fooled: [0; MAX_HOSTS],
            ot_service: OtService { up: true, stoppable: true, pid_known: true },
        }
    }

    /// Returns whether red can reach the host from where it stands.
    pub fn routable(&self, host: Host, scenario: &Scenario) -> bool {
        self.any_routable(1 << host, scenario)
    }

    /// Returns whether red can reach one of the hosts.
    pub fn any_routable(&self, hosts: Hosts, scenario: &Scenario) -> bool {
        hosts & scenario.open != 0 || hosts & scenario.gated != 0 && self.red_on & scenario.gateways != 0
    }

    pub fn listeners(&self, host: Host, scenario: &Scenario) -> u32 {
        scenario.images[host].listeners + self.decoys[host]
    }

    pub fn sessions_on(&self, host: Host) -> usize {
        self.sessions.iter().filter(|s| usize::from(s.host) == host).count()
    }

    pub fn add_session(&mut self, session: Session) {
        self.red_on |= 1 << session.host;
        self.root_on |= Hosts::from(session.root) << session.host;
        self.sessions.push(session);
    }

    /// The `nth` session on the host, by age, becomes root. Its place in `sessions`.
    pub fn escalate(&mut self, host: Host, nth: usize) {
        let session = self.sessions.iter_mut().filter(|s| usize::from(s.host) == host).nth(nth);
        session.expect("the caller counted the sessions").root = true;
        self.root_on |= 1 << host;
    }

    /// Ends the sessions on the host that `doomed` names, calling `ended` with each process id.
    pub fn end_sessions(&mut self, host: Host, doomed: impl Fn(&Session) -> bool, mut ended: impl FnMut(u16)) {
        if self.red_on & (1 << host) == 0 {
            return;
        }
        let (mut red, mut root) = (false, false);
        let mut first = true;
        self.sessions.retain(|s| {
            let foothold = std::mem::take(&mut first);
            if usize::from(s.host) != host {
                return true;
            }
            if !foothold && doomed(s) {
                ended(s.pid);
                return false;
            }
            red = true;
            root |= s.root;
            true
        });
        self.red_on = self.red_on & !(1 << host) | Hosts::from(red) << host;
        self.root_on = self.root_on & !(1 << host) | Hosts::from(root) << host;
    }

    /// The penalty of this step without the cost of blue's action, in tenths.
    pub fn penalty_tenths(&self, scenario: &Scenario) -> i32 {
        let paid = if scenario.ruleset == Ruleset::PlusPlus { self.red_on } else { self.root_on };
        let lost: i32 =
            scenario.root_costs.iter().zip(paid.to_le_bytes()).map(|(costs, byte)| costs[usize::from(byte)]).sum();
        // By a product: no processor foresees whether it is up.
        lost + scenario.availability_tenths * i32::from(!self.ot_service.up)
    }

    /// Red's best session on the host: 0 none, 1 user, 2 root or SYSTEM.
    pub fn red_access(&self, host: Host) -> u8 {
        (self.red_on >> host & 1) as u8 + (self.root_on >> host & 1) as u8
    }

    /// Number of processes on the host, decoys and red's own included.
    pub fn processes(&self, host: Host, scenario: &Scenario) -> u32 {
        // Red's first session is one of the boot processes.
        let red = self.sessions_on(host) as u32 - u32::from(host == scenario.start);
        let boot = scenario.boot_processes[host];
        boot + self.decoys[host] + red - u32::from(host == scenario.target && !self.ot_service.up)
    }
}
