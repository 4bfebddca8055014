//! Roads as a graph: nodes by name, between two of them a section of one or more lanes.
//!
//! Source: `highway_env/road/road.py` (`RoadNetwork`). Lanes are in the order of highway-env's nested dicts, because
//! the first of several equally near ones counts.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::curve::Curve;
use super::junctions::Junctions;
use crate::memory::arrays;
use crate::traffic::lane::{Lane, MARGIN, Shape};
use crate::traffic::math::wrap_to_pi;
use crate::traffic::obstacle::Obstacle;
use crate::traffic::vehicles::Step;

/// Sections ahead that count as connected, see [`RoadMap::leads_to`](crate::traffic::map::RoadMap::leads_to).
const DEPTH: usize = 3;

/// Lanes side by side from one node to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    pub from: usize,
    pub to: usize,
    /// From left to right.
    pub lanes: Range<usize>,
}

/// A circle around all of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cover {
    centre: [f64; 2],
    radius: f64,
    /// Factor from [`Lane::distance`] to a bound of the Euclidean distance.
    stretch: f64,
    /// Squared distance from the centre beyond which nothing is on the lane for its neighbours.
    reach: f64,
}

impl Cover {
    fn new(lane: &Lane<Curve>) -> Self {
        let outline = lane.shape().outline();
        let [low, high] = [f64::min, f64::max].map(|pick| {
            std::array::from_fn::<f64, 2, _>(|k| outline.iter().map(|at| at[k]).reduce(pick).expect("an outline"))
        });
        let centre = [(low[0] + high[0]) / 2.0, (low[1] + high[1]) / 2.0];
        let farthest = outline.iter().map(|at| (at[0] - centre[0]).hypot(at[1] - centre[1])).fold(0.0, f64::max);
        // Curves bulge between the points of their outline, by less than this.
        let (radius, stretch) = (farthest + 0.1, lane.shape().stretch());
        let reach = radius + stretch * (lane.width / 2.0 + MARGIN + 5.0);
        Self { centre, radius, stretch, reach: reach * reach }
    }

    #[inline]
    fn squared(&self, x: f64, y: f64) -> f64 {
        let (dx, dy) = (x - self.centre[0], y - self.centre[1]);
        dx * dx + dy * dy
    }

    /// Returns whether the lane is certainly farther away than that.
    #[inline]
    fn is_beyond(&self, x: f64, y: f64, distance: f64) -> bool {
        let least = self.radius + self.stretch * distance;
        self.squared(x, y) > least * least
    }
}

/// A graph of lanes, and what lies on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    nodes: Vec<String>,
    sections: Vec<Section>,
    /// Sections that leave each node.
    leaving: Vec<Vec<usize>>,
    lanes: Vec<Lane<Curve>>,
    covers: Vec<Cover>,
    /// Section of each lane.
    of_lane: Vec<usize>,
    /// The lanes that continue each lane and those that it continues, for neighbours.
    before: Vec<Vec<usize>>,
    behind: Vec<Vec<usize>>,
    pub obstacles: Vec<Obstacle>,
    /// True if vehicles also see neighbours on the sections before and behind
    /// (`neighbour_vehicles_connected_lanes`).
    pub connected: bool,
    /// The rules of its junctions, if lanes are linked one by one.
    pub(super) junctions: Option<Junctions>,
    /// There also the lanes near each lane along the links; else empty.
    near: Vec<Vec<u32>>,
}

/// Collects the lanes of a [`Network`], in any order.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    nodes: Vec<String>,
    /// From, to, lanes.
    sections: Vec<(usize, usize, Vec<Lane<Curve>>)>,
}

impl Builder {
    fn node(&mut self, name: &str) -> usize {
        self.nodes.iter().position(|node| node == name).unwrap_or_else(|| {
            self.nodes.push(name.into());
            self.nodes.len() - 1
        })
    }

    /// Adds a lane to the right of those that lead from one node to the other already (`add_lane`).
    pub fn add(&mut self, from: &str, to: &str, lane: Lane<Curve>) {
        let (from, to) = (self.node(from), self.node(to));
        match self.sections.iter_mut().find(|section| (section.0, section.1) == (from, to)) {
            Some(section) => section.2.push(lane),
            None => self.sections.push((from, to, vec![lane])),
        }
    }

    /// The network of these lanes, of which there must be some.
    pub fn build(self, connected: bool) -> Network {
        assert!(!self.sections.is_empty(), "a network has lanes");
        // Grouped by the node that they leave, in the order in which these nodes were first left.
        let mut order: Vec<usize> = Vec::new();
        for &(from, ..) in &self.sections {
            if !order.contains(&from) {
                order.push(from);
            }
        }
        let mut sorted = self.sections;
        sorted.sort_by_key(|&(from, ..)| order.iter().position(|&node| node == from));
        let mut network = Network {
            leaving: vec![Vec::new(); self.nodes.len()],
            nodes: self.nodes,
            sections: Vec::new(),
            lanes: Vec::new(),
            covers: Vec::new(),
            of_lane: Vec::new(),
            before: Vec::new(),
            behind: Vec::new(),
            obstacles: Vec::new(),
            connected,
            junctions: None,
            near: Vec::new(),
        };
        for (from, to, lanes) in sorted {
            let section = network.sections.len();
            let start = network.lanes.len();
            network.leaving[from].push(section);
            network.of_lane.extend(lanes.iter().map(|_| section));
            network.lanes.extend(lanes);
            network.sections.push(Section { from, to, lanes: start..network.lanes.len() });
        }
        network.covers = network.lanes.iter().map(Cover::new).collect();
        network.link();
        network
    }
}

impl Network {
    /// Finds what comes before and behind each lane: the lane with the same number, else the first one.
    fn link(&mut self) {
        let pick = |section: &Section, number: usize| {
            let lanes = section.lanes.clone();
            if number < lanes.len() { lanes.start + number } else { lanes.start }
        };
        for lane in 0..self.lanes.len() {
            let own = &self.sections[self.of_lane[lane]];
            let number = lane - own.lanes.start;
            self.before.push(self.leaving[own.to].iter().map(|&next| pick(&self.sections[next], number)).collect());
            let arriving = self.sections.iter().filter(|section| section.to == own.from);
            self.behind.push(arriving.map(|section| pick(section, number)).collect());
        }
    }

    /// A network of lanes that are linked one by one: pairs of a lane and one that continues it. The lanes of each
    /// section follow those of the one before.
    pub fn linked(
        nodes: Vec<String>,
        sections: Vec<Section>,
        lanes: Vec<Lane<Curve>>,
        links: &[(usize, usize)],
        junctions: Junctions,
    ) -> Self {
        let mut leaving = vec![Vec::new(); nodes.len()];
        sections.iter().enumerate().for_each(|(i, section)| leaving[section.from].push(i));
        let of_lane =
            sections.iter().enumerate().flat_map(|(i, section)| section.lanes.clone().map(move |_| i)).collect();
        let (mut before, mut behind) = (vec![Vec::new(); lanes.len()], vec![Vec::new(); lanes.len()]);
        for &(from, to) in links {
            before[from].push(to);
            behind[to].push(from);
        }
        let near = (0..lanes.len()).map(|lane| {
            let on: &Vec<usize> = &of_lane;
            let beside = |lane: usize| sections[on[lane]].lanes.clone();
            let mut near: Vec<usize> = beside(lane).collect();
            near.extend(beside(lane).flat_map(|lane| behind[lane].iter().copied()));
            let from: Vec<usize> = near.clone();
            near.extend(from.iter().flat_map(|&lane| before[lane].iter().copied()));
            let next: Vec<usize> = beside(lane).flat_map(|lane| before[lane].iter().copied()).collect();
            near.extend(next.iter().flat_map(|&lane| before[lane].iter().flat_map(|&lane| beside(lane))));
            near.sort_unstable();
            near.dedup();
            near.into_iter().map(|lane| lane as u32).collect()
        });
        let near = near.collect();
        let covers = lanes.iter().map(Cover::new).collect();
        let (obstacles, junctions) = (Vec::new(), Some(junctions));
        Self {
            nodes,
            sections,
            leaving,
            lanes,
            covers,
            of_lane,
            before,
            behind,
            obstacles,
            connected: true,
            junctions,
            near,
        }
    }

    pub fn lanes(&self) -> &[Lane<Curve>] {
        &self.lanes
    }

    /// Bytes of a network whose lanes are linked one by one, of which its scenario has one more.
    pub(super) fn memory(&self) -> usize {
        let Some(junctions) = &self.junctions else { return 0 };
        let indices = self.before.iter().chain(&self.behind).map(Vec::len).sum::<usize>();
        let near = self.near.iter().map(Vec::len).sum::<usize>();
        let points = self.lanes.iter().map(|lane| lane.shape().outline().len()).sum::<usize>();
        let names = 2 * size_of::<String>() + size_of::<Section>() + 2 * size_of::<Vec<usize>>();
        let rows = names + 3 * size_of::<Vec<u32>>() + size_of::<Cover>() + size_of::<Lane<Curve>>() + 16;
        let tables = self.lanes.len() * rows + points * size_of::<[f64; 7]>() + indices * size_of::<usize>() + near * 4;
        arrays(9 * self.lanes.len(), tables.saturating_add(junctions.memory()))
    }

    /// Returns whether its lanes are linked one by one.
    #[inline]
    pub(super) fn is_linked(&self) -> bool {
        self.junctions.is_some()
    }

    /// The sections that leave a node.
    pub(super) fn leaving(&self, node: usize) -> &[usize] {
        &self.leaving[node]
    }

    /// The lanes near a lane, where lanes are linked one by one.
    #[inline]
    pub(super) fn near(&self, lane: usize) -> &[u32] {
        &self.near[lane]
    }

    #[inline]
    pub fn lane(&self, lane: usize) -> &Lane<Curve> {
        &self.lanes[lane]
    }

    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The section of a lane.
    #[inline]
    pub fn section_of(&self, lane: usize) -> usize {
        self.of_lane[lane]
    }

    /// highway-env's index of a lane: two nodes and a number.
    pub fn index_of(&self, lane: usize) -> (&str, &str, usize) {
        let section = &self.sections[self.of_lane[lane]];
        (&self.nodes[section.from], &self.nodes[section.to], lane - section.lanes.start)
    }

    /// The lane of an index. Panics if it does not exist.
    pub fn find(&self, from: &str, to: &str, number: usize) -> usize {
        let section = self.sections.iter().find(|s| self.nodes[s.from] == from && self.nodes[s.to] == to);
        let lanes = section.unwrap_or_else(|| panic!("no road from {from} to {to}")).lanes.clone();
        assert!(number < lanes.len(), "no lane {number} from {from} to {to}");
        lanes.start + number
    }

    fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node == name)
    }

    pub(super) fn before(&self, lane: usize) -> &[usize] {
        &self.before[lane]
    }

    pub(super) fn behind(&self, lane: usize) -> &[usize] {
        &self.behind[lane]
    }

    /// The longitudinal place of what is on a lane as its neighbours see it; None off the lane.
    #[inline]
    pub(super) fn along(&self, lane: usize, x: f64, y: f64) -> Option<f64> {
        self.along_within(lane, x, y, MARGIN)
    }

    /// The same with another margin to the side, at most [`MARGIN`] metres.
    #[inline]
    pub(super) fn along_within(&self, lane: usize, x: f64, y: f64, margin: f64) -> Option<f64> {
        let cover = &self.covers[lane];
        if cover.squared(x, y) > cover.reach {
            return None;
        }
        self.lanes[lane].along(x, y, margin)
    }

    /// The closest lane, if that lane is at most `bound` away in place and heading.
    #[inline]
    fn closest_within(&self, bound: f64, x: f64, y: f64, heading: f64) -> usize {
        let mut best = (f64::INFINITY, 0);
        for (i, (lane, cover)) in self.lanes.iter().zip(&self.covers).enumerate() {
            let nearer = best.0.min(bound);
            if cover.is_beyond(x, y, nearer) || lane.shape().least_lateral(x, y) > nearer {
                continue;
            }
            let (s, lateral) = lane.local(x, y);
            let distance = lateral.abs() + (s - lane.length()).max(0.0) + (-s).max(0.0);
            if distance > nearer {
                continue;
            }
            let distance = distance + wrap_to_pi(heading - lane.heading_at(s)).abs();
            if distance < best.0 {
                best = (distance, i);
            }
        }
        best.1
    }

    /// `RoadNetwork.get_closest_lane_index`, quickly where lane `lane` is near.
    #[inline]
    pub(super) fn closest_to(&self, lane: usize, x: f64, y: f64, heading: f64) -> usize {
        let near = &self.lanes[lane];
        let (s, lateral) = near.local(x, y);
        let distance = lateral.abs() + (s - near.length()).max(0.0) + (-s).max(0.0);
        let bound = distance + wrap_to_pi(heading - near.heading_at(s)).abs();
        // Rounding must not leave out the lane itself.
        self.closest_within(bound + 1e-9, x, y, heading)
    }

    /// The sections of a shortest way between two nodes, none if there is no way (`RoadNetwork.shortest_path`): breadth
    /// first, in the order of the nodes' names.
    fn shortest_way(&self, start: usize, goal: usize) -> Vec<usize> {
        let mut reached_by: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            let mut next: Vec<usize> = self.leaving[node].clone();
            next.sort_by(|&a, &b| self.nodes[self.sections[a].to].cmp(&self.nodes[self.sections[b].to]));
            for section in next {
                let to = self.sections[section].to;
                if to == start || reached_by[to].is_some() {
                    continue;
                }
                reached_by[to] = Some(section);
                if to == goal {
                    let mut way = vec![section];
                    while self.sections[way[0]].from != start {
                        way.insert(0, reached_by[self.sections[way[0]].from].expect("a way from the start"));
                    }
                    return way;
                }
                queue.push_back(to);
            }
        }
        Vec::new()
    }

    /// The route of one who is on `lane` to a node (`plan_route_to`); only the present lane if there is no way.
    pub fn route(&self, lane: usize, goal: &str) -> Vec<Step> {
        let section = self.of_lane[lane];
        let here = &self.sections[section];
        let first = Step { section: section as u32, lane: Some((lane - here.lanes.start) as u32) };
        let way = self.node(goal).map_or_else(Vec::new, |goal| self.shortest_way(here.to, goal));
        let rest = way.into_iter().map(|section| Step { section: section as u32, lane: None });
        std::iter::once(first).chain(rest).collect()
    }

    /// The lane of a step of a route for one who keeps the number of lane `current`.
    pub(super) fn lane_of_step(&self, step: Step, current: usize) -> usize {
        let number = step.lane.map_or_else(|| self.number(current), |number| number as usize);
        let lanes = &self.sections[step.section as usize].lanes;
        lanes.start + number.min(lanes.len() - 1)
    }

    /// The number of a lane in its section.
    #[inline]
    pub(super) fn number(&self, lane: usize) -> usize {
        lane - self.sections[self.of_lane[lane]].lanes.start
    }

    /// The lane that follows at the end of `lane` for a vehicle at (x, y); takes the steps that are done off its route
    /// (`RoadNetwork.next_lane`).
    pub(super) fn next_lane(&self, lane: usize, route: &mut Vec<Step>, x: f64, y: f64) -> usize {
        let section = self.of_lane[lane];
        if route.first().is_some_and(|step| step.section as usize == section) {
            route.remove(0);
        }
        let (node, own) = (self.sections[section].to, &self.lanes[lane]);
        let (x, y) = own.position(own.local(x, y).0, 0.0);
        let planned = route.first().filter(|step| self.sections[step.section as usize].from == node);
        if let Some(step) = planned {
            return self.lane_on(lane, step.section as usize, step.lane.map(|number| number as usize), x, y).0;
        }
        let mut best = (lane, f64::INFINITY);
        for &next in &self.leaving[node] {
            let (there, distance) = self.lane_on(lane, next, None, x, y);
            if distance < best.1 {
                best = (there, distance);
            }
        }
        best.0
    }

    /// The lane of section `next` to take from `lane`, and its distance from a place (`next_lane_given_next_road`).
    fn lane_on(&self, lane: usize, next: usize, number: Option<usize>, x: f64, y: f64) -> (usize, f64) {
        let lanes = self.sections[next].lanes.clone();
        if lanes.len() == self.sections[self.of_lane[lane]].lanes.len() {
            let there = lanes.start + number.unwrap_or_else(|| self.number(lane));
            return (there, self.lanes[there].distance(x, y));
        }
        let mut best = (lanes.start, f64::INFINITY);
        for there in lanes {
            let distance = self.lanes[there].distance(x, y);
            if distance < best.1 {
                best = (there, distance);
            }
        }
        best
    }

    /// `RoadNetwork.is_connected_road`.
    pub(super) fn is_connected(&self, from: usize, to: usize, route: &[Step]) -> bool {
        self.connects(self.of_lane[from], self.of_lane[to], route, DEPTH)
    }

    fn connects(&self, from: usize, to: usize, route: &[Step], depth: usize) -> bool {
        if from == to || self.sections[to].to == self.sections[from].from {
            return true;
        }
        if depth == 0 {
            return false;
        }
        match route.first() {
            Some(step) if step.section as usize == from => self.connects(from, to, &route[1..], depth),
            Some(step) if self.sections[step.section as usize].from == self.sections[from].to => {
                self.connects(step.section as usize, to, &route[1..], depth - 1)
            }
            _ => self.leaving[self.sections[from].to].iter().any(|&next| self.connects(next, to, route, depth - 1)),
        }
    }

    /// Returns whether every step of a route exists.
    pub(super) fn has(&self, route: &[Step]) -> bool {
        route.iter().all(|step| {
            self.sections
                .get(step.section as usize)
                .is_some_and(|section| step.lane.is_none_or(|number| (number as usize) < section.lanes.len()))
        })
    }
}
