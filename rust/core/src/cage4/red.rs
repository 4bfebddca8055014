//! Red's agents: what each does, has and knows, and how sessions pass between them.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::mind::{Mind, RedAgent};
use super::network::Network;
use super::red_kind::{Outcome, RedAction, RedKind};
use super::rules::Rules;
use super::scenario::{
    NUM_NETWORKS, NUM_RED, NUM_SLOTS, RED_ZONES, SUBNET_SLOTS, Slot, Subnet, Subnets, links, red_of, subnet_of,
};
use super::sessions::{Session, Sessions};
use super::source::{Purpose, RandomSource};
use crate::env::ensure;
use crate::memory::prefetch;

/// One of red's agents.
///
/// Fields that each step reads come last, in the same line of a cache as the number of sessions, which stands after them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct Red {
    pub mind: Mind,
    /// All ids under which it ever saw an abstract session, in the order of seeing.
    known_ids: SmallVec<[u16; USUAL_IDS]>,
    pub sessions: Sessions,
    /// The action in progress, and steps left of it.
    pub action: Option<RedAction>,
    pub ticks: u8,
    /// Has a session, and so thinks.
    pub is_active: bool,
    /// The observation that it reads next: whether its sessions are others than before, the outcome of an action that
    /// has just ended, and hosts whose sessions other agents' exploits have just handed over.
    has_new_sessions: bool,
    outcome: Option<Outcome>,
    handed: [Option<u8>; NUM_RED],
    /// Subnets that it can sweep.
    subnets: Subnets,
}

/// Places for known ids: an episode with more allocates.
const USUAL_IDS: usize = 32;

impl Red {
    pub(super) fn empty() -> Self {
        Self {
            is_active: false,
            action: None,
            ticks: 0,
            sessions: Sessions::empty(),
            mind: Mind::empty(),
            known_ids: SmallVec::new(),
            subnets: 0,
            outcome: None,
            has_new_sessions: false,
            handed: [None; NUM_RED],
        }
    }

    /// Starts an episode in which it knows a host, and keeps the memory.
    pub(super) fn reset(&mut self, start: Slot) {
        (self.is_active, self.action, self.ticks) = (false, None, 0);
        self.sessions.clear();
        self.mind.clear();
        self.known_ids.clear();
        self.subnets = 1 << subnet_of(start);
        self.end_reading();
    }

    /// Starts with a session on the host.
    pub(super) fn start_session(&mut self, host: Slot, pid: u16) {
        let session = Session { id: 0, pid, host: host as u8, is_abstract: true, root: false, is_child: false };
        self.sessions.add(session);
        self.known_ids.push(0);
        (self.is_active, self.has_new_sessions) = (true, self.sessions.take_change());
    }

    pub fn known_ids(&self) -> &[u16] {
        &self.known_ids
    }

    /// Brings into the caches what each step reads.
    pub(super) fn prefetch(&self) {
        prefetch(&self.action);
    }

    /// After [`Red::prefetch`], what the next step reads beside that.
    pub(super) fn prefetch_arrays(&self) {
        let chooses = self.action.is_none();
        if !self.is_active || !chooses && self.ticks > 1 && !self.has_new_sessions {
            return;
        }
        prefetch(self.sessions.list());
        if chooses || self.has_new_sessions {
            prefetch(&self.known_ids);
            self.mind.prefetch();
        }
    }

    /// Reads the observation of the last step. The same sessions again tell nothing new.
    pub(super) fn read(&mut self, agent: usize, network: &Network) {
        let mut exploited = NUM_SLOTS;
        if let Some(outcome) = self.outcome {
            let mind = &mut self.mind;
            mind.learn_outcome(&outcome, RED_ZONES[agent]);
            let target = usize::from(outcome.target);
            if outcome.kind == RedKind::Sweep && outcome.success {
                network.hosts_of(target).filter(|slot| slot % SUBNET_SLOTS != 0).for_each(|slot| mind.see(slot, false));
            }
            if outcome.names_target {
                let on_host = matches!(outcome.kind, RedKind::Escalate | RedKind::Impact | RedKind::Degrade);
                let has_session = outcome.kind == RedKind::Exploit && outcome.success;
                mind.see(target, on_host || has_session);
                if has_session {
                    exploited = target;
                }
            }
            if let Some(source) = outcome.source {
                mind.see(source.into(), false);
            }
            if outcome.names_links {
                links(target).for_each(|slot| mind.see(slot, true));
            }
        }
        if !self.has_new_sessions {
            return;
        }
        let (mind, sessions) = (&mut self.mind, self.sessions.list());
        let hosts = self.handed.iter().flatten().copied().chain(sessions.iter().map(|s| s.host));
        let mut listed = [0u32; NUM_NETWORKS];
        for slot in hosts.map(usize::from) {
            mind.see(slot, true);
            listed[subnet_of(slot)] |= 1 << (slot % SUBNET_SLOTS);
        }
        mind.end_observation(|slot| listed[subnet_of(slot)] >> (slot % SUBNET_SLOTS) & 1 == 1 || slot == exploited);
    }

    /// Chooses an action with its parameters.
    pub(super) fn choose(
        &self,
        agent: usize,
        variant: RedAgent,
        rules: Rules,
        random: &mut impl RandomSource,
    ) -> Option<RedAction> {
        let (kind, host) = self.mind.choose(agent, variant, random)?;
        let target = if kind == RedKind::Sweep {
            let mut subnets = (0..NUM_NETWORKS).filter(|s| self.subnets >> s & 1 == 1);
            let nth = random.pick(Purpose::RedSubnet, agent, self.subnets.count_ones() as usize);
            subnets.nth(nth)?
        } else {
            host
        };
        let mut living = self.known_ids.iter().filter(|&&id| rules.red_session && self.sessions.get(id).is_some());
        let session = match living.clone().count() {
            0 => self.known_ids[random.pick(Purpose::RedSession, agent, self.known_ids.len())],
            count => *living.nth(random.pick(Purpose::RedSession, agent, count))?,
        };
        Some(RedAction { kind, target: target as u8, session })
    }

    /// Forgets the observation that it has read.
    pub(super) fn end_reading(&mut self) {
        (self.outcome, self.has_new_sessions, self.handed) = (None, false, [None; NUM_RED]);
    }

    /// Returns whether the action that it took to its end in this step was a success.
    pub(super) fn has_succeeded(&self) -> bool {
        self.outcome.is_some_and(|outcome| outcome.success)
    }

    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    fn learn_id(&mut self, id: u16) {
        if !self.known_ids.contains(&id) {
            self.known_ids.push(id);
        }
    }

    /// The end of an active agent's turn: another session takes the place of a lost first one, and it sees all.
    pub(super) fn check_sessions(&mut self, agent: usize, random: &mut impl RandomSource) {
        if !self.sessions.take_change() {
            return;
        }
        self.has_new_sessions = true;
        if self.sessions.lack_primary() {
            let place = random.pick(Purpose::NewPrimary, agent, self.sessions.list().len());
            self.sessions.make_primary(place);
        }
        for i in 0..self.sessions.list().len() {
            let session = self.sessions.list()[i];
            self.subnets |= 1 << subnet_of(session.host.into());
            if session.is_abstract {
                self.learn_id(session.id);
            }
        }
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, agent: usize, network: &Network) -> Result<(), String> {
        self.sessions.check(network)?;
        self.mind.check(|slot| network.exists(slot))?;
        let zone = RED_ZONES[agent].iter().fold(0, |zone: Subnets, s| zone | 1 << s);
        ensure(self.subnets != 0 && self.subnets & !zone == 0, "red can sweep no subnet, or another agent's")?;
        ensure(self.is_active != self.sessions.list().is_empty(), "an agent of red's is active without a session")?;
        ensure(!self.is_active || !self.known_ids.is_empty(), "an agent of red's knows no session")?;
        let at_home = |s: &Session| RED_ZONES[agent].contains(&subnet_of(s.host.into()));
        ensure(self.sessions.list().iter().all(at_home), "a session is in another agent's zone")?;
        let targets = self.action.iter().map(|a| (a.kind, a.target));
        for (kind, target) in targets.chain(self.outcome.iter().map(|o| (o.kind, o.target))) {
            let target = usize::from(target);
            let sound = match kind {
                RedKind::Sweep => target < NUM_NETWORKS,
                _ => target < NUM_SLOTS && target % SUBNET_SLOTS != 0 && network.exists(target),
            };
            ensure(sound, "red's action has an impossible target")?;
        }
        ensure(self.action.is_none_or(|_| self.ticks > 0), "an action in progress has no step left")?;
        let hosts = self.handed.iter().flatten().copied().chain(self.outcome.and_then(|o| o.source));
        let exist = |slot: u8| usize::from(slot) < NUM_SLOTS && network.exists(slot.into());
        ensure(hosts.into_iter().all(exist), "red sees a host that is not there")
    }
}

/// Gives sessions outside their agents' zones to the agents of those zones. `shells` are the ids of the sessions that
/// exploits have made in this step.
pub(super) fn hand_over(reds: &mut [Red; NUM_RED], shells: &[Option<u16>; NUM_RED]) {
    for agent in 0..NUM_RED {
        // All others are at home since an earlier step.
        if !reds[agent].sessions.has_changed() {
            continue;
        }
        let zone: &[Subnet] = RED_ZONES[agent];
        let stray = |s: &&Session| !zone.contains(&subnet_of(s.host.into()));
        // A session that is handed over is at home with its new agent.
        while let Some(session) = reds[agent].sessions.list().iter().find(stray).copied() {
            reds[agent].sessions.remove(session.id);
            let next = &mut reds[red_of(subnet_of(session.host.into()))];
            let id = next.sessions.add(Session { is_abstract: true, is_child: false, ..session });
            if shells[agent] == Some(session.id) {
                if let Some(place) = next.handed.iter_mut().find(|place| place.is_none()) {
                    *place = Some(session.host);
                }
                next.learn_id(id);
            }
        }
    }
    for red in reds {
        red.is_active = !red.sessions.list().is_empty();
    }
}
