//! Memory that processes share: liveness of processes, layout of segments, access to their words and records.

mod error;
pub mod memory;
pub mod process;
pub(crate) mod segment;

pub use error::Error;
