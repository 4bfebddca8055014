//! A piece of memory with a header that says what it is: this process's own, or a file in `/dev/shm`.
//!
//! ```text
//! 0     magic, layout version, kind, checksum          fixed size, written once, checked by who attaches
//! 32    length, parameters, creator, boot, users
//! 256   schema (UTF-8)
//! page  words, each on a line of its own; then records
//! ```
//!
//! A file gets its name only when it is complete (`O_TMPFILE`, then `linkat`), so nobody ever attaches to half of one.
//! Its memory is allocated beforehand (`fallocate`): a full `/dev/shm` is an error here, not a SIGBUS later. The
//! creator unlinks it; where it died, the next creator of any segment sweeps it away once all its users are dead.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::Error;
use super::process::{Process, boot_id, forks, watch_forks};

const MAGIC: [u8; 8] = *b"fastrlsm";
/// Changes whenever the meaning of any byte does.
const VERSION: u32 = 1;
const FIXED: usize = 256;
const PAGE: usize = 4096;
/// In bytes.
const LONGEST_SCHEMA: u64 = 1 << 20;
const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "fastrl-";

/// Whether other processes can attach, and under what name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    No,
    /// Under a name that is made up.
    Anonymous,
    Named(String),
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Queue = 1,
    Bulletin = 2,
    Rounds = 3,
}

/// Words in which the processes that use a segment are written, for who sweeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    pub first: u64,
    pub stride: u64,
    pub count: u64,
}

/// What does not change after creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub length: u64,
    pub parameters: [u64; 6],
    pub users: Users,
    pub schema: String,
}

/// Bytes that a header takes, whole pages.
pub fn header_length(schema: &str) -> usize {
    (FIXED + schema.len()).next_multiple_of(PAGE)
}

impl Header {
    fn encode(&self, creator: Process) -> Vec<u8> {
        let mut bytes = vec![0; FIXED + self.schema.len()];
        let mut at = 32;
        let mut put = |value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            at += 8;
        };
        put(self.length);
        put(self.schema.len() as u64);
        self.parameters.into_iter().for_each(&mut put);
        put(creator.word());
        put(self.users.first);
        put(self.users.stride);
        put(self.users.count);
        bytes[at..at + 16].copy_from_slice(&boot_id());
        bytes[FIXED..].copy_from_slice(self.schema.as_bytes());
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&(self.kind as u32).to_ne_bytes());
        let checksum = crc32fast::hash(&bytes[32..]);
        bytes[16..20].copy_from_slice(&checksum.to_ne_bytes());
        bytes
    }

    /// The header, its creator, and whether it was made since the machine started; or what is wrong with it.
    fn decode(bytes: &[u8], length: u64) -> Result<(Header, Process, bool), &'static str> {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes.len() < FIXED || bytes[..8] != MAGIC {
            return Err("it is no segment of fastrl");
        }
        if half(8) == VERSION.swap_bytes() {
            return Err("it was made on a machine of the other byte order");
        }
        if half(8) != VERSION {
            return Err("it was made by another version of fastrl");
        }
        let schema_length = usize::try_from(word(40)).unwrap_or(usize::MAX);
        let Some(checked) = schema_length.checked_add(FIXED).and_then(|end| bytes.get(32..end)) else {
            return Err("its header is damaged");
        };
        if crc32fast::hash(checked) != half(16) {
            return Err("its header is damaged");
        }
        let kind = match half(12) {
            1 => Kind::Queue,
            2 => Kind::Bulletin,
            3 => Kind::Rounds,
            _ => return Err("its header is damaged"),
        };
        if word(32) != length {
            return Err("its length is not what its header says");
        }
        let Ok(schema) = String::from_utf8(bytes[FIXED..FIXED + schema_length].to_vec()) else {
            return Err("its header is damaged");
        };
        let Some(creator) = Process::from_word(word(96)) else { return Err("its header is damaged") };
        let header = Header {
            kind,
            length: word(32),
            parameters: std::array::from_fn(|i| word(48 + 8 * i)),
            users: Users { first: word(104), stride: word(112), count: word(120) },
            schema,
        };
        Ok((header, creator, bytes[128..144] == boot_id()))
    }
}

pub struct Segment {
    map: MmapRaw,
    name: Option<String>,
    /// Set for who made it, until the name is gone.
    must_unlink: AtomicBool,
    forks: u64,
}

impl Segment {
    /// A new segment, its words and records zero, its pages there.
    pub fn create(header: &Header, shared: &Shared) -> Result<Segment, Error> {
        watch_forks();
        let length = usize::try_from(header.length)
            .ok()
            .filter(|&length| length <= isize::MAX as usize)
            .ok_or_else(|| Error::Invalid("this takes more memory than there are addresses".into()))?;
        let (map, name) = match shared {
            Shared::No => {
                let map = MmapOptions::new().len(length).populate().map_anon();
                (map.map(MmapRaw::from).map_err(|source| no_memory(length, source))?, None)
            }
            Shared::Anonymous => {
                sweep();
                static COUNT: AtomicU64 = AtomicU64::new(0);
                // Names of this process begin with its identity, so only it could take one twice.
                let name = format!("{:016x}-{:x}", Process::own().word(), COUNT.fetch_add(1, Ordering::Relaxed));
                (create_file(header, &name, length)?, Some(name))
            }
            Shared::Named(name) => {
                check_name(name)?;
                sweep();
                (create_file(header, name, length)?, Some(name.clone()))
            }
        };
        Ok(Segment { map, must_unlink: AtomicBool::new(name.is_some()), name, forks: forks() })
    }

    /// A segment that another process, or this one, has made.
    pub fn attach(kind: Kind, name: &str) -> Result<(Segment, Header), Error> {
        watch_forks();
        check_name(name)?;
        let file = match File::options().read(true).write(true).open(path(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NotFound(name.into())),
            Err(source) => return Err(Error::Io { what: format!("cannot open shared memory {name:?}"), source }),
        };
        let foreign = |why: &str| Error::Foreign(format!("cannot attach to shared memory {name:?}: {why}"));
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let Ok(bytes) = header_bytes(&file) else { return Err(foreign("it is no segment of fastrl")) };
        let (header, _, is_current) = Header::decode(&bytes, length).map_err(foreign)?;
        if !is_current {
            return Err(foreign("it was made before the machine was started"));
        }
        if header.kind != kind {
            return Err(foreign(match header.kind {
                Kind::Queue => "it is a queue",
                Kind::Bulletin => "it is a bulletin of weights",
                Kind::Rounds => "it is a table of rounds",
            }));
        }
        let map = MmapOptions::new()
            .populate()
            .map_raw(&file)
            .map_err(|source| Error::Io { what: format!("cannot map shared memory {name:?}"), source })?;
        let segment = Segment { map, name: Some(name.into()), must_unlink: AtomicBool::new(false), forks: forks() };
        Ok((segment, header))
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping is never at address zero")
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// Whether this is a forked child's copy of memory that only its parent shares.
    pub fn is_left_behind(&self) -> bool {
        self.name.is_none() && self.forks != forks()
    }

    /// Whether this process, not a parent of it, made or attached it.
    pub fn is_own(&self) -> bool {
        self.forks == forks()
    }

    /// Takes the name away, if this process made it: nobody can attach any more, who has attached goes on.
    pub fn unlink(&self) {
        let Some(name) = &self.name else { return };
        if self.is_own() && self.must_unlink.swap(false, Ordering::Relaxed) {
            // Somebody may have removed it by hand.
            let _ = std::fs::remove_file(path(name));
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.unlink();
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(format!("{PREFIX}{name}"))
}

fn check_name(name: &str) -> Result<(), Error> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 200 || !name.bytes().all(is_good) {
        return Err(Error::Invalid(format!(
            "a name of shared memory has 1 to 200 letters, digits, dots, dashes and underscores, got {name:?}"
        )));
    }
    Ok(())
}

fn no_memory(length: usize, source: io::Error) -> Error {
    Error::Io { what: format!("cannot allocate {:.1} MB of memory", length as f64 / 1e6), source }
}

/// The bytes of a file's header, as far as it may reach.
fn header_bytes(file: &File) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;

    let mut bytes = vec![0; FIXED];
    file.read_exact_at(&mut bytes, 0)?;
    let schema = u64::from_ne_bytes(bytes[40..48].try_into().expect("eight bytes")).min(LONGEST_SCHEMA);
    bytes.resize(FIXED + schema as usize, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(target_os = "linux")]
fn create_file(header: &Header, name: &str, length: usize) -> Result<MmapRaw, Error> {
    use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open, statvfs};
    use std::os::fd::AsRawFd;

    let refused = |source: io::Error| Error::Io {
        what: format!(
            "cannot allocate {:.1} MB of shared memory in {FOLDER}: choose a smaller capacity or make room there",
            length as f64 / 1e6
        ),
        source,
    };
    let free = statvfs(FOLDER).map_err(|error| refused(error.into()))?;
    // Asked first, because fallocate would take all that there is before it gives up.
    if free.f_bavail.saturating_mul(free.f_frsize) < length as u64 {
        return Err(refused(rustix::io::Errno::NOSPC.into()));
    }
    let file = open(FOLDER, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|error| refused(error.into()))?;
    fallocate(&file, FallocateFlags::empty(), 0, length as u64).map_err(|error| refused(error.into()))?;
    let map = MmapOptions::new().populate().map_raw(&file).map_err(refused)?;
    let bytes = header.encode(Process::own());
    assert!(bytes.len() <= map.len());
    // SAFETY: inside of the mapping, and nobody else knows the file yet.
    unsafe { map.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, unnamed, CWD, path(name), AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(map),
        Err(rustix::io::Errno::EXIST) => Err(Error::Exists(name.into())),
        Err(error) => Err(refused(error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn create_file(_header: &Header, _name: &str, _length: usize) -> Result<MmapRaw, Error> {
    Err(Error::Invalid("memory shared between processes needs Linux; choose shared=False".into()))
}

/// Removes the segments that were made before the machine was started, or whose creator and users are all dead; how
/// many. What cannot be read is left alone.
pub fn sweep() -> usize {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return 0 };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)))
        .filter(|entry| is_orphan(&entry.path()).unwrap_or(false))
        .filter(|entry| std::fs::remove_file(entry.path()).is_ok())
        .count()
}

fn is_orphan(path: &std::path::Path) -> io::Result<bool> {
    use std::os::unix::fs::{FileExt, MetadataExt};

    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let Ok((header, creator, is_current)) = Header::decode(&header_bytes(&file)?, metadata.len()) else {
        return Ok(false);
    };
    let mut users = vec![creator];
    for i in 0..header.users.count.min(1 << 16) {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, header.users.first.saturating_add(i * header.users.stride))?;
        users.extend(Process::from_word(u64::from_ne_bytes(word)));
    }
    let is_dead = !is_current || !users.into_iter().any(Process::is_alive);
    // Not if another file took the name meanwhile.
    Ok(is_dead && std::fs::metadata(path)?.ino() == metadata.ino())
}
