//! The source of randomness of a game. The simulator names each draw by what it decides, so the same rules run on a fast
//! generator, on NumPy's generator draw for draw, or on recorded decisions.

use super::blueprint::Blueprint;
use super::scenario::{NUM_NETWORKS, Slot, Users, hosts_with, in_subnet, of_subnet, user, user_bit};

/// Purposes of draws, numbered as in the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    GreenAction = 0,
    RedHost = 1,
    RedAction = 2,
    RedSubnet = 3,
    RedSession = 4,
    RedState = 5,
    RedServerFirst = 6,
    Decoy = 10,
    Pid = 11,
    GreenDestination = 20,
    GreenAccessAlarm = 21,
    GreenService = 22,
    GreenReliable = 23,
    GreenWorkAlarm = 24,
    Phished = 25,
    Phisher = 26,
    ScanSeen = 30,
    Exploit = 31,
    PathSeen = 32,
    ExploitSeen = 33,
    EscalateSession = 34,
    DeceptionFound = 35,
    NewPrimary = 36,
}

impl Purpose {
    pub const NAMES: [(u8, &str); 23] = [
        (0, "green_action"),
        (1, "red_host"),
        (2, "red_action"),
        (3, "red_subnet"),
        (4, "red_session"),
        (5, "red_state"),
        (6, "red_server_first"),
        (10, "decoy"),
        (11, "pid"),
        (20, "green_dest"),
        (21, "green_access_fp"),
        (22, "green_service"),
        (23, "green_reliable"),
        (24, "green_work_fp"),
        (25, "phished"),
        (26, "phisher"),
        (30, "scan_seen"),
        (31, "exploit"),
        (32, "path_seen"),
        (33, "exploit_seen"),
        (34, "escalate_session"),
        (35, "deception_found"),
        (36, "new_primary"),
    ];

    /// The name of a number in the traces.
    pub fn name(number: u8) -> &'static str {
        Self::NAMES.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| name)
    }
}

/// An event with a chance: that a uniform number from `[0, 1)` is below a bound, at most that, or above it.
#[derive(Clone, Copy, Debug)]
pub enum Chance {
    Below(f64),
    AtMost(f64),
    Above(f64),
}

impl Chance {
    pub fn happens(self, uniform: f64) -> bool {
        match self {
            Self::Below(bound) => uniform < bound,
            Self::AtMost(bound) => uniform <= bound,
            Self::Above(bound) => uniform > bound,
        }
    }

    /// Its probability.
    pub fn probability(self) -> f64 {
        match self {
            Self::Below(bound) | Self::AtMost(bound) => bound,
            Self::Above(bound) => 1.0 - bound,
        }
    }
}

/// Chance of a false alarm of an access or of work, and of phishing.
pub(super) const RARELY: Chance = Chance::Below(0.01);

/// The random decisions of a game. `of` is the host or agent that a decision is about. Methods that do nothing by default
/// decide nothing: only NumPy's generator must advance for them.
pub trait RandomSource {
    /// False if draws that decide nothing are left out.
    const DRAWS_ALL: bool = true;

    /// The network of the next episode.
    fn network(&mut self) -> Blueprint;

    /// Starts step `time`, counted from 0.
    fn start_step(&mut self, _time: u32) {}

    /// One of `n` (at least 1) things. Of one thing nothing is drawn.
    fn pick(&mut self, purpose: Purpose, of: usize, n: usize) -> usize;

    /// The users who access a server and those who work, out of all: each does one of these or sleeps.
    fn green_actions(&mut self, users: Users) -> [Users; 2] {
        let (mut access, mut work) = (0, 0);
        for subnet in 0..NUM_NETWORKS {
            // Bits of users who access, work and sleep.
            let mut chosen = [0; 3];
            for number in 0..of_subnet(users, subnet).count_ones() as usize {
                chosen[self.pick(Purpose::GreenAction, user(subnet, number), 3)] |= 1 << number;
            }
            access |= in_subnet(chosen[0], subnet);
            work |= in_subnet(chosen[1], subnet);
        }
        [access, work]
    }

    /// The users, out of some, to whom something happens that has a chance of [`RARELY`].
    fn rarely(&mut self, purpose: Purpose, users: Users) -> Users {
        let happens = |slot: &Slot| self.chance(purpose, *slot, RARELY);
        hosts_with(users).filter(happens).fold(0, |set, slot| set | user_bit(slot))
    }

    /// Returns whether an event happens.
    fn chance(&mut self, purpose: Purpose, of: usize, chance: Chance) -> bool;

    /// An index into `shares` (at most [`MOST_SHARES`], which add up to 1) with the chance that its share is.
    fn share(&mut self, purpose: Purpose, of: usize, shares: &[f64]) -> usize;

    /// Returns whether a service with so much health, 0 to 100, serves the host's user.
    fn reliable(&mut self, host: Slot, health: u8) -> bool;

    /// The distance of a new process id on the host from `top`, its highest: 1 to 9.
    fn pid(&mut self, host: Slot, top: u16) -> u16;

    /// Returns whether DiscoverDeception by an agent flags any of the processes; `decoys` tells which are decoys.
    fn deception(&mut self, agent: usize, decoys: impl Iterator<Item = bool>) -> bool;

    /// Lets `draws` draw what is drawn next anyway, in order to bring into the caches what those draws will read. Nothing
    /// has changed after it.
    fn foresee(&mut self, _draws: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
    }

    /// A port of a connection at the host.
    fn port(&mut self, _host: Slot) {}

    /// The host forgets its connections.
    fn forget_ports(&mut self, _host: Slot) {}

    /// A number that nothing reads.
    fn unused(&mut self) {}

    /// A new order of `n` actions, which changes nothing.
    fn shuffle(&mut self, _n: usize) {}
}

/// The longest list that [`RandomSource::share`] takes.
pub const MOST_SHARES: usize = 8;

/// The index at which the running sum of `shares` first exceeds `uniform`, with the arithmetic of NumPy's `choice`.
pub(super) fn index_at(uniform: f64, shares: &[f64]) -> usize {
    let mut sums = [0.0; MOST_SHARES];
    let mut sum = 0.0;
    for (place, share) in sums.iter_mut().zip(shares) {
        sum += share;
        *place = sum;
    }
    sums[..shares.len()].iter().take_while(|&&s| s / sum <= uniform).count()
}
