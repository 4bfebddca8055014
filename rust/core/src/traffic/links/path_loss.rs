//! Path loss between two vehicles. Source: 3GPP TR 37.885 V15.3.0, tables 6.2-1 and 6.2.1-1, section 6.2.1.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surroundings {
    Highway,
    Urban,
}

impl Surroundings {
    pub const NAMES: [&'static str; 2] = ["highway", "urban"];
    pub const ALL: [Self; 2] = [Self::Highway, Self::Urban];

    /// The condition of paths that no building blocks.
    pub fn sight(self) -> Condition {
        match self {
            Self::Highway => Condition::LosHighway,
            Self::Urban => Condition::LosUrban,
        }
    }
}

/// The nearest distance that the formulas are used at, metres.
pub const NEAREST: f64 = 1.0;

/// The path between two vehicles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Line of sight, or a path that only vehicles block, on a highway.
    LosHighway,
    /// Line of sight in a street of a city.
    LosUrban,
    /// A path around a building.
    Nlos,
}

impl Condition {
    /// Names of Python.
    pub const NAMES: [&'static str; 3] = ["los-highway", "los-urban", "nlos"];
    pub const ALL: [Self; 3] = [Self::LosHighway, Self::LosUrban, Self::Nlos];

    /// Standard deviation of shadowing, dB.
    pub fn shadowing(self) -> f64 {
        if self == Self::Nlos { 4.0 } else { 3.0 }
    }

    /// Distance of movement over which shadowing falls to 1/e of its correlation, metres.
    pub fn decorrelation(self) -> f64 {
        match self {
            Self::LosHighway => 25.0,
            Self::LosUrban => 10.0,
            Self::Nlos => 13.0,
        }
    }

    /// The terms of the path loss: constant at that frequency (GHz), and factor of lg d, dB.
    pub(super) fn terms(self, frequency: f64) -> [f64; 2] {
        let lg = frequency.log10();
        match self {
            Self::LosHighway => [32.4 + 20.0 * lg, 20.0],
            Self::LosUrban => [38.77 + 18.2 * lg, 16.7],
            Self::Nlos => [36.85 + 18.9 * lg, 30.0],
        }
    }
}

/// Path loss in dB at `distance` metres (not less than [`NEAREST`]) and `frequency` GHz.
pub fn path_loss(condition: Condition, distance: f64, frequency: f64) -> f64 {
    let [constant, factor] = condition.terms(frequency);
    constant + factor * distance.max(NEAREST).log10()
}

/// Probability that no vehicle blocks the path.
pub fn sight_probability(surroundings: Surroundings, distance: f64) -> f64 {
    match surroundings {
        Surroundings::Highway if distance <= 475.0 => {
            (2.1013e-6 * distance * distance - 0.002 * distance + 1.0193).min(1.0)
        }
        Surroundings::Highway => (0.54 - 0.001 * (distance - 100.0)).max(0.0),
        Surroundings::Urban => (1.05 * (-0.0114 * distance).exp()).min(1.0),
    }
}

/// Mean and standard deviation of the loss by a blocking vehicle, dB, before it is cut off at 0. Antennas of both ends
/// are at `antenna`, the blocking vehicle is `vehicle` metres high. `lg_distance`: lg of the distance in metres.
pub(super) fn blockage(antenna: f64, vehicle: f64, lg_distance: f64) -> [f64; 2] {
    if antenna > vehicle {
        return [0.0, 0.0];
    }
    let far = (15.0 * lg_distance - 41.0).max(0.0);
    if antenna < vehicle { [9.0 + far, 4.5] } else { [5.0 + far, 4.0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_100_m_and_6_ghz_the_losses_are_those_of_the_report() {
        let loss = |condition| path_loss(condition, 100.0, 6.0);
        let lg6 = 6.0_f64.log10();
        for (condition, rounded, exact) in [
            (Condition::LosHighway, 87.96, 32.4 + 40.0 + 20.0 * lg6),
            (Condition::LosUrban, 86.33, 38.77 + 33.4 + 18.2 * lg6),
            (Condition::Nlos, 111.56, 36.85 + 60.0 + 18.9 * lg6),
        ] {
            assert!((loss(condition) - rounded).abs() < 0.005, "{condition:?}: {}", loss(condition));
            assert!((loss(condition) - exact).abs() < 1e-9);
        }
    }

    #[test]
    fn sight_gets_worse_with_the_distance() {
        for surroundings in [Surroundings::Highway, Surroundings::Urban] {
            let mut last = 1.0;
            for d in (0..800).step_by(5) {
                let p = sight_probability(surroundings, f64::from(d));
                assert!((0.0..=1.0).contains(&p) && p <= last + 1e-12, "{surroundings:?} {d}: {p}");
                last = p;
            }
        }
        assert!((sight_probability(Surroundings::Highway, 100.0) - 0.840313).abs() < 1e-9);
        assert!((sight_probability(Surroundings::Highway, 500.0) - 0.14).abs() < 1e-9);
    }

    #[test]
    fn low_antennas_lose_more_behind_a_vehicle() {
        assert_eq!(blockage(1.7, 1.6, 2.0), [0.0, 0.0]);
        assert_eq!(blockage(1.6, 1.6, 2.0), [5.0, 4.0]);
        assert_eq!(blockage(0.75, 1.6, 2.0), [9.0, 4.5]);
        assert_eq!(blockage(0.75, 1.6, 3.0), [13.0, 4.5]);
    }
}
