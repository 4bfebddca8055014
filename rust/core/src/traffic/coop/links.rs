//! Radio links of the vehicles of a cooperative environment: agents' vehicles are the first stations, in the order of
//! their rows, and the share [`Config::connected`](links::config::Config::connected) of the background follows.

use super::config::{Config, Difficulty, MAX_AGENTS, MAX_DENSITY};
use crate::env::ensure;
use crate::traffic::Traffic;
use crate::traffic::links::choice::Choice;
use crate::traffic::links::config::{self, Channel, Selection};
use crate::traffic::links::exchange::Bodies;
use crate::traffic::links::table::Message;
use crate::traffic::links::{LinkState, Station};

/// Lets all vehicles with a radio send their states. A wreck sends as long as it lies on the road; only agents that act
/// listen, and where stations choose by what they sense, the background too.
pub(super) fn exchange(
    comms: &config::Config,
    links: &mut LinkState,
    (traffic, numbers, drivers): (&Traffic, &[u32], &[Option<usize>]),
    choices: &[Option<Choice>],
    period: f64,
) {
    let vehicles = &traffic.vehicles;
    let mut stations = vec![Station::default(); links.stations()];
    let senses = comms.channel == Channel::Tr37885 && comms.selection == Selection::Sensing;
    for (i, &number) in numbers.iter().enumerate() {
        let Some(station) = stations.get_mut(number as usize) else { break };
        let acts = drivers.get(number as usize).is_some_and(Option::is_some);
        let listens = acts || (senses && number as usize >= links.agents());
        *station = Station { message: Message::of(vehicles, i), sends: true, listens, begins: false };
    }
    let choices = &choices[..choices.len().min(links.agents())];
    links.exchange(comms, &stations, choices, Bodies::of(vehicles), period, |_, _| false);
}

/// Refuses decoded links that do not belong to these vehicles.
pub(super) fn check(
    config: &Config,
    links: Option<&LinkState>,
    (agents, drivers): (usize, &[Option<usize>]),
) -> Result<(), String> {
    match (&config.comms, links) {
        (None, None) => Ok(()),
        (Some(comms), Some(links)) => {
            let stations = links.stations();
            let most = Difficulty { agents: agents.max(1), density: MAX_DENSITY };
            let fits = if comms.connected > 0.0 { stations <= config.stations(most) } else { stations == agents };
            ensure(fits && agents <= MAX_AGENTS && agents <= stations, "the links are not those of the vehicles")?;
            links.check(comms, agents, stations)?;
            ensure(drivers[agents..].iter().all(Option::is_none), "an agent has no radio")
        }
        _ => Err("there are links without messages, or messages without links".into()),
    }
}

/// Bytes that the links of an episode take.
pub(super) fn memory(config: &Config, difficulty: Difficulty) -> usize {
    let Some(comms) = &config.comms else { return 0 };
    let stations = config.stations(difficulty);
    LinkState::memory(comms, difficulty.agents, stations) + stations * size_of::<Station>()
}

/// Bytes that the saved links have at most.
pub(super) fn most_saved(config: &Config) -> usize {
    let Some(comms) = &config.comms else { return 0 };
    let most = Difficulty { agents: config.max_agents, density: MAX_DENSITY };
    LinkState::most_saved(comms, config.max_agents, config.stations(most))
}
