//! Identities of processes that stay unique when process numbers are reused, and detection of forks.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

/// A process: its number and start time, so that a later process of the same number differs. Never zero, which stands
/// for no process.
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
        let start = Start::of("self").ok().flatten();
        let own = Process::new(std::process::id(), start.map_or(0, |start| start.ticks));
        OWN.store(own.0, Ordering::Relaxed);
        own
    }

    pub const fn new(pid: u32, start: u64) -> Process {
        Process((pid as u64) << 32 | start & 0xffff_ffff)
    }

    /// The process of a word that [`Process::word`] gave; None for zero.
    pub fn from_word(word: u64) -> Option<Process> {
        (word != 0).then_some(Process(word))
    }

    pub fn word(self) -> u64 {
        self.0
    }

    pub fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether it still runs, as far as this process can know: of what `/proc` does not tell it is taken for
    /// granted. A killed process whose parent has not yet asked for its end does not run.
    pub fn is_alive(self) -> bool {
        if self.0 == OWN.load(Ordering::Relaxed) {
            return true;
        }
        match Start::of(&self.pid().to_string()) {
            Ok(Some(start)) if !start.is_dead && self.began_at(start.ticks) => true,
            Ok(_) => !has_own_proc(),
            Err(_) => true,
        }
    }

    /// Compares start times; a process that could not learn its own has written 0.
    fn began_at(self, ticks: u64) -> bool {
        let known = self.0 & 0xffff_ffff;
        known == 0 || known == ticks & 0xffff_ffff
    }
}

/// The scope in which process numbers and start times are unique: one boot of the machine, one PID namespace, one
/// clock. Containers that share `/dev/shm` have different ones, and none of them can tell whether a process of another
/// is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace(pub [u8; Namespace::SIZE]);

impl Namespace {
    pub const SIZE: usize = 32;
    const UNKNOWN: Namespace = Namespace([0; Namespace::SIZE]);

    /// This process's; unknown without a `/proc` of its own.
    pub fn own() -> Namespace {
        if !has_own_proc() {
            return Namespace::UNKNOWN;
        }
        let mut id = [0; Namespace::SIZE];
        id[..16].copy_from_slice(&boot_id());
        id[16..24].copy_from_slice(&namespace_number("pid").to_ne_bytes());
        id[24..].copy_from_slice(&namespace_number("time").to_ne_bytes());
        Namespace(id)
    }

    pub fn is_known(self) -> bool {
        self != Namespace::UNKNOWN
    }

    /// Returns whether both are of the same start of the machine.
    pub fn has_boot_of(self, other: Namespace) -> bool {
        self.0[..16] == other.0[..16]
    }
}

/// The number by which the system tells this process's namespace from others that exist, from a link such as
/// `pid:[4026531836]`; 0 if the system has none of that kind.
fn namespace_number(kind: &str) -> u64 {
    let link = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Returns whether `/proc` is there and numbers processes as this one does; after `unshare --pid` it may be the
/// parent's.
fn has_own_proc() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.and_then(|link| link.to_str()?.parse().ok()) == Some(std::process::id())
}

struct Start {
    ticks: u64,
    is_dead: bool,
}

impl Start {
    /// Reads `/proc/PID/stat` (proc_pid_stat(5)): state is field 3, start time in clock ticks since boot field 22. The
    /// second field, the program's name, may hold blanks and parentheses. None if there is no such process; an error if
    /// that cannot be known, for instance because too many files are open.
    fn of(pid: &str) -> io::Result<Option<Start>> {
        let stat = match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The process ended between the opening of the file and the reading of it.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        let parse = || {
            let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
            let mut fields = std::str::from_utf8(&stat[name_ends + 1..]).ok()?.split_ascii_whitespace();
            let state = fields.next()?;
            let ticks = fields.nth(18)?.parse().ok()?;
            Some(Start { ticks, is_dead: matches!(state, "Z" | "X" | "x") })
        };
        parse().map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Number of forks between the first process that called [`watch_forks`] and this one.
#[inline]
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count forks in [`forks`] and to give forked children an identity of their own.
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

/// The identity of this boot of the machine.
fn boot_id() -> [u8; 16] {
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
        let process = Process::new(pid, Start::of(&pid.to_string()).unwrap().unwrap().ticks);
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
    fn the_namespace_is_known_and_a_childs_is_the_same() {
        let own = Namespace::own();
        assert_eq!(own, Namespace::own());
        assert!(own.is_known() && own.has_boot_of(own));
        assert_ne!(namespace_number("pid"), 0);
        assert_ne!(boot_id(), [0; 16]);
    }

    #[test]
    fn a_program_may_have_any_name() {
        // Not UTF-8, with a blank and parentheses: `/proc/PID/stat` has it as it is.
        let name = c") Z (\xff";
        std::thread::spawn(move || {
            // SAFETY: a live string of at most 15 bytes; it names this thread alone.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            let id = rustix::thread::gettid().as_raw_nonzero();
            let start = Start::of(&format!("self/task/{id}")).unwrap().unwrap();
            assert!(start.ticks > 0 && !start.is_dead);
        })
        .join()
        .unwrap();
    }
}
