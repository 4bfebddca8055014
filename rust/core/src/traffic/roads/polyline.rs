//! The course of a lane through a list of points.

use serde::{Deserialize, Serialize};

/// Straight pieces from point to point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Polyline {
    pieces: Vec<Piece>,
    length: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Piece {
    start: [f64; 2],
    /// Unit vector.
    direction: [f64; 2],
    heading: f64,
    length: f64,
    /// Length of the pieces before it, metres.
    before: f64,
}

impl Piece {
    #[inline]
    fn local(&self, x: f64, y: f64) -> (f64, f64) {
        let (dx, dy, [cos, sin]) = (x - self.start[0], y - self.start[1], self.direction);
        (dx * cos + dy * sin, dy * cos - dx * sin)
    }
}

impl Polyline {
    /// Through these points; None if they are all the same. A point that repeats the one before it is left out.
    pub fn new(points: &[[f64; 2]]) -> Option<Self> {
        let (mut pieces, mut length): (Vec<Piece>, f64) = (Vec::new(), 0.0);
        let mut start = *points.first()?;
        for &end in &points[1..] {
            let along = [end[0] - start[0], end[1] - start[1]];
            let own = (along[0] * along[0] + along[1] * along[1]).sqrt();
            if own > 0.0 {
                let (direction, heading) = ([along[0] / own, along[1] / own], along[1].atan2(along[0]));
                pieces.push(Piece { start, direction, heading, length: own, before: length });
                length += own;
                start = end;
            }
        }
        (!pieces.is_empty()).then_some(Self { pieces, length })
    }

    #[inline]
    pub fn length(&self) -> f64 {
        self.length
    }

    /// The place along the nearest piece and the offset from it to the right. Before the first piece and past the last
    /// one the line goes straight on; beside a corner, on the outer side, the offset is the distance from the corner.
    #[inline]
    pub fn local(&self, x: f64, y: f64) -> (f64, f64) {
        let last = self.pieces.len() - 1;
        let mut best = (f64::INFINITY, 0.0, 0.0);
        for (k, piece) in self.pieces.iter().enumerate() {
            let (along, lateral) = piece.local(x, y);
            let low = if k == 0 { f64::NEG_INFINITY } else { 0.0 };
            let high = if k == last { f64::INFINITY } else { piece.length };
            let kept = along.clamp(low, high);
            let past = along - kept;
            let squared = past * past + lateral * lateral;
            if squared < best.0 {
                best = (
                    squared,
                    piece.before + kept,
                    if past == 0.0 { lateral } else { squared.sqrt().copysign(lateral) },
                );
            }
        }
        (best.1, best.2)
    }

    /// The piece of a place along the line.
    #[inline]
    fn piece(&self, longitudinal: f64) -> &Piece {
        let k = self.pieces[1..].iter().take_while(|piece| piece.before <= longitudinal).count();
        &self.pieces[k]
    }

    pub fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64) {
        let piece = self.piece(longitudinal);
        let ([x, y], [cos, sin], along) = (piece.start, piece.direction, longitudinal - piece.before);
        (x + along * cos - lateral * sin, y + along * sin + lateral * cos)
    }

    #[inline]
    pub fn heading_at(&self, longitudinal: f64) -> f64 {
        self.piece(longitudinal).heading
    }

    /// All its points.
    pub fn points(&self) -> Vec<[f64; 2]> {
        let starts = self.pieces.iter().map(|piece| piece.start);
        starts.chain([self.position(self.length, 0.0).into()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distance(a: [f64; 2], b: [f64; 2], x: f64, y: f64) -> f64 {
        let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
        let t = (((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy)).clamp(0.0, 1.0);
        (a[0] + t * dx - x).hypot(a[1] + t * dy - y)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        /// The offset is the distance from the nearest of the pieces, and the place is where they are that near.
        #[test]
        fn the_offset_is_the_least_distance(
            points in prop::collection::vec((-50.0f64..50.0, -50.0f64..50.0), 2..8),
            x in -60.0f64..60.0,
            y in -60.0f64..60.0,
        ) {
            let points: Vec<[f64; 2]> = points.into_iter().map(<[f64; 2]>::from).collect();
            prop_assume!(points.windows(2).all(|pair| (pair[0][0] - pair[1][0]).hypot(pair[0][1] - pair[1][1]) > 0.1));
            let line = Polyline::new(&points).unwrap();
            let (s, lateral) = line.local(x, y);
            let least = points.windows(2).map(|pair| distance(pair[0], pair[1], x, y)).fold(f64::INFINITY, f64::min);
            if (0.0..=line.length()).contains(&s) {
                prop_assert!((lateral.abs() - least).abs() < 1e-9);
                let (u, v) = line.position(s, 0.0);
                prop_assert!(((u - x).hypot(v - y) - least).abs() < 1e-9);
            } else {
                prop_assert!(lateral.abs() <= least + 1e-9);
            }
            prop_assert_eq!(line.points().len(), points.len());
        }
    }

    #[test]
    fn lines_go_straight_on_past_their_ends() {
        let line = Polyline::new(&[[0.0, 0.0], [0.0, 0.0], [10.0, 0.0], [10.0, 5.0]]).unwrap();
        assert_eq!(line.length(), 15.0);
        assert_eq!((line.local(-3.0, 1.0), line.local(9.0, 8.0)), ((-3.0, 1.0), (18.0, 1.0)));
        assert_eq!((line.position(12.0, 1.0), line.heading_at(9.9)), ((9.0, 2.0), 0.0));
        // Outside of the corner.
        assert_eq!(line.local(13.0, -4.0), (10.0, -5.0));
        assert_eq!(Polyline::new(&[[1.0, 2.0], [1.0, 2.0]]), None);
    }
}
