//! CAGE Challenge 4 (CybORG 4.0, EnterpriseScenarioGenerator): five blue agents defend a network, new in every episode,
//! of 41 to 137 hosts in nine subnets, on which green's users work, against red's six agents.
//!
//! A [`blueprint`] is drawn and the [`network`] built. In a step, [`game`] lets [`blue`], [`green`] and [`red`] act in
//! this order, passes [`sessions`] to the agents in whose zones they are, and [`watch`] has what blue is shown
//! ([`observation`], or [`host_view`] with memory). [`rules`] are the original's or mended ones. All randomness comes
//! from a [`source`].

pub mod blue;
mod blueprint;
mod env;
mod fast_source;
pub mod game;
mod green;
pub mod host_view;
pub mod ledger;
mod log;
pub mod mind;
pub mod network;
mod numpy_source;
pub mod observation;
mod recorded_source;
pub mod red;
mod red_actions;
pub mod red_kind;
pub mod replay;
pub mod rules;
pub mod scenario;
pub mod sessions;
pub mod source;
mod used_ports;
pub mod watch;
pub mod world;

pub use self::env::{Cage4, Config, MOST_STEPS};
