//! Shadowing of pairs of stations, correlated over the way that they go.

use serde::{Deserialize, Serialize};

use super::draws::{Draws, Purpose};

/// Index of the pair of two different stations, whatever their order. It does not depend on the number of stations.
#[inline]
pub(super) fn pair(a: usize, b: usize) -> usize {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    high * (high - 1) / 2 + low
}

/// Pairs of so many stations.
pub(super) fn pairs(stations: usize) -> usize {
    stations * stations.saturating_sub(1) / 2
}

/// Gaussian processes of every pair, in units of their standard deviations: S' = r S + sqrt(1 - r^2) N with
/// r = exp(-(way of one + way of the other) / decorrelation distance).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shadowing {
    /// Shadowing, and what lies above the mean in the blockage loss.
    pub(super) values: Vec<[f64; 2]>,
    /// The process that decides on a line of sight. Empty unless it is by chance.
    pub(super) sight: Vec<f64>,
}

impl Shadowing {
    pub(super) fn clear(&mut self, stations: usize, sight: bool) {
        self.values.clear();
        self.values.resize(pairs(stations), [0.0; 2]);
        self.sight.clear();
        self.sight.resize(if sight { pairs(stations) } else { 0 }, 0.0);
    }

    /// The next values of a pair, where `correlation` is r, 0 at first, and `fresh` is sqrt(1 - r^2).
    #[inline]
    pub(super) fn advance(&mut self, pair: usize, correlation: f64, fresh: f64, draws: Draws) -> [f64; 2] {
        if correlation == 1.0 {
            return self.values[pair];
        }
        let normals = draws.normals(Purpose::Shadowing, pair);
        let value = &mut self.values[pair];
        *value = std::array::from_fn(|k| correlation * value[k] + fresh * normals[k]);
        if let Some(sight) = self.sight.get_mut(pair) {
            *sight = correlation * *sight + fresh * draws.normals(Purpose::Sight, pair)[0];
        }
        *value
    }

    /// A number uniform on (0, 1) that changes as slowly as the shadowing of the pair.
    #[inline]
    pub(super) fn sight_share(&self, pair: usize) -> f64 {
        normal_share(self.sight[pair])
    }
}

/// The standard normal distribution function, to 1e-7. Source: Abramowitz and Stegun, 26.2.17.
fn normal_share(x: f64) -> f64 {
    const B: [f64; 5] = [0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429];
    let t = 1.0 / (1.0 + 0.2316419 * x.abs());
    let polynomial = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t);
    let tail = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt() * polynomial;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_numbered_without_gaps() {
        let mut seen = vec![false; pairs(9)];
        for a in 0..9 {
            for b in 0..a {
                assert_eq!(pair(a, b), pair(b, a));
                assert!(!std::mem::replace(&mut seen[pair(a, b)], true));
            }
        }
        assert!(seen.into_iter().all(|s| s));
    }

    #[test]
    fn spread_and_correlation_are_those_of_the_model() {
        // 300 independent pairs that move for 2,000 messages.
        let correlation = (-10.0_f64 / 25.0).exp();
        let mut shadowing = Shadowing::default();
        shadowing.clear(25, true);
        let mut series: Vec<Vec<[f64; 3]>> = vec![Vec::new(); pairs(25)];
        for message in 0..2000 {
            for (pair, values) in series.iter_mut().enumerate() {
                let r = if message == 0 { 0.0 } else { correlation };
                let fresh = f64::sqrt(1.0 - r * r);
                let [a, b] = shadowing.advance(pair, r, fresh, Draws::new(3, 1, message));
                values.push([a, b, shadowing.sight[pair]]);
            }
        }
        for k in 0..3 {
            let mean_of = |product: &dyn Fn(&[[f64; 3]]) -> f64| {
                let each = series.iter().flat_map(|values| values.windows(6).map(product));
                let all: Vec<f64> = each.collect();
                all.iter().sum::<f64>() / all.len() as f64
            };
            let variance = mean_of(&|w| w[0][k] * w[0][k]);
            assert!((variance - 1.0).abs() < 0.02, "{variance}");
            for lag in [1, 2, 5] {
                let lagged = mean_of(&|w| w[0][k] * w[lag][k]);
                assert!((lagged - correlation.powi(lag as i32)).abs() < 0.02, "{lag}: {lagged}");
            }
            let between = mean_of(&|w| w[0][k] * w[0][(k + 1) % 3]);
            assert!(between.abs() < 0.02, "{between}");
        }
    }

    #[test]
    fn the_normal_distribution_function_is_right() {
        for (x, share) in [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895), (3.0, 0.998_650_102)] {
            assert!((normal_share(x) - share).abs() < 2e-7, "{x}: {}", normal_share(x));
        }
    }
}
