//! A game in progress, and its step.

use serde::{Deserialize, Serialize};

use super::blue::{self, BlueAction};
use super::blueprint::Blueprint;
use super::green::Green;
use super::ledger::{Ledger, ZoneRewards};
use super::log::Log;
use super::mind::RedAgent;
use super::network::Network;
use super::observation;
use super::red::{Red, hand_over};
use super::red_actions;
use super::red_kind::{RedAction, RedKind};
use super::rules::Rules;
use super::scenario::{NUM_BLUE, NUM_NETWORKS, NUM_RED, NUM_SUBNETS, PRICES, of_subnet, phase_lengths, subnet_of};
use super::source::RandomSource;
use super::watch::Watch;
use super::world::World;
use crate::env::ensure;
use crate::memory::prefetch;

/// An action of blue's in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlueTask {
    pub action: BlueAction,
    /// The index under which it was submitted.
    pub index: u8,
    /// Steps left.
    pub ticks: u8,
}

/// All that changes during an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Game<R> {
    pub random: R,
    /// Steps taken.
    pub time: u32,
    /// The phase of the last step.
    pub phase: u8,
    pub tasks: [Option<BlueTask>; NUM_BLUE],
    /// Messages of the last step, and those to be sent with the next, the first bit highest.
    messages: [u8; NUM_BLUE],
    outbox: [u8; NUM_BLUE],
    pub world: World,
    pub reds: [Red; NUM_RED],
    /// Rewards of the episode.
    pub ledger: Ledger,
}

impl<R: RandomSource> Game<R> {
    pub fn new(random: R) -> Self {
        Self {
            random,
            world: World { network: Network::empty(), blocks: [0; NUM_NETWORKS], watch: Watch::empty() },
            reds: std::array::from_fn(|_| Red::empty()),
            tasks: [None; NUM_BLUE],
            time: 0,
            phase: 0,
            ledger: Ledger::default(),
            messages: [0; NUM_BLUE],
            outbox: [0; NUM_BLUE],
        }
    }

    /// Starts the next episode.
    pub fn reset(&mut self) {
        let plan = self.random.network();
        self.start(&plan);
    }

    /// Starts an episode on a network.
    pub fn start(&mut self, plan: &Blueprint) {
        self.world.network.build(plan);
        self.world.watch.clear();
        self.world.blocks = [0; NUM_NETWORKS];
        for (red, &start) in self.reds.iter_mut().zip(&plan.red_starts) {
            red.reset(start.into());
        }
        self.reds[0].start_session(plan.red_starts[0].into(), plan.red_pid);
        self.tasks = [None; NUM_BLUE];
        (self.time, self.phase, self.ledger) = (0, 0, Ledger::default());
        (self.messages, self.outbox) = ([0; NUM_BLUE], [0; NUM_BLUE]);
    }

    /// Gives blue's agents messages to send with the next step, 8 bits each, the first one highest.
    pub fn send(&mut self, messages: [u8; NUM_BLUE]) {
        self.outbox = messages;
    }

    /// One step of an episode of `steps` with blue's actions by their indices, which are below
    /// [`blue::NUM_ACTIONS`]. Returns the rewards by zone.
    pub fn step(
        &mut self,
        actions: [u8; NUM_BLUE],
        variant: RedAgent,
        rules: Rules,
        steps: u32,
        log: &mut impl Log,
    ) -> ZoneRewards {
        let Self { random, world, reds, tasks, .. } = self;
        let [first, second, _] = phase_lengths(steps);
        let phase = if self.time < first { 0 } else { 1 + usize::from(self.time >= first + second) };
        random.start_step(self.time);
        world.watch.start_step();
        let mut rewards = ZoneRewards::default();
        for (agent, (task, index)) in tasks.iter_mut().zip(actions).enumerate() {
            let submitted = BlueAction::from_index(agent, index.into());
            let is_valid = submitted.is_valid(&world.network);
            let is_charged = is_valid && (task.is_none() || !rules.restore_cost);
            rewards.agent(agent).action_cost -= i32::from(is_charged && matches!(submitted, BlueAction::Restore(_)));
            let action = if is_valid { submitted } else { BlueAction::Sleep };
            let task = task.get_or_insert(BlueTask { action, index, ticks: action.ticks() });
            task.ticks -= 1;
        }
        let users = world.network.user_set();
        let choices = random.green_actions(users);
        let mut ready = [None; NUM_RED];
        let mut dropped = 0;
        for (agent, red) in reds.iter_mut().enumerate() {
            if red.is_active {
                red.read(agent, &world.network);
                if red.action.is_none() {
                    red.action = red.choose(agent, variant, rules, random);
                    red.ticks = red.action.map_or(0, |action| action.kind.ticks());
                    red.action.iter().for_each(|&action| log.red_chose(agent, action));
                }
            }
        }
        for (red, ready) in reds.iter_mut().zip(&mut ready) {
            red.end_reading();
            red.ticks = red.ticks.saturating_sub(1);
            if red.ticks == 0 {
                *ready = red.action.take().map(|action| (action, red.sessions.get(action.session).is_none()));
                dropped += usize::from(ready.is_some_and(|(_, is_dropped)| is_dropped));
            }
        }
        random.shuffle(NUM_BLUE + users.count_ones() as usize + NUM_RED - dropped);
        for traffic_rules in [true, false] {
            for (agent, task) in tasks.iter_mut().enumerate() {
                if let Some(done) = task.take_if(|t| t.ticks == 0 && t.action.is_traffic_rule() == traffic_rules) {
                    let success = blue::act(agent, done.action, reds, world, random);
                    log.blue_did(agent, done.index, success);
                }
            }
        }
        let green = Green { phase, rules };
        let failed = if R::DRAWS_ALL {
            green.act_in_order(choices, reds, world, random, log)
        } else {
            green.act_at_once(choices, reds, world, random, log)
        };
        for (subnet, prices) in PRICES[phase].iter().enumerate() {
            let [access, work] = failed.map(|users| of_subnet(users, subnet).count_ones() as i32);
            let reward = rewards.at(subnet);
            reward.access_failed += access * prices.access_failed;
            reward.work_failed += work * prices.work_failed;
        }
        let mut shells = [None; NUM_RED];
        for (agent, ready) in ready.iter().enumerate() {
            let Some((action, is_dropped)) = *ready else { continue };
            if is_dropped {
                log.red_did(agent, action, None);
                continue;
            }
            let effect = red_actions::act(agent, action, &mut reds[agent], world, random);
            log.red_did(agent, action, Some(effect.outcome.success));
            effect.exploit.iter().for_each(|&exploit| log.red_exploited(agent, exploit));
            shells[agent] = effect.shell;
            reds[agent].set_outcome(effect.outcome);
        }
        hand_over(reds, &shells);
        for (agent, (red, ready)) in reds.iter_mut().zip(&ready).enumerate() {
            if red.is_active {
                red.check_sessions(agent, random);
            }
            // The price is due for attempts that fail or were dropped as well, as long as the agent has a session.
            if let Some((RedAction { kind: RedKind::Impact, target, .. }, _)) = *ready
                && red.is_active
                && (!rules.impact || red.has_succeeded())
            {
                let subnet = subnet_of(target.into());
                rewards.at(subnet).impact += PRICES[phase][subnet].impact;
            }
        }
        self.time += 1;
        self.phase = phase as u8;
        self.ledger.add(phase, &rewards);
        self.messages = std::mem::take(&mut self.outbox);
        rewards
    }

    /// Brings what a step reads into the caches, but for its arrays.
    pub(super) fn prefetch(&self) {
        prefetch(&self.random);
        prefetch(&self.time);
        prefetch(&self.world.watch.process_alerts);
        prefetch(&self.world.watch.connection_alerts);
        self.world.network.prefetch();
        self.reds.iter().for_each(Red::prefetch);
        if R::DRAWS_ALL {
            self.world.network.prefetch_services();
        }
    }

    /// The arrays after [`Game::prefetch`], and the hosts that actions which are about to end are for.
    pub(super) fn prefetch_arrays(&self) {
        let network = &self.world.network;
        let mut reads_processes = false;
        for red in &self.reds {
            red.prefetch_arrays();
            if let Some(RedAction { kind, target, .. }) = red.action
                && red.ticks == 1
                && kind != RedKind::Sweep
            {
                network.prefetch_host(target.into());
                reads_processes |= matches!(kind, RedKind::Exploit | RedKind::Deception);
            }
        }
        for slot in self.tasks.iter().flatten().filter(|task| task.ticks == 1).filter_map(|task| task.action.host()) {
            network.prefetch_host(slot);
            reads_processes = true;
        }
        if reads_processes {
            network.prefetch_processes();
        }
        self.ledger.prefetch(self.phase.into());
    }

    /// Writes the observations of all agents, [`observation::OBS_LEN`] numbers each.
    pub fn observe(&self, out: &mut [f32]) {
        observation::write(self.phase.into(), &self.world, &self.messages, out);
    }

    /// Refuses decoded values that no episode has; the error says why.
    pub(super) fn check(&self) -> Result<(), String> {
        self.world.network.check()?;
        self.world.watch.check(&self.world.network)?;
        let subnets =
            self.world.blocks.iter().enumerate().all(|(to, from)| from >> NUM_SUBNETS == 0 && from >> to & 1 == 0);
        ensure(subnets && self.phase < 3, "a subnet blocks one that is not there")?;
        for (agent, red) in self.reds.iter().enumerate() {
            red.check(agent, &self.world.network)?;
        }
        for (agent, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            let action = BlueAction::from_index(agent, task.index.into());
            let is_valid = action.is_valid(&self.world.network);
            let action = if is_valid { action } else { BlueAction::Sleep };
            let fits = task.action == action && (1..action.ticks()).contains(&task.ticks);
            ensure(fits, "an action of blue's is impossible")?;
        }
        Ok(())
    }
}
