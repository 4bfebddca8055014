//! A segment: memory with a header that describes it, private to this process or a file in `/dev/shm`.
//!
//! ```text
//! 0     magic, layout version, kind, checksum          fixed size, written once, checked when attaching
//! 32    length, parameters, creator, users, namespace
//! 256   schema (UTF-8)
//! page  words, each on a line of its own; then records
//! ```
//!
//! A file gets its name only when it is complete (`O_TMPFILE`, then `linkat`), so no process attaches to half of one.
//! Its memory is allocated beforehand (`fallocate`): a full `/dev/shm` is an error here, not a SIGBUS later. The
//! creator unlinks it; where it died, the next creator of any segment removes it once all its users are dead. Only
//! processes of the creator's namespace can know that; others leave the segment alone and do not attach to it.
//!
//! Every user can write to `/dev/shm`. Only regular files of the same user are opened, so no other user can make this
//! process wait, or truncate memory that it has mapped. Nothing guards against writes and truncation by processes of
//! the same user: they could end this process as well.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::Error;
use super::process::{Namespace, Process, forks, watch_forks};

const MAGIC: [u8; 8] = *b"fastrlsm";
/// Changes whenever the meaning of any byte does.
const VERSION: u32 = 2;
const FIXED: usize = 256;
const PAGE: usize = 4096;
/// Longest schema, bytes.
const MAX_SCHEMA: u64 = 1 << 20;
const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "fastrl-";
/// Largest number of processes that a sound segment can name as its users.
const MAX_USERS: u64 = 1 << 16;

/// True if other processes can attach, and under what name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    No,
    /// Under a random name.
    Anonymous,
    Named(String),
}

/// The kind of contents of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Queue = 1,
    Weights = 2,
    Barrier = 3,
}

/// The words that hold the processes that use a segment, for processes that sweep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Users {
    pub first: u64,
    pub stride: u64,
    pub count: u64,
}

/// The part of a header that its creator chooses. It does not change after creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub length: u64,
    pub parameters: [u64; 6],
    pub users: Users,
    pub schema: String,
}

/// The creator of a segment, and the namespace in which its process number means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    creator: Process,
    namespace: Namespace,
}

impl Origin {
    fn own() -> Origin {
        Origin { creator: Process::own(), namespace: Namespace::own() }
    }
}

/// Bytes that a header takes, whole pages.
pub(crate) fn header_length(schema: &str) -> usize {
    (FIXED + schema.len()).next_multiple_of(PAGE)
}

impl Header {
    fn encode(&self, origin: Origin) -> Vec<u8> {
        let mut bytes = vec![0; FIXED + self.schema.len()];
        let mut at = 32;
        let mut put = |value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            at += 8;
        };
        put(self.length);
        put(self.schema.len() as u64);
        self.parameters.into_iter().for_each(&mut put);
        put(origin.creator.word());
        put(self.users.first);
        put(self.users.stride);
        put(self.users.count);
        bytes[at..at + Namespace::SIZE].copy_from_slice(&origin.namespace.0);
        bytes[FIXED..].copy_from_slice(self.schema.as_bytes());
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&(self.kind as u32).to_ne_bytes());
        let checksum = crc32fast::hash(&bytes[32..]);
        bytes[16..20].copy_from_slice(&checksum.to_ne_bytes());
        bytes
    }

    /// The header and its origin; the error says what is wrong.
    fn decode(bytes: &[u8], length: u64) -> Result<(Header, Origin), &'static str> {
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
            2 => Kind::Weights,
            3 => Kind::Barrier,
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
        let namespace = Namespace(bytes[128..128 + Namespace::SIZE].try_into().expect("as many bytes"));
        Ok((header, Origin { creator, namespace }))
    }
}

pub(crate) struct Segment {
    map: MmapRaw,
    name: Option<String>,
    /// True for the creator until the name is removed.
    must_unlink: AtomicBool,
    forks: u64,
}

impl Segment {
    /// Creates a segment with words and records zero and all pages allocated.
    pub(crate) fn create(header: &Header, shared: &Shared) -> Result<Segment, Error> {
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
                let (map, name) = create_file(header, None, length)?;
                (map, Some(name))
            }
            Shared::Named(name) => {
                check_name(name)?;
                sweep();
                let (map, name) = create_file(header, Some(name), length)?;
                (map, Some(name))
            }
        };
        Ok(Segment { map, must_unlink: AtomicBool::new(name.is_some()), name, forks: forks() })
    }

    /// Opens a segment that another process, or this one, has made.
    pub(crate) fn attach(kind: Kind, name: &str) -> Result<(Segment, Header), Error> {
        watch_forks();
        check_name(name)?;
        let foreign = |why: &str| Error::Foreign(format!("cannot attach to shared memory {name:?}: {why}"));
        let file = match open_own(&path(name), true) {
            Ok(Ok(file)) => file,
            Ok(Err(why)) => return Err(foreign(why)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NotFound(name.into())),
            Err(source) => return Err(Error::Io { what: format!("cannot open shared memory {name:?}"), source }),
        };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let Ok(bytes) = header_bytes(&file) else { return Err(foreign("it is no segment of fastrl")) };
        let (header, origin) = Header::decode(&bytes, length).map_err(foreign)?;
        let own = Namespace::own();
        if own.is_known() && origin.namespace.is_known() && !own.has_boot_of(origin.namespace) {
            return Err(foreign("it was made before the machine was started"));
        }
        if own != origin.namespace {
            return Err(foreign(
                "it was made in another PID namespace, such as another container's, and only within one can processes \
                 tell which are alive",
            ));
        }
        if header.kind != kind {
            return Err(foreign(match header.kind {
                Kind::Queue => "it is a queue",
                Kind::Weights => "it is a broadcast of weights",
                Kind::Barrier => "it is a lockstep barrier",
            }));
        }
        let map = MmapOptions::new()
            .len(length as usize)
            .populate()
            .map_raw(&file)
            .map_err(|source| Error::Io { what: format!("cannot map shared memory {name:?}"), source })?;
        let segment = Segment { map, name: Some(name.into()), must_unlink: AtomicBool::new(false), forks: forks() };
        Ok((segment, header))
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping is never at address zero")
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns whether this is a forked child's copy of memory that only its parent shares.
    pub(crate) fn is_orphaned_by_fork(&self) -> bool {
        self.name.is_none() && self.forks != forks()
    }

    /// Returns whether this process, not a parent of it, made or attached it.
    pub(crate) fn is_own(&self) -> bool {
        self.forks == forks()
    }

    /// Removes the name, if this process made the segment: no process can attach any more; attached ones continue.
    pub(crate) fn unlink(&self) {
        let Some(name) = &self.name else { return };
        if self.is_own() && self.must_unlink.swap(false, Ordering::Relaxed) {
            // A user may have removed it by hand.
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

/// The bytes of a file's header, at the largest length that it may have.
fn header_bytes(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; FIXED];
    file.read_exact_at(&mut bytes, 0)?;
    let schema = u64::from_ne_bytes(bytes[40..48].try_into().expect("eight bytes")).min(MAX_SCHEMA);
    bytes.resize(FIXED + schema as usize, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Opens a file of `/dev/shm` that may be a segment, without blocking and without following links. The inner error says
/// why it cannot be one.
fn open_own(path: &Path, writeable: bool) -> io::Result<Result<File, &'static str>> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = match File::options().read(true).write(writeable).custom_flags(flags).open(path) {
        Ok(file) => file,
        // A link, or a socket.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => {
            return Ok(Err("it is no regular file"));
        }
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Err("it is no regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Err("it belongs to another user"));
    }
    Ok(Ok(file))
}

/// Creates and maps a file, under the given name or a random one, which no other process can guess and take first.
#[cfg(target_os = "linux")]
fn create_file(header: &Header, name: Option<&str>, length: usize) -> Result<(MmapRaw, String), Error> {
    use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open, statvfs};
    use rustix::io::{Errno, retry_on_intr};
    use std::os::fd::AsRawFd;

    let free = || statvfs(FOLDER).map_or(0, |free| free.f_bavail.saturating_mul(free.f_frsize));
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::StorageFull => Error::NoRoom { folder: FOLDER, needed: length as u64, free: free() },
        _ => {
            let what = format!("cannot allocate {:.1} MB of shared memory in {FOLDER}", length as f64 / 1e6);
            Error::Io { what, source }
        }
    };
    // Checked first, because fallocate would take all that is free before it fails.
    if free() < length as u64 {
        return Err(refused(Errno::NOSPC.into()));
    }
    let file = open(FOLDER, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|error| refused(error.into()))?;
    retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, length as u64))
        .map_err(|error| refused(error.into()))?;
    let map = MmapOptions::new().len(length).populate().map_raw(&file).map_err(refused)?;
    let bytes = header.encode(Origin::own());
    assert!(bytes.len() <= map.len());
    // SAFETY: the assertion puts it inside of the mapping, and no other process knows the file yet.
    unsafe { map.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = match name {
        Some(name) => name.to_owned(),
        None => random_name().map_err(|error| refused(error.into()))?,
    };
    match linkat(CWD, unnamed, CWD, path(&name), AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok((map, name)),
        Err(Errno::EXIST) => Err(Error::Exists(name)),
        Err(error) => Err(refused(error.into())),
    }
}

/// This process's identity, for people who list the folder, and 64 random bits.
#[cfg(target_os = "linux")]
fn random_name() -> rustix::io::Result<String> {
    use rustix::rand::{GetRandomFlags, getrandom};

    let mut random = [0; 8];
    // So few bytes come at once, once the system has any.
    rustix::io::retry_on_intr(|| getrandom(&mut random, GetRandomFlags::empty()))?;
    Ok(format!("{:016x}-{:016x}", Process::own().word(), u64::from_ne_bytes(random)))
}

#[cfg(not(target_os = "linux"))]
fn create_file(_header: &Header, _name: Option<&str>, _length: usize) -> Result<(MmapRaw, String), Error> {
    Err(Error::Invalid("memory shared between processes needs Linux; choose shared=False".into()))
}

/// Removes the segments of this user and namespace whose creator and users are all dead. Returns how many. All others,
/// and files that cannot be read, are left alone.
pub(crate) fn sweep() -> usize {
    let own = Namespace::own();
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return 0 };
    if !own.is_known() {
        return 0;
    }
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)))
        .filter(|entry| remove_orphan(&entry.path(), own).unwrap_or(false))
        .count()
}

/// Removes a file if it is a segment that no process can use any more. Returns whether it did.
fn remove_orphan(path: &Path, own: Namespace) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};

    let Ok(file) = open_own(path, false)? else { return Ok(false) };
    let metadata = file.metadata()?;
    let Ok((header, origin)) = Header::decode(&header_bytes(&file)?, metadata.len()) else {
        return Ok(false);
    };
    if origin.namespace != own || origin.creator.is_alive() || has_living_user(&file, header.users)? {
        return Ok(false);
    }
    // Another process that sweeps this file now fails here, so the name below still belongs to this file.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let named = std::fs::symlink_metadata(path)?;
    if (named.dev(), named.ino()) != (metadata.dev(), metadata.ino()) {
        return Ok(false);
    }
    std::fs::remove_file(path)?;
    Ok(true)
}

fn has_living_user(file: &File, users: Users) -> io::Result<bool> {
    if users.count > MAX_USERS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    for i in 0..users.count {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, users.first.saturating_add(i.saturating_mul(users.stride)))?;
        if Process::from_word(u64::from_ne_bytes(word)).is_some_and(Process::is_alive) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEAD: Process = Process::new(u32::MAX, 1);

    fn header() -> Header {
        let parameters = [8, 0, 0, 0, 0, 0];
        Header { kind: Kind::Weights, length: 8192, parameters, users: Users::default(), schema: "text".into() }
    }

    /// A file that was not made by `Segment::create`; removed when it goes.
    struct Forged(String);

    impl Forged {
        fn new(name: &str, origin: Origin) -> Forged {
            let forged = Forged(format!("test-{name}-{}", std::process::id()));
            let mut bytes = header().encode(origin);
            bytes.resize(8192, 0);
            std::fs::write(path(&forged.0), bytes).unwrap();
            forged
        }

        fn is_there(&self) -> bool {
            path(&self.0).symlink_metadata().is_ok()
        }

        fn refusal(&self) -> String {
            match Segment::attach(Kind::Weights, &self.0) {
                Err(error @ (Error::Foreign(_) | Error::NotFound(_))) => error.to_string(),
                other => panic!("{:?}", other.map(|(_, header)| header)),
            }
        }
    }

    impl Drop for Forged {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(path(&self.0));
        }
    }

    #[test]
    fn only_what_the_dead_of_this_namespace_have_left_is_swept() {
        let own = Namespace::own();
        let elsewhere = |at: usize| {
            let mut id = own.0;
            id[at] ^= 1;
            Namespace(id)
        };
        let left = Forged::new("left", Origin { creator: DEAD, namespace: own });
        let used = Forged::new("used", Origin { creator: Process::own(), namespace: own });
        let boot = Forged::new("boot", Origin { creator: DEAD, namespace: elsewhere(0) });
        let container = Forged::new("container", Origin { creator: DEAD, namespace: elsewhere(16) });
        let clock = Forged::new("clock", Origin { creator: DEAD, namespace: elsewhere(24) });
        let unknown = Forged::new("unknown", Origin { creator: DEAD, namespace: Namespace([0; 32]) });
        sweep();
        assert!(!left.is_there());
        assert!([&used, &boot, &container, &clock, &unknown].into_iter().all(Forged::is_there));
        assert!(left.refusal().contains("there is no shared memory"));
        assert!(boot.refusal().contains("before the machine was started"));
        assert!(container.refusal().contains("in another PID namespace"), "{}", container.refusal());
        assert!(clock.refusal().contains("in another PID namespace"));
        assert!(unknown.refusal().contains("in another PID namespace"));
    }

    #[test]
    fn an_impossible_number_of_users_is_damage() {
        let users = Users { first: u64::MAX, stride: u64::MAX, count: u64::MAX };
        let forged = Forged::new("users", Origin::own());
        let bytes = Header { users, ..header() }.encode(Origin { creator: DEAD, namespace: Namespace::own() });
        std::fs::write(path(&forged.0), &[bytes, vec![0; 8192]].concat()[..8192]).unwrap();
        sweep();
        assert!(forged.is_there());
    }

    /// None of these calls waits for a process at the other end, or follows a link.
    #[test]
    fn files_that_are_not_regular_are_left_alone() {
        let dead = Origin { creator: DEAD, namespace: Namespace::own() };
        let fifo = Forged(format!("test-fifo-{}", std::process::id()));
        let c_path = std::ffi::CString::new(path(&fifo.0).to_str().unwrap()).unwrap();
        // SAFETY: a live string.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
        let link = Forged(format!("test-link-{}", std::process::id()));
        let hidden = std::env::temp_dir().join(format!("fastrl-hidden-{}", std::process::id()));
        std::fs::write(&hidden, &[header().encode(dead), vec![0; 8192]].concat()[..8192]).unwrap();
        std::os::unix::fs::symlink(&hidden, path(&link.0)).unwrap();
        let socket = Forged(format!("test-socket-{}", std::process::id()));
        let _listener = std::os::unix::net::UnixListener::bind(path(&socket.0)).unwrap();
        sweep();
        for forged in [&fifo, &link, &socket] {
            assert!(forged.is_there());
            assert!(forged.refusal().ends_with("it is no regular file"), "{}", forged.refusal());
        }
        std::fs::remove_file(hidden).unwrap();
        // Opens the other end, in case another version of fastrl runs beside this test and waits for it.
        File::options().read(true).write(true).open(path(&fifo.0)).unwrap();
    }

    #[test]
    fn another_users_file_is_left_alone() {
        let forged = Forged::new("user", Origin { creator: DEAD, namespace: Namespace::own() });
        if std::os::unix::fs::chown(path(&forged.0), Some(12345), None).is_err() {
            eprintln!("left out: only root can give files away");
            return;
        }
        sweep();
        assert!(forged.is_there());
        assert!(forged.refusal().ends_with("it belongs to another user"));
    }

    #[test]
    fn made_up_names_are_never_the_same() {
        let names: std::collections::HashSet<_> = (0..100).map(|_| random_name().unwrap()).collect();
        assert_eq!(names.len(), 100);
        assert!(names.iter().all(|name| check_name(name).is_ok()));
    }

    #[test]
    fn a_segment_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;

        let segment = Segment::create(&header(), &Shared::Anonymous).unwrap();
        let metadata = std::fs::metadata(path(segment.name().unwrap())).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    }

    proptest! {
        /// With the checksum as it should be, so that what lies behind it is reached.
        #[test]
        fn no_bytes_confuse_the_decoder(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600),
            schema in prop_oneof![0..400_u64, any::<u64>()],
            kind in 0..5_u32,
            mends in any::<bool>(),
        ) {
            let length = bytes.get(32..40).map_or(0, |word| u64::from_ne_bytes(word.try_into().unwrap()));
            if mends && bytes.len() >= FIXED {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
                bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
                bytes[40..48].copy_from_slice(&schema.to_ne_bytes());
                let end = usize::try_from(schema).unwrap_or(usize::MAX).saturating_add(FIXED).min(bytes.len());
                let checksum = crc32fast::hash(&bytes[32..end]);
                bytes[16..20].copy_from_slice(&checksum.to_ne_bytes());
            }
            if let Ok((header, origin)) = Header::decode(&bytes, length) {
                prop_assert!(mends && (1..4).contains(&kind));
                prop_assert_eq!(Header::decode(&header.encode(origin), length), Ok((header, origin)));
            }
        }
    }
}
