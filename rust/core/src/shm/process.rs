//! Processes by an identity that outlives the reuse of process numbers, and the notice of a fork.

use std::fs;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process: its number and when it started, so that a later process of the same number is another one.
/// Never zero, which stands for nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u64);

static OWN: AtomicU64 = AtomicU64::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);

impl Process {
    /// This process.
    pub fn own() -> Process {
        watch_forks();
        let known = OWN.load(Ordering::Relaxed);
        if known != 0 {
            return Process(known);
        }
        let pid = std::process::id();
        let own = Process::new(pid, start_time(pid).map_or(0, |start| start.ticks));
        OWN.store(own.0, Ordering::Relaxed);
        own
    }

    pub fn new(pid: u32, start: u64) -> Process {
        Process(u64::from(pid) << 32 | start & 0xffff_ffff)
    }

    /// From the word in which it is kept; None for nobody.
    pub fn from_word(word: u64) -> Option<Process> {
        (word != 0).then_some(Process(word))
    }

    pub fn word(self) -> u64 {
        self.0
    }

    pub fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether it still runs. A killed process whose parent has not yet asked for its end does not.
    pub fn is_alive(self) -> bool {
        if self.0 == OWN.load(Ordering::Relaxed) {
            return true;
        }
        match start_time(self.pid()) {
            Some(start) => !start.is_dead && start.ticks & 0xffff_ffff == self.0 & 0xffff_ffff,
            None => false,
        }
    }
}

struct Start {
    ticks: u64,
    is_dead: bool,
}

/// From `/proc/PID/stat` (proc_pid_stat(5)): state is field 3, start time in clock ticks since boot field 22. The
/// second field, the program's name, may hold blanks and parentheses.
fn start_time(pid: u32) -> Option<Start> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let ticks = fields.nth(18)?.parse().ok()?;
    Some(Start { ticks, is_dead: matches!(state, "Z" | "X" | "x") })
}

/// How many forks lie between the first process that asked and this one.
#[inline]
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// From now on children of a fork count in [`forks`] and have an identity of their own.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
            OWN.store(0, Ordering::Relaxed);
        }
        // SAFETY: the handler only touches atomics, which is allowed in a child of a threaded process. It lives as
        // long as the library, which Python never unloads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Names this start of the machine; what a segment says of processes means nothing after another.
pub fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let text = std::str::from_utf8(pair).unwrap_or("0");
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_another_of_its_number_is_not() {
        let own = Process::own();
        assert_eq!(own, Process::own());
        assert_eq!(own.pid(), std::process::id());
        assert!(own.is_alive());
        assert!(!Process::new(own.pid(), 1).is_alive());
        assert!(!Process::new(u32::MAX, 0).is_alive());
    }

    #[test]
    fn a_killed_child_is_dead_before_its_parent_asks() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let process = Process::new(pid, start_time(pid).unwrap().ticks);
        assert!(process.is_alive());
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while process.is_alive() {
            assert!(std::time::Instant::now() < end, "the child lives on");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn the_boot_has_a_name() {
        assert_eq!(boot_id(), boot_id());
        assert_ne!(boot_id(), [0; 16]);
    }
}
