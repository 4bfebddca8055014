//! CAGE 2 in networks of several sizes: a row of an observation is a host, an action a kind and a row, and each episode
//! is played in one of several networks, drawn when it begins.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blue_action::BlueAction;
use super::scenario::{DECOYS, Host, IMAGE_KINDS, MENDED_IMAGE_KINDS};
use super::seeded_source::SeededSource;
use super::source::RandomSource;
use super::tables::MAX_HOSTS;
use super::{Config, Episode};
use crate::env::Phase;
use crate::single_agent::{SingleAgentEnv, Step};

/// Kinds of actions on a host, in the challenge's order: Analyse, Remove, the decoys, Restore.
pub const NUM_KINDS: usize = 3 + DECOYS.len();

// Places of a row.
const EXISTS: usize = 0;
const BITS: usize = 1;
const SCANNED: usize = 5;
const CAN_START: usize = 6;
const IMAGE: usize = CAN_START + DECOYS.len();
const ROOT_COST: usize = IMAGE + IMAGE_KINDS.len();
const SERVICE_COST: usize = ROOT_COST + 1;
const GATEWAY: usize = ROOT_COST + 2;
const GATED: usize = ROOT_COST + 3;
const SHOWS_SERVER: usize = ROOT_COST + 4;
/// Numbers of a row.
pub const ROW: usize = ROOT_COST + 5;

/// The names of the numbers of a row, in order.
pub fn names() -> Vec<String> {
    let fixed = ["exists", "activity", "activity is exploit", "compromise unknown or privileged"];
    let mut names: Vec<String> = fixed.map(Into::into).to_vec();
    names.extend(["compromise user or privileged", "scanned"].map(Into::into));
    names.extend(DECOYS.iter().map(|decoy| format!("{} can start", decoy.name)));
    names.extend(IMAGE_KINDS.iter().map(|(image, _)| format!("image {image}")));
    let of_network =
        ["cost while red is root", "cost while the service is down", "gateway", "gated", "shows the server"];
    names.extend(of_network.map(Into::into));
    names
}

/// A network that episodes may be played in.
struct RowNetwork {
    config: Arc<Config>,
    /// Numbers of an observation that never change, [rows, ROW].
    fixed: Vec<f32>,
}

impl RowNetwork {
    fn new(config: Arc<Config>, rows: usize) -> Self {
        let scenario = &config.scenario;
        let mut fixed = vec![0.0; rows * ROW];
        for (host, row) in fixed.chunks_exact_mut(ROW).take(scenario.len()).enumerate() {
            let flag = |holds: bool| f32::from(u8::from(holds));
            row[EXISTS] = 1.0;
            let kinds = IMAGE_KINDS.iter().zip(&MENDED_IMAGE_KINDS);
            for (entry, ((_, image), (_, mended))) in row[IMAGE..].iter_mut().zip(kinds) {
                *entry = flag([image, mended].contains(&scenario.images[host]));
            }
            // Tenths, of at most 100.
            row[ROOT_COST] = scenario.root_costs[host / 8][1 << (host % 8)] as f32 / 100.0;
            let is_server = host == scenario.target;
            row[SERVICE_COST] = flag(is_server) * scenario.availability_tenths as f32 / 100.0;
            row[GATEWAY] = flag(scenario.gateways >> host & 1 == 1);
            row[GATED] = flag(scenario.gated >> host & 1 == 1);
            row[SHOWS_SERVER] = flag(!is_server && scenario.shown[host].addresses >> scenario.target & 1 == 1);
        }
        Self { config, fixed }
    }
}

/// The networks, and what is on offer in them.
pub struct RowNetworks {
    all: Vec<RowNetwork>,
    rows: usize,
    /// Kinds of actions on hosts that blue has.
    kinds: [bool; NUM_KINDS],
    /// The chance of each network.
    chances: Vec<f64>,
}

impl RowNetworks {
    /// # Errors
    /// They do not go together; a line says why.
    pub fn new(configs: Vec<Arc<Config>>, rows: usize, kinds: &[u16]) -> Result<Self, String> {
        let hosts = configs.iter().map(|config| config.scenario.len()).max();
        let Some(hosts) = hosts.filter(|_| configs.len() <= usize::from(u16::MAX)) else {
            return Err(format!("networks: expected 1 to {}, got {}", u16::MAX, configs.len()));
        };
        if !(hosts..=MAX_HOSTS).contains(&rows) {
            return Err(format!("rows: expected {hosts}, one for each host, to {MAX_HOSTS}, got {rows}"));
        }
        if configs.len() > 1 && configs.iter().any(|config| config.python_random) {
            return Err("random: expected 'fast' where networks are drawn, got 'python'".into());
        }
        let mut offered = [false; NUM_KINDS];
        for &kind in kinds {
            let entry = offered.get_mut(usize::from(kind));
            *entry.ok_or_else(|| format!("kinds: expected 0 to {}, got {kind}", NUM_KINDS - 1))? = true;
        }
        let chances = vec![1.0 / configs.len() as f64; configs.len()];
        let all = configs.into_iter().map(|config| RowNetwork::new(config, rows)).collect();
        Ok(Self { all, rows, kinds: offered, chances })
    }

    fn num_actions(&self) -> usize {
        1 + NUM_KINDS * self.rows
    }

    /// The kind and the host of an action on one; None: Sleep, also in place of what is not on offer.
    fn on_host(&self, action: usize, hosts: usize) -> Option<(usize, Host)> {
        let place = action.checked_sub(1)?;
        let (host, kind) = (place / NUM_KINDS, place % NUM_KINDS);
        (host < hosts && self.kinds[kind]).then_some((kind, host))
    }
}

/// All that changes: the network of the present episode, and the episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    network: u16,
    episode: Episode<SeededSource>,
}

/// See the documentation of the module.
pub struct RowsCage2 {
    networks: Arc<RowNetworks>,
    state: State,
}

impl RowsCage2 {
    pub fn new(networks: Arc<RowNetworks>) -> Self {
        let episode = networks.all[0].config.new_episode();
        Self { networks, state: State { network: 0, episode } }
    }

    fn network(&self) -> &RowNetwork {
        &self.networks.all[usize::from(self.state.network)]
    }

    /// Returns whether an action on a host may have an effect now.
    fn may(&self, kind: usize, host: Host) -> bool {
        let scenario = &self.network().config.scenario;
        scenario.may_have_effect(2 + kind * scenario.len() + host, &self.state.episode.network.ports)
    }
}

impl SingleAgentEnv for RowsCage2 {
    type State = State;

    fn obs_len(&self) -> usize {
        self.networks.rows * ROW
    }

    fn accepts(&self, action: i64) -> bool {
        usize::try_from(action).is_ok_and(|action| action < self.networks.num_actions())
    }

    fn expected_action(&self) -> String {
        format!("an integer from 0 to {}", self.networks.num_actions() - 1)
    }

    fn seed(&mut self, seed: u64) {
        self.state.episode.random = self.network().config.random_source(seed);
    }

    fn reseed(&mut self, seed: u64) {
        self.state.episode.random.reseed(seed);
    }

    fn reset(&mut self, obs: &mut [f32]) {
        let State { network, episode } = &mut self.state;
        if self.networks.all.len() > 1 {
            *network = episode.random.red_agent(&self.networks.chances) as u16;
        }
        self.networks.all[usize::from(*network)].config.begin(episode);
        self.observe(obs);
    }

    fn observe(&self, obs: &mut [f32]) {
        obs.copy_from_slice(&self.network().fixed);
        let State { episode, .. } = &self.state;
        let hosts = self.network().config.scenario.len();
        for (host, row) in obs.chunks_exact_mut(ROW).take(hosts).enumerate() {
            let bits = episode.view.of(host);
            for (bit, entry) in row[BITS..SCANNED].iter_mut().enumerate() {
                *entry = (bits >> bit & 1) as f32;
            }
            row[SCANNED] = episode.memory.as_ref().map_or(0.0, |memory| memory.scan_mark(host)) / 2.0;
            for (decoy, entry) in row[CAN_START..IMAGE].iter_mut().enumerate() {
                let kind = 2 + decoy;
                *entry = f32::from(u8::from(self.networks.kinds[kind] && self.may(kind, host)));
            }
        }
    }

    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step {
        let config = &self.networks.all[usize::from(self.state.network)].config;
        let scenario = &config.scenario;
        let action = match self.networks.on_host(action as usize, scenario.len()) {
            Some((kind, host)) => scenario.actions[2 + kind * scenario.len() + host],
            None => BlueAction::Sleep,
        };
        let tenths = self.state.episode.step(action, scenario);
        let truncated = self.state.episode.time >= config.episode_length;
        self.observe(obs);
        Step { reward: f64::from(tenths) / 10.0, terminated: false, truncated }
    }

    fn mask_len(&self) -> usize {
        self.networks.num_actions()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        let hosts = self.network().config.scenario.len();
        for (action, entry) in mask.iter_mut().enumerate() {
            let on_host = self.networks.on_host(action, hosts);
            *entry = on_host.map_or(action == 0, |(kind, host)| self.may(kind, host)).into();
        }
    }

    /// As that of the challenge; `network` is the index of the episode's.
    fn episode_info(&self, key: &str) -> f64 {
        if key == "network" { self.state.network.into() } else { self.state.episode.info(key) }
    }

    fn fingerprint(&self) -> String {
        let configs: Vec<_> = self.networks.all.iter().map(|network| &network.config).collect();
        format!("CAGE 2 rows {} {:?} {configs:?}", self.networks.rows, self.networks.kinds)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let network = self.networks.all.get(usize::from(state.network));
        network.ok_or("its network is none of those that are drawn")?.config.check(&state.episode, phase)
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        self.network().config.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cage2::memory::Layout;

    #[test]
    fn rows_have_a_name_for_each_number() {
        assert_eq!(names().len(), ROW);
    }

    #[test]
    fn a_row_without_a_host_is_empty_and_its_actions_are_sleep() {
        let config = Arc::new(Config { memory: Layout::Scan, ..Config::default() });
        let all: Vec<u16> = (0..NUM_KINDS as u16).collect();
        let networks = Arc::new(RowNetworks::new(vec![config], 15, &all).unwrap());
        let mut env = RowsCage2::new(networks);
        env.seed(3);
        let mut obs = vec![9.0; env.obs_len()];
        env.reset(&mut obs);
        assert!(obs[13 * ROW..].iter().all(|&number| number == 0.0));
        let mut mask = vec![9; env.mask_len()];
        env.action_mask(&mut mask);
        assert_eq!(mask[0], 1);
        assert!(mask[1 + 13 * NUM_KINDS..].iter().all(|&allowed| allowed == 0));
        // Analyse, Remove and Restore of 13 hosts but the first one's Analyse, 41 decoys, and Sleep.
        assert_eq!(mask.iter().map(|&allowed| u32::from(allowed)).sum::<u32>(), 38 + 41 + 1);
        let step = env.step(env.networks.num_actions() as i64 - 1, &mut obs);
        assert_eq!(step.reward, 0.0);
    }
}
