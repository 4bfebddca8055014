//! A map of the surroundings, a layer a feature (`OccupancyGridObservation`).

use super::{Column, Feature, Limits};
use crate::traffic::Traffic;
use crate::traffic::lane::Shape;
use crate::traffic::map::RoadMap;

/// Lanes are drawn this far before and behind the observer, metres.
const LANE_PERCEPTION: f64 = 100.0;

/// The contents of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layer {
    /// A feature of the vehicle there, relative to the observer; of several vehicles the first in the list counts.
    Vehicles(Column),
    /// 1 where a lane runs.
    OnRoad,
}

/// Layers [layers, cells along x, cells along y] of a grid around the observer; 0 where nothing is.
#[derive(Clone, Debug, PartialEq)]
pub struct OccupancyGrid {
    pub layers: Vec<Layer>,
    /// The corner with the smallest x and y, relative to the observer, metres.
    pub low: [f64; 2],
    /// Size of a cell, metres.
    pub step: [f64; 2],
    pub shape: [usize; 2],
    /// Limits that x and y are scaled by, wherever they are: places are scaled there and back, as highway-env does.
    pub places: [Option<Limits>; 2],
    /// True if the grid turns with the observer.
    pub align: bool,
    /// True if values are clipped to [-1, 1].
    pub clip: bool,
    /// True if [-1, 1] is shown as whole numbers from 0 to 255.
    pub image: bool,
}

impl OccupancyGrid {
    pub(super) fn len(&self) -> usize {
        self.layers.len() * self.shape[0] * self.shape[1]
    }

    pub(super) fn write<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [f32]) {
        out.fill(f32::NAN);
        let size = self.shape[0] * self.shape[1];
        // Later writes cover earlier ones: the first vehicle of the list comes last.
        for i in (0..traffic.vehicles.len()).rev() {
            let place = |feature: Feature, limits: Option<Limits>| {
                let at = feature.of(traffic, i, Some(observer));
                limits.map_or(at, |limits| limits.unscale(limits.scale(at)))
            };
            let at = [place(Feature::X, self.places[0]), place(Feature::Y, self.places[1])];
            if let Some(cell) = self.cell(traffic, observer, at) {
                for (layer, out) in self.layers.iter().zip(out.chunks_exact_mut(size)) {
                    if let Layer::Vehicles(column) = layer {
                        out[cell] = self.shown(column.of(traffic, i, Some(observer)));
                    }
                }
            }
        }
        for (layer, out) in self.layers.iter().zip(out.chunks_exact_mut(size)) {
            if *layer == Layer::OnRoad {
                self.draw_lanes(traffic, observer, out);
            }
        }
        for value in out {
            if value.is_nan() {
                *value = 0.0;
            }
        }
    }

    fn shown(&self, value: f64) -> f32 {
        if self.image {
            return ((value.clamp(-1.0, 1.0) + 1.0) / 2.0 * 255.0).trunc() as f32;
        }
        if self.clip { value.clamp(-1.0, 1.0) as f32 } else { value as f32 }
    }

    /// The cell of a place relative to the observer.
    fn cell<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, [x, y]: [f64; 2]) -> Option<usize> {
        let (cos, sin) = (traffic.vehicles.cos[observer], traffic.vehicles.sin[observer]);
        let at = if self.align { [cos * x + sin * y, -sin * x + cos * y] } else { [x, y] };
        let [i, j] = std::array::from_fn(|axis| ((at[axis] - self.low[axis]) / self.step[axis]).floor());
        let inside = i >= 0.0 && i < self.shape[0] as f64 && j >= 0.0 && j < self.shape[1] as f64;
        inside.then(|| i as usize * self.shape[1] + j as usize)
    }

    /// Marks the cells of points along every lane, as far apart as the smaller side of a cell, at the places that
    /// `numpy.arange` gives. Those that are farther away than the corners of the grid are left out, and so are repeated
    /// points at the ends of lanes.
    fn draw_lanes<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [f32]) {
        let (x, y) = (traffic.vehicles.x[observer], traffic.vehicles.y[observer]);
        let spacing = self.step[0].min(self.step[1]);
        let corner: [f64; 2] = std::array::from_fn(|axis| {
            let end = self.low[axis] + self.shape[axis] as f64 * self.step[axis];
            self.low[axis].abs().max(end.abs())
        });
        // Rounding must not leave out a point at the edge.
        let reach = corner[0].hypot(corner[1]) + 1e-3;
        for lane in traffic.road.lanes() {
            let windows = lane.shape().windows(x, y, reach);
            if windows.iter().all(|[from, to]| from.max(0.0) > to.min(lane.length())) {
                continue;
            }
            let middle = lane.local(x, y).0;
            let start = middle - LANE_PERCEPTION;
            let count = ((middle + LANE_PERCEPTION - start) / spacing).ceil();
            let delta = start + spacing - start;
            for [from, to] in windows {
                // Conversions of floats to integers saturate.
                let first = ((from.max(0.0) - start) / spacing).floor() - 1.0;
                let last = ((to.min(lane.length()) - start) / spacing).ceil() + 2.0;
                for i in first.max(0.0) as usize..last.min(count).max(0.0) as usize {
                    let along = if i == 1 { start + spacing } else { start + i as f64 * delta };
                    let (lane_x, lane_y) = lane.position(along.clamp(0.0, lane.length()), 0.0);
                    if let Some(cell) = self.cell(traffic, observer, [lane_x - x, lane_y - y]) {
                        out[cell] = self.shown(1.0);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{column, traffic};
    use super::*;

    fn grid(layers: Vec<Layer>) -> OccupancyGrid {
        let (low, step, shape) = ([-27.5; 2], [5.0; 2], [11, 11]);
        OccupancyGrid { layers, low, step, shape, places: [None; 2], align: false, clip: true, image: false }
    }

    fn seen(grid: &OccupancyGrid, traffic: &Traffic) -> Vec<f32> {
        let mut out = vec![f32::NAN; grid.len()];
        grid.write(traffic, 0, &mut out);
        out
    }

    #[test]
    fn vehicles_stand_in_their_cells() {
        let traffic = traffic(&[(110.0, 2, 20.0), (300.0, 1, 20.0)]);
        let speed = Layer::Vehicles(column("vx", Some((-10.0, 10.0))));
        let out = seen(&grid(vec![Layer::Vehicles(column("presence", None)), speed]), &traffic);
        let there: Vec<_> = (0..242).filter(|&i| out[i] != 0.0).map(|i| (i, out[i])).collect();
        // The observer in the middle; the other two cells ahead and one to the right, 5 m/s slower.
        assert_eq!(there, [(5 * 11 + 5, 1.0), (7 * 11 + 6, 1.0), (121 + 7 * 11 + 6, -0.5)]);
        let image = OccupancyGrid { image: true, ..grid(vec![speed]) };
        let out = seen(&image, &traffic);
        assert_eq!((out[5 * 11 + 5], out[7 * 11 + 6], out[0]), (127.0, 63.0, 0.0));
    }

    #[test]
    fn a_grid_turns_with_the_observer() {
        let mut traffic = traffic(&[(110.0, 1, 20.0)]);
        traffic.vehicles.turn_to(0, std::f64::consts::FRAC_PI_2);
        let out =
            seen(&OccupancyGrid { align: true, ..grid(vec![Layer::Vehicles(column("presence", None))]) }, &traffic);
        // Ahead in the world is to the left of one who drives to the right.
        assert_eq!(out[5 * 11 + 3], 1.0);
    }

    #[test]
    fn lanes_run_through_the_grid() {
        let out = seen(&grid(vec![Layer::OnRoad]), &traffic(&[]));
        for (i, &value) in out.iter().enumerate() {
            assert_eq!(value, if (4..=6).contains(&(i % 11)) { 1.0 } else { 0.0 }, "cell {i}");
        }
    }
}
