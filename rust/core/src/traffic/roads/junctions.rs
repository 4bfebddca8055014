//! Rules of junctions, in networks whose lanes are linked one by one: foes, and traffic lights with fixed times.
//!
//! A lane that crosses a junction has the lanes that cross or join it as foes, some of which go first. Foes and lights come
//! from SUMO's networks (`<request>`, `<tlLogic>`).

use serde::{Deserialize, Serialize};

use crate::env::ensure;

/// The signal of a light to those who want to cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Light {
    Red,
    Amber,
    /// They may go, but others go first.
    Green,
    /// They go first.
    Major,
}

/// A traffic light with fixed times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Seconds by which the program is late.
    pub offset: f64,
    /// Seconds, and the light of each link.
    pub phases: Vec<(f64, Vec<Light>)>,
}

impl Program {
    /// The number of the phase at a time, seconds.
    pub fn phase(&self, time: f64) -> usize {
        let cycle: f64 = self.phases.iter().map(|(duration, _)| duration).sum();
        let mut left = (time - self.offset).rem_euclid(cycle);
        for (phase, (duration, _)) in self.phases.iter().enumerate() {
            if left < *duration {
                return phase;
            }
            left -= duration;
        }
        0
    }
}

/// The rules of a lane that crosses a junction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Crossing {
    /// Lanes that cross or join it, in rising order.
    pub foes: Vec<u32>,
    /// Those of them whose vehicles go first, in rising order.
    pub first: Vec<u32>,
    /// The traffic light: a program and a link of it.
    pub signal: Option<(u32, u32)>,
}

/// The rules of all junctions of a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Junctions {
    /// Crossing of each lane; None for those that cross no junction.
    pub crossings: Vec<Option<Crossing>>,
    pub programs: Vec<Program>,
}

impl Junctions {
    /// Refuses rules that name what is not there; the error says what.
    pub fn check(&self) -> Result<(), String> {
        let lanes = self.crossings.len();
        for program in &self.programs {
            let sound = |(duration, _): &(f64, Vec<Light>)| duration.is_finite() && *duration > 0.0;
            ensure(!program.phases.is_empty() && program.phases.iter().all(sound), "a program without phases")?;
        }
        for crossing in self.crossings.iter().flatten() {
            ensure(crossing.foes.iter().chain(&crossing.first).all(|&foe| (foe as usize) < lanes), "an unknown foe")?;
            let Some((program, link)) = crossing.signal else { continue };
            let program = self.programs.get(program as usize).ok_or("an unknown program")?;
            ensure(program.phases.iter().all(|(_, lights)| (link as usize) < lights.len()), "an unknown link")?;
        }
        Ok(())
    }

    /// Bytes that the rules take.
    pub(super) fn memory(&self) -> usize {
        let of_crossing = |rules: &Crossing| 4 * (rules.foes.len() + rules.first.len());
        let foes = self.crossings.iter().flatten().map(of_crossing).sum::<usize>();
        let phases = self.programs.iter().flat_map(|program| &program.phases);
        let lights = phases.map(|(_, lights)| lights.len() + size_of::<(f64, Vec<Light>)>()).sum::<usize>();
        self.crossings.len() * size_of::<Option<Crossing>>() + foes + lights
    }

    pub fn crossing(&self, lane: usize) -> Option<&Crossing> {
        self.crossings[lane].as_ref()
    }

    /// The light for those who want to cross by a lane; None without one. `held`: the phase that each program shows,
    /// whatever the time is; empty: those of the time, seconds.
    pub fn light(&self, lane: usize, time: f64, held: &[u32]) -> Option<Light> {
        let (program, link) = self.crossing(lane)?.signal?;
        let program_of = &self.programs[program as usize];
        let phase = held.get(program as usize).map_or_else(|| program_of.phase(time), |&phase| phase as usize);
        Some(program_of.phases[phase].1[link as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lights_repeat_from_their_offset_on() {
        let program = Program {
            offset: 5.0,
            phases: vec![(20.0, vec![Light::Major]), (3.0, vec![Light::Amber]), (7.0, vec![Light::Red])],
        };
        let at = |time: f64| program.phases[program.phase(time)].1[0];
        assert_eq!([at(5.0), at(24.9), at(25.0), at(28.0), at(35.0)], {
            [Light::Major, Light::Major, Light::Amber, Light::Red, Light::Major]
        });
        assert_eq!(at(0.0), Light::Red);
    }

    #[test]
    fn rules_that_name_nothing_are_refused() {
        let one =
            |signal| Junctions { crossings: vec![Some(Crossing { signal, ..Crossing::default() })], programs: vec![] };
        assert!(one(None).check().is_ok());
        assert_eq!(one(Some((0, 0))).check(), Err("an unknown program".into()));
        let foes =
            Junctions { crossings: vec![Some(Crossing { foes: vec![3], ..Crossing::default() })], programs: vec![] };
        assert_eq!(foes.check(), Err("an unknown foe".into()));
    }
}
