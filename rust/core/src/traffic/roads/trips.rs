//! `road-v0`: vehicles that drive from one edge to another on a network of linked lanes, by chance or by a timetable.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use super::Network;
use super::plan;
use super::scenario::{Options, Parts, Place, Scenario, share};
use super::world::World;
use crate::traffic::Model;
use crate::traffic::action::LastAction;
use crate::traffic::map::RoadMap;
use crate::traffic::vehicles::{LENGTH, Step, Vehicle};

/// An agent has arrived so far along its last edge, or half of it, metres.
const ARRIVAL: f64 = 25.0;
/// Others keep this far from where agents start, metres.
const ROOM: f64 = 20.0;
/// Distance of a new vehicle from others, at least, and what its speed adds to it, metres and seconds.
const LEAST: f64 = 9.0;
const TIME_GAP: f64 = 1.2;
/// Speed of vehicles that begin just before a turn, m/s.
const TURN: f64 = 3.0;
/// Vehicles so far off a lane are in the way of new ones, metres.
const BESIDE: f64 = 0.5;
/// A vehicle leaves the roads so short before the end of its way, metres.
const LEAVING: f64 = 3.0;
/// Places that are tried for a vehicle.
const TRIES: usize = 12;
/// Vehicles that wait for room and are tried in a step.
const MOST_TRIED: usize = 20;
/// The lights' clock starts within this time, seconds.
const CLOCK: u32 = 3600;

/// Vehicles that depart by chance.
struct Flow {
    /// Seconds.
    begin: f64,
    end: f64,
    /// Probability a second.
    probability: f64,
    route: u32,
}

pub(super) struct Trips {
    collision_reward: f64,
    high_speed_reward: f64,
    arrived_reward: f64,
    on_road_reward: f64,
    violation_reward: f64,
    reward_speed_range: [f64; 2],
    offroad_terminal: bool,
    /// True if the vehicles of agents change lanes by themselves where their routes need it.
    navigates: bool,
    controlled: usize,
    /// Vehicles of the traffic at once: kept up by random trips, or the most that a timetable puts on the roads.
    count: usize,
    /// Seconds that the traffic drives before the agents come, and the time at which the timetable begins.
    warm_up: f64,
    begin: f64,
    /// The first and the last edge of each agent; None: random.
    ends: Vec<[Option<usize>; 2]>,
    pub(super) network: Network,
    /// Sections that cross no junction, those of them that nothing leads to, and those that lead nowhere. All edges
    /// where there are none.
    edges: Vec<usize>,
    sources: Vec<usize>,
    sinks: Vec<usize>,
    /// Ways of the timetable, from edge to edge across the junctions.
    routes: Vec<Vec<Step>>,
    /// Times and routes of its vehicles, in the order of the times.
    departures: Vec<(f64, u32)>,
    flows: Vec<Flow>,
    /// True if there is a timetable.
    planned: bool,
    /// Digest of all options.
    digest: u64,
}

impl fmt::Debug for Trips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trips").field("digest", &self.digest).field("count", &self.count).finish_non_exhaustive()
    }
}

impl Trips {
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Self::with_agents(options, 1..=100)
    }

    /// Trips with so many agents. The network can be changed before the first episode.
    pub(super) fn with_agents(options: &Options, agents: RangeInclusive<usize>) -> Result<Self, String> {
        let network = plan::network(options)?;
        let junctions = network.junctions.as_ref().ok_or("the network is not linked")?;
        let sections = network.sections();
        let crosses = |section: usize| junctions.crossing(sections[section].lanes.start).is_some();
        let edges: Vec<usize> = (0..sections.len()).filter(|&section| !crosses(section)).collect();
        let or_all = |some: Vec<usize>| if some.is_empty() { edges.clone() } else { some };
        let leads = |section: usize, links: fn(&Network, usize) -> bool| {
            sections[section].lanes.clone().any(|lane| links(&network, lane))
        };
        let sinks = edges.iter().copied().filter(|&edge| !leads(edge, |road, lane| !road.before(lane).is_empty()));
        let sources = edges.iter().copied().filter(|&edge| !leads(edge, |road, lane| !road.behind(lane).is_empty()));
        let (sources, sinks) = (or_all(sources.collect()), or_all(sinks.collect()));
        let controlled = options.count("controlled_vehicles", *agents.start(), *agents.end())?;
        let room = |edge: &usize| {
            let lanes = sections[*edge].lanes.clone();
            lanes.map(|lane| (network.lane(lane).length() / (2.0 * LEAST)) as usize).sum::<usize>()
        };
        let most = edges.iter().map(room).sum::<usize>();
        if controlled > most {
            return Err(format!("controlled_vehicles: there is room for {most} on these roads, got {controlled}"));
        }
        let ends: Vec<usize> = options.indices("ends")?;
        let known = |section: usize| edges.contains(&section).then_some(section);
        let ends: Vec<[Option<usize>; 2]> = ends.chunks_exact(2).map(|pair| [known(pair[0]), known(pair[1])]).collect();
        if ends.len() != controlled {
            return Err(format!("ends: expected those of {controlled} agents, got {}", ends.len()));
        }
        for edge in &edges {
            let (given, most) = (ends.iter().filter(|ends| ends[0] == Some(*edge)).count(), room(edge).max(1));
            if given > most {
                return Err(format!("origin: there is room for {most} agents on one edge, got {given}"));
            }
        }
        let mut routes = Vec::new();
        let table = options.indices("routes")?;
        let mut rest = &table[..];
        while let [count, table @ ..] = rest {
            let (own, later) = table.split_at_checked(*count).ok_or("routes: expected all edges")?;
            routes.push(across(&network, own)?);
            rest = later;
        }
        let pairs = |key: &str, size: usize| -> Result<Vec<Vec<f64>>, String> {
            let rows: Vec<Vec<f64>> = options.get(key)?.chunks_exact(size).map(<[f64]>::to_vec).collect();
            let sound = rows.iter().all(|row| row[size - 1] < routes.len() as f64 && row.iter().all(|x| x.is_finite()));
            if sound { Ok(rows) } else { Err(format!("{key}: expected routes that are there")) }
        };
        let mut departures: Vec<(f64, u32)> =
            pairs("departures", 2)?.into_iter().map(|row| (row[0], row[1] as u32)).collect();
        departures.sort_by(|a, b| a.0.total_cmp(&b.0));
        let flows = pairs("flows", 4)?.into_iter().map(|row| {
            let (begin, end, probability, route) = (row[0], row[1], row[2], row[3] as u32);
            Flow { begin, end, probability, route }
        });
        let mut hasher = DefaultHasher::new();
        for (key, values) in &options.0 {
            key.hash(&mut hasher);
            values.iter().for_each(|value| value.to_bits().hash(&mut hasher));
        }
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            arrived_reward: options.number("arrived_reward")?,
            on_road_reward: options.number("on_road_reward")?,
            violation_reward: options.number("violation_reward")?,
            reward_speed_range: options.pair("reward_speed_range")?,
            offroad_terminal: options.flag("offroad_terminal")?,
            navigates: options.flag("navigates")?,
            controlled,
            count: options.count("vehicles_count", 0, 10_000)?,
            warm_up: options.number("warm_up")?,
            begin: options.number("begin")?,
            ends,
            edges,
            sources,
            sinks,
            departures,
            flows: flows.collect(),
            planned: options.flag("planned")?,
            digest: hasher.finish(),
            routes,
            network,
        })
    }

    fn road<'a>(&self, place: &'a Place<'_>) -> &'a Network {
        &place.world.traffic.road
    }

    /// One of several at random.
    fn one_of(some: &[usize], place: &mut Place<'_>) -> usize {
        some[place.rng.below(some.len() as u32) as usize]
    }

    /// A random way from an edge, to the edge of the network where there is one; only the edge if it leads nowhere.
    fn way_from(&self, edge: usize, place: &mut Place<'_>) -> Vec<Step> {
        for choice in [&self.sinks, &self.edges] {
            for _ in 0..TRIES {
                let goal = Self::one_of(choice, place);
                if goal != edge
                    && let Some(way) = self.road(place).way(edge, goal)
                {
                    return way;
                }
            }
        }
        vec![Step { section: edge as u32, lane: None }]
    }

    /// A way for an agent.
    fn way_of(&self, agent: usize, place: &mut Place<'_>) -> Vec<Step> {
        let [first, last] = self.ends[agent];
        let mut way = Vec::new();
        for _ in 0..TRIES * 8 {
            let from = first.unwrap_or_else(|| Self::one_of(&self.edges, place));
            way = match last {
                Some(last) => self.road(place).way(from, last).unwrap_or_default(),
                None => self.way_from(from, place),
            };
            if way.len() > 1 || first.is_some() {
                break;
            }
        }
        let stay = first.or(last).unwrap_or(self.edges[0]);
        if way.is_empty() { vec![Step { section: stay as u32, lane: None }] } else { way }
    }

    /// Distance along a lane from a place to the nearest vehicle for which `counts` is true, metres.
    fn clearance(place: &Place<'_>, lane: usize, s: f64, counts: impl Fn(usize) -> bool) -> f64 {
        let (v, road) = (&place.world.traffic.vehicles, &place.world.traffic.road);
        let others = (0..v.len()).filter(|&j| counts(j));
        others
            .filter_map(|j| road.along_within(lane, v.x[j], v.y[j], BESIDE))
            .map(|at| (at - s).abs())
            .fold(f64::INFINITY, f64::min)
    }

    /// A vehicle of the traffic, `s` along a lane; None without room in front of it or behind it.
    fn traffic_at(&self, place: &Place<'_>, lane: usize, s: f64) -> Option<Vehicle> {
        let (road, v) = (self.road(place), &place.world.traffic.vehicles);
        let own = road.lane(lane);
        // So that it can still slow down for a turn.
        let turn = (2.0 * (own.length() - s).max(0.0) + TURN * TURN).sqrt();
        let mut speed = (0.7 * own.speed_limit.unwrap_or(0.0)).min(turn);
        let mut behind: Option<(f64, f64)> = None;
        for j in 0..v.len() {
            let Some(at) = road.along_within(lane, v.x[j], v.y[j], BESIDE).map(|at| at - s) else { continue };
            if at.abs() < LEAST {
                return None;
            }
            if at > 0.0 {
                speed = speed.min(v.speed[j].max(0.0) + (at - LEAST) / TIME_GAP);
            } else if behind.is_none_or(|(nearest, _)| at > nearest) {
                behind = Some((at, v.speed[j]));
            }
        }
        let free = behind.is_none_or(|(at, other)| -at - LEAST >= TIME_GAP * (other - speed));
        free.then(|| place.on_lane(place.other, lane, s, speed))
    }

    fn add_traffic(place: &mut Place<'_>, vehicle: &Vehicle, way: &[Step]) {
        let i = place.world.add(vehicle);
        place.world.traffic.vehicles.route[i] = way.to_vec();
        place.world.traffic.vehicles.min_speed[i] = 0.0;
        place.randomize(i);
    }

    /// Puts a vehicle at the start of a way, on the lane with most room that leads on; returns whether there was room.
    fn depart(&self, way: &[Step], place: &mut Place<'_>) -> bool {
        let road = self.road(place);
        let lanes = road.section(road.sections()[way[0].section as usize].lanes.start);
        let leads = |lane: &usize| {
            way.len() == 1 || road.lane_for_route(*lane, way).is_none_or(|n| lanes.start + n as usize == *lane)
        };
        let room = |lane: usize| Self::clearance(place, lane, start_of(road, lane), |_| true);
        let best = lanes.clone().filter(leads).max_by(|&a, &b| room(a).total_cmp(&room(b)));
        let Some(vehicle) = best.and_then(|lane| self.traffic_at(place, lane, start_of(road, lane))) else {
            return false;
        };
        Self::add_traffic(place, &vehicle, way);
        true
    }

    /// A random place on an edge: a lane and how far along it.
    fn somewhere(&self, edge: usize, place: &mut Place<'_>) -> (usize, f64) {
        let lanes = self.road(place).sections()[edge].lanes.clone();
        let lane = lanes.start + place.rng.below(lanes.len() as u32) as usize;
        let length = self.road(place).lane(lane).length();
        let low = LENGTH.min(length / 2.0);
        (lane, place.rng.uniform(low, (length - LENGTH).max(low)))
    }

    /// The lane and the place that an agent on a way starts from, or on the lane beside it that leads on.
    fn start_on(&self, way: &[Step], place: &mut Place<'_>) -> (usize, f64) {
        let (lane, s) = self.somewhere(way[0].section as usize, place);
        let road = self.road(place);
        let first = road.section(lane).start;
        let lane = road.lane_for_route(lane, way).map_or(lane, |number| first + number as usize);
        // In the first half of the edge, so that there is time for changes of lanes.
        (lane, (s / 2.0).max(start_of(road, lane)))
    }

    /// A start of an agent away from the others, sought everywhere if chance finds none.
    fn agent_start(&self, agent: usize, place: &mut Place<'_>) -> (usize, f64, Vec<Step>) {
        let room = |place: &Place<'_>, lane: usize, s: f64| {
            Self::clearance(place, lane, s, |j| place.world.agents().contains(&j))
        };
        let mut last = None;
        for _ in 0..TRIES {
            let way = self.way_of(agent, place);
            let (lane, s) = self.start_on(&way, place);
            if room(place, lane, s) > LEAST {
                return (lane, s, way);
            }
            last = Some((lane, s, way));
        }
        for &edge in self.ends[agent][0].as_ref().map_or(&self.edges[..], std::slice::from_ref) {
            for lane in self.road(place).sections()[edge].lanes.clone() {
                let mut s = start_of(self.road(place), lane);
                while s < self.road(place).lane(lane).length() - LEAVING {
                    if room(place, lane, s) > LEAST {
                        let way = match self.ends[agent][1] {
                            Some(goal) => self.road(place).way(edge, goal).unwrap_or_default(),
                            None => self.way_from(edge, place),
                        };
                        if !way.is_empty() {
                            return (lane, s, way);
                        }
                    }
                    s += 1.0;
                }
            }
        }
        last.expect("a place was tried")
    }

    /// Puts the vehicle of an agent on the roads; the traffic makes room.
    fn add_agent(&self, agent: usize, place: &mut Place<'_>) {
        let (lane, s, way) = self.agent_start(agent, place);
        let speed = 0.5 * self.road(place).lane(lane).speed_limit.unwrap_or(0.0);
        let vehicle = Vehicle { changes_lanes: self.navigates, ..place.on_lane(place.agent, lane, s, speed) };
        let i = place.world.add_agent(&vehicle);
        place.world.traffic.vehicles.route[i] = way;
        place.world.remove_if(|traffic, j| {
            let v = &traffic.vehicles;
            (v.x[j] - vehicle.x).hypot(v.y[j] - vehicle.y) < ROOM
        });
    }

    fn traffic_count(place: &Place<'_>) -> usize {
        let gone = place.world.agents().iter().filter(|&&i| i == super::world::GONE).count();
        place.world.traffic.vehicles.len() - (place.world.agents().len() - gone)
    }

    /// Adds the vehicles of the timetable that are due, and those that wait if there is room now.
    fn follow_timetable(&self, seconds: f64, place: &mut Place<'_>) {
        let now = self.begin + place.world.clock(place.frame);
        while let Some(&(_, route)) = self.departures.get(place.world.due).filter(|(time, _)| *time <= now) {
            place.world.due += 1;
            place.world.waiting.push(route);
        }
        for flow in &self.flows {
            let runs = flow.begin <= now && now < flow.end;
            if runs && place.rng.random() < 1.0 - (1.0 - flow.probability).powf(seconds) {
                place.world.waiting.push(flow.route);
            }
        }
        let waiting = std::mem::take(&mut place.world.waiting);
        for (tried, route) in waiting.into_iter().enumerate() {
            let Some(way) = self.routes.get(route as usize) else { continue };
            if tried >= MOST_TRIED || Self::traffic_count(place) >= self.count || !self.depart(way, place) {
                place.world.waiting.push(route);
            }
        }
    }

    /// Keeps up the number of vehicles by new ones at the edge of the network.
    fn fill_up(&self, place: &mut Place<'_>) {
        for _ in Self::traffic_count(place)..self.count {
            let edge = Self::one_of(&self.sources, place);
            let way = self.way_from(edge, place);
            self.depart(&way, place);
        }
    }

    /// Returns whether the way of vehicle `i` is at its end: its goal, or the end of a lane that does not lead on.
    fn is_at_end(traffic: &crate::traffic::Traffic<Network>, i: usize, before: f64) -> bool {
        let (road, v) = (&traffic.road, &traffic.vehicles);
        let lane = v.lane[i];
        let ends = road.before(lane).is_empty()
            || v.route[i].last().is_some_and(|s| s.section as usize == road.section_of(lane));
        ends && road.lane(lane).local(v.x[i], v.y[i]).0 >= road.lane(lane).length() - before
    }

    /// Takes vehicles off that have arrived, those that stand still after a crash, and those of agents that are done.
    fn clear_up(&self, place: &mut Place<'_>) {
        place.world.remove_if(|traffic, i| {
            let v = &traffic.vehicles;
            v.crashed[i] && v.speed[i].abs() < 0.1 || Self::is_at_end(traffic, i, LEAVING)
        });
        for agent in 0..self.controlled {
            let acts = place.alive.get(agent).copied().unwrap_or(false);
            let stays = place.world.vehicle_of(agent).is_none_or(|i| !self.has_succeeded(place.world, i));
            if place.alive.len() == self.controlled && !(acts && stays) {
                place.world.take_off(agent);
            }
        }
    }

    /// Returns whether vehicle `i` has lost its way.
    fn is_lost(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.route[i].is_empty() || Self::is_at_end(&world.traffic, i, LEAVING)
    }
}

/// Start of new vehicles on a lane, metres along it.
fn start_of(road: &Network, lane: usize) -> f64 {
    (LENGTH / 2.0 + 0.5).min(road.lane(lane).length() / 2.0)
}

/// A way over edges with the sections across the junctions between them.
fn across(network: &Network, edges: &[usize]) -> Result<Vec<Step>, String> {
    let step = |section: usize| Step { section: section as u32, lane: None };
    let known = edges.iter().all(|&edge| edge < network.sections().len());
    let first = edges.first().filter(|_| known).ok_or("routes: expected edges that are there")?;
    let mut way = vec![step(*first)];
    for pair in edges.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(|edge| &network.sections()[edge]);
        let crossing = network.leaving(from.to).iter().find(|&&section| network.sections()[section].to == to.from);
        let crossing = *crossing.ok_or_else(|| format!("routes: section {} does not lead to {}", pair[0], pair[1]))?;
        way.extend([step(crossing), step(pair[1])]);
    }
    Ok(way)
}

impl Scenario for Trips {
    fn network(&self, _connected: bool) -> Network {
        self.network.clone()
    }

    fn model(&self) -> Model {
        Model::new(3.0, 5.0, LENGTH + 2.5)
    }

    fn shares_reward(&self) -> bool {
        true
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn vehicles(&self) -> usize {
        self.controlled + self.count
    }

    fn is_open(&self) -> bool {
        true
    }

    fn has_goal(&self) -> bool {
        true
    }

    fn populate(&self, place: &mut Place<'_>) {
        if self.planned {
            self.follow_timetable(place.frame, place);
        } else {
            let start = u64::from(place.rng.below(CLOCK)) * place.frames as u64;
            place.world.start_at(start);
            for _ in 0..self.count {
                for _ in 0..TRIES {
                    let edge = Self::one_of(&self.edges, place);
                    let (lane, s) = self.somewhere(edge, place);
                    if let Some(vehicle) = self.traffic_at(place, lane, s) {
                        let way = self.way_from(edge, place);
                        Self::add_traffic(place, &vehicle, &way);
                        break;
                    }
                }
            }
        }
        for _ in 0..(self.warm_up / place.step).ceil() as usize {
            for _ in 0..(place.step / place.frame).round() as usize {
                place.world.frame(place.frame);
            }
            self.after_step(place);
        }
        for agent in 0..self.controlled {
            self.add_agent(agent, place);
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "high_speed_reward", "arrived_reward", "on_road_reward", "violation_reward"]
    }

    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let speed = share(v.speed[i], self.reward_speed_range).clamp(0.0, 1.0);
        let [arrived, on_road, violates] =
            [self.has_succeeded(world, i), world.is_on_road(i), world.traffic.violates(i)].map(f64::from);
        [f64::from(v.crashed[i]), speed, arrived, on_road, violates]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, high_speed, arrived, on_road, violation] = *parts;
        self.collision_reward * collision
            + self.high_speed_reward * high_speed * on_road
            + self.arrived_reward * arrived
            + self.on_road_reward * on_road
            + self.violation_reward * violation
    }

    fn is_over(&self, world: &World) -> bool {
        let on_roads = || (0..self.controlled).filter_map(|agent| world.vehicle_of(agent));
        on_roads().any(|i| self.is_done(world, i) && !self.has_succeeded(world, i))
            || on_roads().all(|i| self.has_succeeded(world, i))
    }

    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i]
            || self.has_succeeded(world, i)
            || self.is_lost(world, i)
            || self.offroad_terminal && !world.is_on_road(i)
    }

    /// On its last edge.
    fn has_succeeded(&self, world: &World, i: usize) -> bool {
        let (road, v) = (&world.traffic.road, &world.traffic.vehicles);
        let lane = v.lane[i];
        let length = road.lane(lane).length();
        v.route[i].last().is_some_and(|step| step.section as usize == road.section_of(lane))
            && road.lane(lane).local(v.x[i], v.y[i]).0 >= ARRIVAL.min(length / 2.0)
    }

    /// Vehicles leave the roads and others come; the end of an episode is left as it is.
    fn after_step(&self, place: &mut Place<'_>) {
        let began = !place.world.agents().is_empty();
        if began && !place.alive.iter().any(|&alive| alive) {
            return;
        }
        self.clear_up(place);
        if self.planned {
            self.follow_timetable(place.step, place);
        } else {
            self.fill_up(place);
        }
    }
}
