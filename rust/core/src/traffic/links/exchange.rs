//! The exchange of messages between all stations.

use std::f64::consts::LOG2_E;

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::choice::Choice;
use super::config::{Blockage, Channel, Config, MAX_STATIONS, Selection};
use super::draws::{Draws, Purpose};
use super::path_loss::{Condition, NEAREST, blockage, sight_probability};
use super::radio::{Radio, Senders, decibels, linear, ratio};
use super::resources;
use super::shadowing::{Shadowing, pair, pairs};
use super::table::{Message, Table};
use crate::env::ensure;
use crate::memory::arrays;
use crate::traffic::math::{exp2, vectorized};
use crate::traffic::vehicles::{LENGTH, Vehicles, WIDTH};

/// A vehicle with a radio.
#[derive(Clone, Copy, Debug, Default)]
pub struct Station {
    /// Its state, which it sends.
    pub message: Message,
    /// False if it has left the road.
    pub sends: bool,
    /// False if nobody listens there. Only the first stations, those of agents, keep what they hear.
    pub listens: bool,
    /// True if it is another vehicle's than at the last message.
    pub begins: bool,
}

/// All vehicles on the road, which may block the path between two others.
#[derive(Clone, Copy, Debug)]
pub struct Bodies<'a> {
    pub x: &'a [f64],
    pub y: &'a [f64],
    /// Cosines and sines of the headings.
    pub cos: &'a [f64],
    pub sin: &'a [f64],
    /// Half of the length and of the width of each, metres.
    pub half: [f64; 2],
}

impl<'a> Bodies<'a> {
    pub fn of(vehicles: &'a Vehicles) -> Self {
        let Vehicles { x, y, cos, sin, .. } = vehicles;
        Self { x, y, cos, sin, half: [LENGTH / 2.0, WIDTH / 2.0] }
    }
}

vectorized! {
    /// Sets `blocked` if a vehicle lies across the path that leads from `start` for `length` metres in the direction
    /// `along`. The vehicles at its ends do not.
    fn find_blocking(
        x: &[f64],
        y: &[f64],
        cos: &[f64],
        sin: &[f64],
        half: [f64; 2],
        start: [f64; 2],
        along: [f64; 2],
        length: f64,
        blocked: &mut bool,
    ) {
        let n = x.len();
        let (y, cos, sin) = (&y[..n], &cos[..n], &sin[..n]);
        let mut any = false;
        for i in 0..n {
            let (dx, dy) = (x[i] - start[0], y[i] - start[1]);
            let across = (along[0] * dy - along[1] * dx).abs();
            let way = along[0] * dx + along[1] * dy;
            // Half of its width as seen along the path.
            let wide = half[0] * (along[0] * sin[i] - along[1] * cos[i]).abs()
                + half[1] * (along[0] * cos[i] + along[1] * sin[i]).abs();
            any |= (across <= wide) & (way > 1e-6) & (way < length - 1e-6);
        }
        *blocked = any;
    }
}

/// The quality of a link at the last message: probability of its arrival, and SINR in dB. NaN where there was no link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    pub success: f64,
    pub sinr: f64,
}

impl Quality {
    const NONE: Self = Self { success: f64::NAN, sinr: f64::NAN };
}

/// All that changes of the links.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkState {
    seed: u64,
    /// Episodes since the seed, and messages of this episode.
    episode: u32,
    pub(super) messages: u32,
    agents: usize,
    /// Positions at the last message.
    places: Vec<[f64; 2]>,
    shadowing: Shadowing,
    resources: Vec<u32>,
    /// dBm.
    powers: Vec<f64>,
    /// Counters of semi-persistent choices.
    counters: Vec<Option<u32>>,
    /// Power in each resource at the last message, station after station, mW; NaN where it could not listen.
    sensed: Vec<f64>,
    table: Table,
    /// Quality of the links to each agent from each station.
    quality: Vec<Quality>,
    /// Accounts of the last message, sender by sender for `delivery` and `age`, receiver by receiver for the others.
    last: Vec<Account>,
    total: Account,
    #[serde(skip)]
    scratch: Scratch,
}

/// Intermediate results of an exchange; no state.
#[derive(Clone, Debug, Default)]
struct Scratch {
    /// exp(-way / decorrelation distance) of each station, with and without a building in between.
    kept: Vec<[f64; 2]>,
    /// Received power of each station (column) at each station (row), mW.
    received: Vec<f64>,
    /// Metres.
    distances: Vec<f64>,
    sent: Vec<f64>,
    row: Row,
    senders: Senders,
    slots: Vec<u32>,
    /// Signal to interference and noise of each sender at a receiver: as a ratio, in dB, and the probability of arrival.
    ratios: Vec<f64>,
    sinr: Vec<f64>,
    success: Vec<f64>,
}

/// Inputs of the powers of the pairs of one station with those before it.
#[derive(Clone, Debug, Default)]
struct Row {
    dx: Vec<f64>,
    dy: Vec<f64>,
    /// 1 if a building stands in between.
    behind: Vec<u8>,
    /// Correlation of the shadowing, and the share of what is new, see [`Shadowing::advance`].
    correlation: Vec<f64>,
    fresh: Vec<f64>,
    /// Metres, and lg of it (of [`NEAREST`] at least).
    distance: Vec<f64>,
    lg: Vec<f64>,
    /// In dB at first, then as a ratio.
    gain: Vec<f64>,
}

impl Row {
    fn fit(&mut self, n: usize) {
        let Self { dx, dy, behind, correlation, fresh, distance, lg, gain } = self;
        behind.resize(n, 0);
        for values in [dx, dy, correlation, fresh, distance, lg, gain] {
            values.resize(n, 0.0);
        }
    }
}

vectorized! {
    fn measure(dx: &[f64], dy: &[f64], correlation: &[f64], fresh: &mut [f64], distance: &mut [f64], lg: &mut [f64]) {
        let n = dx.len();
        let (dy, correlation) = (&dy[..n], &correlation[..n]);
        let (fresh, distance, lg) = (&mut fresh[..n], &mut distance[..n], &mut lg[..n]);
        for i in 0..n {
            distance[i] = (dx[i] * dx[i] + dy[i] * dy[i]).sqrt();
            lg[i] = 0.1 * decibels(distance[i].max(NEAREST));
            fresh[i] = (1.0 - correlation[i] * correlation[i]).sqrt();
        }
    }
}

vectorized! {
    fn amplify(gain: &mut [f64]) {
        for x in gain {
            *x = linear(*x);
        }
    }
}

vectorized! {
    fn grade(radio: &Radio, ratios: &[f64], sinr: &mut [f64], success: &mut [f64]) {
        let n = ratios.len();
        let (sinr, success) = (&mut sinr[..n], &mut success[..n]);
        for i in 0..n {
            sinr[i] = decibels(ratios[i]);
            success[i] = radio.success(sinr[i]);
        }
    }
}

impl LinkState {
    /// See [`crate::env::Env::reseed`].
    pub fn reseed(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            episode: 0,
            messages: 0,
            agents: 0,
            places: Vec::new(),
            shadowing: Shadowing::default(),
            resources: Vec::new(),
            powers: Vec::new(),
            counters: Vec::new(),
            sensed: Vec::new(),
            table: Table::default(),
            quality: Vec::new(),
            last: Vec::new(),
            total: Account::default(),
            scratch: Scratch::default(),
        }
    }

    /// Starts an episode of `stations`, the first `agents` of which are agents'.
    pub fn reset(&mut self, config: &Config, agents: usize, stations: usize) {
        debug_assert!(agents <= stations && stations <= MAX_STATIONS);
        self.episode = self.episode.wrapping_add(1);
        self.messages = 0;
        self.agents = agents;
        refill(&mut self.places, stations, [0.0; 2]);
        self.shadowing.clear(stations, config.blockage == Blockage::Probability);
        refill(&mut self.resources, stations, 0);
        refill(&mut self.powers, stations, config.powers[0]);
        refill(&mut self.counters, stations, None);
        let of_radio = if config.channel == Channel::Tr37885 { config.resources() } else { 0 };
        refill(&mut self.sensed, stations * of_radio, 0.0);
        self.table.clear(agents, stations);
        refill(&mut self.quality, agents * stations, Quality::NONE);
        refill(&mut self.last, agents, Account::default());
        self.total = Account::default();
    }

    /// Returns whether a vehicle of the traffic, by its number in this episode, is one of the share that have radios.
    pub fn equips(&self, number: u32, share: f64) -> bool {
        Draws::new(self.seed, self.episode, 0).unit(Purpose::Radio, number as usize) < share
    }

    /// Forgets all that was known of a station and at it, which is another vehicle's from now on.
    fn begin(&mut self, config: &Config, station: usize) {
        self.table.forget(station);
        self.powers[station] = config.powers[0];
        self.counters[station] = None;
        let resources = self.sensed.len() / self.stations();
        self.sensed[station * resources..(station + 1) * resources].fill(0.0);
    }

    /// The knowledge of agent `receiver` about each station.
    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn stations(&self) -> usize {
        self.places.len()
    }

    pub fn agents(&self) -> usize {
        self.agents
    }

    /// The links to an agent from each station.
    pub fn quality(&self, receiver: usize) -> &[Quality] {
        let n = self.stations();
        &self.quality[receiver * n..(receiver + 1) * n]
    }

    /// Power that an agent sensed in each resource at the last message, mW; NaN where it could not listen.
    pub fn sensed(&self, config: &Config, receiver: usize) -> &[f64] {
        let n = config.resources();
        &self.sensed[receiver * n..(receiver + 1) * n]
    }

    /// The resource that each station sent its last message in.
    pub fn resources(&self) -> &[u32] {
        &self.resources
    }

    /// The power that each station sent its last message with, dBm.
    pub fn powers(&self) -> &[f64] {
        &self.powers
    }

    /// The position of each station at the last message, metres.
    pub fn places(&self) -> &[[f64; 2]] {
        &self.places
    }

    /// Shadowing of two different stations, and what lies above the mean in the loss by a vehicle between them, both in
    /// units of their standard deviations.
    pub fn shadowing(&self, a: usize, b: usize) -> [f64; 2] {
        self.shadowing.values[pair(a, b)]
    }

    /// The last message of each agent: delivery and age of what it sent, SINR and busy ratio of what it heard.
    pub fn last(&self) -> &[Account] {
        &self.last
    }

    /// The messages of the episode so far.
    pub fn total(&self) -> &Account {
        &self.total
    }

    /// Lets every station send its state once. `choices`: of each agent; `bodies`: all vehicles on the road; `period`:
    /// seconds between two messages. `behind_building` says whether a building stands between two stations.
    pub fn exchange(
        &mut self,
        config: &Config,
        stations: &[Station],
        choices: &[Option<Choice>],
        bodies: Bodies<'_>,
        period: f64,
        behind_building: impl Fn(usize, usize) -> bool,
    ) {
        debug_assert_eq!(stations.len(), self.stations());
        let draws = Draws::new(self.seed, self.episode, self.messages);
        self.last.fill(Account::default());
        (0..stations.len()).filter(|&i| stations[i].begins).for_each(|i| self.begin(config, i));
        let most = (config.max_age / period).clamp(0.0, 1e9) as u32;
        for receiver in (0..self.agents).filter(|&receiver| stations[receiver].listens) {
            self.table.grow_older(receiver, most.saturating_add(1));
        }
        self.quality.fill(Quality::NONE);
        match config.channel {
            Channel::Range => self.within_range(config, stations, draws),
            Channel::Tr37885 => {
                self.choose(config, stations, choices, draws);
                self.propagate(config, stations, bodies, draws, behind_building);
                self.sense(config, stations);
                self.decode(config, stations, draws);
            }
        }
        self.count(config, stations, period);
        for (place, station) in self.places.iter_mut().zip(stations) {
            *place = [station.message.x, station.message.y];
        }
        self.messages = self.messages.saturating_add(1);
    }

    fn within_range(&mut self, config: &Config, stations: &[Station], draws: Draws) {
        let n = stations.len();
        self.scratch.distances.resize(n * n, 0.0);
        for receiver in 0..self.agents {
            for sender in (0..n).filter(|&sender| sender != receiver) {
                let (a, b) = (stations[receiver].message, stations[sender].message);
                let (dx, dy) = (a.x - b.x, a.y - b.y);
                let distance = (dx * dx + dy * dy).sqrt();
                self.scratch.distances[receiver * n + sender] = distance;
                if !(stations[receiver].listens && stations[sender].sends) {
                    continue;
                }
                let success = if distance <= config.range { config.delivery } else { 0.0 };
                self.quality[receiver * n + sender] = Quality { success, sinr: f64::NAN };
                if success == 1.0 || draws.unit(Purpose::Arrival, receiver * n + sender) < success {
                    self.table.receive(receiver, sender, b);
                }
            }
        }
    }

    fn choose(&mut self, config: &Config, stations: &[Station], choices: &[Option<Choice>], draws: Draws) {
        let all = config.resources();
        for i in (0..stations.len()).filter(|&i| stations[i].sends) {
            let choice = choices.get(i).copied().flatten();
            let sensed = &self.sensed[i * all..(i + 1) * all];
            self.resources[i] = match (config.selection, choice) {
                (Selection::Agent, Some([resource, _])) => resource,
                (Selection::Sensing, _) => {
                    let counter = &mut self.counters[i];
                    resources::semi_persistent(config, i, self.resources[i], counter, sensed, draws)
                }
                _ => draws.below(Purpose::Resource, i, all) as u32,
            };
            self.powers[i] = config.powers[choice.map_or(0, |[_, power]| power as usize)];
        }
    }

    /// Works out the received powers of all pairs.
    fn propagate(
        &mut self,
        config: &Config,
        stations: &[Station],
        bodies: Bodies<'_>,
        draws: Draws,
        behind_building: impl Fn(usize, usize) -> bool,
    ) {
        let n = stations.len();
        let Scratch { kept, received, distances, sent, row, .. } = &mut self.scratch;
        received.resize(n * n, 0.0);
        distances.resize(n * n, 0.0);
        let sight = config.surroundings.sight();
        let first = self.messages == 0;
        kept.clear();
        kept.extend(stations.iter().zip(&self.places).map(|(station, place)| {
            if station.begins {
                return [0.0; 2];
            }
            let (dx, dy) = (station.message.x - place[0], station.message.y - place[1]);
            let way = (dx * dx + dy * dy).sqrt();
            [sight, Condition::Nlos].map(|condition| exp2(-LOG2_E * way / condition.decorrelation()))
        }));
        sent.clear();
        sent.extend(self.powers.iter().map(|&power| linear(power)));
        let terms = [sight, Condition::Nlos].map(|condition| condition.terms(config.radio.frequency));
        let gains = 2.0 * config.radio.antenna_gain;
        for b in 0..n {
            let other = stations[b].message;
            row.fit(b);
            for a in 0..b {
                row.dx[a] = other.x - stations[a].message.x;
                row.dy[a] = other.y - stations[a].message.y;
                let behind = usize::from(behind_building(a, b));
                row.behind[a] = behind as u8;
                row.correlation[a] = if first { 0.0 } else { kept[a][behind] * kept[b][behind] };
            }
            measure(&row.dx, &row.dy, &row.correlation, &mut row.fresh, &mut row.distance, &mut row.lg);
            for a in 0..b {
                if !((stations[a].sends && stations[b].listens) || (stations[b].sends && stations[a].listens)) {
                    continue;
                }
                let (behind, distance, lg) = (usize::from(row.behind[a]), row.distance[a], row.lg[a]);
                let index = pair(a, b);
                let [shadow, above] = self.shadowing.advance(index, row.correlation[a], row.fresh[a], draws);
                let condition = if behind == 1 { Condition::Nlos } else { sight };
                let mut loss = terms[behind][0] + terms[behind][1] * lg + condition.shadowing() * shadow;
                let blocked = behind == 0
                    && match config.blockage {
                        Blockage::None => false,
                        Blockage::Vehicles => {
                            let Bodies { x, y, cos, sin, half } = bodies;
                            let start = [stations[a].message.x, stations[a].message.y];
                            let along = [row.dx[a] / distance, row.dy[a] / distance];
                            let mut found = false;
                            find_blocking(x, y, cos, sin, half, start, along, distance, &mut found);
                            found
                        }
                        Blockage::Probability => {
                            self.shadowing.sight_share(index) >= sight_probability(config.surroundings, distance)
                        }
                    };
                if blocked {
                    let [mean, spread] = blockage(config.antenna_height, config.vehicle_height, lg);
                    loss += (mean + spread * above).max(0.0);
                }
                row.gain[a] = gains - loss;
            }
            amplify(&mut row.gain);
            for a in 0..b {
                received[a * n + b] = row.gain[a] * sent[b];
                received[b * n + a] = row.gain[a] * sent[a];
                distances[a * n + b] = row.distance[a];
                distances[b * n + a] = row.distance[a];
            }
        }
    }

    /// Adds up the power in each resource, as every station can measure it.
    fn sense(&mut self, config: &Config, stations: &[Station]) {
        let (n, all) = (stations.len(), config.resources());
        let Scratch { received, senders, .. } = &mut self.scratch;
        senders.sort(&self.resources, |i| stations[i].sends, all);
        for (receiver, station) in stations.iter().enumerate().filter(|(_, station)| station.listens) {
            let powers = &received[receiver * n..(receiver + 1) * n];
            let row = &mut self.sensed[receiver * all..(receiver + 1) * all];
            for (resource, power) in row.iter_mut().enumerate() {
                *power = senders.of(resource).iter().fold(0.0, |sum, &i| sum + powers[i as usize]);
            }
            if station.sends {
                let own = config.slot(self.resources[receiver]) as usize;
                row.iter_mut().skip(own).step_by(config.slots).for_each(|power| *power = f64::NAN);
            }
        }
    }

    fn decode(&mut self, config: &Config, stations: &[Station], draws: Draws) {
        let n = stations.len();
        let Scratch { received, senders, slots, ratios, sinr, success, .. } = &mut self.scratch;
        let noise = config.radio.noise();
        slots.clear();
        slots.extend(self.resources.iter().map(|&resource| config.slot(resource)));
        for values in [&mut *ratios, &mut *sinr, &mut *success] {
            refill(values, n, 1.0);
        }
        for receiver in (0..self.agents).filter(|&receiver| stations[receiver].listens) {
            let powers = &received[receiver * n..(receiver + 1) * n];
            let heard = |sender: usize| sender != receiver && stations[sender].sends;
            for sender in (0..n).filter(|&sender| heard(sender)) {
                let rivals = senders.of(self.resources[sender] as usize);
                ratios[sender] = ratio(sender as u32, rivals, powers, noise);
            }
            grade(&config.radio, ratios, sinr, success);
            for sender in (0..n).filter(|&sender| heard(sender)) {
                let link = &mut self.quality[receiver * n + sender];
                if stations[receiver].sends && slots[sender] == slots[receiver] {
                    *link = Quality { success: 0.0, sinr: f64::NAN };
                    continue;
                }
                *link = Quality { success: success[sender], sinr: sinr[sender] };
                if draws.unit(Purpose::Arrival, receiver * n + sender) < success[sender] {
                    self.table.receive(receiver, sender, stations[sender].message);
                }
            }
        }
    }

    fn count(&mut self, config: &Config, stations: &[Station], period: f64) {
        let n = stations.len();
        let busy = linear(config.busy);
        for receiver in (0..self.agents).filter(|&receiver| stations[receiver].listens) {
            let entries = self.table.of(receiver);
            for sender in (0..n).filter(|&sender| sender != receiver && stations[sender].sends) {
                if self.scratch.distances[receiver * n + sender] > config.range {
                    continue;
                }
                let entry = entries[sender];
                let arrived = f64::from(u8::from(entry.age == 1 && entry.known));
                let age = period * f64::from(entry.age);
                self.total.delivery.add(arrived);
                self.total.age.add(age);
                if let Some(account) = self.last.get_mut(sender) {
                    account.delivery.add(arrived);
                    account.age.add(age);
                }
                let sinr = self.quality[receiver * n + sender].sinr;
                if sinr.is_finite() {
                    self.total.sinr.add(sinr);
                    self.last[receiver].sinr.add(sinr);
                }
            }
            if config.channel == Channel::Tr37885 {
                let row = self.sensed(config, receiver);
                let heard = row.iter().filter(|power| !power.is_nan()).count();
                let share = row.iter().filter(|&&power| power > busy).count() as f64 / heard as f64;
                if heard > 0 {
                    self.total.busy.add(share);
                    self.last[receiver].busy.add(share);
                }
            }
        }
    }

    /// Refuses a decoded state that links of these options cannot have with so many agents and stations.
    pub fn check(&self, config: &Config, agents: usize, stations: usize) -> Result<(), String> {
        let of_radio = if config.channel == Channel::Tr37885 { config.resources() } else { 0 };
        let sight = if config.blockage == Blockage::Probability { pairs(stations) } else { 0 };
        let fits = self.agents == agents
            && self.places.len() == stations
            && self.shadowing.values.len() == pairs(stations)
            && self.shadowing.sight.len() == sight
            && self.resources.len() == stations
            && self.powers.len() == stations
            && self.counters.len() == stations
            && self.sensed.len() == stations * of_radio
            && self.table.senders == stations
            && self.table.entries.len() == agents * stations
            && self.quality.len() == agents * stations
            && self.last.len() == agents;
        ensure(fits, "the links are not those of the vehicles")?;
        let exist = self.resources.iter().all(|&resource| (resource as usize) < config.resources());
        ensure(exist, "a vehicle sends in a resource that does not exist")
    }

    /// Bytes that the links of so many agents and stations take.
    pub fn memory(config: &Config, agents: usize, stations: usize) -> usize {
        let per_station = size_of::<[f64; 2]>() * 2
            + size_of::<u32>() * 2
            + 2 * size_of::<f64>()
            + size_of::<Option<u32>>()
            + config.resources() * (size_of::<f64>() + 2 * size_of::<u32>());
        let per_pair = 3 * size_of::<f64>() / 2 + 2 * size_of::<f64>() + size_of::<[f64; 2]>();
        let per_station = per_station + 11 * size_of::<f64>();
        let per_link = size_of::<super::table::Entry>() + size_of::<Quality>();
        let bytes = stations * per_station
            + stations * stations * per_pair
            + agents * (stations * per_link + size_of::<Account>());
        arrays(31, bytes)
    }

    /// Bytes that the saved links of so many agents and stations have at most.
    pub fn most_saved(config: &Config, agents: usize, stations: usize) -> usize {
        // The encoding of a number is at most a quarter longer than in memory.
        Self::memory(config, agents, stations).saturating_mul(5) / 4 + 1024
    }
}

fn refill<T: Clone>(values: &mut Vec<T>, n: usize, value: T) {
    values.clear();
    values.resize(n, value);
}
