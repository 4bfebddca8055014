//! Options of the links.

use super::path_loss::{Surroundings, path_loss};
use super::radio::{Radio, decibels};

pub const MAX_SLOTS: usize = 100;
pub const MAX_SUBCHANNELS: usize = 20;
pub const MAX_POWERS: usize = 16;
/// Vehicles with a radio in an environment: the state of all pairs is kept.
pub const MAX_STATIONS: usize = 256;

/// The rule by which a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The distance: [`Config::delivery`] within [`Config::range`], never beyond.
    Range,
    /// Signal and interference by 3GPP TR 37.885.
    Tr37885,
}

/// The rule by which a vehicle blocks the path between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blockage {
    /// Nothing does.
    None,
    /// It stands between them.
    Vehicles,
    /// The report's probability of a line of sight at their distance.
    Probability,
}

/// The rule by which a station chooses the resource that it sends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Anew for each message, evenly.
    Random,
    /// Sensing-based and semi-persistent, as in mode 2 of the sidelink.
    Sensing,
    /// Chosen by the action of its agent; others at random.
    Agent,
}

impl Selection {
    pub const NAMES: [&'static str; 3] = ["random", "sensing", "agent"];
    pub const ALL: [Self; 3] = [Self::Random, Self::Sensing, Self::Agent];
}

impl Blockage {
    pub const NAMES: [&'static str; 3] = ["none", "vehicles", "probability"];
    pub const ALL: [Self; 3] = [Self::None, Self::Vehicles, Self::Probability];
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub channel: Channel,
    /// Metres within which a message is meant to arrive; statistics and rewards count these links.
    pub range: f64,
    /// Probability that a message within the range arrives, with [`Channel::Range`].
    pub delivery: f64,
    /// Share of the vehicles of the background that have radios too.
    pub connected: f64,
    /// Seconds after which a received state is forgotten.
    pub max_age: f64,
    pub surroundings: Surroundings,
    pub blockage: Blockage,
    /// Heights of all antennas and of all vehicles, metres.
    pub antenna_height: f64,
    pub vehicle_height: f64,
    pub radio: Radio,
    /// Powers that agents choose from, dBm; others send with the first.
    pub powers: Vec<f64>,
    /// A resource is one of `slots` in a period, in one of `subchannels`. Who sends in a slot hears nothing in it.
    pub slots: usize,
    pub subchannels: usize,
    pub selection: Selection,
    /// Probability that a station keeps its resource when its counter has run out, with [`Selection::Sensing`].
    pub keep: f64,
    /// Power above which a resource counts as taken when stations choose, and as busy in the channel busy ratio, dBm.
    pub taken: f64,
    pub busy: f64,
}

impl Config {
    /// The defaults of a channel.
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            range: 150.0,
            delivery: 1.0,
            connected: 0.0,
            max_age: 5.0,
            surroundings: Surroundings::Highway,
            blockage: Blockage::Vehicles,
            antenna_height: 1.6,
            vehicle_height: 1.6,
            radio: Radio::default(),
            powers: vec![23.0],
            slots: 10,
            subchannels: 2,
            selection: Selection::Random,
            keep: 0.4,
            taken: -110.0,
            busy: -94.0,
        }
    }

    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self) -> Result<(), String> {
        let number = |name: &str, value: f64, low: f64, high: f64| {
            let fits = (low..=high).contains(&value);
            fits.then_some(()).ok_or_else(|| format!("{name}: expected {low} to {high}, got {value}"))
        };
        let whole = |name: &str, value: usize, high: usize| {
            let fits = (1..=high).contains(&value);
            fits.then_some(()).ok_or_else(|| format!("{name}: expected 1 to {high}, got {value}"))
        };
        number("range", self.range, 1.0, 1e5)?;
        number("delivery", self.delivery, 0.0, 1.0)?;
        number("connected", self.connected, 0.0, 1.0)?;
        number("max_age", self.max_age, 0.01, 1e6)?;
        number("antenna_height", self.antenna_height, 0.1, 100.0)?;
        number("vehicle_height", self.vehicle_height, 0.1, 100.0)?;
        self.radio.check()?;
        whole("tx_power", self.powers.len(), MAX_POWERS)
            .map_err(|_| format!("tx_power: expected one power or up to {MAX_POWERS}, got {}", self.powers.len()))?;
        for &power in &self.powers {
            number("tx_power", power, -150.0, 60.0)?;
        }
        whole("slots", self.slots, MAX_SLOTS)?;
        whole("subchannels", self.subchannels, MAX_SUBCHANNELS)?;
        number("keep_probability", self.keep, 0.0, 1.0)?;
        number("sensing_threshold", self.taken, -200.0, 60.0)?;
        number("busy_threshold", self.busy, -200.0, 60.0)
    }

    /// Resources of a period.
    pub fn resources(&self) -> usize {
        self.slots * self.subchannels
    }

    /// The slot of a resource.
    #[inline]
    pub fn slot(&self, resource: u32) -> u32 {
        resource % self.slots as u32
    }

    /// True if an action has a resource in it.
    pub fn chooses_resource(&self) -> bool {
        self.channel == Channel::Tr37885 && self.selection == Selection::Agent
    }

    /// True if an action has a power in it.
    pub fn chooses_power(&self) -> bool {
        self.channel == Channel::Tr37885 && self.powers.len() > 1
    }

    /// Resources whose powers an agent that chooses among them observes.
    pub fn sensed_len(&self) -> usize {
        if self.chooses_resource() { self.resources() } else { 0 }
    }

    /// The numbers of resources and of powers that an action chooses from; 1: it has no choice.
    pub fn choices(&self) -> [usize; 2] {
        [
            if self.chooses_resource() { self.resources() } else { 1 },
            if self.chooses_power() { self.powers.len() } else { 1 },
        ]
    }

    /// Signal-to-noise ratio without shadowing, blockage and interference at that distance in metres, dB.
    pub fn clear_sinr(&self, distance: f64) -> f64 {
        let loss = path_loss(self.surroundings.sight(), distance, self.radio.frequency);
        self.powers[0] + 2.0 * self.radio.antenna_gain - loss - decibels(self.radio.noise())
    }
}
