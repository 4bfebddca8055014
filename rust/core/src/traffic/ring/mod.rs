//! Flow's ring road: human drivers whose stop-and-go wave one or several agents are to dissolve.
//!
//! Source: C. Wu, A. Kreidieh, K. Parvate, E. Vinitsky, A. Bayen, "Flow: Architecture and benchmarking for
//! reinforcement learning in traffic control" (2017), `WaveAttenuationPOEnv` and `MultiAgentWaveAttenuationPOEnv`.

pub mod config;
mod controllers;
pub mod env;
mod noise;
pub mod platoon;
mod scene;
pub mod sumo_idm;
