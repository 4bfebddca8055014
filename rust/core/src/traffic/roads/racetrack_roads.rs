//! The roads of the racetracks, section after section.
//!
//! Source: `_make_road` of `highway_env/envs/racetrack_env.py`.

use super::Builder;
use super::curve::Curve;
use crate::traffic::lane::{Lane, Line};

/// Metres.
const WIDTH: f64 = 5.0;
/// m/s.
const SPEED_LIMIT: f64 = 10.0;

use Line::{Continuous as C, None as N, Striped as S};

/// Markings of an inner and an outer lane, the border between them drawn by the outer or the inner one, or by both.
const BY_OUTER: [[Line; 2]; 2] = [[C, N], [S, C]];
const BY_INNER: [[Line; 2]; 2] = [[C, S], [N, C]];
const BY_BOTH: [[Line; 2]; 2] = [[C, S], [S, C]];
/// The same of three lanes.
const OF_THREE: [[Line; 2]; 3] = [[C, N], [S, S], [N, C]];

/// The oval's options.
#[derive(Debug)]
pub(super) struct Oval {
    /// Length of the first straight, metres.
    pub length: f64,
    pub lanes: usize,
    /// True if obstacles stand between the second lane's edges, and on the first and the third one.
    pub block_lane: bool,
    pub force_decision: bool,
}

impl Oval {
    pub(super) fn obstacles(&self) -> impl Iterator<Item = [f64; 2]> {
        let x = self.length;
        let block = [40.0, 43.0, 46.0, 49.0].into_iter().flat_map(move |back| [[x - back, 3.75], [x - back, 6.25]]);
        let force = [-1.25, 1.25, 8.85, 11.25].into_iter().map(move |y| [x - 90.0, y]);
        let wanted = |wanted: bool| if wanted { usize::MAX } else { 0 };
        block.take(wanted(self.block_lane)).chain(force.take(wanted(self.force_decision)))
    }
}

/// The lanes of one section.
fn add(roads: &mut Builder, nodes: &str, limit: f64, lanes: impl IntoIterator<Item = (Curve, [Line; 2])>) {
    let (from, to) = nodes.split_at(1);
    for (curve, lines) in lanes {
        roads.add(from, to, Lane { lines, width: WIDTH, speed_limit: Some(limit), ..Lane::new(curve) });
    }
}

/// An arc between two angles, degrees, which turns left or right.
fn arc(centre: [f64; 2], radius: f64, [from, to]: [f64; 2], clockwise: bool) -> Curve {
    Curve::circular(centre, radius, [from.to_radians(), to.to_radians()], clockwise)
}

/// The track of two lanes.
pub(super) fn usual() -> Builder {
    let mut roads = Builder::default();
    let straight = |roads: &mut Builder, nodes, lines: [[Line; 2]; 2], ends: [[[f64; 2]; 2]; 2]| {
        let lanes = ends.map(|[from, to]| Curve::straight(from, to));
        add(roads, nodes, SPEED_LIMIT, lanes.into_iter().zip(lines));
    };
    let turn = |roads: &mut Builder, nodes, lines: [[Line; 2]; 2], centre, arcs: [(f64, [f64; 2]); 2], clockwise| {
        let lanes = arcs.map(|(radius, angles)| arc(centre, radius, angles, clockwise));
        add(roads, nodes, SPEED_LIMIT, lanes.into_iter().zip(lines));
    };
    straight(&mut roads, "ab", BY_BOTH, [[[42.0, 0.0], [100.0, 0.0]], [[42.0, 5.0], [100.0, 5.0]]]);
    let angles = [90.0, -1.0];
    turn(&mut roads, "bc", BY_OUTER, [100.0, -20.0], [(20.0, angles), (25.0, angles)], false);
    straight(&mut roads, "cd", BY_OUTER, [[[120.0, -20.0], [120.0, -30.0]], [[125.0, -20.0], [125.0, -30.0]]]);
    let angles = [0.0, -181.0];
    turn(&mut roads, "de", BY_OUTER, [105.0, -30.0], [(15.0, angles), (20.0, angles)], false);
    turn(&mut roads, "ef", BY_INNER, [70.0, -30.0], [(20.0, [0.0, 136.0]), (15.0, [0.0, 137.0])], true);
    let ends = [[[55.7, -15.7], [35.7, -35.7]], [[59.3934, -19.2], [39.3934, -39.2]]];
    straight(&mut roads, "fg", BY_OUTER, ends);
    let arcs = [(25.0, [315.0, 170.0]), (30.0, [315.0, 165.0])];
    turn(&mut roads, "gh", BY_OUTER, [18.1, -18.1], arcs, false);
    let arcs = [(25.0, [170.0, 56.0]), (30.0, [170.0, 58.0])];
    turn(&mut roads, "hi", BY_OUTER, [18.1, -18.1], arcs, false);
    let arcs = [(23.5, [240.0, 270.0]), (18.5, [238.0, 268.0])];
    turn(&mut roads, "ia", BY_INNER, [43.2, 23.4], arcs, true);
    roads
}

/// The track of three lanes.
pub(super) fn large(limit: f64) -> Builder {
    let mut roads = Builder::default();
    let mut section = |nodes, lines: [[Line; 2]; 3], lanes: [Curve; 3]| {
        add(&mut roads, nodes, limit, lanes.into_iter().zip(lines));
    };
    let aside = [0.0, WIDTH, 2.0 * WIDTH];
    let lines = [[C, S], [S, S], [N, C]];
    section("ab", lines, aside.map(|y| Curve::straight([42.0, y], [200.0, y])));
    section("bc", OF_THREE, aside.map(|w| arc([200.0, -20.0], 20.0 + w, [90.0, -1.0], false)));
    section("cd", OF_THREE, aside.map(|w| Curve::straight([220.0 + w, -20.0], [220.0 + w, -61.0])));
    section("de", OF_THREE, aside.map(|w| arc([205.0, -60.0], 15.0 + w, [0.0, -181.0], false)));
    let arcs = [(20.0, 136.0), (15.0, 137.0), (10.0, 137.0)];
    section("ef", OF_THREE, arcs.map(|(radius, to)| arc([170.0, -60.0], radius, [0.0, to], true)));
    // The third lane is as far from the second as that from the first.
    let beyond = |a: [f64; 2], b: [f64; 2]| [a[0] + 2.0 * (b[0] - a[0]), a[1] + 2.0 * (b[1] - a[1])];
    let starts = [[155.7, -45.7], [159.3934, -49.2]];
    let ends = [[135.7 - 30.0, -65.7 - 30.0], [139.3934 - 30.0, -69.2 - 30.0]];
    let slants = [[starts[0], ends[0]], [starts[1], ends[1]], [beyond(starts[0], starts[1]), beyond(ends[0], ends[1])]];
    section("fg", OF_THREE, slants.map(|[from, to]| Curve::straight(from, to)));
    let centre = [118.1 - 30.0, -48.1 - 30.0];
    let arcs = [(25.0, 202.0), (30.0, 205.0), (35.0, 205.0)];
    section("gh", OF_THREE, arcs.map(|(radius, to)| arc(centre, radius, [317.0, to], false)));
    let on_circle = |[x, y]: [f64; 2], radius: f64, degrees: f64| {
        let (sin, cos) = degrees.to_radians().sin_cos();
        [x + radius * cos, y + radius * sin]
    };
    let radius = 15.0;
    let slants = aside.map(|w| {
        let (sin, cos) = 30.0f64.to_radians().sin_cos();
        let end = [42.0 - (radius + w) * cos, -radius - (radius + w) * sin];
        Curve::straight(on_circle(centre, 25.0 + w, 205.0), end)
    });
    section("hi", OF_THREE, slants);
    let arcs = [(15.0, [210.0, 88.0]), (20.0, [210.0, 90.0]), (25.0, [212.0, 88.0])];
    section("ia", OF_THREE, arcs.map(|(radius, angles)| arc([42.0, -15.0], radius, angles, false)));
    roads
}

/// The oval of two lanes or more.
pub(super) fn oval(length: f64, lanes: usize) -> Builder {
    let mut roads = Builder::default();
    let mut section = |nodes: &str, curve: &dyn Fn(f64) -> Curve| {
        let first = if nodes == "ab" { [C, S] } else { [C, N] };
        let middle = if nodes == "ha" { [S, C] } else { [S, N] };
        let between = (1..lanes - 1).map(|i| (curve(i as f64 * WIDTH), middle));
        let outermost = (curve((lanes - 1) as f64 * WIDTH), [S, C]);
        let all = std::iter::once((curve(0.0), first)).chain(between).chain([outermost]);
        add(&mut roads, nodes, SPEED_LIMIT, all);
    };
    section("ab", &|w| Curve::straight([0.0, w], [length + 1.0, w]));
    section("bc", &|w| arc([length, -20.0], 20.0 + w, [90.0, 0.0], false));
    section("cd", &|w| Curve::straight([length + 20.0 + w, -20.0], [length + 20.0 + w, -50.0]));
    section("de", &|w| arc([length + 5.0, -50.0], 15.0 + w, [0.0, -90.0], false));
    section("ef", &|w| Curve::straight([length + 5.0, -(65.0 + w)], [-5.0, -(65.0 + w)]));
    section("fg", &|w| arc([-5.0, -50.0], 15.0 + w, [-90.0, -180.0], false));
    section("gh", &|w| Curve::straight([-20.0 - w, -50.0], [-20.0 - w, -20.0]));
    section("ha", &|w| arc([0.0, -20.0], 20.0 + w, [180.0, 90.0], false));
    roads
}
