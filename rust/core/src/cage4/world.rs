//! The network with its traffic rules, and what is seen of it.

use serde::{Deserialize, Serialize};

use super::network::Network;
use super::scenario::{NUM_NETWORKS, Subnets};
use super::watch::Watch;

/// The network with what blue does to it and sees of it. Fields that each step reads stand together: last in the
/// network, first in what is seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct World {
    pub network: Network,
    /// Subnets from which each subnet blocks traffic.
    pub blocks: [Subnets; NUM_NETWORKS],
    pub watch: Watch,
}
