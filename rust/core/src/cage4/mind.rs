//! The finite-state mind of a red agent: what it takes hosts for, and what it does next.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::red_kind::{Outcome, RedKind};
use super::scenario::{FIRST_SERVER, NUM_NETWORKS, NUM_RED, NUM_SLOTS, SUBNET_SLOTS, Slot, Subnet, subnet_of};
use super::source::{Chance, Purpose, RandomSource};
use crate::env::ensure;
use crate::memory::prefetch;

/// The variant of red's agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedAgent {
    /// FiniteStateRedAgent, that of the challenge's evaluation.
    FiniteState,
    /// DiscoveryFSRed.
    Discovery,
}

impl RedAgent {
    pub const ALL: [Self; 2] = [Self::FiniteState, Self::Discovery];
    pub const NAMES: [&str; 2] = ["fsm", "discovery"];
}

/// State in which an agent takes a host to be. D: it has also swept the subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum State {
    #[default]
    Unknown,
    Known,
    KnownD,
    Scanned,
    ScannedD,
    User,
    UserD,
    Root,
    RootD,
    /// In another agent's zone: ignored for ever.
    Foreign,
}

impl State {
    /// Names in the traces.
    pub const NAMES: [&str; 10] = ["", "K", "KD", "S", "SD", "U", "UD", "R", "RD", "F"];

    /// The state after an action that succeeded.
    fn after(self, kind: RedKind) -> Self {
        use State::{Known, KnownD, Root, RootD, Scanned, ScannedD, User, UserD};
        match (kind, self) {
            (RedKind::Sweep, Known) => KnownD,
            (RedKind::Sweep, Scanned) => ScannedD,
            (RedKind::Sweep, User) => UserD,
            (RedKind::Sweep, Root) => RootD,
            (RedKind::AggressiveScan | RedKind::StealthScan, Known) => Scanned,
            (RedKind::AggressiveScan | RedKind::StealthScan, KnownD) => ScannedD,
            (RedKind::Exploit, Scanned) => User,
            (RedKind::Exploit, ScannedD) => UserD,
            (RedKind::Escalate, User) => Root,
            (RedKind::Escalate, UserD) => RootD,
            _ => self,
        }
    }

    /// Returns whether the agent takes itself to have a session there.
    fn is_held(self) -> bool {
        matches!(self, Self::User | Self::UserD | Self::Root | Self::RootD)
    }

    /// Shares of the actions in this state.
    fn menu(self, agent: RedAgent) -> &'static [(RedKind, f64)] {
        use RedKind::{AggressiveScan, Deception, Degrade, Escalate, Exploit, Impact, StealthScan, Sweep};
        match (agent, self) {
            (RedAgent::FiniteState, Self::Known) => &[(Sweep, 0.5), (AggressiveScan, 0.25), (StealthScan, 0.25)],
            (RedAgent::FiniteState, Self::KnownD) => &[(AggressiveScan, 0.5), (StealthScan, 0.5)],
            (RedAgent::FiniteState, Self::Scanned) => &[(Sweep, 0.25), (Exploit, 0.5), (Deception, 0.25)],
            (RedAgent::FiniteState, Self::ScannedD) => &[(Exploit, 0.75), (Deception, 0.25)],
            (RedAgent::FiniteState, Self::User) => &[(Sweep, 0.5), (Escalate, 0.5)],
            (RedAgent::FiniteState, Self::Root) => &[(Sweep, 0.5), (Degrade, 0.25), (Impact, 0.25)],
            (RedAgent::Discovery, Self::Known) => &[(Sweep, 0.25), (AggressiveScan, 0.75)],
            (RedAgent::Discovery, Self::KnownD) => &[(AggressiveScan, 1.0)],
            (RedAgent::Discovery, Self::Scanned) => &[(Sweep, 0.25), (Exploit, 0.75)],
            (RedAgent::Discovery, Self::ScannedD) => &[(Exploit, 1.0)],
            (RedAgent::Discovery, Self::User) => &[(Sweep, 0.0), (Escalate, 1.0)],
            (RedAgent::Discovery, Self::Root) => &[(Sweep, 1.0)],
            (_, Self::UserD) => &[(Escalate, 1.0)],
            (_, Self::RootD) => &[(Degrade, 0.5), (Impact, 0.5)],
            (_, Self::Unknown | Self::Foreign) => &[],
        }
    }

    /// The weight of the states of which DiscoveryFSRed draws one first.
    fn priority(self) -> f64 {
        match self {
            Self::Known | Self::KnownD | Self::Scanned | Self::ScannedD => 20.0,
            Self::User | Self::UserD => 10.0,
            _ => 0.0,
        }
    }
}

/// Places for hosts that an agent knows: an episode with more allocates.
const USUAL_HOSTS: usize = 48;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Mind {
    /// Hosts that are not foreign in the order of first sight.
    order: SmallVec<[u8; USUAL_HOSTS]>,
    states: [[State; SUBNET_SLOTS]; NUM_NETWORKS],
    /// Hosts whose name is known, a bit each.
    named: [u32; NUM_NETWORKS],
    has_thought: bool,
}

impl Mind {
    pub(super) fn empty() -> Self {
        Self {
            order: SmallVec::new(),
            states: [[State::Unknown; SUBNET_SLOTS]; NUM_NETWORKS],
            named: [0; NUM_NETWORKS],
            has_thought: false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.states = [[State::Unknown; SUBNET_SLOTS]; NUM_NETWORKS];
        self.named = [0; NUM_NETWORKS];
        self.has_thought = false;
    }

    /// Brings it into the caches.
    pub(super) fn prefetch(&self) {
        prefetch(self);
    }

    #[inline]
    pub fn state(&self, slot: Slot) -> State {
        self.states.as_flattened()[slot]
    }

    #[inline]
    fn state_mut(&mut self, slot: Slot) -> &mut State {
        &mut self.states.as_flattened_mut()[slot]
    }

    fn is_named(&self, slot: Slot) -> bool {
        self.named[subnet_of(slot)] >> (slot % SUBNET_SLOTS) & 1 == 1
    }

    /// Learns the outcome of the agent's own action. A failure tells nothing.
    pub(super) fn learn_outcome(&mut self, outcome: &Outcome, zone: &[Subnet]) {
        let Outcome { kind, success: true, .. } = *outcome else { return };
        let target = usize::from(outcome.target);
        match kind {
            RedKind::Sweep => (0..SUBNET_SLOTS).for_each(|k| self.change(target * SUBNET_SLOTS + k, kind, zone)),
            RedKind::Escalate | RedKind::Impact | RedKind::Degrade if !self.is_named(target) => {}
            _ => self.change(target, kind, zone),
        }
    }

    /// Changes the state of a host after an action that succeeded.
    fn change(&mut self, slot: Slot, kind: RedKind, zone: &[Subnet]) {
        let state = self.state_mut(slot);
        *state = state.after(kind);
        if *state == State::User && !zone.contains(&subnet_of(slot)) {
            *state = State::Foreign;
            self.order.retain(|&mut other| usize::from(other) != slot);
        }
    }

    /// A host is named in an observation, by its address or its name.
    #[inline]
    pub(super) fn see(&mut self, slot: Slot, by_name: bool) {
        let first = if self.has_thought { State::Known } else { State::User };
        let state = self.state_mut(slot);
        if *state == State::Unknown {
            *state = first;
            self.order.push(slot as u8);
        }
        self.named[subnet_of(slot)] |= u32::from(by_name) << (slot % SUBNET_SLOTS);
    }

    /// Ends an observation in which sessions are listed on the hosts that `is_listed` tells.
    pub(super) fn end_observation(&mut self, is_listed: impl Fn(Slot) -> bool) {
        for i in 0..self.order.len() {
            let slot = usize::from(self.order[i]);
            if self.state(slot).is_held() && !is_listed(slot) {
                *self.state_mut(slot) = State::KnownD;
            }
        }
        self.has_thought = true;
    }

    /// Chooses an action and the host that it is for; none if all hosts are foreign.
    pub(super) fn choose(
        &self,
        agent: usize,
        variant: RedAgent,
        random: &mut impl RandomSource,
    ) -> Option<(RedKind, Slot)> {
        let known = || self.order.iter().map(|&slot| usize::from(slot));
        let slot = match variant {
            RedAgent::FiniteState => pick(random, Purpose::RedHost, agent, known())?,
            RedAgent::Discovery => {
                let state = self.choose_state(agent, known(), random)?;
                let here = known().filter(|&slot| self.state(slot) == state);
                let is_server = |&slot: &Slot| self.is_named(slot) && slot % SUBNET_SLOTS >= FIRST_SERVER;
                let servers = here.clone().filter(is_server);
                if here.clone().count() > 1 && servers.clone().next().is_some() {
                    let first = random.chance(Purpose::RedServerFirst, agent, Chance::AtMost(0.75));
                    let others = here.filter(|slot| !is_server(slot));
                    if first || others.clone().next().is_none() {
                        pick(random, Purpose::RedHost, agent, servers)?
                    } else {
                        pick(random, Purpose::RedHost, agent, others)?
                    }
                } else {
                    pick(random, Purpose::RedHost, agent, here)?
                }
            }
        };
        let menu = self.state(slot).menu(variant);
        let mut shares = [0.0; 3];
        shares.iter_mut().zip(menu).for_each(|(share, (_, p))| *share = *p);
        let (kind, _) = *menu.get(random.share(Purpose::RedAction, agent, &shares[..menu.len()]))?;
        Some((kind, slot))
    }

    /// The state of DiscoveryFSRed's next host.
    fn choose_state(
        &self,
        agent: usize,
        known: impl Iterator<Item = Slot>,
        random: &mut impl RandomSource,
    ) -> Option<State> {
        let mut states = [State::Unknown; 8];
        let mut count = 0;
        for state in known.map(|slot| self.state(slot)) {
            if !states[..count].contains(&state) {
                states[count] = state;
                count += 1;
            }
        }
        let states = &states[..count];
        let sum: f64 = states.iter().map(|s| s.priority()).sum();
        if sum > 0.0 {
            let mut shares = [0.0; 8];
            let factor = 1.0 / (sum / 100.0);
            shares.iter_mut().zip(states).for_each(|(share, s)| *share = s.priority() / 100.0 * factor);
            states.get(random.share(Purpose::RedState, agent, &shares[..count])).copied()
        } else {
            // Not about the agent: its host is drawn for the same purpose.
            pick(random, Purpose::RedHost, NUM_RED + agent, states.iter().copied())
        }
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, exists: impl Fn(Slot) -> bool) -> Result<(), String> {
        let mut seen = [0u32; NUM_NETWORKS];
        for &slot in &self.order {
            let slot = usize::from(slot);
            ensure(slot < NUM_SLOTS && exists(slot), "red knows a host that is not there")?;
            seen[subnet_of(slot)] |= 1 << (slot % SUBNET_SLOTS);
        }
        let listed = |slot: Slot| seen[subnet_of(slot)] >> (slot % SUBNET_SLOTS) & 1 == 1;
        let is_known = |slot| !matches!(self.state(slot), State::Unknown | State::Foreign);
        let same = (0..NUM_SLOTS).all(|slot| listed(slot) == is_known(slot));
        let unique = seen.iter().map(|bits| bits.count_ones() as usize).sum::<usize>() == self.order.len();
        ensure(same && unique, "red knows other hosts than it lists")
    }
}

/// One of some things, none if there are none.
fn pick<T>(
    random: &mut impl RandomSource,
    purpose: Purpose,
    agent: usize,
    mut things: impl Iterator<Item = T> + Clone,
) -> Option<T> {
    let count = things.clone().count();
    if count == 0 {
        return None;
    }
    things.nth(random.pick(purpose, agent, count))
}
