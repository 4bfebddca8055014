//! CAGE 2 with a workflow: an order of priority among the unit types, in which the defender should fix hosts.
//!
//! Red's presence on User0 lasts for ever, so that host never counts as compromised. A *fix* is a Remove or a Restore;
//! it *complies* if its target is of the first type, in the workflow's order, of which red holds a host when blue acts,
//! or if red holds none. The *compliance* of an episode is the share of its fixes that comply, [`NO_FIX`] without a
//! fix.
//!
//! The reward is the game's plus `weight` times the change of the compliance so far at each fix. An episode begins with
//! the compliance of one without a fix, and the first step pays `weight` times that, so the additions of an episode sum
//! to `weight` times its compliance. The last step terminates: compliance is a matter of the episode, nothing comes
//! after.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blue::BlueAction;
use super::network::Network;
use super::red_agents::RedKind;
use super::scenario::{DEFENDER, ENTERPRISE, Host, Hosts, OP_SERVER0, OPERATIONAL, USER0};
use super::seeded_source::SeededSource;
use super::tables::subnet_of;
use super::{Config, Episode, Game};
use crate::env::{Phase, ensure};
use crate::single_agent::{SingleAgentEnv, Step};

pub const NUM_TYPES: usize = 5;
pub const UNIT_TYPES: [&str; NUM_TYPES] = ["defender", "enterprise", "op_server", "op_host", "user"];
/// Entries that an order adds to the observation: entry `5 * place + type` is 1 where the type has that place.
pub const ORDER_LEN: usize = NUM_TYPES * NUM_TYPES;
/// The compliance of an episode without a fix.
pub const NO_FIX: f64 = 0.5;

/// Index into [`UNIT_TYPES`].
pub fn type_of(host: Host) -> usize {
    match (host, subnet_of(host)) {
        (DEFENDER, _) => 0,
        (_, ENTERPRISE) => 1,
        (OP_SERVER0, _) => 2,
        (_, OPERATIONAL) => 3,
        _ => 4,
    }
}

/// The hosts of each type that can be taken and taken back.
static HOSTS_OF: [Hosts; NUM_TYPES] = [1, 0b1110, 1 << OP_SERVER0, 0b111 << 4, 0b1_1110 << USER0];

/// Unit types, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order([u8; NUM_TYPES]);

impl Default for Order {
    fn default() -> Self {
        Self([0, 1, 2, 3, 4])
    }
}

impl Order {
    /// None unless every type stands in it once.
    pub fn new(types: [i8; NUM_TYPES]) -> Option<Self> {
        let seen = types.iter().fold(0u8, |seen, &t| if (0..5).contains(&t) { seen | 1 << t } else { seen });
        (seen == 0b1_1111).then(|| Self(types.map(|t| t as u8)))
    }

    fn is_sound(self) -> bool {
        Self::new(self.0.map(|t| i8::try_from(t).unwrap_or(-1))).is_some()
    }

    pub fn types(self) -> [u8; NUM_TYPES] {
        self.0
    }

    /// The first type of which red holds a host.
    pub fn most_urgent(self, network: &Network) -> Option<usize> {
        self.0.into_iter().map(usize::from).find(|&t| network.red_on & HOSTS_OF[t] != 0)
    }

    pub fn complies(self, network: &Network, target: Host) -> bool {
        self.most_urgent(network).is_none_or(|urgent| urgent == type_of(target))
    }

    /// The one-hot code of the order in an observation.
    fn code(self) -> [f32; ORDER_LEN] {
        let mut code = [0.0; ORDER_LEN];
        for (place, t) in self.0.into_iter().enumerate() {
            code[NUM_TYPES * place + usize::from(t)] = 1.0;
        }
        code
    }
}

/// Counters of an episode so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    pub order: Order,
    /// Sum of the challenge's rewards, in tenths, without additions.
    pub return_tenths: i32,
    pub fixes: u32,
    pub complying: u32,
}

impl Account {
    /// Returns whether it can be that of an episode after so many steps.
    fn is_sound(&self, steps: u32) -> bool {
        let Self { order, return_tenths, fixes, complying } = self;
        order.is_sound() && return_tenths.unsigned_abs() / 1000 <= steps && complying <= fixes && *fixes <= steps
    }

    pub fn compliance(&self) -> f64 {
        if self.fixes == 0 { NO_FIX } else { f64::from(self.complying) / f64::from(self.fixes) }
    }
}

/// The episode that ended last, and the number of episodes that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub number: u64,
    pub account: Account,
    /// The red agent, a [`RedKind`].
    pub red: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub episode: Episode<SeededSource>,
    pub account: Account,
    /// The order of the next episode.
    pub next: Order,
    pub finished: Finished,
}

/// The environment that follows workflows.
pub struct WorkflowCage2 {
    config: Arc<Config>,
    /// Weight of compliance in the reward, lambda.
    weight: f64,
    state: State,
    /// The code of the present episode's order.
    code: [f32; ORDER_LEN],
}

impl WorkflowCage2 {
    pub fn new(config: Arc<Config>, weight: f64) -> Self {
        let state = State {
            episode: config.new_episode(),
            account: Account::default(),
            next: Order::default(),
            finished: Finished { number: 0, account: Account::default(), red: RedKind::Sleep as u8 },
        };
        Self { config, weight, code: state.account.order.code(), state }
    }

    /// The order of the episodes that begin from now on, and of the present one if no step has been taken in it.
    pub fn set_order(&mut self, order: Order) {
        self.state.next = order;
        if self.state.episode.time == 0 {
            self.state.account.order = order;
            self.code = order.code();
        }
    }
}

impl Game for WorkflowCage2 {
    fn config(&self) -> &Config {
        &self.config
    }

    fn episode(&self) -> &Episode<SeededSource> {
        &self.state.episode
    }
}

impl SingleAgentEnv for WorkflowCage2 {
    type State = State;

    fn obs_len(&self) -> usize {
        self.config.obs_len() + ORDER_LEN
    }

    fn accepts(&self, action: i64) -> bool {
        self.config.accepts(action)
    }

    fn expected_action(&self) -> String {
        self.config.expected_action()
    }

    fn seed(&mut self, seed: u64) {
        self.state.episode.random = self.config.random_source(seed);
    }

    fn reseed(&mut self, seed: u64) {
        self.state.episode.random.reseed(seed);
    }

    fn reset(&mut self, obs: &mut [f32]) {
        self.config.begin(&mut self.state.episode);
        self.state.account = Account { order: self.state.next, ..Account::default() };
        self.code = self.state.next.code();
        self.observe(obs);
    }

    fn observe(&self, obs: &mut [f32]) {
        let (game, order) = obs.split_at_mut(self.config.obs_len());
        self.config.observe(&self.state.episode, game);
        order.copy_from_slice(&self.code);
    }

    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step {
        let State { episode, account, finished, .. } = &mut self.state;
        let action = self.config.action(action as usize);
        let mut change = if episode.time == 0 { NO_FIX } else { 0.0 };
        if let BlueAction::Remove(host) | BlueAction::Restore(host) = action {
            let before = account.compliance();
            account.fixes += 1;
            account.complying += u32::from(account.order.complies(&episode.network, host));
            change += account.compliance() - before;
        }
        let tenths = episode.step(action, &self.config.scenario);
        account.return_tenths += tenths;
        let reward = f64::from(tenths) / 10.0 + self.weight * change;
        let terminated = episode.time >= self.config.episode_length;
        if terminated {
            *finished = Finished { number: finished.number + 1, account: *account, red: episode.agent.kind() as u8 };
        }
        self.observe(obs);
        Step { reward, terminated, truncated: false }
    }

    fn mask_len(&self) -> usize {
        self.config.actions.len()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        self.config.write_mask(&self.state.episode, mask);
    }

    fn episode_info(&self, key: &str) -> f64 {
        self.state.episode.info(key)
    }

    fn fingerprint(&self) -> String {
        format!("CAGE 2 with workflows, compliance weight {}, {:?}", self.weight, self.config)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let State { episode, account, next, finished } = state;
        self.config.check(episode, phase)?;
        ensure(next.is_sound() && account.is_sound(episode.time), "the counters of the episode are impossible")?;
        let last = finished.account.is_sound(self.config.episode_length) && finished.number < 1 << 62;
        ensure(
            last && usize::from(finished.red) < RedKind::ALL.len(),
            "the counters of the last episode are impossible",
        )
    }

    fn memory(&self) -> usize {
        self.config.memory()
    }

    fn set_state(&mut self, state: State) {
        self.code = state.account.order.code();
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::network::Session;
    use crate::cage2::scenario::{ENTERPRISE0, HOST_NAMES, USER1};
    use crate::cage2::tables::SCENARIO2;
    use crate::cage2::view::OBS_BITS;

    fn taken(host: Host) -> Session {
        Session { host: host as u8, root: false, marked: false, pid: 0 }
    }

    #[test]
    fn types_and_their_hosts_agree() {
        for (host, name) in HOST_NAMES.iter().enumerate() {
            let types: Vec<usize> = (0..NUM_TYPES).filter(|&t| HOSTS_OF[t] >> host & 1 == 1).collect();
            let expected = if host == USER0 { vec![] } else { vec![type_of(host)] };
            assert_eq!(types, expected, "{name}");
        }
    }

    #[test]
    fn only_permutations_are_orders() {
        assert!(Order::new([4, 3, 2, 1, 0]).is_some());
        for bad in [[0, 1, 2, 3, 3], [0, 1, 2, 3, 5], [-1, 1, 2, 3, 4], [0; 5]] {
            assert_eq!(Order::new(bad), None);
        }
    }

    #[test]
    fn the_first_type_that_red_holds_is_urgent() {
        let order = Order::new([2, 4, 1, 0, 3]).unwrap();
        let mut network = Network::new(&SCENARIO2);
        assert_eq!(order.most_urgent(&network), None, "the foothold does not count");
        assert!(order.complies(&network, OP_SERVER0));
        network.add_session(taken(ENTERPRISE0));
        assert_eq!(order.most_urgent(&network), Some(1));
        network.add_session(taken(USER1));
        assert_eq!(order.most_urgent(&network), Some(4));
        assert!(order.complies(&network, USER0) && !order.complies(&network, ENTERPRISE0));
        network.add_session(taken(OP_SERVER0));
        assert_eq!(order.most_urgent(&network), Some(2));
    }

    #[test]
    fn additions_sum_to_the_weighted_compliance() {
        let weight = 4.0;
        let (asleep, remove, restore) = (0, 15 + ENTERPRISE0 as i64, 132 + USER1 as i64);
        for actions in [vec![asleep; 9], vec![remove; 9], vec![restore, asleep, remove, remove, asleep, restore]] {
            let config = Config { episode_length: actions.len() as u32, ..Config::default() };
            let mut env = WorkflowCage2::new(Arc::new(config), weight);
            let mut obs = vec![0.0; env.obs_len()];
            env.seed(3);
            env.reset(&mut obs);
            let steps: Vec<Step> = actions.iter().map(|&action| env.step(action, &mut obs)).collect();
            let (last, others) = steps.split_last().unwrap();
            assert!(last.terminated && !last.truncated && others.iter().all(|s| !s.ended()));
            let Finished { number, account, .. } = env.state().finished;
            assert_eq!(number, 1);
            assert_eq!(account.fixes as usize, actions.iter().filter(|&&a| a != asleep).count());
            let additions: f64 = steps.iter().map(|s| s.reward).sum::<f64>() - f64::from(account.return_tenths) / 10.0;
            assert!((additions - weight * account.compliance()).abs() < 1e-9);
        }
    }

    #[test]
    fn an_order_holds_from_the_next_beginning_on() {
        let (first, second) = (Order::default(), Order::new([4, 3, 2, 1, 0]).unwrap());
        let mut env = WorkflowCage2::new(Arc::new(Config::default()), 1.0);
        let mut obs = vec![0.0; env.obs_len()];
        env.reset(&mut obs);
        env.step(0, &mut obs);
        env.set_order(second);
        env.step(0, &mut obs);
        assert_eq!(env.state().account.order, first);
        env.reset(&mut obs);
        assert_eq!(env.state().account.order, second);
        assert_eq!(obs[OBS_BITS..].iter().position(|&x| x == 1.0), Some(4));
        env.set_order(first);
        assert_eq!(env.state().account.order, first, "nothing has happened in it yet");
    }
}
