//! Pictures of traffic: a [`Scene`] drawn into RGB bytes, in about a millisecond.
//!
//! Cars are coloured by their speed, from red (slow) to blue (fast). Agents have a green frame and their number on the
//! roof, cars that crashed are black with a red cross. The legend below names the time, the mean speed, the colours and
//! a distance.

pub(crate) mod bitmap;
mod canvas;
mod font;

use canvas::{Canvas, Colour, Rectangle};

use super::scene::{Camera, Car, LaneStrip, Line, Link, Scene, bounds};

const GROUND: Colour = [214, 222, 208];
const ASPHALT: Colour = [76, 80, 88];
const PAINT: Colour = [236, 236, 232];
const GLASS: Colour = [38, 44, 54];
const AGENT: Colour = [40, 240, 90];
const WRECK: Colour = [22, 22, 24];
const ALARM: Colour = [255, 64, 48];
const OBSTACLE: Colour = [255, 150, 30];
/// As highway-env's.
const LANDMARK: Colour = [100, 200, 255];
const REACHED: Colour = [50, 200, 0];
const PANEL: Colour = [28, 31, 36];
/// Colours from the slowest to the fastest car.
const SPEEDS: [Colour; 5] = [[226, 64, 44], [250, 150, 84], [254, 228, 150], [158, 208, 230], [84, 148, 232]];

/// Colours of radio links, from those that never arrive to those that always do, and their width in pixels.
const LINKS: [Colour; 3] = [[235, 60, 60], [245, 205, 70], [70, 235, 120]];
const LINK_WIDTH: f64 = 2.0;
/// Links that arrive less often than this are not drawn.
const LEAST_LINK: f64 = 0.02;

/// Asphalt beside a lane, metres. It also closes the seams between lanes.
const SHOULDER: f64 = 0.6;
/// Sizes of painted lines, as highway-env's, metres.
const STRIPE_WIDTH: f64 = 0.3;
const STRIPE_LENGTH: f64 = 3.0;
const STRIPE_PERIOD: f64 = 4.33;
/// Height of the strip with the legend, pixels.
const LEGEND: f64 = 15.0;
/// Room above and below a road that fills the picture, for the numbers of cars, pixels.
const NUMBERS: f64 = 12.0;
/// Free space around all that [`Camera::Agents`] and [`Camera::Whole`] must show, metres.
const MARGIN: f64 = 8.0;

/// The options of a picture.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Pixels.
    pub width: usize,
    pub height: usize,
    /// Pixels a metre. [`Camera::Agents`] may go farther away, [`Camera::Whole`] does not look at it.
    pub scaling: f64,
    /// Position of the followed car in the picture, as shares of width and height.
    pub centering: [f64; 2],
    pub legend: bool,
}

/// Draws a scene, and faintly the positions of its cars in the scenes of `trail`. `pixels` are height x width x 3
/// bytes. Objects whose numbers are not finite are left out.
///
/// # Panics
/// Unless `pixels` has just that many bytes.
pub fn draw(scene: &Scene, trail: &[&Scene], view: &View, pixels: &mut [u8]) {
    let mut canvas = Canvas::new(view.width, view.height, pixels);
    canvas.fill(GROUND);
    let lens = Lens::new(scene, view);
    lens.draw_lanes(&mut canvas, &scene.lanes);
    for obstacle in &scene.obstacles {
        let shape = lens.rectangle([obstacle.x, obstacle.y], obstacle.heading, [obstacle.length, obstacle.width]);
        canvas.rectangle(shape, OBSTACLE, 1.0);
    }
    for landmark in &scene.landmarks {
        let body = &landmark.body;
        let shape = lens.rectangle([body.x, body.y], body.heading, [body.length, body.width]);
        canvas.rectangle(shape.grown(1.0), GLASS, 1.0);
        canvas.rectangle(shape, if landmark.reached { REACHED } else { LANDMARK }, 1.0);
    }
    for car in trail.iter().flat_map(|earlier| &earlier.cars) {
        canvas.rectangle(lens.car(car).grown(-0.5), speed_colour(car.speed, scene.speeds), 0.15);
    }
    for link in &scene.links {
        lens.draw_link(&mut canvas, scene, link);
    }
    // Agents last: nothing hides them.
    for car in scene.cars.iter().filter(|car| car.agent.is_none()) {
        lens.draw_car(&mut canvas, car, scene.speeds);
    }
    for car in scene.cars.iter().filter(|car| car.agent.is_some()) {
        lens.draw_car(&mut canvas, car, scene.speeds);
    }
    if view.legend {
        draw_legend(&mut canvas, scene, lens.scaling);
    }
}

/// The height of a picture, pixels, that all lanes fill at the scale of `view`, with room for the numbers of cars; at
/// most that of `view`.
pub fn filled_height(scene: &Scene, view: &View) -> usize {
    let Some((top, bottom)) = across(&scene.lanes) else { return view.height };
    let legend = if view.legend { LEGEND } else { 0.0 };
    let height = (bottom - top) * Lens::new(scene, view).scaling + legend + 2.0 * NUMBERS;
    // A number that is too large for usize becomes the largest one.
    (height.ceil() as usize).min(view.height)
}

/// The least and the greatest y of lanes and their shoulders; None: there are none, or their numbers are not finite.
fn across(lanes: &[LaneStrip]) -> Option<(f64, f64)> {
    let (low, high) = bounds(lanes.iter().flat_map(|lane| lane.centre.iter().copied()))?;
    let half = lanes.iter().map(|lane| lane.width).fold(0.0, f64::max) / 2.0 + 2.0 * SHOULDER;
    Some((low[1] - half, high[1] + half))
}

fn speed_colour(speed: f64, [slow, fast]: [f64; 2]) -> Colour {
    let share = if fast > slow { ((speed - slow) / (fast - slow)).clamp(0.0, 1.0) } else { 1.0 };
    // NaN becomes 0.
    let place = (share * (SPEEDS.len() - 1) as f64).max(0.0);
    let i = (place as usize).min(SPEEDS.len() - 2);
    mix(SPEEDS[i], SPEEDS[i + 1], place - i as f64)
}

fn link_colour(quality: f64) -> Colour {
    let place = 2.0 * quality;
    if place < 1.0 { mix(LINKS[0], LINKS[1], place) } else { mix(LINKS[1], LINKS[2], (place - 1.0).min(1.0)) }
}

fn mix(a: Colour, b: Colour, share: f64) -> Colour {
    std::array::from_fn(|k| (f64::from(a[k]) + share * (f64::from(b[k]) - f64::from(a[k]))) as u8)
}

/// The map from metres to pixels.
struct Lens {
    /// The place in the world of the picture's upper left corner.
    origin: [f64; 2],
    scaling: f64,
    size: [f64; 2],
}

impl Lens {
    fn new(scene: &Scene, view: &View) -> Self {
        let size = [view.width as f64, view.height as f64];
        let around = |middle: [f64; 2], scaling: f64, centering: [f64; 2]| Self {
            origin: std::array::from_fn(|k| middle[k] - centering[k] * size[k] / scaling),
            scaling,
            size,
        };
        let fit = |(low, high): ([f64; 2], [f64; 2]), most: f64| {
            let scale = |k: usize| size[k] / (high[k] - low[k] + 2.0 * MARGIN);
            let middle = std::array::from_fn(|k| (low[k] + high[k]) / 2.0);
            // The legend covers the lower edge.
            let centering = if view.legend && size[1] > 300.0 { [0.5, 0.48] } else { [0.5, 0.5] };
            around(middle, scale(0).min(scale(1)).min(most), centering)
        };
        let lanes = || bounds(scene.lanes.iter().flat_map(|lane| lane.centre.iter().copied()));
        let whole = || fit(lanes().unwrap_or(([0.0; 2], [0.0; 2])), f64::INFINITY);
        // The lanes are in it already: across them less room is needed.
        let close = |(low, high): ([f64; 2], [f64; 2])| {
            fit(([low[0], low[1] + MARGIN / 2.0], [high[0], high[1] - MARGIN / 2.0]), view.scaling)
        };
        match scene.camera {
            Camera::Follow(i) if i < scene.cars.len() => {
                let lens = around([scene.cars[i].x, scene.cars[i].y], view.scaling, view.centering);
                if view.legend { lens.above_legend(&scene.lanes) } else { lens }
            }
            Camera::Whole => whole(),
            Camera::Box(low, high) => close((low, high)),
            Camera::Agents | Camera::Follow(_) => scene.focus().map_or_else(whole, close),
        }
    }

    /// Moved up or down so that a road that fits above the legend is in the middle of that part.
    fn above_legend(mut self, lanes: &[LaneStrip]) -> Self {
        let Some((top, bottom)) = across(lanes) else { return self };
        let tall = (self.size[1] - LEGEND) / self.scaling;
        if bottom - top <= tall {
            self.origin[1] = f64::midpoint(top, bottom) - tall / 2.0;
        }
        self
    }

    fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        [(x - self.origin[0]) * self.scaling, (y - self.origin[1]) * self.scaling]
    }

    /// `length` and `width` in metres, along and across the heading.
    fn rectangle(&self, middle: [f64; 2], heading: f64, [length, width]: [f64; 2]) -> Rectangle {
        Rectangle {
            middle: self.point(middle),
            direction: [heading.cos(), heading.sin()],
            half: [length / 2.0 * self.scaling, width / 2.0 * self.scaling],
        }
    }

    /// The rectangle of a car: from far away larger than the car, to stay visible.
    fn car(&self, car: &Car) -> Rectangle {
        let mut shape = self.rectangle([car.x, car.y], car.heading, [car.length, car.width]);
        shape.half = [shape.half[0].max(2.5), shape.half[1].max(1.5)];
        shape
    }

    fn draw_car(&self, canvas: &mut Canvas<'_>, car: &Car, speeds: [f64; 2]) {
        let shape = self.car(car);
        let wide = 2.0 * shape.half[1];
        let (frame, edge) = match (car.agent.is_some(), car.crashed) {
            (true, _) => (AGENT, (0.2 * wide).clamp(1.5, 3.0)),
            (false, true) => (ALARM, 1.5),
            (false, false) => (GLASS, 1.0),
        };
        canvas.rectangle(shape.grown(edge), frame, if frame == GLASS { 0.6 } else { 1.0 });
        canvas.rectangle(shape, if car.crashed { WRECK } else { speed_colour(car.speed, speeds) }, 1.0);
        if car.crashed {
            let ([x, y], arm) = (shape.middle, 0.8 * shape.half[1]);
            for side in [-arm, arm] {
                let stroke = Rectangle::line([x - arm, y - side], [x + arm, y + side], (0.18 * wide).max(1.2));
                canvas.rectangle(stroke, ALARM, 1.0);
            }
        } else if wide >= 6.0 {
            canvas.rectangle(shape.part(0.3, 0.55, 0.78), GLASS, 1.0);
            canvas.rectangle(shape.part(-0.9, -0.78, 0.7), GLASS, 1.0);
        }
        let Some(number) = car.agent else { return };
        let text = number.to_string();
        if wide >= 9.0 && !car.crashed {
            let middle = shape.part(-0.78, 0.3, 1.0).middle;
            write_centred(canvas, middle, &text, GLASS);
        } else {
            // Above it, where it reads better than on it.
            let above = [shape.middle[0], shape.middle[1] - shape.half[1].max(3.0) - 8.0];
            let half = [font::width(&text, 1) as f64 / 2.0 + 1.5, font::HEIGHT as f64 / 2.0 + 1.5];
            canvas.rectangle(Rectangle { middle: above, direction: [1.0, 0.0], half }, PANEL, 0.85);
            write_centred(canvas, above, &text, AGENT);
        }
    }

    /// Draws a link as a line, once for both directions: the better it is, the greener and the more opaque.
    fn draw_link(&self, canvas: &mut Canvas<'_>, scene: &Scene, link: &Link) {
        let back = scene.links.iter().find(|other| (other.from, other.to) == (link.to, link.from));
        if back.is_some() && link.from > link.to {
            return;
        }
        let quality = back.map_or(link.quality, |back| (link.quality + back.quality) / 2.0);
        let place = |id: u32| scene.cars.iter().find(|car| car.id == id).map(|car| self.point([car.x, car.y]));
        let (Some(from), Some(to)) = (place(link.from), place(link.to)) else { return };
        if let Some((a, b)) = self.cut(from, to)
            && quality >= LEAST_LINK
        {
            canvas.rectangle(Rectangle::line(a, b, LINK_WIDTH), link_colour(quality), 0.25 + 0.45 * quality.min(1.0));
        }
    }

    fn draw_lanes(&self, canvas: &mut Canvas<'_>, lanes: &[LaneStrip]) {
        let mut mask = canvas.mask();
        for lane in lanes {
            for (a, b) in self.pieces(&self.points(&lane.centre), lane.closed) {
                let mut piece = Rectangle::line(a, b, (lane.width + 2.0 * SHOULDER) * self.scaling);
                if lane.centre.len() > 2 {
                    // Pieces of a curve overlap, or there would be gaps on its outer side.
                    piece.half[0] += 0.1 * piece.half[1];
                }
                canvas.add_to_mask(&mut mask, piece);
            }
        }
        canvas.fill_mask(&mask, ASPHALT);
        for lane in lanes {
            for (line, side) in lane.lines.into_iter().zip([-0.5, 0.5]) {
                self.draw_line(canvas, lane, line, side * lane.width);
            }
        }
    }

    fn points(&self, line: &[[f64; 2]]) -> Vec<[f64; 2]> {
        line.iter().map(|&at| self.point(at)).collect()
    }

    /// A line's straight pieces, in pixels, cut to the picture and a little around it.
    fn pieces(&self, points: &[[f64; 2]], closed: bool) -> Vec<([f64; 2], [f64; 2])> {
        let last = if closed { points.len() } else { points.len().saturating_sub(1) };
        (0..last).filter_map(|i| self.cut(points[i], points[(i + 1) % points.len()])).collect()
    }

    fn cut(&self, a: [f64; 2], b: [f64; 2]) -> Option<([f64; 2], [f64; 2])> {
        // A lane's own width beyond the edges, and the length of a stripe.
        let slack = 20.0 * self.scaling;
        let (mut from, mut to) = (0.0_f64, 1.0_f64);
        for k in 0..2 {
            let (low, high, step) = (-slack - a[k], self.size[k] + slack - a[k], b[k] - a[k]);
            if step == 0.0 {
                if low > 0.0 || high < 0.0 {
                    return None;
                }
            } else {
                from = from.max((low / step).min(high / step));
                to = to.min((low / step).max(high / step));
            }
        }
        let at = |t: f64| std::array::from_fn(|k| a[k] + t * (b[k] - a[k]));
        (from < to).then(|| (at(from), at(to)))
    }

    /// Paints along a lane, `aside` metres to the right of its centre.
    fn draw_line(&self, canvas: &mut Canvas<'_>, lane: &LaneStrip, line: Line, aside: f64) {
        if line == Line::None {
            return;
        }
        let width = (STRIPE_WIDTH * self.scaling).max(1.0);
        let points = self.points(&beside(&lane.centre, lane.closed, aside));
        let period = STRIPE_PERIOD * self.scaling;
        if line != Line::Striped || period < 4.0 {
            let opacity = if line == Line::Striped { 0.4 } else { 1.0 };
            for (a, b) in self.pieces(&points, lane.closed) {
                canvas.rectangle(Rectangle::line(a, b, width), PAINT, opacity);
            }
            return;
        }
        // Metres along the line where the piece begins.
        let mut start = 0.0;
        let last = if lane.closed { points.len() } else { points.len().saturating_sub(1) };
        for i in 0..last {
            let (a, b) = (points[i], points[(i + 1) % points.len()]);
            let length = (b[0] - a[0]).hypot(b[1] - a[1]);
            if let Some((from, to)) = self.cut(a, b) {
                let offset = start + (from[0] - a[0]).hypot(from[1] - a[1]);
                let end = offset + (to[0] - from[0]).hypot(to[1] - from[1]);
                let at = |s: f64| std::array::from_fn(|k| from[k] + (s - offset) / (end - offset) * (to[k] - from[k]));
                let first = (offset / period).floor();
                // Counted, so that it ends however large the numbers are.
                for i in 0..((end - offset) / period) as usize + 2 {
                    let stripe = (first + i as f64) * period;
                    let (s, e) = (stripe.max(offset), (stripe + STRIPE_LENGTH * self.scaling).min(end));
                    if s < e {
                        canvas.rectangle(Rectangle::line(at(s), at(e), width), PAINT, 1.0);
                    }
                }
            }
            start += length;
        }
    }
}

/// A line moved `aside` metres to its right.
fn beside(line: &[[f64; 2]], closed: bool, aside: f64) -> Vec<[f64; 2]> {
    let n = line.len();
    let moved = |i: usize| {
        let (before, after) =
            if closed { ((i + n - 1) % n, (i + 1) % n) } else { (i.saturating_sub(1), (i + 1).min(n - 1)) };
        let (dx, dy) = (line[after][0] - line[before][0], line[after][1] - line[before][1]);
        let length = dx.hypot(dy);
        if length > 0.0 { [line[i][0] - aside * dy / length, line[i][1] + aside * dx / length] } else { line[i] }
    };
    (0..n).map(moved).collect()
}

fn write_centred(canvas: &mut Canvas<'_>, middle: [f64; 2], text: &str, colour: Colour) {
    if middle.iter().all(|x| x.abs() < 1e6) {
        let corner = [middle[0] - font::width(text, 1) as f64 / 2.0, middle[1] - font::HEIGHT as f64 / 2.0];
        canvas.text(corner.map(|x| x.round() as i64), text, 1, colour);
    }
}

/// A strip along the lower edge: time and mean speed, a distance, the colours of speeds.
fn draw_legend(canvas: &mut Canvas<'_>, scene: &Scene, scaling: f64) {
    const BAR: f64 = 60.0;
    let (width, height) = (canvas.width as f64, canvas.height as f64);
    let middle = height - LEGEND / 2.0;
    canvas.rectangle(Rectangle::line([0.0, middle], [width, middle], LEGEND), PANEL, 0.8);
    let line = height as i64 - 11;
    let mut status = format!("{:.1} s", scene.time);
    let moving: Vec<f64> = scene.cars.iter().map(|car| car.speed).collect();
    if !moving.is_empty() {
        status += &format!("  mean {:.1} m/s", moving.iter().sum::<f64>() / moving.len() as f64);
    }
    let crashed = scene.cars.iter().filter(|car| car.crashed).count();
    if crashed > 0 {
        status += &format!("  {crashed} crashed");
    }
    canvas.text([6, line], &status, 1, PAINT);

    let [slow, fast] = scene.speeds.map(|speed| format!("{speed:.0}"));
    let fast = format!("{fast} m/s");
    let end = canvas.width as i64 - 6 - font::width(&fast, 1);
    canvas.text([end, line], &fast, 1, PAINT);
    let bar = end as f64 - 4.0 - BAR;
    for step in 0..BAR as usize {
        let x = bar + step as f64;
        let colour = speed_colour(step as f64 / (BAR - 1.0), [0.0, 1.0]);
        canvas.rectangle(Rectangle::line([x, middle], [x + 1.0, middle], 7.0), colour, 1.0);
    }
    canvas.text([bar as i64 - 4 - font::width(&slow, 1), line], &slow, 1, PAINT);

    // The distance of 1, 2 or 5 times a power of ten that is at most 60 pixels long.
    let most = 60.0 / scaling;
    let ten = 10.0_f64.powf(most.log10().floor());
    let metres = [5.0, 2.0, 1.0].map(|n| n * ten).into_iter().find(|m| *m <= most).unwrap_or(ten);
    let label = format!("{metres} m");
    let long = metres * scaling;
    let left = bar - 4.0 - font::width(&slow, 1) as f64 - 24.0 - long - 6.0 - font::width(&label, 1) as f64;
    if left > (6 + font::width(&status, 1) + 12) as f64 && long.is_finite() {
        canvas.rectangle(Rectangle::line([left, middle + 2.0], [left + long, middle + 2.0], 2.0), PAINT, 1.0);
        for x in [left, left + long] {
            canvas.rectangle(Rectangle::line([x, middle - 3.0], [x, middle + 3.0], 1.5), PAINT, 1.0);
        }
        canvas.text([(left + long) as i64 + 6, line], &label, 1, PAINT);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::scene::{Landmark, Obstacle};
    use super::*;

    const VIEW: View = View { width: 600, height: 150, scaling: 5.5, centering: [0.3, 0.5], legend: false };

    fn car(x: f64, y: f64, heading: f64, speed: f64, agent: Option<u32>) -> Car {
        let (length, width) = (5.0, 2.0);
        Car { id: 0, x, y, heading, length, width, speed, lane: 0, along: x, agent, crashed: false }
    }

    fn highway(cars: Vec<Car>, camera: Camera) -> Scene {
        let lane = |i: usize| {
            let y = 4.0 * i as f64;
            LaneStrip::straight([0.0, y], [10_000.0, y], 4.0, [Line::Striped, Line::Continuous])
        };
        Scene {
            time: 3.0,
            lanes: (0..4).map(lane).collect(),
            cars,
            obstacles: vec![],
            landmarks: vec![],
            links: vec![],
            camera,
            speeds: [0.0, 30.0],
        }
    }

    fn picture(scene: &Scene, view: &View) -> Vec<[u8; 3]> {
        let mut pixels = vec![0; view.width * view.height * 3];
        draw(scene, &[], view, &mut pixels);
        pixels.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect()
    }

    fn near(a: Colour, b: Colour) -> bool {
        a.iter().zip(b).all(|(x, y)| x.abs_diff(y) <= 3)
    }

    #[test]
    fn links_are_coloured_by_the_mean_of_both_directions() {
        let cars = || vec![car(500.0, 0.0, 0.0, 30.0, None), Car { id: 1, ..car(560.0, 0.0, 0.0, 30.0, None) }];
        // Half way between the two, where only asphalt is.
        let between = |links: Vec<Link>| {
            let scene = Scene { links, ..highway(cars(), Camera::Follow(0)) };
            picture(&scene, &VIEW)[75 * VIEW.width + 180 + 165]
        };
        let link = |from, to, quality| Link { from, to, quality, age: 1.0 };
        let expected = |quality: f64| mix(ASPHALT, link_colour(quality), 0.25 + 0.45 * quality);
        assert!(near(between(vec![]), ASPHALT));
        assert!(near(between(vec![link(0, 1, 1.0), link(1, 0, 1.0)]), expected(1.0)));
        assert!(near(between(vec![link(0, 1, 0.2), link(1, 0, 0.6)]), expected(0.4)));
        assert!(near(between(vec![link(1, 0, 0.5)]), expected(0.5)));
        assert!(near(between(vec![link(0, 1, 0.0), link(1, 0, 0.01)]), ASPHALT));
        assert!(near(between(vec![link(0, 9, 1.0)]), ASPHALT), "a car that is not there has no links");
    }

    #[test]
    fn a_car_is_where_it_should_be_and_as_large() {
        let scene = highway(vec![car(500.0, 4.0, 0.0, 30.0, None)], Camera::Follow(0));
        let with = picture(&scene, &VIEW);
        let at = |x: usize, y: usize| with[y * VIEW.width + x];
        // The followed car stands at 0.3 of the width and 0.5 of the height.
        assert!(near(at(180, 75), SPEEDS[4]), "{:?}", at(180, 75));
        assert!(near(at(180, 95), ASPHALT) && near(at(220, 75), ASPHALT), "beside it and before it");
        let close = picture(&scene, &View { scaling: 22.0, ..VIEW });
        let body = close.iter().filter(|p| near(**p, SPEEDS[4]) || near(**p, GLASS)).count() as f64;
        let expected = 5.0 * 2.0 * 22.0 * 22.0;
        assert!((body - expected).abs() < 0.08 * expected, "{body} pixels, expected about {expected}");
    }

    #[test]
    fn lanes_are_asphalt_and_what_lies_beside_is_not() {
        let scene = highway(vec![car(500.0, 4.0, 0.0, 30.0, None)], Camera::Follow(0));
        let all = picture(&scene, &VIEW);
        let asphalt_rows = (0..150).filter(|y| near(all[y * 600 + 400], ASPHALT)).count() as f64;
        // Sixteen metres of lanes, less the lines.
        assert!((asphalt_rows - 16.0 * 5.5).abs() < 12.0, "{asphalt_rows} rows");
        assert!(near(all[10 * 600 + 400], GROUND) && near(all[149 * 600 + 400], GROUND));
    }

    #[test]
    fn a_road_that_fits_is_in_the_middle_and_can_fill_the_picture() {
        let view = View { legend: true, ..VIEW };
        for y in [0.0, 12.0] {
            let scene = highway(vec![car(500.0, y, 0.0, 30.0, None)], Camera::Follow(0));
            let height = filled_height(&scene, &view);
            assert!((115..=145).contains(&height), "{height}");
            for height in [150, height] {
                let all = picture(&scene, &View { height, ..view });
                let road: Vec<usize> = (0..height).filter(|y| near(all[y * 600 + 400], ASPHALT)).collect();
                let (above, below) = (road[0], height - LEGEND as usize - 1 - road[road.len() - 1]);
                assert!(above.abs_diff(below) <= 1, "{above} pixels above, {below} below");
            }
        }
        let thin = View { height: 80, ..view };
        let scene = highway(vec![car(500.0, 0.0, 0.0, 30.0, None)], Camera::Follow(0));
        assert_eq!(filled_height(&scene, &thin), 80, "the road is wider than the picture");
        assert_eq!(filled_height(&Scene { lanes: vec![], ..scene }, &view), 150);
    }

    #[test]
    fn agents_and_wrecks_are_told_apart_from_the_rest() {
        let count = |car: Car, colour: Colour| {
            let all = picture(&highway(vec![car], Camera::Follow(0)), &VIEW);
            all.into_iter().filter(|p| near(*p, colour)).count()
        };
        let plain = car(500.0, 4.0, 0.0, 20.0, None);
        let agent = Car { agent: Some(3), ..plain };
        let wreck = Car { crashed: true, ..plain };
        assert_eq!([count(plain, AGENT), count(plain, ALARM)], [0, 0]);
        assert!(count(agent, AGENT) > 60 && count(wreck, ALARM) > 60);
        assert!(count(Car { crashed: true, ..agent }, AGENT) > 60, "an agent that crashed still is one");
    }

    #[test]
    fn slow_cars_are_red_and_fast_ones_blue() {
        let [slow, fast] = [0.0, 30.0].map(|speed| speed_colour(speed, [0.0, 30.0]));
        assert!(slow[0] > slow[2] + 100 && fast[2] > fast[0] + 100);
        assert_eq!(speed_colour(-5.0, [0.0, 30.0]), slow);
        assert_eq!(speed_colour(99.0, [0.0, 30.0]), fast);
        assert_eq!(speed_colour(f64::NAN, [0.0, 30.0]), slow);
    }

    #[test]
    fn all_agents_and_whole_rings_fit_in() {
        let cars = (0..6).map(|i| car(100.0 + 90.0 * f64::from(i), 4.0, 0.0, 20.0, Some(i as u32))).collect();
        let all = picture(&highway(cars, Camera::Agents), &VIEW);
        let columns: Vec<usize> = (0..600).filter(|x| (0..150).any(|y| near(all[y * 600 + x], AGENT))).collect();
        assert!(columns[0] > 0 && columns[columns.len() - 1] < 599);
        let lane = LaneStrip::circle([0.0, 0.0], 250.0, 4.0, [Line::Continuous; 2]);
        let mut ring = highway(vec![], Camera::Whole);
        ring.lanes = vec![lane];
        let view = View { height: 600, ..VIEW };
        let all = picture(&ring, &view);
        let edge = (0..600).flat_map(|i| [all[i], all[599 * 600 + i], all[i * 600], all[i * 600 + 599]]);
        assert!(edge.into_iter().all(|p| near(p, GROUND)));
        assert!(all.iter().filter(|p| near(**p, ASPHALT)).count() > 20_000);
    }

    fn anywhere() -> impl Strategy<Value = f64> {
        prop_oneof![-50.0..700.0, -1e12..1e12, Just(f64::NAN), Just(f64::INFINITY), Just(0.0)]
    }

    prop_compose! {
        fn any_car()(x in anywhere(), y in anywhere(), heading in anywhere(), length in anywhere(), width in anywhere(),
                     speed in anywhere(), agent in proptest::option::of(0u32..200), crashed in any::<bool>()) -> Car {
            Car { id: 0, x, y, heading, length, width, speed, lane: 0, along: x, agent, crashed }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_is_drawn_outside_the_picture(
            cars in proptest::collection::vec(any_car(), 0..6),
            lane in proptest::collection::vec([anywhere(), anywhere()], 2..6),
            closed in any::<bool>(),
            camera in prop_oneof![Just(Camera::Agents), Just(Camera::Whole), (0usize..8).prop_map(Camera::Follow)],
            (width, height) in (1usize..90, 1usize..60),
            scaling in prop_oneof![0.01..100.0, Just(5.5)],
            centering in [-2.0..3.0, -2.0..3.0],
        ) {
            let strip = LaneStrip { centre: lane, closed, length: 100.0, width: 4.0, lines: [Line::Striped, Line::Continuous] };
            let obstacles = vec![Obstacle { x: 0.0, y: f64::NAN, heading: 0.0, length: 1.0, width: 1.0 }];
            let body = Obstacle { x: 5.0, y: 3.0, ..obstacles[0].clone() };
            let landmarks = vec![Landmark { reached: closed, ..Landmark::new(body) }];
            let scene = Scene { time: 1.0, lanes: vec![strip], cars, obstacles, landmarks, links: vec![], camera, speeds: [0.0, 30.0] };
            let view = View { width, height, scaling, centering, legend: true };
            let mut pixels = vec![77; width * height * 3 + 64];
            draw(&scene, &[&scene], &view, &mut pixels[32..32 + width * height * 3]);
            prop_assert!(pixels[..32].iter().chain(&pixels[32 + width * height * 3..]).all(|&byte| byte == 77));
            let mut again = vec![0; width * height * 3];
            draw(&scene, &[&scene], &view, &mut again);
            prop_assert!(again == pixels[32..32 + width * height * 3], "the same scene, the same picture");
        }
    }
}
