//! Blue's view and the truth, as a table to read.

use std::fmt::Write;

use super::Episode;
use super::events::{Activity, RedAction};
use super::source::RandomSource;
use super::tables::Scenario;
use super::view::Compromise;

/// One line a host: what blue sees, then what is true.
pub fn table<D: RandomSource>(episode: &Episode<D>, scenario: &Scenario) -> String {
    let red = RedAction::from_code(episode.last_red.kind, episode.last_red.target, scenario)
        .map_or_else(String::new, |action| action.name(scenario));
    let outcome = match episode.last_red.success {
        1 => "worked",
        0 => "failed",
        _ => "no result",
    };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "step {}   red ({}): {red}, {outcome}",
        episode.time,
        super::RedKind::NAMES[episode.agent.kind() as usize]
    );
    let _ = writeln!(out, "                             | blue sees              | truth");
    let _ = writeln!(
        out,
        "{:<12} {:<15} | {:<8} {:<13} | {:<6} {:>8} {:>9}",
        "subnet", "host", "activity", "compromised", "red", "sessions", "processes"
    );
    for (host, name) in scenario.hosts.iter().enumerate() {
        let activity = match episode.view.activity(host) {
            Activity::None => "-",
            Activity::Scan => "scan",
            Activity::Exploit => "exploit",
        };
        let compromise = match episode.view.compromise(host) {
            Compromise::No => "-",
            Compromise::Unknown => "unknown",
            Compromise::User => "user",
            Compromise::Privileged => "privileged",
        };
        let access = ["-", "user", "root"][usize::from(episode.network.red_access(host))];
        let subnet = &scenario.subnets[usize::from(scenario.subnet_of[host])];
        let (sessions, processes) = (episode.network.sessions_on(host), episode.network.processes(host, scenario));
        let _ = writeln!(
            out,
            "{subnet:<12} {name:<15} | {activity:<8} {compromise:<13} | {access:<6} {sessions:>8} {processes:>9}"
        );
    }
    let service = if episode.network.ot_service.up { "up" } else { "DOWN" };
    let _ = write!(out, "OTService on {}: {service}", scenario.hosts[scenario.target]);
    out
}
