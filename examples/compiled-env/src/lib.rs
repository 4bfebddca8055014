//! `ferry._ferry`: the binding of the ferry.

mod ferry;

use pyo3::prelude::*;

#[pymodule]
mod _ferry {
    use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
    use fastrl_binding::vec_methods;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    use crate::ferry::Ferry;

    #[pyclass(frozen)]
    struct FerryVec {
        venv: VecBinding<Ferry>,
    }

    vec_methods!(FerryVec);

    #[pymethods]
    impl FerryVec {
        #[new]
        fn new(
            py: Python<'_>,
            num_envs: usize,
            limit: u32,
            num_threads: usize,
            autoreset_mode: &str,
        ) -> PyResult<Self> {
            if limit == 0 {
                return Err(PyValueError::new_err("limit: expected at least 1 step, got 0"));
            }
            let autoreset = autoreset_from_name(autoreset_mode)?;
            Ok(Self { venv: VecBinding::new(py, num_envs, || Ferry::new(limit), autoreset, num_threads)? })
        }
    }
}
