//! Positions of vehicles at the start of an episode.

use super::config::{Config, Difficulty, SPACING};
use crate::rng::Rng;

/// Speeds of agents at the start, m/s: on the main road and on the ramp.
pub(super) const AGENT_SPEED: f64 = 25.0;
pub(super) const RAMP_SPEED: f64 = 20.0;
/// Speeds that background vehicles have and want, m/s.
pub(super) const BACKGROUND_SPEED: [f64; 2] = [21.0, 24.0];
/// A vehicle stands up to this share of the spacing behind its place, so neighbours of a lane keep the rest of it.
const JITTER: f64 = 0.4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Start {
    /// Index of the lane from the left; the ramp comes after the lanes of the main road.
    pub lane: usize,
    /// Metres along the road.
    pub x: f64,
    /// m/s.
    pub speed: f64,
}

/// The agents in the order of their rows, then the background vehicles.
pub(super) fn starts(config: &Config, difficulty: Difficulty, rng: &mut Rng) -> Vec<Start> {
    let Difficulty { agents, .. } = difficulty;
    let (on_ramp, background) = (config.on_ramp(agents), difficulty.background(config));
    let on_main = agents - on_ramp;
    let place = |row: usize, spacing: f64, rng: &mut Rng| config.front() - spacing * (row as f64 + JITTER * rng.unit());

    let mut starts: Vec<Start> =
        (0..on_ramp).map(|row| Start { lane: config.lanes, x: place(row, SPACING, rng), speed: RAMP_SPEED }).collect();
    let vehicles = on_main + background;
    let rows = vehicles.div_ceil(config.lanes);
    let spacing = config.stretch(agents) / rows.max(1) as f64;
    let mut places: Vec<(usize, usize)> = (0..rows).flat_map(|row| (0..config.lanes).map(move |l| (row, l))).collect();
    shuffle(&mut places, rng);
    for (i, &(row, lane)) in places[..vehicles].iter().enumerate() {
        let [low, high] = BACKGROUND_SPEED;
        let speed = if i < on_main { AGENT_SPEED } else { low + (high - low) * rng.unit() };
        starts.push(Start { lane, x: place(row, spacing, rng), speed });
    }
    // Any row may start on the ramp.
    shuffle(&mut starts[..agents], rng);
    starts
}

/// Fisher and Yates.
fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u32 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Task;
    use super::*;

    #[test]
    fn vehicles_start_apart() {
        for task in [Task::Highway, Task::Merge] {
            for (seed, density) in [0.0, 0.3, 1.0, 2.5, 4.0].into_iter().enumerate() {
                for agents in 1..=15 {
                    let config = Config::new(task);
                    let difficulty = Difficulty { agents, density };
                    let all = starts(&config, difficulty, &mut Rng::new(seed as u64));
                    assert_eq!(all.len(), agents + difficulty.background(&config));
                    let on_ramp = all.iter().filter(|s| s.lane == config.lanes).count();
                    assert_eq!(on_ramp, config.on_ramp(agents));
                    assert!(all[agents..].iter().all(|s| s.lane < config.lanes), "background stays on the main road");
                    for (i, a) in all.iter().enumerate() {
                        assert!(a.x > 0.0 && a.x <= config.front());
                        for b in &all[..i] {
                            assert!(a.lane != b.lane || (a.x - b.x).abs() > 8.0, "{a:?} {b:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_row_may_start_on_the_ramp() {
        let config = Config::new(Task::Merge);
        let mut counts = [0; 6];
        for seed in 0..300 {
            let all = starts(&config, Difficulty { agents: 6, density: 1.0 }, &mut Rng::new(seed));
            for (count, start) in counts.iter_mut().zip(&all) {
                *count += usize::from(start.lane == config.lanes);
            }
        }
        assert_eq!(counts.iter().sum::<usize>(), 600);
        assert!(counts.iter().all(|&c| (70..130).contains(&c)), "{counts:?}");
    }
}
