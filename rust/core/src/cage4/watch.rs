//! What blue's monitors note: alerts of the last step, and marks of suspicious processes, which stay for the episode.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::network::Network;
use super::scenario::{CON, NUM_NETWORKS, Slot, subnet_of, watch_bit};
use crate::env::ensure;

/// A process id that an exploit was seen to start on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    host: u8,
    pid: u16,
}

/// Places for marks: an episode with more allocates.
const USUAL_MARKS: usize = 96;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Watch {
    /// Hosts of each subnet with an alert in this step, as [`watch_bit`].
    pub process_alerts: [u32; NUM_NETWORKS],
    pub connection_alerts: [u32; NUM_NETWORKS],
    marks: SmallVec<[Mark; USUAL_MARKS]>,
}

impl Watch {
    pub(super) fn empty() -> Self {
        Self { process_alerts: [0; NUM_NETWORKS], connection_alerts: [0; NUM_NETWORKS], marks: SmallVec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.start_step();
        self.marks.clear();
    }

    /// Drops the alerts of the step before.
    pub(super) fn start_step(&mut self) {
        self.process_alerts = [0; NUM_NETWORKS];
        self.connection_alerts = [0; NUM_NETWORKS];
    }

    /// A connection alert; the internet's host has none.
    pub(super) fn connection(&mut self, slot: Slot) {
        if let Some(alerts) = self.connection_alerts.get_mut(subnet_of(slot)) {
            *alerts |= watch_bit(slot);
        }
    }

    /// A process alert.
    pub(super) fn process(&mut self, slot: Slot) {
        self.process_alerts[subnet_of(slot)] |= watch_bit(slot);
    }

    /// A process alert with the process's id, which blue's agent of the zone marks; the contractors have none.
    pub(super) fn mark(&mut self, slot: Slot, pid: u16) {
        self.process(slot);
        if subnet_of(slot) != CON {
            self.marks.push(Mark { host: slot as u8, pid });
        }
    }

    /// The `nth` mark on a host, by age.
    pub(super) fn nth_mark(&self, slot: Slot, nth: usize) -> Option<u16> {
        self.marks_on(slot).nth(nth)
    }

    /// Marks on a host, by age.
    pub fn marks_on(&self, slot: Slot) -> impl Iterator<Item = u16> {
        self.marks.iter().filter(move |mark| usize::from(mark.host) == slot).map(|mark| mark.pid)
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, network: &Network) -> Result<(), String> {
        let sound = |mark: &Mark| subnet_of(mark.host.into()) < NUM_NETWORKS && network.exists(mark.host.into());
        ensure(self.marks.iter().all(sound), "a mark is on a host that is not there")
    }
}
