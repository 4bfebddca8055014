//! Radio links: the vehicles of agents are the first stations, in the order of the agents, and a share of the traffic's
//! vehicles has the other ones, each as long as it is on the road.

use super::scenario::Scenario;
use super::world::{GONE, World};
use crate::env::{ActionKind, Actions, Refused};
use crate::traffic::action::ActionType;
use crate::traffic::links::choice::{Choice, choice};
use crate::traffic::links::config::{self, Channel, MAX_STATIONS, Selection};
use crate::traffic::links::exchange::Bodies;
use crate::traffic::links::path_loss::Surroundings;
use crate::traffic::links::table::Message;
use crate::traffic::links::{LinkState, Station};
use crate::traffic::observation::Heard;
use crate::traffic::scene::Link;

/// The number of no vehicle.
const NOBODY: u32 = u32::MAX;

/// The options of links on a road network.
#[derive(Clone, Debug, PartialEq)]
pub struct Comms {
    pub links: config::Config,
    /// Seconds between two messages.
    pub period: f64,
    /// Factors in an agent's reward: of the mean age, in seconds, of what receivers within the range know of it, and of
    /// the share of them that its message reached.
    pub age_reward: f64,
    pub delivery_reward: f64,
}

impl Comms {
    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self) -> Result<(), String> {
        self.links.check()?;
        for (name, value) in [("age_reward", self.age_reward), ("delivery_reward", self.delivery_reward)] {
            if value.is_nan() || value.abs() > 1e6 {
                return Err(format!("{name}: expected a number from -1e6 to 1e6, got {value}"));
            }
        }
        Ok(())
    }

    /// Stations for vehicles of the traffic, beside those of so many agents.
    pub(super) fn others(&self, scenario: &dyn Scenario, agents: usize) -> usize {
        let most = scenario.vehicles().saturating_sub(scenario.controlled());
        ((self.links.connected * most as f64).ceil() as usize).min(MAX_STATIONS.saturating_sub(agents))
    }

    /// Starts an episode of so many agents; `radios` as of [`Comms::exchange`].
    pub(super) fn reset(&self, links: &mut LinkState, radios: &mut Vec<u32>, scenario: &dyn Scenario, agents: usize) {
        radios.clear();
        radios.resize(self.others(scenario, agents), NOBODY);
        links.reset(&self.links, agents, agents + radios.len());
    }

    /// Bytes that the links of an episode take.
    pub(super) fn memory(&self, scenario: &dyn Scenario, agents: usize) -> usize {
        let stations = agents + self.others(scenario, agents);
        LinkState::memory(&self.links, agents, stations) + stations * (size_of::<Station>() + size_of::<u32>())
    }

    /// Numbers of an action that choose what is sent with, where actions are numbers.
    fn chosen(&self) -> usize {
        usize::from(self.links.chooses_resource()) + usize::from(self.links.chooses_power())
    }

    /// The kind of actions that drive and choose.
    pub(super) fn action_kind(&self, driving: &ActionType) -> ActionKind {
        match driving.kind() {
            ActionKind::Discrete => ActionKind::Discrete,
            ActionKind::Box(len) => ActionKind::Box(len + self.chosen()),
        }
    }

    /// Number of discrete actions; 0 for numbers.
    pub fn count(&self, driving: &ActionType) -> usize {
        driving.count() * self.links.choices().iter().product::<usize>()
    }

    /// Splits the action of one agent, checked or not, into the part that drives (`index` takes it, if there is one)
    /// and the choice; the choice is refused if there is none such.
    pub(super) fn split<'a>(
        &self,
        driving: &ActionType,
        own: Actions<'a>,
        index: &'a mut [i64; 1],
    ) -> Result<(Actions<'a>, Choice), Refused> {
        let refuse = |expected: String| Err(Refused { agent: 0, expected });
        let fits = |x: f64| (-1.0..=1.0).contains(&x);
        let len = |all: usize| all.saturating_sub(self.chosen());
        let drives = match own {
            Actions::Discrete(all) => {
                let count = self.count(driving);
                if all.len() != 1 || !(0..count as i64).contains(&all[0]) {
                    return refuse(format!("an integer from 0 to {}, got {all:?}", count.saturating_sub(1)));
                }
                index[0] = all[0] % driving.count() as i64;
                return Ok((Actions::Discrete(index), choice(&self.links, own, 0, 1, driving.count())));
            }
            Actions::Box(all) if all[len(all.len())..].iter().all(|&x| fits(x.into())) => {
                Actions::Box(&all[..len(all.len())])
            }
            Actions::Double(all) if all[len(all.len())..].iter().all(|&x| fits(x)) => {
                Actions::Double(&all[..len(all.len())])
            }
            _ => return refuse("numbers from -1 to 1 to choose what is sent with".into()),
        };
        let ActionKind::Box(steering) = driving.kind() else { unreachable!("the kind of actions is checked") };
        Ok((drives, choice(&self.links, own, 0, 1, steering)))
    }

    /// Gives the stations of vehicles that have left the roads to others, in the order of these. Returns which have
    /// others now.
    fn assign(&self, radios: &mut [u32], links: &LinkState, world: &World) -> Vec<bool> {
        let numbers = world.numbers();
        for radio in radios.iter_mut().filter(|radio| numbers.binary_search(radio).is_err()) {
            *radio = NOBODY;
        }
        let mut waits = (0..numbers.len()).filter(|i| !world.agents().contains(i)).map(|i| numbers[i]);
        let taken = radios.to_vec();
        let mut wants = || waits.find(|number| !taken.contains(number) && links.equips(*number, self.links.connected));
        let take = |radio: &mut u32| {
            let next = if *radio == NOBODY { wants() } else { None };
            next.inspect(|&number| *radio = number).is_some()
        };
        radios.iter_mut().map(take).collect()
    }

    /// Lets all vehicles with a radio send their states; the agents that act listen, and where stations choose by what
    /// they sense, the traffic too. `radios`: the number of the vehicle of each station after those of agents, or
    /// [`NOBODY`]. Only in a city `has_building_between` says whether a building stands between two places.
    pub(super) fn exchange(
        &self,
        links: &mut LinkState,
        radios: &mut [u32],
        world: &World,
        alive: &[bool],
        choices: &[Option<Choice>],
        has_building_between: impl Fn([f64; 2], [f64; 2]) -> bool,
    ) {
        let begins = self.assign(radios, links, world);
        let vehicles = &world.traffic.vehicles;
        let station = |vehicle: Option<usize>, listens: bool, begins: bool| {
            let message = vehicle.map(|i| Message::of(vehicles, i)).unwrap_or_default();
            Station { message, sends: vehicle.is_some(), listens: listens && vehicle.is_some(), begins }
        };
        let agents = (0..world.agents().len()).zip(alive);
        let mut stations: Vec<Station> =
            agents.map(|(agent, &listens)| station(world.vehicle_of(agent), listens, false)).collect();
        let senses = self.links.channel == Channel::Tr37885 && self.links.selection == Selection::Sensing;
        let others = radios.iter().zip(begins);
        stations.extend(others.map(|(&number, begins)| station(vehicle_of(world, number), senses, begins)));
        let in_city = self.links.surroundings == Surroundings::Urban;
        let behind_building = |a: usize, b: usize| {
            let [a, b] = [a, b].map(|i| [stations[i].message.x, stations[i].message.y]);
            in_city && has_building_between(a, b)
        };
        let choices = &choices[..choices.len().min(links.agents())];
        links.exchange(&self.links, &stations, choices, Bodies::of(vehicles), self.period, behind_building);
    }

    /// The messages that the agent `receiver` has of the vehicles of the others.
    pub(super) fn heard<'a>(
        &'a self,
        links: &'a LinkState,
        radios: &'a [u32],
        world: &'a World,
        receiver: usize,
    ) -> impl Iterator<Item = Heard> + 'a {
        let others = radios.iter().map(|&number| vehicle_of(world, number).unwrap_or(GONE));
        let vehicles = world.agents().iter().copied().chain(others);
        let entries = links.table().of(receiver).iter().zip(vehicles).enumerate();
        entries.filter(move |&(sender, (_, vehicle))| sender != receiver && vehicle != GONE).map(
            |(_, (entry, vehicle))| {
                let seconds = f64::from(entry.age.saturating_sub(1)) * self.period;
                let age = (seconds / self.links.max_age).min(1.0);
                Heard { vehicle, state: entry.known.then_some((entry.message, age)) }
            },
        )
    }

    /// The links to show, between vehicles that are on the road.
    pub(super) fn drawn(&self, links: &LinkState, radios: &[u32], world: &World) -> Vec<Link> {
        let number = |station: usize| match station.checked_sub(links.agents()) {
            None => world.vehicle_of(station).map_or(NOBODY, |i| world.numbers()[i]),
            Some(other) => radios[other],
        };
        let mut drawn = links.drawn(&self.links, self.period, number);
        let there = |number: u32| vehicle_of(world, number).is_some();
        drawn.retain(|link| there(link.from) && there(link.to));
        drawn
    }

    /// The share of the last message of an agent in its reward.
    pub(super) fn reward(&self, links: &LinkState, agent: usize) -> f64 {
        let last = links.last()[agent];
        self.age_reward * last.age.or_zero() + self.delivery_reward * last.delivery.or_zero()
    }
}

/// The index of a vehicle by its number, if it is on the road.
fn vehicle_of(world: &World, number: u32) -> Option<usize> {
    world.numbers().binary_search(&number).ok()
}
