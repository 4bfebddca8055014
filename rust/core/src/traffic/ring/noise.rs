//! Fast draws from the standard normal distribution.
//!
//! Source: G. Marsaglia, W. W. Tsang, "The ziggurat method for generating random variables", J. Stat. Softw. 5 (2000),
//! in the form of J. A. Doornik, "An improved ziggurat method to generate normal random samples" (2005): the layer and
//! the place in it come from different bits.

use std::sync::LazyLock;

use crate::rng::Rng;

const LAYERS: usize = 256;
/// The beginning of the tail, and the area of each layer.
const TAIL: f64 = 3.654_152_885_361_009;
const AREA: f64 = 0.004_928_673_233_974_655;

struct Ziggurat {
    /// Right ends of the layers, from the widest up; the first is that of the bottom layer's box, tail included.
    x: [f64; LAYERS + 1],
    /// The density there, unnormalised.
    y: [f64; LAYERS + 1],
}

static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(|| {
    let density = |x: f64| (-0.5 * x * x).exp();
    let mut x = [0.0; LAYERS + 1];
    x[0] = AREA / density(TAIL);
    x[1] = TAIL;
    for i in 2..LAYERS {
        x[i] = (-2.0 * (AREA / x[i - 1] + density(x[i - 1])).ln()).sqrt();
    }
    Ziggurat { x, y: x.map(density) }
});

/// Fills `out` with independent draws of mean 0 and variance 1.
pub(super) fn standard_normals(rng: &mut Rng, out: &mut [f64]) {
    let ziggurat = &*ZIGGURAT;
    for z in out {
        *z = one(ziggurat, rng);
    }
}

#[inline(always)]
fn one(ziggurat: &Ziggurat, rng: &mut Rng) -> f64 {
    let bits = rng.next_u64();
    let layer = (bits & 0xff) as usize;
    // From -1 to 1, of the 52 highest bits.
    let side = ((bits >> 12) as i64 - (1 << 51)) as f64 * (1.0 / (1u64 << 51) as f64);
    let z = side * ziggurat.x[layer];
    // True 99 times of 100.
    if z.abs() < ziggurat.x[layer + 1] { z } else { rare(ziggurat, rng, layer, z) }
}

#[cold]
fn rare(ziggurat: &Ziggurat, rng: &mut Rng, layer: usize, z: f64) -> f64 {
    if layer == 0 {
        loop {
            // 1 - unit() is never 0.
            let x = -(1.0 - rng.unit()).ln() / TAIL;
            let y = -(1.0 - rng.unit()).ln();
            if y + y > x * x {
                return if z < 0.0 { -(TAIL + x) } else { TAIL + x };
            }
        }
    }
    let height = ziggurat.y[layer] + rng.unit() * (ziggurat.y[layer + 1] - ziggurat.y[layer]);
    if height < (-0.5 * z * z).exp() { z } else { one(ziggurat, rng) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_moments_and_the_quantiles_of_the_normal_distribution() {
        let n = 1_000_000;
        let mut z = vec![0.0; n];
        standard_normals(&mut Rng::new(3), &mut z);
        let moment = |k: i32| z.iter().map(|z| z.powi(k)).sum::<f64>() / n as f64;
        // Four standard errors each.
        for (k, expected, error) in [(1, 0.0, 0.004), (2, 1.0, 0.006), (3, 0.0, 0.016), (4, 3.0, 0.04)] {
            assert!((moment(k) - expected).abs() < error, "moment {k}: {}", moment(k));
        }
        // Shares below a few points, the tail's beginning among them.
        for (point, share) in
            [(-3.7, 0.000_107_8), (-2.0, 0.022_750), (-0.5, 0.308_538), (0.3, 0.617_911), (1.5, 0.933_193)]
        {
            let got = z.iter().filter(|z| **z < point).count() as f64 / n as f64;
            let error = 4.0 * (share * (1.0 - share) / n as f64).sqrt();
            assert!((got - share).abs() < error, "below {point}: {got}");
        }
    }
}
