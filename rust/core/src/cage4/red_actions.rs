//! Red's actions and their effects.

use super::network::Kind;
use super::red::Red;
use super::red_kind::{Outcome, RedAction, RedKind};
use super::scenario::{
    Exploit, FIRST_SERVER, NET, NUM_SERVICES, OT_SERVICE, ROOT, SUBNET_SLOTS, Slot, port_of, subnet_of, uplink,
};
use super::sessions::Session;
use super::source::{Chance, Purpose, RandomSource};
use super::world::World;

/// Number that must be exceeded for an exploit to be seen: the original subtracts so.
const UNSEEN: f64 = 1.0 - 0.95;

/// The effect of an action that has run to its end.
pub(super) struct Effect {
    pub(super) outcome: Outcome,
    /// The id of a session that an exploit has made.
    pub(super) shell: Option<u16>,
    /// The exploit that was drawn.
    pub(super) exploit: Option<Exploit>,
}

/// Carries out an action of agent `agent`.
pub(super) fn act(
    agent: usize,
    action: RedAction,
    red: &mut Red,
    world: &mut World,
    random: &mut impl RandomSource,
) -> Effect {
    let RedAction { kind, target, session } = action;
    let slot = usize::from(target);
    let acting = red.sessions.get(session).copied();
    let outcome = Outcome { kind, target, success: false, names_target: false, source: None, names_links: false };
    let mut effect = Effect { outcome, shell: None, exploit: None };
    let outcome = &mut effect.outcome;
    match kind {
        RedKind::Escalate => escalate(agent, slot, acting, red, outcome, random),
        RedKind::Degrade => {
            let root = red.sessions.on(slot).any(|s| s.root);
            if root && world.network.host(slot).services_up() > 0 {
                world.network.degrade(slot);
                (outcome.success, outcome.names_target) = (true, true);
            }
        }
        RedKind::Impact => {
            let root = red.sessions.on(slot).any(|s| s.root);
            let host = world.network.host(slot);
            if root && host.has_image_service(OT_SERVICE) && !host.ot_stopped {
                outcome.names_target = true;
                outcome.success = acting.is_some();
                if acting.is_some() {
                    world.network.stop_ot_service(slot);
                }
            }
        }
        RedKind::Sweep => outcome.success = acting.is_some(),
        RedKind::Deception => {
            if acting.is_some() {
                outcome.success = true;
                let image = std::iter::repeat_n(false, world.network.host(slot).image_processes());
                let started = world.network.processes_on(slot).map(|p| p.kind != Kind::Shell);
                outcome.names_target = random.deception(agent, image.chain(started));
            }
        }
        RedKind::AggressiveScan | RedKind::StealthScan => {
            if acting.is_some_and(|s| s.is_abstract && !is_blocked(world, &s, slot)) {
                let rate = if kind == RedKind::AggressiveScan { 0.75 } else { 0.25 };
                let seen = random.chance(Purpose::ScanSeen, agent, Chance::AtMost(rate));
                let host = world.network.host(slot);
                red.sessions.note_scan(session, slot, host.ports);
                let alerts = usize::from(host.decoys) + if seen { host.real_listeners() } else { 0 };
                if alerts > 0 {
                    world.watch.connection(slot);
                }
                (0..alerts).for_each(|_| random.port(slot));
                (outcome.success, outcome.names_target) = (true, true);
            }
        }
        RedKind::Exploit => {
            let known = red.sessions.scanned(session, slot);
            let able = acting.filter(|s| s.is_abstract && !is_blocked(world, s, slot));
            if let Some((acting, ports)) = able.zip(known) {
                exploit(agent, ports, acting, red, world, random, &mut effect);
            }
        }
    }
    effect
}

/// Returns whether the target's subnet blocks that of a session.
fn is_blocked(world: &World, session: &Session, target: Slot) -> bool {
    world.blocks[subnet_of(target)] >> subnet_of(session.host.into()) & 1 == 1
}

fn escalate(
    agent: usize,
    slot: Slot,
    acting: Option<Session>,
    red: &mut Red,
    outcome: &mut Outcome,
    random: &mut impl RandomSource,
) {
    let count = red.sessions.on(slot).count();
    if count == 0 {
        return;
    }
    if !red.sessions.on(slot).any(|s| s.root) {
        let nth = random.pick(Purpose::EscalateSession, agent, count);
        let chosen = red.sessions.on(slot).nth(nth).map(|s| s.id);
        if acting.is_none_or(|s| !s.is_abstract) {
            return;
        }
        chosen.into_iter().for_each(|id| red.sessions.escalate(id));
    }
    (outcome.success, outcome.names_target) = (true, true);
    outcome.names_links = acting.is_some() && slot % SUBNET_SLOTS == FIRST_SERVER;
}

/// An exploit of a host on which a session has found `ports`.
fn exploit(
    agent: usize,
    ports: u8,
    acting: Session,
    red: &mut Red,
    world: &mut World,
    random: &mut impl RandomSource,
    effect: &mut Effect,
) {
    let slot = usize::from(effect.outcome.target);
    let mut fitting = Exploit::ALL.into_iter().filter(|e| e.fits(ports));
    let count = fitting.clone().count();
    let chosen = if count > 1 {
        let heaviest = Exploit::BY_WEIGHT.into_iter().find(|e| e.fits(ports));
        let nth = random.pick(Purpose::Exploit, agent, count - 1);
        random.unused();
        fitting.filter(|&e| Some(e) != heaviest).nth(nth)
    } else {
        fitting.next()
    };
    let Some(chosen) = chosen else { return };
    effect.exploit = Some(chosen);
    let real = chosen.service().is_some_and(|kind| world.network.host(slot).has_image_service(kind));
    let pid = if chosen == Exploit::SshBruteForce {
        for host in path(acting.host.into(), slot).into_iter().flatten() {
            if random.chance(Purpose::PathSeen, host, Chance::Above(UNSEEN)) {
                world.watch.connection(host);
            }
        }
        random.port(slot);
        world.watch.connection(slot);
        let pid = world.network.start_shell(slot, random);
        world.watch.mark(slot, pid);
        pid
    } else if real && chosen == Exploit::Sql {
        random.unused();
        random.port(slot);
        world.network.start_shell(slot, random)
    } else {
        let decoy = !real && answers(world, slot, chosen);
        effect.outcome.names_target = real || decoy;
        if decoy {
            world.watch.connection(slot);
            random.port(slot);
            random.unused();
            random.port(slot);
            random.port(slot);
        }
        return;
    };
    let session = Session { id: 0, pid, host: slot as u8, is_abstract: false, root: false, is_child: true };
    effect.shell = Some(red.sessions.add(session));
    if chosen != Exploit::SshBruteForce && random.chance(Purpose::ExploitSeen, agent, Chance::Above(UNSEEN)) {
        world.watch.mark(slot, pid);
    }
    effect.outcome.success = true;
    effect.outcome.names_target = true;
    effect.outcome.source = Some(acting.host);
}

/// Returns whether a decoy answers an exploit.
fn answers(world: &World, slot: Slot, exploit: Exploit) -> bool {
    world.network.processes_on(slot).any(|p| match p.kind {
        Kind::Decoy { service, .. } => usize::from(service) < NUM_SERVICES && port_of(service) == exploit.port(),
        Kind::Shell => false,
    })
}

/// Hosts on the way from one host to another, both included.
pub(super) fn path(from: Slot, to: Slot) -> [Option<Slot>; 8] {
    let mut path = [None; 8];
    if from == to {
        path[0] = Some(from);
        return path;
    }
    let (up, down) = (way_up(from), way_up(to));
    let (mut a, mut b) = (up.iter().flatten().count(), down.iter().flatten().count());
    // Without what both ways share, but for its nearest host.
    while a > 1 && b > 1 && up[a - 2] == down[b - 2] {
        a -= 1;
        b -= 1;
    }
    path[..a].copy_from_slice(&up[..a]);
    for (place, host) in path[a..].iter_mut().zip(down[..b - 1].iter().rev()) {
        *place = *host;
    }
    path
}

/// Hosts from a host to the internet's.
fn way_up(from: Slot) -> [Option<Slot>; 4] {
    let mut way = [None; 4];
    let mut len = 0;
    let mut add = |slot| {
        way[len] = Some(slot);
        len += 1;
    };
    if !from.is_multiple_of(SUBNET_SLOTS) && from != ROOT {
        add(from);
    }
    let mut subnet = subnet_of(from);
    while subnet < NET {
        add(subnet * SUBNET_SLOTS);
        subnet = uplink(subnet);
    }
    add(ROOT);
    way
}
