//! One environment of resource allocation.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::account::Episode;
use super::channels::Channels;
use super::config::{
    BANDWIDTH, Config, NOISE, RATE_SCALE, SILENT, STATION_FIGURE, STATION_GAIN, STEP, V2I_POWER, VEHICLE_FIGURE,
    VEHICLE_GAIN,
};
use super::grid;
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::arrays;
use crate::rng::Rng;
use crate::traffic::links::radio::{decibels, linear};

/// Gains of both ends less the noise figure of the receiver, dB.
const TO_VEHICLE: f64 = 2.0 * VEHICLE_GAIN - VEHICLE_FIGURE;
const TO_STATION: f64 = VEHICLE_GAIN + STATION_GAIN - STATION_FIGURE;

/// All that changes. N: number of links.
#[derive(Clone, Serialize, Deserialize)]
pub struct State {
    rng: Rng,
    pub(super) places: Vec<[f64; 2]>,
    /// The receiving vehicle of each V2V link.
    pub(super) receivers: Vec<u32>,
    channels: Channels,
    /// Bits that each link still has to send.
    left: Vec<f64>,
    /// Interference and noise in each block at each link's receiver after the last step [N, N], dBm.
    interference: Vec<f64>,
    /// Rates of the V2V links in the last step, bit/s/Hz.
    pub(super) rates: Vec<f64>,
    pub(super) steps: u32,
    /// Sums over the steps: rewards, and rates of all V2I links, bit/s/Hz.
    rewards: f64,
    v2i: f64,
    running: bool,
    /// Episodes so far, and what became of the last.
    pub finished: u64,
    pub last: Episode,
}

pub struct V2x {
    config: Arc<Config>,
    state: State,
}

impl V2x {
    pub fn new(config: Arc<Config>) -> Self {
        let n = config.links;
        let state = State {
            rng: Rng::new(0),
            places: vec![[0.0; 2]; n],
            receivers: vec![0; n],
            channels: Channels {
                vehicles: vec![0.0; n * n],
                station: vec![0.0; n],
                fast_vehicles: vec![0.0; n * n * n],
                fast_station: vec![0.0; n * n],
            },
            left: vec![0.0; n],
            interference: vec![NOISE; n * n],
            rates: vec![0.0; n],
            steps: 0,
            rewards: 0.0,
            v2i: 0.0,
            running: false,
            finished: 0,
            last: Episode::NONE,
        };
        Self { config, state }
    }

    /// The power that arrives at a vehicle in a block from another one, mW.
    #[inline]
    fn heard(&self, power: f64, from: usize, to: usize, block: usize) -> f64 {
        let n = self.config.links;
        linear(power - self.state.channels.fast_vehicles[(from * n + to) * n + block] + TO_VEHICLE)
    }

    /// Rates of the V2I links for the actions of the active V2V links, bit/s/Hz, summed up.
    fn v2i_rate(&self, sent: &[Option<(usize, f64)>]) -> f64 {
        let n = self.config.links;
        let station = &self.state.channels.fast_station;
        let mut interference = vec![linear(NOISE); n];
        for (link, &choice) in sent.iter().enumerate() {
            if let Some((block, power)) = choice {
                interference[block] += linear(power - station[link * n + block] + TO_STATION);
            }
        }
        // Vehicle m is the transmitter of V2I link m, which has block m.
        let signal = |m: usize| linear(V2I_POWER - station[m * n + m] + TO_STATION);
        (0..n).map(|m| (1.0 + signal(m) / interference[m]).log2()).sum()
    }

    /// Interference and noise at the receiver of `link` in a block, mW.
    fn disturbance(&self, sent: &[Option<(usize, f64)>], link: usize, block: usize) -> f64 {
        let to = self.state.receivers[link] as usize;
        let mut sum = linear(NOISE) + self.heard(V2I_POWER, block, to, block);
        for (other, &choice) in sent.iter().enumerate() {
            if let Some((used, power)) = choice
                && used == block
                && other != link
            {
                sum += self.heard(power, other, to, block);
            }
        }
        sum
    }

    fn write_obs(&self, obs: &mut [f32]) {
        let (n, state, config) = (self.config.links, &self.state, &*self.config);
        let channels = &state.channels;
        for (link, row) in obs.chunks_exact_mut(self.obs_len()).enumerate() {
            let to = state.receivers[link] as usize;
            let mut slots = row.iter_mut();
            let mut put = |value: f64| {
                if let Some(slot) = slots.next() {
                    *slot = value as f32;
                }
            };
            // Fast fading, in 35 dB from -10 dB, of the channels to the base station and to the receiver.
            for block in 0..n {
                put((channels.fast_station[link * n + block] - channels.station[link] + 10.0) / 35.0);
            }
            // First from the agent itself, then from the others in their order.
            let from = || std::iter::once(link).chain((0..n).filter(move |&other| other != link));
            for other in from() {
                let slow = channels.vehicles[other * n + to];
                for block in 0..n {
                    put((channels.fast_vehicles[(other * n + to) * n + block] - slow + 10.0) / 35.0);
                }
            }
            for block in 0..n {
                put((-state.interference[link * n + block] - 60.0) / 60.0);
            }
            put((channels.station[link] - 80.0) / 60.0);
            for other in from() {
                put((channels.vehicles[other * n + to] - 80.0) / 60.0);
            }
            put(1.0 - f64::from(state.steps) / f64::from(config.steps));
            put(state.left[link] / (8.0 * config.payload));
            for other in 0..n {
                put(f64::from(u8::from(other == link)));
            }
        }
    }
}

impl Env for V2x {
    type State = State;

    fn num_agents(&self) -> usize {
        self.config.links
    }

    fn obs_len(&self) -> usize {
        let n = self.config.links;
        n * n + 4 * n + 3
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        if self.state.running { actions.check_below(self.config.num_actions()) } else { Ok(()) }
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = Rng::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let State { rng, places, receivers, channels, left, interference, rates, .. } = &mut self.state;
        *places = grid::drop_vehicles(self.config.links, rng);
        for (i, receiver) in receivers.iter_mut().enumerate() {
            let distance = |j: usize| (places[i][0] - places[j][0]).hypot(places[i][1] - places[j][1]);
            let others = (0..places.len()).filter(|&j| j != i);
            *receiver = others.min_by(|&a, &b| distance(a).total_cmp(&distance(b))).map_or(0, |j| j as u32);
        }
        channels.draw_slow(places, rng);
        channels.draw_fast(rng);
        left.fill(8.0 * self.config.payload);
        interference.fill(NOISE);
        rates.fill(0.0);
        (self.state.steps, self.state.rewards, self.state.v2i) = (0, 0.0, 0.0);
        self.state.running = true;
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        if self.state.running {
            self.write_obs(obs);
        } else {
            obs.fill(0.0);
        }
        alive.fill(u8::from(self.state.running));
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(all) = actions else { unreachable!("these environments take indices only") };
        let n = self.config.links;
        // A link that has sent its payload is silent.
        let sent: Vec<Option<(usize, f64)>> = all
            .iter()
            .zip(&self.state.left)
            .map(|(&action, &left)| (left > 0.0).then(|| self.config.action(action as usize)))
            .map(|choice| choice.filter(|&(_, power)| power > SILENT))
            .collect();
        let v2i = self.v2i_rate(&sent);
        let mut worth = 0.0;
        for link in 0..n {
            let rate = sent[link].map_or(0.0, |(block, power)| {
                let signal = self.heard(power, link, self.state.receivers[link] as usize, block);
                (1.0 + signal / self.disturbance(&sent, link, block)).log2()
            });
            self.state.rates[link] = rate;
            let left = &mut self.state.left[link];
            *left = (*left - rate * BANDWIDTH * STEP).max(0.0);
            worth += if *left > 0.0 { rate / RATE_SCALE } else { 1.0 };
        }
        let weight = self.config.v2i_weight;
        let reward = (weight * v2i / RATE_SCALE + (1.0 - weight) * worth) / n as f64;
        self.state.steps += 1;
        self.state.rewards += reward;
        self.state.v2i += v2i;
        let State { rng, channels, .. } = &mut self.state;
        channels.draw_fast(rng);
        for link in 0..n {
            for block in 0..n {
                self.state.interference[link * n + block] = decibels(self.disturbance(&sent, link, block));
            }
        }
        let ended = self.state.steps >= self.config.steps;
        self.write_obs(rows.obs);
        for row in 0..n {
            rows.rewards[row] = R::from_f64(reward);
            (rows.terminated[row], rows.truncated[row]) = (u8::from(ended), 0);
            rows.alive[row] = u8::from(!ended);
        }
        if ended {
            self.state.running = false;
            let State { steps, rewards, v2i, left, .. } = &self.state;
            let sent = left.iter().filter(|&&left| left <= 0.0).count();
            self.state.last = Episode {
                length: f64::from(*steps),
                return_mean: *rewards,
                num_agents: n as f64,
                success: sent as f64 / n as f64,
                v2i_rate: v2i / f64::from(*steps) * BANDWIDTH / 1e6,
            };
            self.state.finished += 1;
        }
        ended
    }

    fn episode_info(&self, key: &str) -> f64 {
        number_named(key, self.state.last.numbers())
    }

    fn fingerprint(&self) -> String {
        self.config.fingerprint()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let n = self.config.links;
        let State { places, receivers, channels, left, interference, rates, .. } = state;
        let fits = [places.len(), receivers.len(), left.len(), rates.len(), channels.station.len()] == [n; 5]
            && [interference.len(), channels.vehicles.len(), channels.fast_station.len()] == [n * n; 3]
            && channels.fast_vehicles.len() == n * n * n;
        ensure(fits, "there are more or fewer vehicles than links")?;
        ensure(receivers.iter().all(|&to| (to as usize) < n), "a receiver does not exist")?;
        ensure(state.running == (phase == Phase::Running), "the episode is not where it should be")?;
        let beyond = if state.running { state.steps >= self.config.steps } else { state.steps > self.config.steps };
        ensure(!beyond && state.finished < 1 << 62, "the time is beyond the episode")?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        let n = self.config.links;
        // The last ones while it steps.
        arrays(12, size_of::<f64>() * (n * n * n + 3 * n * n + 6 * n) + 32 * n)
    }

    fn most_saved(&self) -> usize {
        let n = self.config.links;
        1024 + 10 * (n * n * n + 3 * n * n + 8 * n)
    }
}
