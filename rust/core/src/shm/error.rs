//! Errors of shared memory and of what lies in it, each in one line for people.

use std::{fmt, io};

#[derive(Debug)]
pub enum Error {
    /// An argument out of range.
    Invalid(String),
    /// More records at once than can ever fit.
    TooMany(String),
    /// No room, and the policy is not to wait.
    Full,
    /// The queue was shut down.
    ShutDown,
    /// The queue has as many living producers as it can have.
    NoProducerLeft { max_producers: usize },
    /// Another consumer is attached and alive.
    Consumer { pid: u32 },
    /// Records that are peeked at or reserved have not been given back yet.
    Borrowed(&'static str),
    /// Used in a child process after a fork.
    Forked(&'static str),
    /// Only the process that made it may do this.
    NotOwner(&'static str),
    /// No segment of that name.
    NotFound(String),
    /// A segment of that name is there already.
    Exists(String),
    /// A segment of another version or program, or a damaged one.
    Foreign(String),
    /// Too few bytes are free.
    NoRoom { folder: &'static str, needed: u64, free: u64 },
    /// The operating system refused.
    Io { what: String, source: io::Error },
}

impl Error {
    /// The error number of the operating system, if it caused the error.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::NoRoom { .. } => Some(libc::ENOSPC),
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(what) | Error::TooMany(what) | Error::Foreign(what) => f.write_str(what),
            Error::Full => f.write_str("the queue is full"),
            Error::ShutDown => f.write_str("the queue was shut down"),
            Error::NoProducerLeft { max_producers } => {
                write!(
                    f,
                    "the queue has {max_producers} living producers, which is its max_producers: close one, or make a queue for more"
                )
            }
            Error::Consumer { pid } => {
                write!(f, "the queue has a consumer already, in process {pid}: a queue has one at a time")
            }
            Error::Borrowed(what) | Error::Forked(what) | Error::NotOwner(what) => f.write_str(what),
            Error::NotFound(name) => {
                write!(f, "there is no shared memory named {name:?}: its owner may have closed it")
            }
            Error::Exists(name) => write!(f, "shared memory named {name:?} is there already: choose another name"),
            Error::NoRoom { folder, needed, free } => write!(
                f,
                "no room for {:.1} MB of shared memory: {folder} has {:.1} MB free; ask for less, such as a smaller \
                 capacity, or enlarge it (in a container with docker run --shm-size)",
                *needed as f64 / 1e6,
                *free as f64 / 1e6
            ),
            Error::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
