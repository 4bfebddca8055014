//! Templates of scenarios, for episodes with fewer agents and less traffic.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use super::registry;
use super::scenario::{Options, Scenario};
use crate::traffic::difficulty::Difficulty;

/// Options that are numbers of vehicles of the traffic, and those that are proportional to it.
const COUNTS: [&str; 3] = ["initial_vehicle_count", "vehicles_count", "other_vehicles"];
const RATES: [&str; 2] = ["spawn_probability", "vehicles_density"];

/// A scenario by its name and options.
#[derive(Clone)]
pub struct Template {
    name: String,
    options: Options,
}

/// The scenario itself shows its options.
impl Debug for Template {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Template {
    pub fn new(name: &str, options: Options) -> Self {
        Self { name: name.into(), options }
    }

    /// The scenario as the options say; the error says what is wrong with them.
    pub fn full(&self) -> Result<Arc<dyn Scenario>, String> {
        registry::make(&self.name, &self.options).map(Arc::from)
    }

    /// The scenario with other numbers of agents and vehicles. Options of single agents are those of the first ones.
    pub fn at(&self, difficulty: Difficulty) -> Result<Arc<dyn Scenario>, String> {
        let Difficulty { agents, density } = difficulty;
        let mut options = self.options.clone();
        for (key, values) in &mut options.0 {
            match key.as_str() {
                "controlled_vehicles" => *values = vec![agents as f64],
                "ends" => values.truncate(2 * agents),
                key if COUNTS.contains(&key) => values.iter_mut().for_each(|count| *count = (*count * density).round()),
                key if RATES.contains(&key) => values.iter_mut().for_each(|rate| *rate *= density),
                _ => {}
            }
        }
        registry::make(&self.name, &options).map(Arc::from)
    }
}
