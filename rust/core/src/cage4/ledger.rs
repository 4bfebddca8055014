//! Rewards by phase, zone and cause.

use serde::{Deserialize, Serialize};

use super::scenario::{BLUE_ZONES, NUM_BLUE, Subnet};
use crate::memory::prefetch;

/// Blue's reward by cause, which all its agents get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reward {
    /// Local work and accesses of green's that failed.
    pub work_failed: i32,
    pub access_failed: i32,
    /// Red's impacts.
    pub impact: i32,
    /// Blue's own actions.
    pub action_cost: i32,
}

impl Reward {
    pub fn sum(self) -> i32 {
        self.work_failed + self.access_failed + self.impact + self.action_cost
    }

    fn add(&mut self, other: Self) {
        self.work_failed = self.work_failed.saturating_add(other.work_failed);
        self.access_failed = self.access_failed.saturating_add(other.access_failed);
        self.impact = self.impact.saturating_add(other.impact);
        self.action_cost = self.action_cost.saturating_add(other.action_cost);
    }
}

/// Zones of blue's agents, then the contractor's, which nobody defends.
pub const NUM_ZONES: usize = NUM_BLUE + 1;

/// Rewards by zone: of events there, and of the prices of its agent's actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneRewards([Reward; NUM_ZONES]);

impl ZoneRewards {
    pub fn zones(&self) -> &[Reward; NUM_ZONES] {
        &self.0
    }

    /// The reward of the team.
    pub fn team(&self) -> Reward {
        let mut sum = Reward::default();
        self.0.iter().for_each(|&reward| sum.add(reward));
        sum
    }

    /// Rewards of the zone of a subnet.
    pub(super) fn at(&mut self, subnet: Subnet) -> &mut Reward {
        let zone = BLUE_ZONES.iter().position(|zone| zone.contains(&subnet));
        &mut self.0[zone.unwrap_or(NUM_BLUE)]
    }

    /// Rewards of the zone of an agent.
    pub(super) fn agent(&mut self, agent: usize) -> &mut Reward {
        &mut self.0[agent]
    }
}

/// Sums of rewards by phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger([ZoneRewards; 3]);

impl Ledger {
    pub fn phases(&self) -> &[ZoneRewards; 3] {
        &self.0
    }

    /// Brings the rewards of a phase into the caches.
    pub(super) fn prefetch(&self, phase: usize) {
        prefetch(&self.0[phase]);
    }

    pub(super) fn add(&mut self, phase: usize, rewards: &ZoneRewards) {
        for (sum, &reward) in self.0[phase].0.iter_mut().zip(&rewards.0) {
            sum.add(reward);
        }
    }

    /// The sum of all rewards of the team.
    pub(super) fn total(&self) -> Reward {
        let mut sum = Reward::default();
        self.0.iter().for_each(|rewards| sum.add(rewards.team()));
        sum
    }
}
