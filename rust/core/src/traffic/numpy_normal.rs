//! `numpy.random.Generator.normal`, to the last bit.
//!
//! Source: G. Marsaglia, W. Tsang, "The ziggurat method for generating random variables", J. Stat. Software 5 (2000), in
//! the form of NumPy's `distributions.c`: 256 layers, a sign and 52 bits of a 64-bit word.

use std::sync::LazyLock;

use crate::numpy_random::NumpyRandom;

/// Start of the tail, and the area of each layer.
const TAIL: f64 = 3.654_152_885_361_009;
const AREA: f64 = 0.004_928_673_233_974_652;
/// 2^52.
const SCALE: f64 = 4_503_599_627_370_496.0;
const LAYERS: usize = 256;
/// The layer whose height is one unit in the last place larger in NumPy's tables than IEEE 754's rounding makes it; the
/// layers above follow from it.
const ROUNDED_UP: usize = 38;

struct Layers {
    /// Numbers below this are inside of the layer and the one above it.
    inside: [u64; LAYERS],
    /// Width of a layer, divided by 2^52.
    width: [f64; LAYERS],
    /// exp(-x² / 2) at its edge.
    height: [f64; LAYERS],
}

static LAYERS_OF_NUMPY: LazyLock<Layers> = LazyLock::new(|| {
    let (mut inside, mut width, mut height) = ([0; LAYERS], [0.0; LAYERS], [1.0; LAYERS]);
    let mut edge = TAIL;
    height[LAYERS - 1] = (-0.5 * edge * edge).exp();
    width[LAYERS - 1] = edge / SCALE;
    inside[0] = (edge * height[LAYERS - 1] / AREA * SCALE).round() as u64;
    width[0] = AREA / height[LAYERS - 1] / SCALE;
    for i in (1..LAYERS - 1).rev() {
        let inner = (-2.0 * (AREA / edge + height[i + 1]).ln()).sqrt();
        inside[i + 1] = (inner / edge * SCALE).round() as u64;
        width[i] = inner / SCALE;
        height[i] = (-0.5 * inner * inner).exp();
        if i == ROUNDED_UP {
            height[i] = f64::from_bits(height[i].to_bits() + 1);
        }
        edge = inner;
    }
    Layers { inside, width, height }
});

impl NumpyRandom {
    /// `Generator.standard_normal()`; `normal(mean, deviation)` is mean + deviation times this.
    pub fn normal(&mut self) -> f64 {
        let layers = &*LAYERS_OF_NUMPY;
        loop {
            let word = self.next_u64();
            let layer = (word & 0xff) as usize;
            let number = word >> 9 & 0x000f_ffff_ffff_ffff;
            let x = number as f64 * layers.width[layer];
            let x = if word >> 8 & 1 == 1 { -x } else { x };
            if number < layers.inside[layer] {
                return x;
            }
            if layer == 0 {
                return self.tail(number >> 8 & 1 == 1);
            }
            let (low, high) = (layers.height[layer], layers.height[layer - 1]);
            if (high - low) * self.random() + low < (-0.5 * x * x).exp() {
                return x;
            }
        }
    }

    fn tail(&mut self, negative: bool) -> f64 {
        loop {
            let beyond = -(1.0 / TAIL) * (-self.random()).ln_1p();
            let y = -(-self.random()).ln_1p();
            if y + y > beyond * beyond {
                return if negative { -(TAIL + beyond) } else { TAIL + beyond };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(u64, f64, u64); 3] = [
        (0, 0.1257302210933933, 11591888464755451907),
        (12345, -1.4238250364546312, 13599641313482509763),
        (77, 0.4277699642047284, 7621111356707553565),
    ];

    #[test]
    fn draws_what_numpy_draws() {
        // The first of 100,000 draws of default_rng(seed), and the bits of all of them folded into one number.
        for (seed, first, bits) in CASES {
            let mut rng = NumpyRandom::new(seed);
            assert_eq!(rng.normal(), first, "seed {seed}");
            let folded = (1..100_000).fold(first.to_bits(), |all, _| all.rotate_left(5) ^ rng.normal().to_bits());
            assert_eq!(folded, bits, "seed {seed}");
        }
    }
}
