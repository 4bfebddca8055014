//! Gradient steps of small networks on the CPU: whole updates of PPO and of PQN in one call, and steps of behaviour cloning,
//! SAC, TD3, IQL and DQN.
//!
//! [`ppo::update`] takes minibatches ([`minibatch`]) through networks and back ([`network`]), which are perceptrons
//! ([`perceptron`]) or made of some, as those of tables are ([`network::pointer`]), with the gradients of losses
//! ([`losses`], of a policy [`chunk`], with masks [`masked`], of behaviour cloning [`imitation`]), through layer
//! normalisation ([`layer_norm`]) where there is one, and along them with Adam ([`adam`]). All sums have an order that
//! depends neither on the processor nor on the number of threads, so that results are the same to the last bit.
//! [`values::values`] is the critic's pass alone.

pub use self::network::pointer::pooled::Pooling;
pub use crate::bf16::Precision;

mod adam;
mod batch;
mod chunk;
pub mod imitation;
mod layer_norm;
pub mod losses;
mod masked;
mod member;
mod minibatch;
pub(crate) mod network;
pub mod off_policy;
mod off_policy_losses;
mod off_policy_parts;
mod perceptron;
pub mod ppo;
pub mod q_learning;
mod rounding;
mod row_sums;
mod samples;
pub mod values;
