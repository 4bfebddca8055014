//! Radio links between vehicles: who hears whom, and what each knows of the others.
//!
//! Every vehicle with a radio is a *station*; it broadcasts its state once a period. A message gets through with a
//! probability that follows from path loss, shadowing, noise and the interference of all who send in the same
//! resource ([`config::Channel::Tr37885`]), or from the distance alone ([`config::Channel::Range`]). Receivers keep
//! the last state of each sender and its age.
//!
//! Source of the propagation model: 3GPP TR 37.885 V15.3.0, section 6.2.1 and table 6.2.1-1. All randomness is a
//! function of the seed, the episode, the message and the pair ([`draws::Draws`]): it takes no draw from the traffic.

pub mod account;
pub mod choice;
pub mod config;
mod drawn;
pub mod draws;
pub mod exchange;
pub mod path_loss;
pub mod radio;
mod resources;
mod shadowing;
pub mod table;

pub use exchange::{LinkState, Station};
