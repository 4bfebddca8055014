//! Cooperative driving: several agents among background traffic, on a highway or where a ramp ends.
//!
//! The physics is [`crate::traffic`]'s; the task (who begins where, what agents see, what they get, when their part
//! ends) is this module's. `fastrl.envs.traffic.coop` tells users of it.

pub mod config;
mod env;
pub mod metrics;
mod observation;
mod reward;
mod scene;
mod spawn;

pub use env::{Coop, State};
