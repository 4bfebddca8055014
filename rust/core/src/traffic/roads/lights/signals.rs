//! Traffic lights as agents switch them: green phases to choose from, and the amber between two of them.

use crate::env::ensure;
use crate::traffic::roads::Network;
use crate::traffic::roads::junctions::{Light, Program};
use crate::traffic::vehicles::LENGTH;

/// The most green phases of a light: each pair of them has an amber phase.
const MOST_GREENS: usize = 32;
/// Gap between two vehicles in a queue, metres.
const GAP: f64 = 2.5;

/// A lane that leads to a light.
#[derive(Clone, Copy, Debug)]
pub(super) struct Approach {
    pub light: usize,
    /// Its place among the lanes of the light.
    pub place: usize,
    /// Vehicles that have room on it.
    pub room: f64,
}

/// The lights of a network, in the order of its programs.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    /// Green phases of each light.
    pub greens: Vec<usize>,
    /// For each phase of each light's program the green phase that it is or that it follows.
    pub green_of: Vec<Vec<usize>>,
    /// Approach of each lane; None for those that lead to no light.
    pub approaches: Vec<Option<Approach>>,
    /// The most green phases, and the most lanes, of a light.
    pub most_greens: usize,
    pub most_lanes: usize,
}

/// Returns whether a phase lets somebody go and nobody's green end.
fn is_green(lights: &[Light]) -> bool {
    !lights.contains(&Light::Amber) && lights.iter().any(|light| matches!(light, Light::Green | Light::Major))
}

impl Signals {
    /// The lights of a network, whose programs become tables to choose phases from unless they are `fixed`: the G green
    /// phases, then the amber from each to each, G x G. The error says what is wrong.
    pub(super) fn new(network: &mut Network, fixed: bool) -> Result<Self, String> {
        let lanes = network.lanes().len();
        let junctions = network.junctions.as_mut().ok_or("the network is not linked")?;
        ensure(!junctions.programs.is_empty(), "net: expected traffic lights, got a network without one")?;
        let mut links: Vec<(u32, u32, usize)> = Vec::new();
        for lane in 0..lanes {
            links.extend(junctions.crossing(lane).and_then(|rules| rules.signal).map(|(a, b)| (a, b, lane)));
        }
        links.sort_unstable();
        let (mut greens, mut green_of) = (Vec::new(), Vec::new());
        for (light, program) in junctions.programs.iter_mut().enumerate() {
            let chosen: Vec<usize> = (0..program.phases.len()).filter(|&k| is_green(&program.phases[k].1)).collect();
            if !(1..=MOST_GREENS).contains(&chosen.len()) {
                let count = chosen.len();
                return Err(format!("net: light {light} has {count} green phases, expected 1 to {MOST_GREENS}"));
            }
            let phases = 0..program.phases.len();
            green_of.push(phases.map(|phase| chosen.iter().rposition(|&k| k <= phase).unwrap_or(0)).collect());
            if !fixed {
                *program = choices(program, &chosen);
            }
            greens.push(chosen.len());
        }
        let mut approaches: Vec<Option<Approach>> = vec![None; lanes];
        let mut counts = vec![0; greens.len()];
        for (light, _, crossing) in links {
            for &lane in network.behind(crossing) {
                if approaches[lane].is_none() {
                    let (light, room) = (light as usize, network.lane(lane).length() / (LENGTH + GAP));
                    approaches[lane] = Some(Approach { light, place: counts[light], room: room.max(1.0) });
                    counts[light] += 1;
                }
            }
        }
        let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(0);
        let (most_greens, most_lanes) = (most(&greens), most(&counts));
        Ok(Self { greens, green_of, approaches, most_greens, most_lanes })
    }

    /// The phase of a light's table that is amber from one green phase to another.
    pub(super) fn amber(&self, light: usize, from: usize, to: usize) -> usize {
        let greens = self.greens[light];
        greens + from * greens + to
    }
}

/// The table of phases that an agent chooses from.
fn choices(program: &Program, greens: &[usize]) -> Program {
    let lights = |k: usize| &program.phases[k].1;
    let between = |from: usize, to: usize| {
        let pairs = lights(from).iter().zip(lights(to));
        let amber = |(&light, next): (&Light, &Light)| {
            let ends = *next == Light::Red && matches!(light, Light::Green | Light::Major);
            if ends { Light::Amber } else { light }
        };
        (1.0, pairs.map(amber).collect())
    };
    let mut phases: Vec<(f64, Vec<Light>)> = greens.iter().map(|&k| (1.0, lights(k).clone())).collect();
    for &from in greens {
        phases.extend(greens.iter().map(|&to| between(from, to)));
    }
    Program { offset: 0.0, phases }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amber_is_where_green_ends() {
        use Light::{Amber, Green, Major, Red};
        let program = Program {
            offset: 7.0,
            phases: vec![
                (30.0, vec![Major, Green, Red]),
                (3.0, vec![Amber, Green, Red]),
                (10.0, vec![Red, Major, Major]),
                (2.0, vec![Red, Red, Red]),
            ],
        };
        let greens: Vec<usize> = (0..4).filter(|&k| is_green(&program.phases[k].1)).collect();
        assert_eq!(greens, [0, 2]);
        let table = choices(&program, &greens);
        let expected = [
            [Major, Green, Red],
            [Red, Major, Major],
            [Major, Green, Red],
            [Amber, Green, Red],
            [Red, Major, Amber],
            [Red, Major, Major],
        ];
        assert_eq!(table.phases.iter().map(|(_, lights)| lights.clone()).collect::<Vec<_>>(), expected);
    }
}
