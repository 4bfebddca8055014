//! Waiting times of the traffic before lights, and results of episodes.

use serde::{Deserialize, Serialize};

use crate::traffic::roads::world::World;

/// Slower vehicles wait, m/s.
pub(super) const WAITING: f64 = 0.1;

/// A vehicle on the roads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wait {
    /// Its number in the episode.
    pub number: u32,
    /// The section that it is on, and the seconds that it has waited there.
    pub section: u32,
    pub seconds: u32,
    pub crashed: bool,
}

/// Counts of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Account {
    /// Waits of each vehicle, in the order of the list.
    pub waits: Vec<Wait>,
    /// Seconds that vehicles have waited, on the roads and for room there.
    pub waited: f64,
    pub crashes: u32,
    /// Sum of the rewards of all lights.
    pub rewards: f64,
}

impl Account {
    pub(super) fn clear(&mut self) {
        self.waits.clear();
        (self.waited, self.crashes, self.rewards) = (0.0, 0, 0.0);
    }

    /// Counts a second. Numbers rise along the list, so that those of before are found in one pass.
    pub(super) fn count_second(&mut self, world: &World) {
        let (v, numbers, road) = (&world.traffic.vehicles, world.numbers(), &world.traffic.road);
        let before = self.waits.len();
        let mut read = 0;
        for (i, &number) in numbers.iter().enumerate() {
            while read < before && self.waits[read].number < number {
                read += 1;
            }
            let section = road.section_of(v.lane[i]) as u32;
            let known = (read < before && self.waits[read].number == number).then(|| self.waits[read]);
            let mut own = known.unwrap_or(Wait { number, section, ..Wait::default() });
            read += usize::from(known.is_some());
            if own.section != section {
                (own.section, own.seconds) = (section, 0);
            }
            let waits = v.speed[i].abs() < WAITING;
            own.seconds = own.seconds.saturating_add(u32::from(waits));
            self.waited += f64::from(u8::from(waits));
            self.crashes += u32::from(v.crashed[i] && !own.crashed);
            own.crashed = v.crashed[i];
            match self.waits.get_mut(i) {
                Some(place) => *place = own,
                None => self.waits.push(own),
            }
        }
        self.waits.truncate(numbers.len());
        self.waited += world.waiting.len() as f64;
    }
}

/// Results of an episode that has ended. NaN before the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Steps.
    pub length: f64,
    /// Sum of the rewards, mean over the lights.
    pub return_mean: f64,
    /// Lights.
    pub num_agents: f64,
    /// Seconds that a vehicle waited, on the roads and for room there, mean over all that were due.
    pub waiting_time: f64,
    /// Vehicles that have left the roads, not counting crashed ones.
    pub arrived: f64,
    /// Vehicles that have crashed.
    pub crashes: f64,
}

impl Episode {
    pub const FIELDS: [&'static str; 6] = ["length", "return_mean", "num_agents", "waiting_time", "arrived", "crashes"];

    pub(super) const NONE: Self = Self {
        length: f64::NAN,
        return_mean: f64::NAN,
        num_agents: f64::NAN,
        waiting_time: f64::NAN,
        arrived: f64::NAN,
        crashes: f64::NAN,
    };

    /// All numbers, by `FIELDS`.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { length, return_mean, num_agents, waiting_time, arrived, crashes } = *self;
        Self::FIELDS.into_iter().zip([length, return_mean, num_agents, waiting_time, arrived, crashes])
    }
}
