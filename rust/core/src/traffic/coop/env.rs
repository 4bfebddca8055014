//! One cooperative environment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::config::{ActionType, Config, Difficulty, MAX_AGENTS, META_ACTIONS, SPEED_LIMIT, TARGET_SPEEDS, Task};
use super::links;
use super::observation::{self, OnLane, obs_len};
use super::reward::{self, Outcome};
use super::spawn::{self, Start};
use crate::env::{ActionKind, Actions, AgentRows, Endable, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::arrays;
use crate::rng::Rng;
use crate::traffic::columns::Driven;
use crate::traffic::controller::Meta;
use crate::traffic::lane::{self, Lane, Line};
use crate::traffic::links::LinkState;
use crate::traffic::links::account::Account as LinkAccount;
use crate::traffic::links::choice::{Choice, choice};
use crate::traffic::map::RoadMap;
use crate::traffic::math::wrap_to_pi;
use crate::traffic::metrics::{Account, Episode};
use crate::traffic::obstacle::Obstacle;
use crate::traffic::road::Road;
use crate::traffic::vehicles::{Driver, LENGTH, MAX_SPEED, Vehicle};
use crate::traffic::{Neighbour, Traffic};

/// The value of 1 in a continuous action: m/s² and radians. (highway-env's pi / 4 is for parking lots: at 25 m/s a
/// tenth of a radian turns a car by 28 degrees in a second.)
const ACCELERATION: f64 = 5.0;
const STEERING: f64 = 0.1;
/// Numbers of a continuous action that drive.
const STEERING_NUMBERS: usize = 2;
/// Exponents of the IDM's free-road term that background drivers have.
const DELTA: [f64; 2] = [3.5, 4.5];
/// The meta-actions by index.
const META: [Meta; META_ACTIONS] = [Meta::LaneLeft, Meta::Idle, Meta::LaneRight, Meta::Faster, Meta::Slower];

/// All that changes.
#[derive(Clone, Serialize, Deserialize)]
pub struct State {
    rng: Rng,
    /// Difficulty of coming episodes.
    difficulty: Difficulty,
    pub(super) traffic: Traffic,
    /// The vehicle of each row whose agent acts.
    drivers: Vec<Option<usize>>,
    /// The number of each vehicle in this episode: agents have that of their row, background vehicles the next ones.
    pub(super) numbers: Vec<u32>,
    /// The status of each vehicle at the next step.
    statuses: Vec<Status>,
    /// Steps of this episode so far.
    pub(super) steps: u32,
    pub(super) account: Account,
    /// With [`Config::comms`] only.
    pub(super) links: Option<LinkState>,
    /// Episodes so far, and what became of the last.
    pub finished: u64,
    pub last: Episode,
    /// Statistics of the links in the last episode.
    pub last_links: LinkAccount,
}

impl State {
    /// The links; `None` where agents see each other as they are.
    pub fn links(&self) -> Option<&LinkState> {
        self.links.as_ref()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Status {
    Driving,
    /// A wreck, for that many steps by now.
    Wreck(u32),
    /// Has arrived, and leaves the road.
    Leaving,
}

pub struct Coop {
    config: Arc<Config>,
    state: State,
}

fn road(config: &Config) -> Road {
    let length = config.front() + MAX_SPEED * config.duration + 100.0;
    let straight = Road::straight(config.lanes, length, SPEED_LIMIT);
    let Some(end) = config.ramp_end() else { return straight };
    let mut lanes = straight.lanes().to_vec();
    lanes[config.lanes - 1].lines[1] = Line::Striped;
    let y = config.lanes as f64 * lane::WIDTH;
    let mut ramp = Lane::straight(0.0, end, y);
    ramp.lines = [Line::None, Line::Continuous];
    ramp.speed_limit = Some(SPEED_LIMIT);
    // Vehicles that have left it do not come back.
    ramp.forbidden = true;
    lanes.push(ramp);
    Road::new(lanes, vec![Obstacle::new(end, y)])
}

/// The position of a vehicle on the lane that it is nearest to.
fn on_lane(traffic: &Traffic, vehicle: usize) -> OnLane {
    let vehicles = &traffic.vehicles;
    let lane = traffic.road.lane(vehicles.lane[vehicle]);
    let (longitudinal, lateral) = lane.local(vehicles.x[vehicle], vehicles.y[vehicle]);
    OnLane {
        lane: vehicles.lane[vehicle],
        lateral,
        half_width: lane.width / 2.0,
        heading_error: wrap_to_pi(vehicles.heading[vehicle] - lane.heading_at(longitudinal)),
    }
}

/// Seconds until a vehicle runs into the next one in its lane at their present speeds. A vehicle beside it, half off the
/// road or across the line, is not ahead of it. After a frame alone: the order of the vehicles is up to date then.
fn time_to_collision(traffic: &Traffic, vehicle: usize) -> f64 {
    let vehicles = &traffic.vehicles;
    let (gap, front_speed) = match traffic.in_front(vehicle, vehicles.lane[vehicle]) {
        Some(Neighbour::Vehicle(front)) => {
            (vehicles.x[front] - vehicles.x[vehicle] - LENGTH, vehicles.velocity(front)[0])
        }
        Some(Neighbour::Obstacle(front)) => {
            let obstacle = &traffic.road.obstacles[front];
            (obstacle.x - vehicles.x[vehicle] - (LENGTH + obstacle.length) / 2.0, 0.0)
        }
        None => return f64::INFINITY,
    };
    let closing = vehicles.velocity(vehicle)[0] - front_speed;
    if closing > 0.0 && gap > 0.0 { gap / closing } else { f64::INFINITY }
}

impl Coop {
    /// Panics if the difficulty does not fit the config.
    pub fn new(config: Arc<Config>, difficulty: Difficulty) -> Self {
        difficulty.check(&config).expect("a checked difficulty");
        let mut traffic = Traffic::new(road(&config), TARGET_SPEEDS.to_vec());
        traffic.reserve(difficulty.vehicles(&config));
        let state = State {
            rng: Rng::new(0),
            difficulty,
            traffic,
            drivers: vec![None; config.max_agents],
            numbers: Vec::new(),
            statuses: Vec::new(),
            steps: 0,
            account: Account::new(0),
            links: config.comms.is_some().then(|| LinkState::new(0)),
            finished: 0,
            last: Episode::NONE,
            last_links: LinkAccount::default(),
        };
        Self { config, state }
    }

    /// The difficulty of coming episodes.
    pub fn difficulty(&self) -> Difficulty {
        self.state.difficulty
    }

    /// Sets the difficulty of coming episodes. Panics if it does not fit the config.
    pub fn set_difficulty(&mut self, difficulty: Difficulty) {
        difficulty.check(&self.config).expect("a checked difficulty");
        self.state.difficulty = difficulty;
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn traffic(&self) -> &Traffic {
        &self.state.traffic
    }

    /// The vehicle of each row whose agent acts.
    pub fn drivers(&self) -> &[Option<usize>] {
        &self.state.drivers
    }

    /// Removes vehicles that have arrived, and wrecks after [`WRECK_TIME`](super::config::WRECK_TIME).
    fn clear_road(&mut self) {
        let State { traffic, drivers, numbers, statuses, account, .. } = &mut self.state;
        let goes = |status: Status| match status {
            Status::Driving => false,
            Status::Wreck(steps) => steps >= self.config.wreck_steps(),
            Status::Leaving => true,
        };
        for i in (0..statuses.len()).rev() {
            if !goes(statuses[i]) {
                continue;
            }
            account.passed += u32::from(traffic.vehicles.x[i] >= self.config.counter());
            traffic.remove(i);
            numbers.remove(i);
            statuses.remove(i);
            for driver in drivers.iter_mut().flatten() {
                *driver -= usize::from(*driver > i);
            }
        }
    }

    /// Gives the actions to the drivers. Returns what the agents send with.
    fn act(&mut self, actions: Actions<'_>) -> [Option<Choice>; MAX_AGENTS] {
        let mut choices = [None; MAX_AGENTS];
        let State { traffic, drivers, .. } = &mut self.state;
        for (row, driver) in drivers.iter().enumerate() {
            let &Some(vehicle) = driver else { continue };
            let driving = if matches!(actions, Actions::Discrete(_)) { META_ACTIONS } else { STEERING_NUMBERS };
            let rows = drivers.len();
            choices[row] = self.config.comms.as_ref().map(|comms| choice(comms, actions, row, rows, driving));
            match actions {
                Actions::Discrete(all) => traffic.command(vehicle, META[all[row] as usize % META_ACTIONS]),
                Actions::Box(all) => {
                    let width = all.len() / drivers.len();
                    let (acceleration, steering) = (f64::from(all[width * row]), f64::from(all[width * row + 1]));
                    traffic.drive(vehicle, ACCELERATION * acceleration, STEERING * steering);
                }
                Actions::Double(_) => unreachable!("these environments take single precision only"),
            }
        }
        choices
    }

    fn add(&mut self, start: Start, is_agent: bool) {
        let State { rng, traffic, .. } = &mut self.state;
        let driver = match (is_agent, self.config.actions) {
            (false, _) => Driver::Idm,
            (true, ActionType::Meta) => Driver::Meta,
            (true, ActionType::Continuous) => Driver::Manual,
        };
        let lane = traffic.road.lane(start.lane);
        let (x, y) = lane.position(start.x - lane.position(0.0, 0.0).0, 0.0);
        let mut vehicle = Vehicle::new(driver, x, y, start.speed);
        if driver == Driver::Idm {
            vehicle.delta = DELTA[0] + (DELTA[1] - DELTA[0]) * rng.unit();
        }
        if driver == Driver::Manual {
            vehicle.target_speed = Some(self.config.speed_range[1]);
        }
        traffic.add(&vehicle);
    }

    /// The outcome of the step for the agent of a row and its vehicle.
    fn outcome(&self, row: usize, vehicle: usize) -> Outcome {
        let vehicles = &self.state.traffic.vehicles;
        let on_lane = on_lane(&self.state.traffic, vehicle);
        let beside = on_lane.lateral.abs() - on_lane.half_width;
        let crashed = vehicles.crashed[vehicle] || beside > 2.0 * on_lane.half_width;
        Outcome {
            crashed,
            on_road: beside <= 0.0,
            arrived: !crashed && self.config.arrival().is_some_and(|end| vehicles.x[vehicle] >= end),
            forward_speed: vehicles.speed[vehicle] * on_lane.heading_error.cos(),
            lane: on_lane.lane,
            age: self.state.links.as_ref().map_or(0.0, |links| links.last()[row].age.or_zero()),
            delivery: self.state.links.as_ref().map_or(0.0, |links| links.last()[row].delivery.or_zero()),
        }
    }

    /// Records the outcome of a step for an agent in the counters and in the status of its vehicle.
    fn record(&mut self, vehicle: usize, outcome: Outcome, is_last: bool) {
        let ttc = time_to_collision(&self.state.traffic, vehicle);
        let seconds = self.time();
        let State { traffic, statuses, account, .. } = &mut self.state;
        account.speed_sum += traffic.vehicles.speed[vehicle];
        account.speed_count += 1;
        account.min_ttc = account.min_ttc.min(ttc);
        if outcome.crashed {
            traffic.vehicles.crashed[vehicle] = true;
            account.crashed += 1;
        } else if outcome.arrived {
            statuses[vehicle] = Status::Leaving;
            account.arrive(seconds);
        }
        let stayed_whole = is_last && self.config.task == Task::Highway && !outcome.crashed;
        account.succeeded += u32::from(outcome.arrived || stayed_whole);
    }

    fn count_wrecks(&mut self) {
        let State { traffic, statuses, .. } = &mut self.state;
        for (status, _) in statuses.iter_mut().zip(&traffic.vehicles.crashed).filter(|(_, crashed)| **crashed) {
            *status = match *status {
                Status::Driving => Status::Wreck(1),
                Status::Wreck(steps) => Status::Wreck(steps + 1),
                Status::Leaving => Status::Leaving,
            };
        }
    }

    fn close_account(&mut self) {
        let State { traffic, steps, account, .. } = &self.state;
        let beyond = traffic.vehicles.x.iter().filter(|&&x| x >= self.config.counter()).count();
        self.state.last = account.close(*steps, self.time(), beyond);
        self.state.last_links = self.state.links.as_ref().map_or_else(LinkAccount::default, |links| *links.total());
        self.state.finished += 1;
    }

    /// Lets all vehicles with a radio send their states.
    fn exchange(&mut self, choices: &[Option<Choice>]) {
        let State { traffic, drivers, numbers, links, .. } = &mut self.state;
        if let (Some(links), Some(comms)) = (links, &self.config.comms) {
            links::exchange(comms, links, (traffic, numbers, drivers), choices, self.config.period());
        }
    }

    fn write_obs(&self, obs: &mut [f32]) {
        let rows = obs.chunks_exact_mut(obs_len(&self.config));
        let State { traffic, drivers, numbers, links, .. } = &self.state;
        for (row, (driver, out)) in drivers.iter().zip(rows).enumerate() {
            let &Some(vehicle) = driver else {
                out.fill(0.0);
                continue;
            };
            let (config, vehicles, on_lane) = (&*self.config, &traffic.vehicles, on_lane(traffic, vehicle));
            match links {
                None => observation::write(config, vehicles, vehicle, on_lane, out),
                Some(links) => {
                    observation::write_with_links(config, vehicles, links, numbers, (row, vehicle), on_lane, out);
                }
            }
        }
    }

    fn write_alive(&self, alive: &mut [u8]) {
        for (flag, driver) in alive.iter_mut().zip(&self.state.drivers) {
            *flag = u8::from(driver.is_some());
        }
    }
}

impl Env for Coop {
    type State = State;

    // A step takes tens of microseconds.
    const MIN_BLOCK: usize = 4;

    fn num_agents(&self) -> usize {
        self.config.max_agents
    }

    fn obs_len(&self) -> usize {
        obs_len(&self.config)
    }

    fn action_kind(&self) -> ActionKind {
        self.config.action_kind()
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let (count, width) = match self.config.action_kind() {
            ActionKind::Discrete => (self.config.num_actions(), 0),
            ActionKind::Box(width) => (0, width),
        };
        let fits = |row: usize| match actions {
            Actions::Discrete(all) => (0..count as i64).contains(&all[row]),
            Actions::Box(all) => all[width * row..width * (row + 1)].iter().all(|x| (-1.0..=1.0).contains(x)),
            Actions::Double(_) => false,
        };
        let drivers = self.state.drivers.iter().enumerate();
        let Some((agent, _)) = drivers.filter(|(_, driver)| driver.is_some()).find(|&(row, _)| !fits(row)) else {
            return Ok(());
        };
        let expected = match width {
            0 => format!("an integer from 0 to {}", count - 1),
            2 => "two numbers from -1 to 1".into(),
            _ => format!("{width} numbers from -1 to 1"),
        };
        Err(Refused { agent, expected })
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = Rng::new(seed);
        self.state.links = self.config.comms.is_some().then(|| LinkState::new(seed));
    }

    fn reseed(&mut self, seed: u64) {
        self.state.rng = Rng::new(seed);
        if let Some(links) = &mut self.state.links {
            links.reseed(seed);
        }
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let difficulty = self.state.difficulty;
        let starts = spawn::starts(&self.config, difficulty, &mut self.state.rng);
        self.state.traffic.vehicles.clear();
        for (i, &start) in starts.iter().enumerate() {
            self.add(start, i < difficulty.agents);
        }
        for (row, driver) in self.state.drivers.iter_mut().enumerate() {
            *driver = (row < difficulty.agents).then_some(row);
        }
        self.state.numbers = (0..starts.len() as u32).collect();
        self.state.statuses.clear();
        self.state.statuses.resize(starts.len(), Status::Driving);
        self.state.steps = 0;
        self.state.account = Account::new(difficulty.agents);
        if let (Some(links), Some(comms)) = (&mut self.state.links, &self.config.comms) {
            links.reset(comms, difficulty.agents, self.config.stations(difficulty));
        }
        self.exchange(&[]);
        self.write_obs(obs);
        self.write_alive(alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        self.write_obs(obs);
        self.write_alive(alive);
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        self.clear_road();
        let choices = self.act(actions);
        let dt = 1.0 / f64::from(self.config.simulation_frequency);
        for _ in 0..self.config.frames_per_step() {
            self.state.traffic.frame(dt);
        }
        self.state.steps += 1;
        let is_last = self.state.steps >= self.config.steps();
        self.exchange(&choices[..self.config.max_agents]);
        // Written before agents are removed: those whose episode ends get their true last observation.
        self.write_obs(rows.obs);

        let mut own = [0.0; MAX_AGENTS];
        let (mut acted, mut total) = (0, 0.0);
        for (row, own) in own.iter_mut().enumerate().take(self.config.max_agents) {
            (rows.terminated[row], rows.truncated[row]) = (0, 0);
            let Some(vehicle) = self.state.drivers[row] else { continue };
            let outcome = self.outcome(row, vehicle);
            self.record(vehicle, outcome, is_last);
            *own = reward::own(&self.config, outcome);
            acted += 1;
            total += *own;
            let over = outcome.crashed || outcome.arrived;
            rows.terminated[row] = u8::from(over);
            rows.truncated[row] = u8::from(is_last && !over);
        }
        let mean = total / f64::from(acted);
        for (row, driver) in self.state.drivers.iter_mut().enumerate() {
            let reward = if driver.is_some() { reward::mixed(&self.config, own[row], mean) } else { 0.0 };
            rows.rewards[row] = R::from_f64(reward);
            self.state.account.rewards += reward;
            if rows.terminated[row] + rows.truncated[row] > 0 {
                *driver = None;
            }
        }
        self.count_wrecks();
        self.write_alive(rows.alive);
        let ended = self.state.drivers.iter().all(Option::is_none);
        if ended {
            self.close_account();
        }
        ended
    }

    fn episode_info(&self, key: &str) -> f64 {
        number_named(key, self.state.last.numbers().chain(self.state.last_links.numbers()))
    }

    fn fingerprint(&self) -> String {
        self.config.fingerprint()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let config = &*self.config;
        let State { traffic, drivers, numbers, statuses, account, links, .. } = state;
        traffic.check(&self.state.traffic)?;
        let n = traffic.vehicles.len();
        ensure(n <= Difficulty::most_vehicles(config), "there are more vehicles than in an episode")?;
        ensure(
            numbers.len() == n && statuses.len() == n,
            "the properties of vehicles are not as many as the vehicles",
        )?;
        let rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        ensure(rising, "the vehicles are not in the order of their numbers")?;
        ensure(drivers.len() == config.max_agents, "there are more or fewer agents than rows")?;
        let mut free = vec![true; n];
        let distinct = drivers.iter().flatten().all(|&i| free.get_mut(i).is_some_and(std::mem::take));
        ensure(distinct, "an agent drives a vehicle that is not there, or another agent's")?;
        ensure(
            drivers.iter().any(Option::is_some) == (phase == Phase::Running),
            "agents drive while no episode runs, or no agent drives in a running one",
        )?;
        let lies = |status: &Status| matches!(status, Status::Wreck(steps) if *steps > config.wreck_steps());
        ensure(!statuses.iter().any(lies), "a wreck has been on the road for too long")?;
        let left = config.steps().checked_sub(state.steps);
        ensure(left.is_some_and(|left| left > 0 || phase != Phase::Running), "the time is beyond the episode")?;
        state.difficulty.check(config)?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")?;
        let agents = account.agents;
        let counted = agents as usize <= config.max_agents
            && account.crashed.max(account.succeeded) <= agents
            && account.arrived <= account.succeeded
            && u64::from(account.speed_count) <= u64::from(state.steps) * u64::from(agents)
            && account.passed as usize <= Difficulty::most_vehicles(config)
            && state.finished < 1 << 62;
        ensure(counted, "the counters of the episode are impossible")?;
        links::check(config, links.as_ref(), (agents as usize, drivers))
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        let n = self.state.difficulty.vehicles(&self.config);
        let rows = self.config.max_agents * size_of::<Option<usize>>() + n * (size_of::<u32>() + size_of::<Status>());
        self.state.traffic.memory(n) + arrays(3, rows) + links::memory(&self.config, self.state.difficulty)
    }

    fn most_saved(&self) -> usize {
        let n = Difficulty::most_vehicles(&self.config);
        self.state.traffic.most_saved(n) + 1024 + 16 * (n + self.config.max_agents) + links::most_saved(&self.config)
    }
}

impl Driven for Coop {
    type Map = Road;

    fn traffic(&self) -> &Traffic {
        &self.state.traffic
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        &mut self.state.traffic
    }

    fn vehicle_of(&self, agent: usize) -> Option<usize> {
        // The numbers of the agents' vehicles are the first, and all are in their order.
        let is_agent = agent < self.state.account.agents as usize;
        self.state.numbers.binary_search(&(agent as u32)).ok().filter(|_| is_agent)
    }

    fn has_arrived(&self, agent: usize) -> bool {
        self.vehicle_of(agent).is_some_and(|vehicle| self.state.statuses[vehicle] == Status::Leaving)
    }

    fn time(&self) -> f64 {
        f64::from(self.state.steps) / f64::from(self.config.policy_frequency)
    }
}

impl Endable for Coop {
    /// Vehicles of agents stay on the road.
    fn end(&mut self, ended: &[u8], alive: &mut [u8]) -> bool {
        for (driver, _) in self.state.drivers.iter_mut().zip(ended).filter(|(_, ended)| **ended != 0) {
            if let Some(vehicle) = driver.take().filter(|_| self.config.actions == ActionType::Continuous) {
                self.state.traffic.drive(vehicle, 0.0, 0.0);
            }
        }
        self.write_alive(alive);
        let over = self.state.drivers.iter().all(Option::is_none);
        if over {
            self.close_account();
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds to a collision of an agent at 20 m/s with a vehicle at 10 m/s, placed from it.
    fn seconds_to(ahead: f64, aside: f64) -> f64 {
        let config = Config { lanes: 1, ..Config::new(Task::Highway) };
        let mut traffic = Traffic::new(road(&config), TARGET_SPEEDS.to_vec());
        traffic.add(&Vehicle::new(Driver::Manual, 100.0, 0.0, 20.0));
        traffic.add(&Vehicle::new(Driver::Idm, 100.0 + ahead, aside, 10.0));
        traffic.frame(0.0);
        time_to_collision(&traffic, 0)
    }

    #[test]
    fn only_vehicles_ahead_have_a_time_to_collision() {
        assert_eq!(seconds_to(LENGTH + 30.0, 0.0), 3.0);
        assert_eq!(seconds_to(LENGTH + 30.0, 2.5), 3.0);
        assert_eq!(seconds_to(LENGTH - 1.0, 2.5), f64::INFINITY);
        assert_eq!(seconds_to(-30.0, 0.0), f64::INFINITY);
    }
}
