//! `fastrl._native._rust`: the compiled part of fastrl as Python sees it. Bindings only; what they do is in
//! fastrl-core, and what the bindings of simulators share in fastrl-binding.

mod barrier;
mod cage2;
mod cage2_game;
mod cage2_memory;
mod cage2_rows;
mod cage2_scenario;
mod cage2_workflow;
mod cage4;
mod classic;
mod columns;
mod coop;
mod difficulty;
mod episodes;
mod errors;
mod highway;
mod highway_options;
mod lights;
mod links;
mod mlp;
mod off_policy;
mod ppo_update;
mod producer;
mod q_learning;
mod queue;
mod records;
mod ring;
mod roads;
mod rollout;
mod scene;
mod shm;
mod squashed;
mod streams;
mod v2x;
mod weights;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_rust")]
mod rust_module {
    #[pymodule_export]
    use crate::barrier::LockstepBarrier;
    #[pymodule_export]
    use crate::cage2::{Cage2Vec, replay_cage2};
    #[pymodule_export]
    use crate::cage2_game::Cage2GameVec;
    #[pymodule_export]
    use crate::cage2_memory::BlueMemory;
    #[pymodule_export]
    use crate::cage2_rows::Cage2RowsVec;
    #[pymodule_export]
    use crate::cage2_scenario::Cage2Scenario;
    #[pymodule_export]
    use crate::cage2_workflow::Cage2WorkflowVec;
    #[pymodule_export]
    use crate::cage4::{Cage4Vec, replay_cage4};
    #[pymodule_export]
    use crate::classic::ClassicVec;
    #[pymodule_export]
    use crate::coop::CoopVec;
    #[pymodule_export]
    use crate::errors::QueueError;
    #[pymodule_export]
    use crate::highway::HighwayVec;
    #[pymodule_export]
    use crate::lights::LightsVec;
    #[pymodule_export]
    use crate::links::path_loss_37885;
    #[pymodule_export]
    use crate::mlp::Mlp;
    #[pymodule_export]
    use crate::off_policy::OffPolicySteps;
    #[pymodule_export]
    use crate::ppo_update::PpoUpdate;
    #[pymodule_export]
    use crate::producer::{Producer, Reservation};
    #[pymodule_export]
    use crate::q_learning::QSteps;
    #[pymodule_export]
    use crate::queue::{Peek, Queue, QueueMemory};
    #[pymodule_export]
    use crate::ring::{IdmPlatoon, RingVec, ring_equilibrium_speed};
    #[pymodule_export]
    use crate::roads::RoadVec;
    #[pymodule_export]
    use crate::scene::TrafficScene;
    #[pymodule_export]
    use crate::squashed::{choose_bounded, scale_actions};
    #[pymodule_export]
    use crate::streams::{fill_noise, fill_normals, fill_uniforms};
    #[pymodule_export]
    use crate::v2x::V2xVec;
    #[pymodule_export]
    use crate::weights::Weights;
    #[pymodule_export]
    use fastrl_binding::async_vec::AsyncVec;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ShutDown", crate::errors::shut_down_type(module.py())?)?;
        crate::cage2::add_tables(module)?;
        crate::cage4::add_tables(module)
    }
}
