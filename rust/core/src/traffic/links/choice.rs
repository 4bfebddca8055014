//! Choices of what agents send with, beside how they drive: a discrete action is manoeuvre + manoeuvres x (resource +
//! resources x power), and numbers of a choice follow those that steer.

use super::config::Config;
use crate::env::Actions;

/// An agent's choice for a message: resource and index of the power.
pub type Choice = [u32; 2];

/// Resource and power that the agent of a row, of `rows`, sends with. `driving`: its manoeuvres, or the numbers that steer.
pub fn choice(comms: &Config, actions: Actions<'_>, row: usize, rows: usize, driving: usize) -> Choice {
    let [resources, powers] = comms.choices();
    // The interval from -1 to 1 in equal parts.
    let part = |number: Option<f64>, count: usize| {
        let share = number.map_or(0.0, |x| (x + 1.0) / 2.0);
        ((share * count as f64) as usize).min(count - 1) as u32
    };
    let both = |chosen: &mut dyn Iterator<Item = f64>| {
        [resources, powers].map(|count| part(if count > 1 { chosen.next() } else { None }, count))
    };
    let of_row = |all: usize| row * (all / rows) + driving..(row + 1) * (all / rows);
    match actions {
        Actions::Discrete(all) => {
            let index = all[row] as usize / driving;
            [(index % resources) as u32, (index / resources) as u32]
        }
        Actions::Box(all) => both(&mut all[of_row(all.len())].iter().map(|&x| f64::from(x))),
        Actions::Double(all) => both(&mut all[of_row(all.len())].iter().copied()),
    }
}
