//! Anti-aliased shapes in RGB bytes. Nothing is drawn outside the picture, whatever the coordinates.

use super::font;

pub(super) type Colour = [u8; 3];

/// A picture, row after row from the top. Coordinates are pixels; pixel (0, 0) is the square from (0, 0) to (1, 1).
pub(super) struct Canvas<'a> {
    pub(super) width: usize,
    pub(super) height: usize,
    pixels: &'a mut [u8],
}

/// A rectangle: its middle, the direction of its length, half its length and half its width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    pub(super) middle: [f64; 2],
    pub(super) direction: [f64; 2],
    pub(super) half: [f64; 2],
}

impl Rectangle {
    /// A line from `a` to `b`, `width` across.
    pub(super) fn line(a: [f64; 2], b: [f64; 2], width: f64) -> Self {
        let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
        let length = dx.hypot(dy);
        let direction = if length > 0.0 { [dx / length, dy / length] } else { [1.0, 0.0] };
        Self { middle: [(a[0] + b[0]) / 2.0, (a[1] + b[1]) / 2.0], direction, half: [length / 2.0, width / 2.0] }
    }

    /// This rectangle, larger by `more` on all sides.
    pub(super) fn grown(self, more: f64) -> Self {
        Self { half: [self.half[0] + more, self.half[1] + more], ..self }
    }

    /// A part of it: from `from` to `to` along it (-1: its back, 1: its front), that share of its width.
    pub(super) fn part(self, from: f64, to: f64, width: f64) -> Self {
        let shift = (from + to) / 2.0 * self.half[0];
        Self {
            middle: [self.middle[0] + shift * self.direction[0], self.middle[1] + shift * self.direction[1]],
            half: [(to - from) / 2.0 * self.half[0], width * self.half[1]],
            ..self
        }
    }

    fn is_finite(&self) -> bool {
        [self.middle, self.direction, self.half].iter().flatten().all(|x| x.is_finite())
    }

    /// Calls `visit` with the place of each pixel that it covers, and how much of it (0 to 1).
    fn cover(&self, width: usize, height: usize, mut visit: impl FnMut(usize, f64)) {
        if !self.is_finite() {
            return;
        }
        let ([mx, my], [c, s], [long, wide]) = (self.middle, self.direction, self.half);
        // Pixels up to half a pixel outside are still touched.
        let (reach_long, reach_wide) = (long + 0.5, wide + 0.5);
        let tall = reach_long * s.abs() + reach_wide * c.abs();
        // Conversions of floats to integers saturate.
        let top = (my - tall).floor().max(0.0) as usize;
        let bottom = ((my + tall).ceil().max(0.0) as usize).min(height);
        for row in top..bottom {
            let dy = row as f64 + 0.5 - my;
            // Along the row |c dx + s dy| and |c dy - s dx| must stay within reach.
            let (mut from, mut to) = (f64::NEG_INFINITY, f64::INFINITY);
            for (slope, rest, reach) in [(c, s * dy, reach_long), (-s, c * dy, reach_wide)] {
                if slope.abs() < 1e-12 {
                    if rest.abs() > reach {
                        to = f64::NEG_INFINITY;
                    }
                } else {
                    let (a, b) = ((-reach - rest) / slope, (reach - rest) / slope);
                    from = from.max(a.min(b));
                    to = to.min(a.max(b));
                }
            }
            if from > to {
                continue;
            }
            let left = (mx + from - 0.5).floor().max(0.0) as usize;
            let right = ((mx + to + 0.5).ceil().max(0.0) as usize).min(width);
            for column in left..right {
                let dx = column as f64 + 0.5 - mx;
                let along = (reach_long - (c * dx + s * dy).abs()).clamp(0.0, (2.0 * long).min(1.0));
                let across = (reach_wide - (c * dy - s * dx).abs()).clamp(0.0, (2.0 * wide).min(1.0));
                if along * across > 0.0 {
                    visit(row * width + column, along * across);
                }
            }
        }
    }
}

/// Coverage of each pixel by a shape of many overlapping rectangles, 0 to 255.
pub(super) struct Mask {
    cover: Vec<u8>,
}

impl<'a> Canvas<'a> {
    /// # Panics
    /// Unless there are three bytes a pixel.
    pub(super) fn new(width: usize, height: usize, pixels: &'a mut [u8]) -> Self {
        assert_eq!(pixels.len(), width * height * 3, "three bytes a pixel");
        Self { width, height, pixels }
    }

    pub(super) fn fill(&mut self, colour: Colour) {
        let row = colour.repeat(self.width);
        for pixels in self.pixels.chunks_exact_mut(row.len().max(1)) {
            pixels.copy_from_slice(&row);
        }
    }

    /// Lays `colour` over a pixel; `alpha` from 0 (nothing) to 256 (nothing but it).
    fn blend(&mut self, place: usize, colour: Colour, alpha: u32) {
        if alpha == 256 {
            self.pixels[3 * place..3 * place + 3].copy_from_slice(&colour);
            return;
        }
        for (channel, new) in self.pixels[3 * place..3 * place + 3].iter_mut().zip(colour) {
            *channel = ((u32::from(*channel) * (256 - alpha) + u32::from(new) * alpha) >> 8) as u8;
        }
    }

    pub(super) fn rectangle(&mut self, shape: Rectangle, colour: Colour, opacity: f64) {
        let (width, height) = (self.width, self.height);
        shape.cover(width, height, |place, cover| self.blend(place, colour, (256.0 * cover * opacity) as u32));
    }

    pub(super) fn mask(&self) -> Mask {
        Mask { cover: vec![0; self.width * self.height] }
    }

    pub(super) fn add_to_mask(&self, mask: &mut Mask, shape: Rectangle) {
        shape.cover(self.width, self.height, |place, cover| {
            let pixel = &mut mask.cover[place];
            *pixel = (*pixel).max((255.0 * cover) as u8);
        });
    }

    pub(super) fn fill_mask(&mut self, mask: &Mask, colour: Colour) {
        const RUN: usize = 64;
        for (run, covers) in mask.cover.chunks(RUN).enumerate() {
            // Most of a picture has none of it.
            if covers.iter().fold(0, |all, cover| all | cover) == 0 {
                continue;
            }
            for (i, &cover) in covers.iter().enumerate().filter(|(_, cover)| **cover > 0) {
                self.blend(run * RUN + i, colour, u32::from(cover) + 1);
            }
        }
    }

    /// Writes `text` with its upper left corner at a pixel; each dot of the font is a square of `size` pixels.
    pub(super) fn text(&mut self, [x, y]: [i64; 2], text: &str, size: i64, colour: Colour) {
        for (place, letter) in text.chars().enumerate() {
            let left = x + place as i64 * font::ADVANCE * size;
            for (row, dots) in font::glyph(letter).iter().enumerate() {
                for column in (0..font::WIDTH).filter(|column| dots >> (font::WIDTH - 1 - column) & 1 == 1) {
                    let at = [left + column * size, y + row as i64 * size];
                    for (dx, dy) in (0..size).flat_map(|dy| (0..size).map(move |dx| (dx, dy))) {
                        self.dot(at[0] + dx, at[1] + dy, colour);
                    }
                }
            }
        }
    }

    fn dot(&mut self, x: i64, y: i64, colour: Colour) {
        if (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y) {
            self.blend(y as usize * self.width + x as usize, colour, 256);
        }
    }
}
