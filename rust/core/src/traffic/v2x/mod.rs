//! Resource allocation for vehicles: V2V links send payloads in the spectrum of V2I links.
//!
//! Source of the task and its numbers: L. Liang, H. Ye, G. Y. Li, "Spectrum Sharing in Vehicular Networks Based on
//! Multi-Agent Reinforcement Learning", IEEE JSAC 37 (2019), with the propagation models of 3GPP TR 36.885, annex A
//! (WINNER+ B1 between vehicles). `fastrl.envs.traffic.v2x` tells users of it.

mod account;
mod channels;
pub mod config;
mod env;
mod grid;
mod scene;

pub use account::Episode;
pub use env::{State, V2x};
