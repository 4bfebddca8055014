//! Gradient steps of small networks on the CPU: whole updates of PPO in one call, gradients of SAC, TD3 and IQL.
//!
//! [`ppo::update`] is made of products of matrices (`gemm`), passes through perceptrons and back ([`perceptron`]), the
//! gradients of losses ([`losses`], with masks [`masked`]) and Adam ([`adam`]). All sums have an order that depends
//! neither on the processor nor on the number of threads, so that results are the same to the last bit.

mod adam;
mod batch;
pub mod losses;
mod masked;
mod minibatch;
pub mod off_policy;
mod perceptron;
pub mod ppo;
