//! A network of linked lanes as a table of numbers, which is what comes from outside: read and checked here.

use super::curve::Curve;
use super::junctions::{Crossing, Junctions, Light, Program};
use super::network::{Network, Section};
use super::polyline::Polyline;
use super::scenario::Options;
use crate::traffic::lane::{Lane, Line};

/// Numbers of a lane: points of its shape, section, width (m), speed limit (m/s), left and right marking, and 1 if
/// vehicles may not change to it.
const LANE: usize = 7;

fn line(number: f64) -> Line {
    match number as u8 {
        0 => Line::None,
        1 => Line::Striped,
        _ => Line::Continuous,
    }
}

fn light(number: f64) -> Light {
    match number as u8 {
        0 => Light::Red,
        1 => Light::Amber,
        2 => Light::Green,
        _ => Light::Major,
    }
}

/// Groups of `size` numbers of an option.
fn rows<'a>(options: &'a Options, key: &str, size: usize) -> Result<std::slice::ChunksExact<'a, f64>, String> {
    let numbers = options.get(key)?;
    if numbers.len() % size == 0 && numbers.iter().all(|number| number.is_finite()) {
        Ok(numbers.chunks_exact(size))
    } else {
        Err(format!("{key}: expected groups of {size} finite numbers, got {}", numbers.len()))
    }
}

/// The same as indices below `bounds`.
fn index_rows<const N: usize>(options: &Options, key: &str, bounds: [usize; N]) -> Result<Vec<[usize; N]>, String> {
    let indices = options.indices(key)?;
    let rows: Vec<[usize; N]> = indices.chunks(N).filter_map(|row| row.try_into().ok()).collect();
    let sound = rows.len() * N == indices.len() && rows.iter().flatten().zip(bounds.iter().cycle()).all(|(i, n)| i < n);
    if sound { Ok(rows) } else { Err(format!("{key}: expected indices of what is there")) }
}

/// The network of the options `points` (x, y), `lanes` ([`LANE`] numbers each), `sections` (two nodes each), `links` (two
/// lanes each), `crossings` (lanes), `foes` (a lane, one that crosses or joins it, and 1 if that goes first), `signals`
/// (a lane, a program, a link) and `programs` (offset, phases, links, and for each phase its duration and lights).
pub(super) fn network(options: &Options) -> Result<Network, String> {
    let (mut points, table) = (rows(options, "points", 2)?, rows(options, "lanes", LANE)?);
    let ends = index_rows(options, "sections", [1 << 24; 2])?;
    let mut sections: Vec<Section> = ends.into_iter().map(|[from, to]| Section { from, to, lanes: 0..0 }).collect();
    let mut lanes: Vec<Lane<Curve>> = Vec::new();
    for row in table {
        let &[count, section, width, limit, left, right, forbidden] = row else { unreachable!("rows have this size") };
        let shape: Vec<[f64; 2]> = points.by_ref().take(count as usize).map(|at| [at[0], at[1]]).collect();
        let shape = Polyline::new(&shape).ok_or_else(|| format!("lane {} has no length", lanes.len()))?;
        if !(width > 0.0 && limit > 0.0) {
            return Err(format!("lane {} has the width {width} and the speed limit {limit}", lanes.len()));
        }
        let known = sections.get_mut(section as usize).filter(|s| s.lanes.is_empty() || s.lanes.end == lanes.len());
        let section = known.ok_or_else(|| format!("lane {} is not beside those of its section", lanes.len()))?;
        let start = if section.lanes.is_empty() { lanes.len() } else { section.lanes.start };
        section.lanes = start..lanes.len() + 1;
        let (lines, speed_limit) = ([line(left), line(right)], Some(limit));
        lanes.push(Lane { width, lines, speed_limit, forbidden: forbidden > 0.0, ..Lane::new(Curve::Polyline(shape)) });
    }
    let in_order = sections.iter().scan(0, |next, section| {
        let follows = section.lanes.start == *next && !section.lanes.is_empty();
        *next = section.lanes.end;
        Some(follows)
    });
    if lanes.is_empty() || !in_order.into_iter().all(|follows| follows) {
        return Err("sections: expected lanes of each, in order".into());
    }
    let n = lanes.len();
    let links = index_rows(options, "links", [n; 2])?.into_iter().map(|[from, to]| (from, to)).collect::<Vec<_>>();
    let nodes = sections.iter().map(|section| section.from.max(section.to) + 1).max().unwrap_or(0);
    let nodes = (0..nodes).map(|node| node.to_string()).collect();
    let network = Network::linked(nodes, sections, lanes, &links, junctions(options, n)?);
    Ok(network)
}

fn junctions(options: &Options, lanes: usize) -> Result<Junctions, String> {
    let mut crossings: Vec<Option<Crossing>> = vec![None; lanes];
    for [lane] in index_rows(options, "crossings", [lanes])? {
        crossings[lane] = Some(Crossing::default());
    }
    let missing = |lane: usize| format!("lane {lane} crosses no junction");
    for [lane, foe, first] in index_rows(options, "foes", [lanes, lanes, 2])? {
        let crossing = crossings[lane].as_mut().ok_or_else(|| missing(lane))?;
        crossing.foes.push(foe as u32);
        if first == 1 {
            crossing.first.push(foe as u32);
        }
    }
    for crossing in crossings.iter_mut().flatten() {
        crossing.foes.sort_unstable();
        crossing.first.sort_unstable();
    }
    for [lane, program, link] in index_rows(options, "signals", [lanes, 1 << 24, 1 << 24])? {
        crossings[lane].as_mut().ok_or_else(|| missing(lane))?.signal = Some((program as u32, link as u32));
    }
    let mut programs = Vec::new();
    let mut rest = options.get("programs")?;
    while let [offset, phases, links, table @ ..] = rest {
        let (phases, links) = (*phases as usize, *links as usize);
        let size = phases.checked_mul(links + 1).filter(|&size| size <= table.len());
        let (own, later) = table.split_at(size.ok_or("programs: expected all phases")?);
        let phases = own.chunks_exact(links + 1).map(|row| (row[0], row[1..].iter().map(|&l| light(l)).collect()));
        programs.push(Program { offset: *offset, phases: phases.collect() });
        rest = later;
    }
    let junctions = Junctions { crossings, programs };
    junctions.check().map(|()| junctions)
}
