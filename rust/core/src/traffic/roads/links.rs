//! Radio links of the agents' vehicles, which are the stations in the order of the agents. Other vehicles have none.

use super::world::World;
use crate::env::{ActionKind, Actions, Refused};
use crate::traffic::action::ActionType;
use crate::traffic::links::choice::{Choice, choice};
use crate::traffic::links::config;
use crate::traffic::links::exchange::Bodies;
use crate::traffic::links::path_loss::Surroundings;
use crate::traffic::links::table::Message;
use crate::traffic::links::{LinkState, Station};
use crate::traffic::observation::Heard;

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
        if self.links.connected {
            return Err(
                "connected: expected False on road networks, where vehicles of the traffic have no radios".into()
            );
        }
        Ok(())
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

    /// Lets all agents' vehicles send their states; those that act listen. Only in a city
    /// `has_building_between` says whether a building stands between two places.
    pub(super) fn exchange(
        &self,
        links: &mut LinkState,
        world: &World,
        alive: &[bool],
        choices: &[Option<Choice>],
        has_building_between: impl Fn([f64; 2], [f64; 2]) -> bool,
    ) {
        let vehicles = &world.traffic.vehicles;
        let of_agent =
            |(&i, &listens): (&usize, &bool)| Station { message: Message::of(vehicles, i), sends: true, listens };
        let stations: Vec<Station> = world.agents().iter().zip(alive).map(of_agent).collect();
        let in_city = self.links.surroundings == Surroundings::Urban;
        let behind_building = |a: usize, b: usize| {
            let [a, b] = [a, b].map(|i| [stations[i].message.x, stations[i].message.y]);
            in_city && has_building_between(a, b)
        };
        links.exchange(&self.links, &stations, choices, Bodies::of(vehicles), self.period, behind_building);
    }

    /// The messages that the agent `receiver` has of the vehicles of the others.
    pub(super) fn heard<'a>(
        &'a self,
        links: &'a LinkState,
        world: &'a World,
        receiver: usize,
    ) -> impl Iterator<Item = Heard> + 'a {
        let entries = links.table().of(receiver).iter().zip(world.agents()).enumerate();
        entries.filter(move |&(sender, _)| sender != receiver).map(|(_, (entry, &vehicle))| {
            let seconds = f64::from(entry.age.saturating_sub(1)) * self.period;
            let age = (seconds / self.links.max_age).min(1.0);
            Heard { vehicle, state: entry.known.then_some((entry.message, age)) }
        })
    }

    /// The share of the last message of an agent in its reward.
    pub(super) fn reward(&self, links: &LinkState, agent: usize) -> f64 {
        let last = links.last()[agent];
        self.age_reward * last.age.or_zero() + self.delivery_reward * last.delivery.or_zero()
    }
}
