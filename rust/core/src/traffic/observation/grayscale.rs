//! The last pictures of the surroundings in shades of grey, as highway-env draws them (`GrayscaleObservation`).
//!
//! Source: `highway_env/{envs/common,road,vehicle}/graphics.py`.

use crate::traffic::Traffic;
use crate::traffic::lane::{Lane, Line, Shape};
use crate::traffic::map::RoadMap;
use crate::traffic::obstacle::Obstacle;
use crate::traffic::raster::bitmap::{Bitmap, CLEAR, Shade};
use crate::traffic::vehicles::{Driver, LENGTH, WIDTH};

type Colour = [u8; 3];
const GROUND: Colour = [100, 100, 100];
const WHITE: Colour = [255, 255, 255];
const BLACK: Colour = [60, 60, 60];
const RED: Colour = [255, 100, 100];
const GREEN: Colour = [50, 200, 0];
const BLUE: Colour = [100, 200, 255];
const YELLOW: Colour = [200, 200, 0];

/// Sizes of painted lines, metres.
const STRIPE_SPACING: f64 = 4.33;
const STRIPE_LENGTH: f64 = 3.0;
const STRIPE_WIDTH: f64 = 0.3;
/// Vehicles this far outside are drawn, pixels.
const MARGIN: i32 = 50;
/// Smaller headings are drawn as 0, radians.
const STRAIGHT: f64 = 2.0 * std::f64::consts::PI / 180.0;
/// Length and width of a tyre and of a headlight, metres.
const TYRE: [f64; 2] = [1.0, 0.3];
const LIGHT: [f64; 2] = [0.72, 0.6];

/// Pictures [stack, pixels along x, pixels along y], the last one being the present one.
#[derive(Clone, Debug, PartialEq)]
pub struct Grayscale {
    /// Pixels along x and y.
    pub shape: [usize; 2],
    pub stack: usize,
    /// Weights of red, green and blue.
    pub weights: [f64; 3],
    /// Pixels a metre.
    pub scaling: f64,
    /// Place of the observer in the picture, as shares of its sides.
    pub centering: [f64; 2],
}

impl Grayscale {
    pub(super) fn len(&self) -> usize {
        self.stack * self.shape[0] * self.shape[1]
    }

    /// Moves the pictures that `out` has on by one, and draws the last one.
    pub(super) fn write<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [f32]) {
        let size = self.shape[0] * self.shape[1];
        out.copy_within(size.., 0);
        let v = &traffic.vehicles;
        let page = Page::new(self, [v.x[observer], v.y[observer]]);
        let picture = page.draw(traffic);
        let last = &mut out[(self.stack - 1) * size..];
        for (x, column) in last.chunks_exact_mut(self.shape[1]).enumerate() {
            for (y, out) in column.iter_mut().enumerate() {
                *out = f32::from(picture.at(x as i32, y as i32));
            }
        }
    }

    fn shade(&self, colour: Colour) -> Shade {
        let [r, g, b] = colour.map(f64::from);
        let [of_red, of_green, of_blue] = self.weights;
        Shade::from((r * of_red + g * of_green + b * of_blue).clamp(0.0, 255.0) as u8)
    }
}

/// A picture with the place in the world of its upper left corner.
struct Page<'a> {
    style: &'a Grayscale,
    origin: [f64; 2],
    picture: Bitmap,
}

impl<'a> Page<'a> {
    fn new(style: &'a Grayscale, middle: [f64; 2]) -> Self {
        let origin = std::array::from_fn(|k| middle[k] - style.centering[k] * style.shape[k] as f64 / style.scaling);
        let picture = Bitmap::new(style.shape[0] as i32, style.shape[1] as i32, style.shade(GROUND));
        Self { style, origin, picture }
    }

    fn draw<M: RoadMap>(mut self, traffic: &Traffic<M>) -> Bitmap {
        for lane in traffic.road.lanes() {
            self.draw_lane(lane);
        }
        for landmark in &traffic.landmarks {
            self.draw_object(&landmark.body, if landmark.reached { GREEN } else { BLUE });
        }
        for obstacle in traffic.road.obstacles() {
            self.draw_object(obstacle, YELLOW);
        }
        for i in 0..traffic.vehicles.len() {
            self.draw_vehicle(traffic, i);
        }
        self.picture
    }

    fn pixels(&self, metres: f64) -> i32 {
        (metres * self.style.scaling) as i32
    }

    fn place(&self, at: [f64; 2]) -> [i32; 2] {
        std::array::from_fn(|k| self.pixels(at[k] - self.origin[k]))
    }

    fn stamp(&mut self, shape: &Bitmap, at: [f64; 2], heading: f64) {
        let heading = if heading.abs() > STRAIGHT { heading } else { 0.0 };
        self.picture.stamp(shape, self.place(at), (-heading).to_degrees());
    }

    fn draw_lane<S: Shape>(&mut self, lane: &Lane<S>) {
        let sides = f64::from(self.picture.width() + self.picture.height());
        let stripes = (2.0 * sides / (STRIPE_SPACING * self.style.scaling)) as i64;
        let along = lane.local(self.origin[0], self.origin[1]).0.trunc();
        let first = (floor_division(along, STRIPE_SPACING) - (stripes / 2) as f64) * STRIPE_SPACING;
        for (line, side) in lane.lines.into_iter().zip([-0.5, 0.5]) {
            let (count, length) = match line {
                Line::None => continue,
                Line::Striped => (stripes, STRIPE_LENGTH),
                Line::Continuous => (stripes, STRIPE_SPACING),
                Line::Chord => (1, stripes as f64 * STRIPE_SPACING + STRIPE_LENGTH),
            };
            for k in 0..count {
                let start = first + k as f64 * STRIPE_SPACING;
                let [from, to] = [start, start + length].map(|s| s.clamp(0.0, lane.length()));
                if (from - to).abs() > 0.5 * STRIPE_LENGTH {
                    let [from, to] = [from, to].map(|s| self.place(lane.position(s, side * lane.width).into()));
                    let width = self.pixels(STRIPE_WIDTH).max(1);
                    self.picture.line(from, to, width, self.style.shade(WHITE));
                }
            }
        }
    }

    fn draw_object(&mut self, object: &Obstacle, colour: Colour) {
        let [long, wide] = [object.length, object.width].map(|metres| self.pixels(metres));
        let mut shape = Bitmap::new(long, long, CLEAR);
        let body = [0, self.pixels(object.length / 2.0 - object.width / 2.0), long, wide];
        shape.rectangle(body, self.style.shade(colour));
        shape.outline(body, self.style.shade(BLACK));
        self.stamp(&shape, [object.x, object.y], object.heading);
    }

    fn draw_vehicle<M: RoadMap>(&mut self, traffic: &Traffic<M>, i: usize) {
        let v = &traffic.vehicles;
        let at = self.place([v.x[i], v.y[i]]);
        let beyond = [self.picture.width(), self.picture.height()];
        if (0..2).any(|k| at[k] <= -MARGIN || at[k] >= beyond[k] + MARGIN) {
            return;
        }
        let colour = match v.driver[i] {
            // Agents with a goal each come first, and always look the same.
            _ if i < traffic.landmarks.len() => GREEN,
            _ if v.crashed[i] => RED,
            Driver::Meta => GREEN,
            Driver::Idm => BLUE,
            _ => YELLOW,
        };
        let px = |metres: f64| self.pixels(metres);
        let long = LENGTH + 2.0 * TYRE[0];
        let mut shape = Bitmap::new(px(long), px(long), CLEAR);
        let body = [px(TYRE[0]), px(long / 2.0 - WIDTH / 2.0), px(LENGTH), px(WIDTH)];
        shape.rectangle(body, self.style.shade(colour));
        let light = self.style.shade(colour.map(|c| (f64::from(c) / 0.68) as u8));
        for aside in [-(1.4 * WIDTH) / 3.0, 0.6 * WIDTH / 5.0] {
            let corner = [px(TYRE[0] + LENGTH - LIGHT[0]), px(long / 2.0 + aside)];
            shape.rectangle([corner[0], corner[1], px(LIGHT[0]), px(LIGHT[1])], light);
        }
        let black = self.style.shade(BLACK);
        shape.outline(body, black);
        if !v.driver[i].has_targets() {
            let mut tyre = Bitmap::new(px(TYRE[0]), px(TYRE[0]), CLEAR);
            tyre.rectangle([0, px(TYRE[0] / 2.0 - TYRE[1] / 2.0), px(TYRE[0]), px(TYRE[1])], black);
            let steering = if M::EXACT { v.angle[i] } else { v.steering(i) };
            for (along, angle) in [(TYRE[0], 0.0), (long - TYRE[0], steering)] {
                for side in [-WIDTH / 2.0, WIDTH / 2.0] {
                    shape.stamp(&tyre, [px(along), px(long / 2.0 + side)], (-angle).to_degrees());
                }
            }
        }
        self.stamp(&shape, [v.x[i], v.y[i]], v.heading[i]);
    }
}

/// Python's `a // b` of a number that is not negative by rounding, `b > 0`.
fn floor_division(a: f64, b: f64) -> f64 {
    let rest = a % b;
    let rest = if rest < 0.0 { rest + b } else { rest };
    ((a - rest) / b).round()
}

#[cfg(test)]
mod tests {
    use super::super::tests::traffic;
    use super::*;

    #[test]
    fn pictures_move_on_and_show_the_observer_in_its_place() {
        let style = Grayscale {
            shape: [60, 20],
            stack: 2,
            weights: [0.2989, 0.5870, 0.1140],
            scaling: 2.0,
            centering: [0.5, 0.5],
        };
        let traffic = traffic(&[(112.0, 1, 20.0)]);
        let mut out = vec![0.0; style.len()];
        style.write(&traffic, 0, &mut out);
        assert!(out[..1200].iter().all(|&shade| shade == 0.0));
        let (own, other) = (f32::from(style.shade(GREEN)), f32::from(style.shade(BLUE)));
        let at = |x: usize, y: usize| out[1200 + 20 * x + y];
        assert_eq!([at(30, 9), at(54, 9), at(20, 19)], [own, other, f32::from(style.shade(GROUND))]);
        let before = out[1200..].to_vec();
        style.write(&traffic, 0, &mut out);
        assert_eq!(out[..1200], before);
    }

    #[test]
    fn division_is_pythons() {
        assert_eq!(
            [floor_division(-1.0, 4.33), floor_division(433.0, 4.33), floor_division(8.0, 4.33)],
            [-1.0, 99.0, 1.0]
        );
    }
}
