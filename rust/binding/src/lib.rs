//! Parts of which the Python bindings of simulators are made, those of fastrl itself and those of other crates.
//!
//! A simulator implements [`fastrl_core::env::Env`] or [`fastrl_core::single_agent::SingleAgentEnv`]. Its binding is a class with a
//! field `venv`, a [`vec_env::VecBinding`] over it, a constructor that takes its options, and [`vec_methods!`], which gives the
//! class the methods that `fastrl.envs.vector.NativeVectorEnv` calls:
//!
//! ```ignore
//! #[pyclass(frozen)]
//! struct FerryVec {
//!     venv: VecBinding<Ferry>,
//! }
//!
//! vec_methods!(FerryVec);
//! ```
//!
//! The crate of the binding depends on `pyo3` with the feature `multiple-pymethods`: the class has two blocks of
//! methods. `examples/compiled-env` is complete. [`arrays`] serves bindings with methods of their own that fill numpy
//! arrays.

#![deny(missing_docs)]

pub mod arrays;
pub mod async_vec;
mod errors;
pub mod guard;
pub mod rollout;
pub mod timeout;
pub mod vec_env;
