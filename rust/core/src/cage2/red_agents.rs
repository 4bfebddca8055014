//! The red agents of the challenge, as coded there: B_line, Meander and Sleep.

use serde::{Deserialize, Serialize};

use super::events::RedAction;
use super::red_actions::Knowledge;
use super::scenario::{Host, Hosts};
use super::source::RandomSource;
use super::tables::Scenario;
use crate::env::ensure;

/// The kind of a red agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RedKind {
    BLine,
    Meander,
    Sleep,
}

impl RedKind {
    pub const ALL: [Self; 3] = [Self::BLine, Self::Meander, Self::Sleep];
    pub const NAMES: [&str; 3] = ["bline", "meander", "sleep"];

    /// The reason that it cannot play in the scenario; None: it can.
    pub fn cannot_play(self, scenario: &Scenario) -> Option<&str> {
        match self {
            Self::BLine => scenario.entries.as_ref().err().map(String::as_str),
            Self::Meander => scenario.nearest.as_ref().err().map(String::as_str),
            Self::Sleep => None,
        }
    }

    pub fn new_agent(self) -> RedAgent {
        match self {
            Self::BLine => RedAgent::BLine(BLine::default()),
            Self::Meander => RedAgent::Meander(Meander::default()),
            Self::Sleep => RedAgent::Sleep,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedAgent {
    BLine(BLine),
    Meander(Meander),
    Sleep,
}

impl RedAgent {
    pub fn kind(&self) -> RedKind {
        match self {
            Self::BLine(_) => RedKind::BLine,
            Self::Meander(_) => RedKind::Meander,
            Self::Sleep => RedKind::Sleep,
        }
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let sound = match self {
            Self::BLine(agent) => match agent.user {
                Some(user) => scenario.entries.as_ref().is_ok_and(|entries| entries.contains(&user)),
                None => agent.place == 0,
            },
            Self::Meander(agent) => {
                let Meander { subnets, scanned, exploited, escalated, entered, last_exploit, last_escalation } = agent;
                let last = last_exploit.iter().chain(last_escalation);
                scenario.are_hosts(scanned | exploited | escalated | entered)
                    && scenario.are_subnets(*subnets)
                    && last.into_iter().all(|&host| usize::from(host) < scenario.len())
            }
            Self::Sleep => true,
        };
        ensure(sound, "red's plan has a host or a place that is not there")
    }

    // Always: it has a second caller, and a step of the first one must not call it.
    #[inline(always)]
    pub fn choose(&mut self, knowledge: &Knowledge, scenario: &Scenario, random: &mut impl RandomSource) -> RedAction {
        match self {
            Self::BLine(agent) => agent.choose(knowledge, scenario, random),
            Self::Meander(agent) => agent.choose(knowledge, scenario, random),
            Self::Sleep => RedAction::Sleep,
        }
    }
}

/// Actions in B_line's plan.
pub(super) const PLAN_LEN: u8 = 15;

/// B_line: follows a plan of 15 actions to Op_Server0, with targets drawn once an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BLine {
    pub(super) place: u8,
    /// The user host it came in by, once drawn.
    pub(super) user: Option<u8>,
    /// True once it has seen Op_Server0's services, so that place 12 can follow.
    pub(super) server_seen: bool,
}

impl BLine {
    /// The next place in the plan after a failure at each place.
    const AFTER_FAILURE: [u8; PLAN_LEN as usize] = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13];

    #[inline(always)]
    fn choose(&mut self, knowledge: &Knowledge, scenario: &Scenario, random: &mut impl RandomSource) -> RedAction {
        self.advance(knowledge);
        if self.place == 12 && !self.server_seen {
            if knowledge.saw_data {
                self.server_seen = true;
            } else {
                // Op_Server0 could not be reached: it starts again, and its first place counts as done at once.
                self.place = 0;
                self.advance(knowledge);
            }
        }
        if self.place == 1 && self.user.is_none() {
            self.user = scenario.entries.as_ref().ok().map(|entries| random.bline_target(entries));
        }
        let user = usize::from(self.user.unwrap_or_default());
        let route = &scenario.routes[user];
        let (enterprise, gateway) = (usize::from(route.enterprise), usize::from(route.gateway));
        let target = scenario.target;
        match self.place {
            0 => RedAction::DiscoverSystems(scenario.subnet_of[scenario.start].into()),
            1 => RedAction::DiscoverServices(user),
            2 => RedAction::Exploit(user),
            3 => RedAction::Escalate(user),
            4 => RedAction::DiscoverServices(enterprise),
            5 => RedAction::Exploit(enterprise),
            6 => RedAction::Escalate(enterprise),
            7 => RedAction::DiscoverSystems(route.subnet.into()),
            8 => RedAction::DiscoverServices(gateway),
            9 => RedAction::Exploit(gateway),
            10 => RedAction::Escalate(gateway),
            11 => RedAction::DiscoverServices(target),
            12 => RedAction::Exploit(target),
            13 => RedAction::Escalate(target),
            _ => RedAction::Impact(target),
        }
    }

    #[inline(always)]
    fn advance(&mut self, knowledge: &Knowledge) {
        let place = self.place.min(PLAN_LEN - 1);
        self.place = match knowledge.success {
            Some(true) => (place + 1).min(PLAN_LEN - 1),
            _ => Self::AFTER_FAILURE[usize::from(place)],
        };
    }
}

/// Meander: scans and exploits every host that it can find, in random order, before the next subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meander {
    /// Subnets (bit by [`Subnet`](super::scenario::Subnet)) and hosts that it has scanned.
    pub(super) subnets: u8,
    pub(super) scanned: Hosts,
    /// Hosts that it believes exploited, and escalated.
    pub(super) exploited: Hosts,
    pub(super) escalated: Hosts,
    /// Hosts that an exploit has ever given it.
    pub(super) entered: Hosts,
    pub(super) last_exploit: Option<u8>,
    pub(super) last_escalation: Option<u8>,
}

impl Meander {
    #[inline(always)]
    fn choose(&mut self, knowledge: &Knowledge, scenario: &Scenario, random: &mut impl RandomSource) -> RedAction {
        self.learn(knowledge, scenario);
        let target = scenario.target;
        if self.escalated >> target & 1 == 1 {
            self.last_escalation = Some(target as u8);
            return RedAction::Impact(target);
        }
        let unseen = knowledge.subnets & !self.subnets;
        if unseen != 0 {
            let subnet = unseen.trailing_zeros();
            self.subnets |= 1 << subnet;
            return RedAction::DiscoverSystems(subnet as usize);
        }
        random.shuffle_addresses();
        if let Some(host) = random.first_address(knowledge.addresses & !self.scanned) {
            self.scanned |= 1 << host;
            return RedAction::DiscoverServices(host);
        }
        random.shuffle_hosts();
        let lost = self.entered & !self.exploited;
        if let Some(host) = random.first_host(knowledge.names & !self.escalated & !lost) {
            self.escalated |= 1 << host;
            self.last_escalation = Some(host as u8);
            return RedAction::Escalate(host);
        }
        match random.first_address(knowledge.addresses & !self.exploited) {
            Some(host) => {
                self.exploited |= 1 << host;
                self.last_exploit = Some(host as u8);
                RedAction::Exploit(host)
            }
            // It cannot happen in Scenario 2: Defender and, while that one is not escalated, Op_Server0 always remain.
            // Elsewhere CybORG stops here with an error.
            None => RedAction::Sleep,
        }
    }

    /// Updates its beliefs with the result of the last action.
    #[inline(always)]
    fn learn(&mut self, knowledge: &Knowledge, scenario: &Scenario) {
        let bit = |host: u8| 1 << Host::from(host);
        if let Some(host) = self.last_exploit.take() {
            if knowledge.success == Some(true) {
                self.entered |= bit(host);
            } else {
                self.exploited &= !bit(host);
                // It assumes that it has lost the subnet nearest to the target.
                for nearest in *scenario.nearest.as_ref().unwrap_or(&[0; 2]) {
                    let lost = self.escalated & nearest;
                    if lost != 0 {
                        self.escalated &= !lost;
                        self.exploited &= !lost;
                        break;
                    }
                }
            }
        }
        if let Some(host) = self.last_escalation.take()
            && knowledge.success == Some(false)
        {
            self.escalated &= !bit(host);
            self.exploited &= !(bit(host) & self.entered);
        }
    }
}
