//! Shapes of whole pixels, without anti-aliasing: the pixels that pygame sets, so that pictures for agents are those that
//! highway-env gives them.
//!
//! Lines are Bresenham's (J. Bresenham, "Algorithm for computer control of a digital plotter", IBM Systems Journal 4,
//! 1965); turned pictures take the nearest pixel of the source, in fixed-point numbers of 16 bits after the point.

use std::f64::consts::{FRAC_PI_2, TAU};

/// A shade of grey from 0 to 255, or nothing.
pub(crate) type Shade = u16;
pub(crate) const CLEAR: Shade = 256;

/// A picture, row after row from the top.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    width: i32,
    height: i32,
    pixels: Vec<Shade>,
}

impl Bitmap {
    /// A picture of one shade. A size below 1 gives no pixels.
    pub(crate) fn new(width: i32, height: i32, shade: Shade) -> Self {
        let (width, height) = (width.max(0), height.max(0));
        Self { width, height, pixels: vec![shade; width as usize * height as usize] }
    }

    pub(crate) fn width(&self) -> i32 {
        self.width
    }

    pub(crate) fn height(&self) -> i32 {
        self.height
    }

    /// The pixel at a place inside.
    pub(crate) fn at(&self, x: i32, y: i32) -> Shade {
        self.pixels[(y * self.width + x) as usize]
    }

    /// Sets the pixels from one corner to the opposite one, both included, as far as they are inside.
    fn fill(&mut self, [left, top]: [i32; 2], [right, bottom]: [i32; 2], shade: Shade) {
        let (left, right) = (left.max(0), right.min(self.width - 1));
        if left > right {
            return;
        }
        for y in top.max(0)..=bottom.min(self.height - 1) {
            let row = (y * self.width) as usize;
            self.pixels[row + left as usize..=row + right as usize].fill(shade);
        }
    }

    /// Fills a rectangle: x, y, width, height.
    pub(crate) fn rectangle(&mut self, [x, y, w, h]: [i32; 4], shade: Shade) {
        self.fill([x, y], [x + w - 1, y + h - 1], shade);
    }

    /// Sets the outermost pixels of a rectangle; all of them where no more than two fit into the picture.
    pub(crate) fn outline(&mut self, [x, y, w, h]: [i32; 4], shade: Shade) {
        let (right, bottom) = (x + w - 1, y + h - 1);
        let wide = right.min(self.width - 1) - x.max(0) + 1;
        let tall = bottom.min(self.height - 1) - y.max(0) + 1;
        if wide <= 2 || tall <= 2 {
            self.fill([x, y], [right, bottom], shade);
            return;
        }
        for (from, to) in
            [([x, y], [right, y]), ([x, bottom], [right, bottom]), ([x, y], [x, bottom]), ([right, y], [right, bottom])]
        {
            self.fill(from, to, shade);
        }
    }

    /// Draws a line with both ends, `width` pixels across along x where it is steep, else along y.
    pub(crate) fn line(&mut self, [mut x, mut y]: [i32; 2], [x2, y2]: [i32; 2], width: i32, shade: Shade) {
        let (dx, dy) = ((x2 - x).abs(), (y2 - y).abs());
        let steep = dx <= dy;
        let (half, even) = (width / 2, 1 - width % 2);
        let aside = if steep { [half, 0] } else { [0, half] };
        if x.max(x2) + aside[0] < 0
            || x.min(x2) - aside[0] >= self.width
            || y.max(y2) + aside[1] < 0
            || y.min(y2) - aside[1] >= self.height
        {
            return;
        }
        let (sx, sy) = ((x2 - x).signum(), (y2 - y).signum());
        let mut error = if dx > dy { dx } else { -dy } / 2;
        loop {
            if steep {
                self.fill([x - half + even * half.signum(), y], [x + half, y], shade);
            } else {
                self.fill([x, y - half + even * half.signum()], [x, y + half], shade);
            }
            if if steep { y == y2 } else { x == x2 } {
                break;
            }
            let before = error;
            if before > -dx {
                error -= dy;
                x += sx;
            }
            if before < dy {
                error += dx;
                y += sy;
            }
        }
    }

    /// The picture turned against the clock, in the smallest one that it fits into.
    fn turned(&self, degrees: f64) -> Self {
        let (w, h) = (self.width, self.height);
        let degrees = degrees as f32;
        if w < 1 || h < 1 {
            return self.clone();
        }
        if degrees % 90.0 == 0.0 {
            let turns = (degrees as i32 / 90).rem_euclid(4);
            let (wide, tall) = if turns % 2 == 0 { (w, h) } else { (h, w) };
            return self.sampled(wide, tall, |x, y| match turns {
                0 => Some((x, y)),
                1 => Some((w - 1 - y, x)),
                2 => Some((w - 1 - x, h - 1 - y)),
                _ => Some((y, h - 1 - x)),
            });
        }
        let (sin, cos) = (f64::from(degrees) * 0.017_453_292_519_943_29).sin_cos();
        let size = |a: f64, b: f64| (a + b).abs().max((a - b).abs()) as i32;
        let wide = size(cos * f64::from(w), sin * f64::from(h));
        let tall = size(sin * f64::from(w), cos * f64::from(h));
        // Steps of the source for one pixel, and the place of the first one, all times 65536.
        let (step_sin, step_cos) = ((sin * 65536.0) as i64, (cos * 65536.0) as i64);
        let first = |side: i32, share: f64, source: i32| {
            let across = (share * ((i64::from(wide) - 1) << 15) as f64) as i64;
            (i64::from(side) << 15) - across + (i64::from(source - side) << 15)
        };
        let (left, top) = (first(wide, cos, w), first(tall, sin, h));
        self.sampled(wide, tall, |x, y| {
            let (x, y) = (i64::from(x), i64::from(tall / 2 - y));
            let (sx, sy) = (left + step_sin * y + step_cos * x, top - step_cos * y + step_sin * x);
            let inside = sx >= 0 && sy >= 0 && sx < i64::from(w) << 16 && sy < i64::from(h) << 16;
            inside.then_some(((sx >> 16) as i32, (sy >> 16) as i32))
        })
    }

    /// A picture whose pixels are some of this one, or clear.
    fn sampled(&self, width: i32, height: i32, source: impl Fn(i32, i32) -> Option<(i32, i32)>) -> Self {
        let mut new = Self::new(width, height, CLEAR);
        for y in 0..new.height {
            for x in 0..new.width {
                if let Some((from_x, from_y)) = source(x, y) {
                    new.pixels[(y * new.width + x) as usize] = self.at(from_x, from_y);
                }
            }
        }
        new
    }

    /// Lays another picture over this one, its middle at a place, turned against the clock.
    pub(crate) fn stamp(&mut self, other: &Self, [x, y]: [i32; 2], degrees: f64) {
        let (w, h) = (f64::from(other.width), f64::from(other.height));
        let turn = Turn::new(degrees);
        // highway-env's y points up here.
        let corners = [[0.0, 0.0], [w, 0.0], [w, -h], [0.0, -h]].map(|corner| turn.apply(corner));
        let left = corners.iter().map(|corner| corner[0]).fold(f64::INFINITY, f64::min);
        let top = corners.iter().map(|corner| corner[1]).fold(f64::NEG_INFINITY, f64::max);
        let middle = [w / 2.0, -(h / 2.0)];
        let moved = turn.apply(middle);
        let moved = [moved[0] - middle[0], moved[1] - middle[1]];
        let left = (f64::from(x) - w / 2.0 + left - moved[0]) as i32;
        let top = (f64::from(y) - h / 2.0 - top + moved[1]) as i32;
        let picture = other.turned(degrees);
        for row in top.max(0)..(top + picture.height).min(self.height) {
            for column in left.max(0)..(left + picture.width).min(self.width) {
                let shade = picture.at(column - left, row - top);
                if shade != CLEAR {
                    self.pixels[(row * self.width + column) as usize] = shade;
                }
            }
        }
    }
}

/// A turn of vectors; quarters are exact.
enum Turn {
    Quarters(u8),
    By { sin: f64, cos: f64 },
}

impl Turn {
    fn new(degrees: f64) -> Self {
        const NEAR: f64 = 1e-6;
        let angle = degrees.to_radians().rem_euclid(TAU);
        if (angle + NEAR) % FRAC_PI_2 < 2.0 * NEAR {
            Self::Quarters(((angle + NEAR) / FRAC_PI_2) as u8 % 4)
        } else {
            let (sin, cos) = angle.sin_cos();
            Self::By { sin, cos }
        }
    }

    fn apply(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        match *self {
            Self::Quarters(0) => [x, y],
            Self::Quarters(1) => [-y, x],
            Self::Quarters(2) => [-x, -y],
            Self::Quarters(_) => [y, -x],
            Self::By { sin, cos } => [cos * x - sin * y, sin * x + cos * y],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bitmap: &Bitmap) -> Vec<String> {
        let dot = |shade: Shade| if shade == CLEAR { '.' } else { '#' };
        (0..bitmap.height).map(|y| (0..bitmap.width).map(|x| dot(bitmap.at(x, y))).collect()).collect()
    }

    #[test]
    fn lines_have_their_pixels_and_width() {
        let mut bitmap = Bitmap::new(6, 4, CLEAR);
        bitmap.line([0, 0], [5, 3], 1, 9);
        assert_eq!(rows(&bitmap), ["#.....", ".##...", "...##.", ".....#"]);
        let mut bitmap = Bitmap::new(5, 4, CLEAR);
        bitmap.line([2, 0], [2, 9], 2, 9);
        assert_eq!(rows(&bitmap), ["..##."; 4]);
        let mut bitmap = Bitmap::new(5, 4, CLEAR);
        bitmap.line([-4, 1], [2, 1], 3, 9);
        assert_eq!(rows(&bitmap), ["###..", "###..", "###..", "....."]);
    }

    #[test]
    fn quarter_turns_and_small_turns_keep_the_pixels() {
        let mut arrow = Bitmap::new(3, 3, CLEAR);
        arrow.rectangle([1, 1, 2, 1], 9);
        for (degrees, expected) in [
            (0.0, ["...", ".##", "..."]),
            (90.0, [".#.", ".#.", "..."]),
            (-90.0, ["...", ".#.", ".#."]),
            (180.0, ["...", "##.", "..."]),
        ] {
            assert_eq!(rows(&arrow.turned(degrees)), expected, "{degrees}");
        }
        let mut page = Bitmap::new(5, 5, CLEAR);
        page.stamp(&arrow, [2, 2], 0.0);
        assert_eq!(rows(&page), [".....", ".##..", ".....", ".....", "....."]);
        let mut outlined = Bitmap::new(4, 4, CLEAR);
        outlined.outline([0, 0, 4, 3], 9);
        assert_eq!(rows(&outlined), ["####", "#..#", "####", "...."]);
    }
}
