//! Options of resource allocation.

/// Blocks of a group of vehicles: one drives in each direction of the grid.
pub const GROUP: usize = 4;
pub const MAX_LINKS: usize = 16;
pub const MAX_POWERS: usize = 16;

/// Power below which a radio counts as silent, dBm.
pub const SILENT: f64 = -99.0;
/// dBm of V2I transmitters.
pub const V2I_POWER: f64 = 23.0;
/// Noise in a block, dBm.
pub const NOISE: f64 = -114.0;
/// Gains of antennas and noise figures, dB.
pub const STATION_GAIN: f64 = 8.0;
pub const STATION_FIGURE: f64 = 5.0;
pub const VEHICLE_GAIN: f64 = 3.0;
pub const VEHICLE_FIGURE: f64 = 9.0;
/// Seconds of a step, and Hz of a block.
pub const STEP: f64 = 1e-3;
pub const BANDWIDTH: f64 = 1e6;
/// bit/s/Hz that rates are divided by in rewards.
pub const RATE_SCALE: f64 = 10.0;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// V2V links, vehicles, V2I links and blocks of spectrum: all as many, a multiple of four.
    pub links: usize,
    /// Bytes that each V2V link has to send.
    pub payload: f64,
    /// Steps, of a millisecond each, for that.
    pub steps: u32,
    /// Powers that agents choose from, dBm.
    pub powers: Vec<f64>,
    /// Weight of the rates of V2I links in the reward, 0 to 1; the rest is the weight of V2V links.
    pub v2i_weight: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { links: 4, payload: 2120.0, steps: 100, powers: vec![23.0, 15.0, 5.0, -100.0], v2i_weight: 0.1 }
    }
}

impl Config {
    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(self.links.is_multiple_of(GROUP) && (GROUP..=MAX_LINKS).contains(&self.links)) {
            return Err(format!("num_links: expected 4, 8, 12 or 16, got {}", self.links));
        }
        if !(self.payload > 0.0 && self.payload <= 1e9) {
            return Err(format!("payload: expected bytes above 0, at most 1e9, got {}", self.payload));
        }
        if !(1..=100_000).contains(&self.steps) {
            return Err(format!("time_budget: expected 1 to 100000 ms, got {}", self.steps));
        }
        if !(1..=MAX_POWERS).contains(&self.powers.len()) {
            return Err(format!("powers: expected 1 to {MAX_POWERS} powers, got {}", self.powers.len()));
        }
        if let Some(power) = self.powers.iter().find(|power| !(-200.0..=60.0).contains(*power)) {
            return Err(format!("powers: expected -200 to 60 dBm, got {power}"));
        }
        if !(0.0..=1.0).contains(&self.v2i_weight) {
            return Err(format!("v2i_weight: expected 0 to 1, got {}", self.v2i_weight));
        }
        Ok(())
    }

    /// Number of actions: a block and a power.
    pub fn num_actions(&self) -> usize {
        self.links * self.powers.len()
    }

    /// Block and power in dBm of an action.
    #[inline]
    pub fn action(&self, action: usize) -> (usize, f64) {
        (action % self.links, self.powers[action / self.links])
    }

    /// Name and options as text.
    pub fn fingerprint(&self) -> String {
        format!("v2x {self:?}")
    }
}
