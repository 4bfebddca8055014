//! `fastrl._rust`: the compiled part of fastrl as Python sees it. Bindings only; what they do is in fastrl-core.

mod arrays;
mod cage2;
mod vec_env;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_rust")]
mod rust_module {
    #[pymodule_export]
    use crate::cage2::{Cage2Vec, replay_cage2};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::cage2::add_tables(module)
    }
}
