//! The compiled heart of fastrl. Nothing here knows Python.
//!
//! [`env::Env`] is what a simulator offers, [`vec_env::VecEnv`] steps many of them in parallel into the
//! caller's arrays, and [`cage2`] is the simulator of CAGE Challenge 2.

pub mod cage2;
pub mod env;
pub mod python_random;
pub mod rng;
pub mod vec_env;
