//! The network with its traffic rules, and what is seen of it.

use serde::{Deserialize, Serialize};

use super::network::Network;
use super::scenario::{NUM_NETWORKS, Subnets};
use super::watch::Watch;

/// The network with what blue does to it and sees of it. Fields that each step reads come first, here and in its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct World {
    pub watch: Watch,
    /// Of each subnet, those from which it blocks traffic.
    pub blocks: [Subnets; NUM_NETWORKS],
    pub network: Network,
}
