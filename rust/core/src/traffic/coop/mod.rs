//! Cooperative driving: several agents among background traffic, on a highway or where a ramp ends.
//!
//! The physics is [`crate::traffic`]'s; the task (initial positions, observations, rewards, ends of episodes) is this
//! module's. `fastrl.envs.traffic.coop` tells users of it.

pub mod config;
mod env;
mod links;
mod observation;
mod reward;
mod scene;
mod spawn;

pub use env::{Coop, State};
