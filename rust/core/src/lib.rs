//! The compiled heart of fastrl. Nothing here knows Python.
//!
//! [`env::Env`] is what a simulator offers ([`single_agent::SingleAgentEnv`] where it has one agent),
//! [`vec_env::VecEnv`] steps many of them in parallel into the caller's arrays, [`async_vec::AsyncVec`] each as its
//! action comes, and [`cage2`] is the simulator of CAGE Challenge 2. [`queue::Queue`] carries experience from many
//! producers to one consumer, [`weight_broadcast::WeightBroadcast`] the newest weights back to them,
//! [`barrier::LockstepBarrier`] lets processes work in lockstep; all live in memory that processes share ([`shm`]).
//! [`actor::Actor`] chooses actions with a small network ([`mlp`]) from random numbers that depend on episode and step
//! alone ([`streams`]).

pub mod actor;
pub mod async_vec;
pub mod barrier;
pub mod cage2;
pub mod env;
mod memory;
pub mod mlp;
mod python_random;
pub mod queue;
pub mod rng;
pub mod shm;
pub mod single_agent;
pub mod streams;
pub mod traffic;
pub mod vec_env;
pub mod weight_broadcast;
