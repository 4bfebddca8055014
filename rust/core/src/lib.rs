//! The compiled heart of fastrl. Nothing here knows Python.
//!
//! - Simulators ([`cage2`], [`cage4`], [`classic`], [`traffic`]) implement [`env::Env`], or [`single_agent::SingleAgentEnv`] with one agent.
//!   [`vec_env::VecEnv`] steps many of them in parallel into the caller's arrays, [`async_vec::AsyncVec`] each one when
//!   its action comes.
//! - Processes share memory ([`shm`]): [`queue::Queue`] carries experience from many producers to one consumer,
//!   [`weight_broadcast::WeightBroadcast`] the newest weights back, [`barrier::LockstepBarrier`] keeps processes in step.
//! - [`actor::Actor`] chooses actions with a small network ([`mlp`]), from random numbers that depend only on episode and step
//!   ([`streams`]). [`learn`] takes the gradient steps of its training.

pub mod actor;
pub mod async_vec;
pub mod barrier;
mod bf16;
pub mod cage2;
pub mod cage4;
mod choice;
pub mod classic;
pub mod dense;
pub mod env;
mod gemm;
mod lanes;
pub mod learn;
mod matrix;
mod memory;
pub mod mlp;
mod numpy_random;
mod python_random;
pub mod queue;
pub mod recurrent;
#[cfg(target_arch = "x86_64")]
mod registers;
pub mod rng;
pub mod shm;
pub mod single_agent;
pub mod squashed;
pub mod streams;
pub mod team;
pub mod traffic;
pub mod vec_env;
pub mod weight_broadcast;
mod widest;
