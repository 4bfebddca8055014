//! Statistics of links.

use serde::{Deserialize, Serialize};

/// A sum and the number of its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    pub fn add(&mut self, x: f64) {
        self.sum += x;
        self.count += 1;
    }

    /// The mean; NaN of nothing.
    pub fn get(self) -> f64 {
        self.sum / self.count as f64
    }

    /// The mean, or 0 of nothing.
    pub fn or_zero(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.get() }
    }
}

/// Statistics of one message, of an agent or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Share of the messages that arrived at receivers within the range.
    pub delivery: Mean,
    /// Age of information at these receivers at the end of the period, seconds: a period for a message that has just
    /// arrived.
    pub age: Mean,
    /// SINR at receivers within the range that were not sending in the same slot, dB.
    pub sinr: Mean,
    /// Channel busy ratio.
    pub busy: Mean,
}

impl Account {
    pub const FIELDS: [&'static str; 4] = ["delivery_ratio", "age_of_information", "sinr", "channel_busy_ratio"];

    /// All means, in the order of `FIELDS`.
    pub fn means(&self) -> [f64; 4] {
        [self.delivery.get(), self.age.get(), self.sinr.get(), self.busy.get()]
    }

    /// All means, by `FIELDS`.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        Self::FIELDS.into_iter().zip(self.means())
    }
}
