//! Red's sessions: one agent's, in the agent's order, and what each of them has found by scans.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::network::Network;
use super::scenario::{NUM_SLOTS, Ports, Slot};
use crate::env::ensure;

/// A session of a red agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: u16,
    pub pid: u16,
    pub host: u8,
    /// Can scan, exploit and escalate; shells of exploits cannot.
    pub is_abstract: bool,
    pub root: bool,
    /// Has a parent session, which decides nothing.
    pub is_child: bool,
}

/// The ports that a session found on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Scan {
    session: u16,
    host: u8,
    ports: Ports,
}

/// The sessions of one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Sessions {
    scans: SmallVec<[Scan; USUAL_SCANS]>,
    list: SmallVec<[Session; USUAL_SESSIONS]>,
    /// The list has changed since this was last taken.
    has_changed: bool,
}

/// Places for sessions and for scans: an episode with more allocates.
const USUAL_SESSIONS: usize = 32;
const USUAL_SCANS: usize = 36;

impl Sessions {
    pub(super) fn empty() -> Self {
        Self { list: SmallVec::new(), scans: SmallVec::new(), has_changed: false }
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.scans.clear();
        self.has_changed = false;
    }

    pub fn list(&self) -> &[Session] {
        &self.list
    }

    pub fn get(&self, id: u16) -> Option<&Session> {
        self.list.iter().find(|s| s.id == id)
    }

    pub fn on(&self, slot: Slot) -> impl Iterator<Item = &Session> {
        self.list.iter().filter(move |s| usize::from(s.host) == slot)
    }

    /// Adds a session under a new id, which it returns: the highest and one, or 0.
    pub(super) fn add(&mut self, session: Session) -> u16 {
        let id = self.list.iter().map(|s| s.id.saturating_add(1)).max().unwrap_or(0);
        self.list.push(Session { id, ..session });
        self.has_changed = true;
        id
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, id: u16) -> Option<Session> {
        let place = self.list.iter().position(|s| s.id == id)?;
        self.has_changed = true;
        self.scans.retain(|scan| scan.session != id);
        Some(self.list.remove(place))
    }

    /// Ends the sessions on a host.
    pub(super) fn end_on(&mut self, slot: Slot) {
        let host = slot as u8;
        while let Some(session) = self.list.iter().find(|s| s.host == host) {
            self.remove(session.id);
        }
    }

    /// A session becomes root.
    pub(super) fn escalate(&mut self, id: u16) {
        if let Some(session) = self.list.iter_mut().find(|s| s.id == id) {
            session.root = true;
        }
    }

    /// Notes the ports that a session found.
    pub(super) fn note_scan(&mut self, session: u16, slot: Slot, ports: Ports) {
        let host = slot as u8;
        match self.scans.iter_mut().find(|scan| (scan.session, scan.host) == (session, host)) {
            Some(scan) => scan.ports = ports,
            None => self.scans.push(Scan { session, host, ports }),
        }
    }

    /// The ports that a session found on a host; none if it never scanned it.
    pub fn scanned(&self, session: u16, slot: Slot) -> Option<Ports> {
        self.scans.iter().find(|scan| scan.session == session && usize::from(scan.host) == slot).map(|scan| scan.ports)
    }

    /// Returns whether [`Sessions::take_change`] would return true.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Returns whether the list has changed since the last call.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Returns whether there are sessions but none with the id 0.
    pub(super) fn lack_primary(&self) -> bool {
        !self.list.is_empty() && self.get(0).is_none()
    }

    /// The session at a place gets the id 0, the last place and no parent.
    pub(super) fn make_primary(&mut self, place: usize) {
        let chosen = self.list.remove(place);
        self.scans.iter_mut().filter(|scan| scan.session == chosen.id).for_each(|scan| scan.session = 0);
        self.list.push(Session { id: 0, ..chosen });
        self.list.iter_mut().for_each(|s| s.is_child = false);
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, network: &Network) -> Result<(), String> {
        let mut ids: Vec<u16> = self.list.iter().map(|s| s.id).collect();
        ids.sort_unstable();
        let unique = ids.windows(2).all(|pair| pair[0] != pair[1]);
        let sound = |host: u8| usize::from(host) < NUM_SLOTS && network.exists(usize::from(host));
        let hosts = self.list.iter().map(|s| s.host).chain(self.scans.iter().map(|s| s.host));
        ensure(unique && hosts.into_iter().all(sound), "red has impossible sessions")
    }
}
