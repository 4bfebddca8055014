//! Rewards of an episode by phase, zone and cause.

use serde::{Deserialize, Serialize};

use super::game::Reward;
use super::green;
use super::log::Log;
use super::red::Red;
use super::red_kind::{RedAction, RedKind};
use super::rules::Rules;
use super::scenario::{BLUE_ZONES, NUM_BLUE, NUM_NETWORKS, NUM_RED, PRICES, Slot, Subnet, subnet_of};

/// Zones of blue's agents, then the contractor's, which nobody defends.
pub const NUM_ZONES: usize = NUM_BLUE + 1;

/// The zone of a subnet.
fn zone_of(subnet: Subnet) -> usize {
    BLUE_ZONES.iter().position(|zone| zone.contains(&subnet)).unwrap_or(NUM_BLUE)
}

/// What happened in a step that may have a price, by subnet.
#[derive(Default)]
pub(super) struct Events {
    work_failed: [i32; NUM_NETWORKS],
    access_failed: [i32; NUM_NETWORKS],
    /// Targets of red's impacts, and whether they succeeded.
    impacts: [Option<(Subnet, bool)>; NUM_RED],
}

impl Log for Events {
    fn green(&mut self, host: Slot, action: u8, _server: Option<Slot>, success: Option<bool>) {
        if success == Some(false) {
            let failed = if action == green::WORK { &mut self.work_failed } else { &mut self.access_failed };
            failed[subnet_of(host)] += 1;
        }
    }

    fn red_did(&mut self, agent: usize, action: RedAction, success: Option<bool>) {
        if action.kind == RedKind::Impact {
            self.impacts[agent] = Some((subnet_of(action.target.into()), success == Some(true)));
        }
    }
}

/// Sums of rewards by phase and zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    sums: [[Reward; NUM_ZONES]; 3],
}

impl Ledger {
    pub fn sums(&self) -> &[[Reward; NUM_ZONES]; 3] {
        &self.sums
    }

    /// Adds the rewards of a step, after which red is `reds`. Returns them by zone.
    ///
    /// # Arguments
    /// * `costs`: prices of the agents' own actions.
    pub(super) fn add(
        &mut self,
        phase: usize,
        rules: Rules,
        events: &Events,
        reds: &[Red; NUM_RED],
        costs: [i32; NUM_BLUE],
    ) -> [Reward; NUM_ZONES] {
        let mut step = [Reward::default(); NUM_ZONES];
        for (subnet, prices) in PRICES[phase].iter().enumerate() {
            let reward = &mut step[zone_of(subnet)];
            reward.work_failed += events.work_failed[subnet] * prices.work_failed;
            reward.access_failed += events.access_failed[subnet] * prices.access_failed;
        }
        for (red, impact) in reds.iter().zip(events.impacts) {
            // As in the game, whose rule this is.
            let charged = impact.filter(|(_, succeeded)| red.is_active && (*succeeded || !rules.impact));
            if let Some((subnet, _)) = charged {
                step[zone_of(subnet)].impact += PRICES[phase][subnet].impact;
            }
        }
        for (reward, cost) in step.iter_mut().zip(costs) {
            reward.action_cost += cost;
        }
        for (sum, &reward) in self.sums[phase].iter_mut().zip(&step) {
            sum.add(reward);
        }
        step
    }
}
