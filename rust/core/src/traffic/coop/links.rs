//! Radio links of the vehicles of a cooperative environment: agents' vehicles are the first stations, in the order of
//! their rows, and with [`Config::connected`](links::config::Config::connected) those of the background follow.

use super::config::{Config, Difficulty, MAX_AGENTS, MAX_DENSITY, META_ACTIONS};
use super::observation::state_of;
use crate::env::{Actions, ensure};
use crate::traffic::Traffic;
use crate::traffic::links::config::{self, Channel, Selection};
use crate::traffic::links::exchange::{Bodies, Choice};
use crate::traffic::links::{LinkState, Station};
use crate::traffic::scene::Link;
use crate::traffic::vehicles::{LENGTH, WIDTH};

/// Resource and power that the agent of a row, of `rows`, sends with.
pub(super) fn choice(comms: &config::Config, actions: Actions<'_>, row: usize, rows: usize) -> Choice {
    let [resources, powers] = comms.choices();
    match actions {
        Actions::Discrete(all) => {
            let index = all[row] as usize / META_ACTIONS;
            [(index % resources) as u32, (index / resources) as u32]
        }
        Actions::Box(all) => {
            let width = all.len() / rows;
            let mut chosen = all[row * width + 2..(row + 1) * width].iter();
            // The interval from -1 to 1 in equal parts.
            let mut part = |count: usize| {
                let share = if count > 1 { chosen.next().map_or(0.0, |x| (f64::from(*x) + 1.0) / 2.0) } else { 0.0 };
                ((share * count as f64) as usize).min(count - 1) as u32
            };
            [part(resources), part(powers)]
        }
        Actions::Double(_) => unreachable!("these environments take single precision only"),
    }
}

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
        *station = Station { message: state_of(vehicles, i), sends: true, listens };
    }
    let (x, y, cos, sin) = (&vehicles.x, &vehicles.y, &vehicles.cos, &vehicles.sin);
    let bodies = Bodies { x, y, cos, sin, half: [LENGTH / 2.0, WIDTH / 2.0] };
    links.exchange(comms, &stations, &choices[..choices.len().min(links.agents())], bodies, period, |_, _| false);
}

/// The links to show: of the last message, from all who sent to all agents that listened within the range.
pub(super) fn drawn(comms: &config::Config, links: &LinkState, period: f64) -> Vec<Link> {
    let places = links.places();
    let near =
        move |a: usize, b: usize| (places[a][0] - places[b][0]).hypot(places[a][1] - places[b][1]) <= comms.range;
    let to_agent = |receiver: usize| {
        let each = links.quality(receiver).iter().zip(links.table().of(receiver)).enumerate();
        each.filter(move |&(sender, (quality, _))| !quality.success.is_nan() && near(sender, receiver)).map(
            move |(sender, (quality, entry))| Link {
                from: sender as u32,
                to: receiver as u32,
                quality: quality.success,
                age: period * f64::from(entry.age),
            },
        )
    };
    (0..links.agents()).flat_map(to_agent).collect()
}

/// Refuses decoded links that do not belong to these vehicles.
pub(super) fn check(
    config: &Config,
    links: Option<&LinkState>,
    numbers: &[u32],
    (agents, drivers): (usize, &[Option<usize>]),
) -> Result<(), String> {
    match (&config.comms, links) {
        (None, None) => Ok(()),
        (Some(comms), Some(links)) => {
            let stations = links.stations();
            let most = Difficulty { agents: agents.max(1), density: MAX_DENSITY };
            let fits = if comms.connected { stations <= config.stations(most) } else { stations == agents };
            ensure(fits && agents <= MAX_AGENTS && agents <= stations, "the links are not those of the vehicles")?;
            links.check(comms, agents, stations)?;
            let rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
            ensure(rising, "the vehicles are not in the order of their numbers")?;
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
