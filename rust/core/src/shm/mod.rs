//! Memory that processes share: who is alive, what a segment looks like, and how its words are read and written.

mod error;
pub mod memory;
pub mod process;
pub(crate) mod segment;

pub use error::Error;
