//! The random source of CybORG: every draw that it makes from Python's global generator, in its order, labels included.

use serde::{Deserialize, Serialize};

use super::scenario::{Exploit, Host, Hosts};
use super::source::{DETECTION, NewProcess, RandomSource, TOP_EXPLOIT, split_top};
use super::tables::Scenario;
use crate::python_random::PythonRandom;

/// Process ids are below this.
const PIDS: u32 = 32_768;

/// The labels that decide how many draws are made: an id in use is drawn again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Labels {
    pids: Vec<u16>,
    boot_pids: Vec<u16>,
    /// Process ids that Monitor has ever found suspicious.
    marked: Vec<u16>,
    ports: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonSource {
    random: PythonRandom,
    /// Labels of each host.
    labels: Vec<Labels>,
    addresses: Vec<u8>,
    hosts: Vec<u8>,
    /// One of red's processes has got a marked id since this was last cleared.
    pub(super) collided: bool,
}

impl PythonSource {
    /// The state after `random.seed(seed)` in CybORG, once its environment is constructed.
    pub fn new(seed: u64, hosts: usize) -> Self {
        Self {
            random: PythonRandom::new(seed),
            labels: vec![Labels::default(); hosts],
            addresses: vec![0; hosts],
            hosts: vec![0; hosts],
            collided: false,
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.random = PythonRandom::new(seed);
    }

    /// Bytes that the twister and the labels of an episode take, about.
    pub(super) const MEMORY: usize = 16 << 10;

    pub(super) fn is_sound(&self, hosts: usize) -> bool {
        let orders = [&self.addresses, &self.hosts];
        let fit = |order: &&Vec<u8>| order.len() == hosts && order.iter().all(|&host| usize::from(host) < hosts);
        self.random.is_sound() && self.labels.len() == hosts && orders.iter().all(fit)
    }

    fn new_pid(&mut self, host: Host) -> u16 {
        loop {
            let pid = self.random.below(PIDS) as u16;
            let pids = &self.labels[host].pids;
            // CybORG would look for ever where none is free.
            if pid != 0 && (pids.len() >= PIDS as usize || !pids.contains(&pid)) {
                self.labels[host].pids.push(pid);
                return pid;
            }
        }
    }
}

/// Puts the hosts in a new random order.
fn shuffle(order: &mut [u8], random: &mut PythonRandom) {
    order.iter_mut().zip(0..).for_each(|(place, host)| *place = host);
    random.shuffle(order);
}

fn first(order: &[u8], hosts: Hosts) -> Option<Host> {
    order.iter().map(|&host| usize::from(host)).find(|host| hosts >> host & 1 == 1)
}

impl RandomSource for PythonSource {
    fn start_episode(&mut self, scenario: &Scenario) {
        self.random.sample(scenario.blocks, scenario.address_draws.len());
        for draws in &scenario.address_draws {
            self.random.below(draws.parts);
            self.random.sample(draws.addresses, draws.hosts);
        }
        for (labels, image) in self.labels.iter_mut().zip(&scenario.images) {
            *labels = Labels { pids: image.pids.to_vec(), ..Labels::default() };
        }
        for &host in &scenario.sessions {
            self.new_pid(host.into());
        }
        for labels in &mut self.labels {
            labels.boot_pids.clone_from(&labels.pids);
        }
    }

    fn blue_session(&mut self, sessions: u32) {
        self.random.below(sessions);
    }

    fn decoy_process(&mut self, host: Host) {
        self.random.below(1);
        self.new_pid(host);
    }

    fn ephemeral_port(&mut self, host: Host) {
        let mut port = self.random.range(49_152, 60_000);
        if self.labels[host].ports.contains(&port) {
            port = self.random.range(49_152, 60_000);
        }
        self.labels[host].ports.push(port);
    }

    fn red_process(&mut self, host: Host) -> NewProcess {
        let pid = self.new_pid(host);
        let marked = self.labels[host].marked.contains(&pid);
        self.collided |= marked;
        NewProcess { pid, marked }
    }

    fn process_ended(&mut self, host: Host, pid: u16) {
        self.labels[host].pids.retain(|&p| p != pid);
    }

    fn host_restored(&mut self, host: Host) {
        let labels = &mut self.labels[host];
        labels.pids.clone_from(&labels.boot_pids);
        labels.ports.clear();
    }

    /// An episode's agent is no draw of CybORG's: only a single agent is allowed here.
    fn red_agent(&mut self, _weights: &[f64]) -> usize {
        0
    }

    fn exploit(&mut self, options: u8) -> Exploit {
        let (others, top) = split_top(options);
        if others == 0 {
            return top;
        }
        let other = self.random.choices_one(others.count_ones());
        if self.random.unit() < TOP_EXPLOIT {
            return top;
        }
        let mut listed = Exploit::ALL.into_iter().filter(|e| others & e.bit() != 0);
        listed.nth(other as usize).expect("the draw is below their number")
    }

    fn detected(&mut self, host: Host, pid: u16) -> bool {
        let detected = self.random.unit() < DETECTION;
        if detected {
            self.labels[host].marked.push(pid);
        }
        detected
    }

    fn session(&mut self, n: usize) -> usize {
        self.random.below(n as u32) as usize
    }

    fn bline_target(&mut self, entries: &[u8]) -> u8 {
        entries[self.random.below(entries.len() as u32) as usize]
    }

    fn shuffle_addresses(&mut self) {
        shuffle(&mut self.addresses, &mut self.random);
    }

    fn first_address(&mut self, hosts: Hosts) -> Option<Host> {
        first(&self.addresses, hosts)
    }

    fn shuffle_hosts(&mut self) {
        shuffle(&mut self.hosts, &mut self.random);
    }

    fn first_host(&mut self, hosts: Hosts) -> Option<Host> {
        first(&self.hosts, hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::scenario::{OP_SERVER0, OT_SERVICE_PID};
    use crate::cage2::tables::SCENARIO2;

    #[test]
    fn the_ot_service_has_its_pid_on_the_op_server() {
        let mut source = PythonSource::new(1, SCENARIO2.len());
        source.start_episode(&SCENARIO2);
        assert!(source.labels[OP_SERVER0].pids.contains(&OT_SERVICE_PID));
        source.process_ended(OP_SERVER0, OT_SERVICE_PID);
        assert!(!source.labels[OP_SERVER0].pids.contains(&OT_SERVICE_PID));
        source.host_restored(OP_SERVER0);
        assert!(source.labels[OP_SERVER0].pids.contains(&OT_SERVICE_PID));
    }
}
