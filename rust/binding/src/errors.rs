//! Errors of vector environments as Python's exceptions.

use fastrl_core::{async_vec, vec_env};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// An exception of `gymnasium.error`; RuntimeError where Gymnasium is not installed.
pub(crate) fn gymnasium_error(py: Python<'_>, name: &str, message: String) -> PyErr {
    match py.import("gymnasium.error").and_then(|module| module.getattr(name)?.call1((&message,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(message),
    }
}

/// An error of [`vec_env`] as Python's exception.
pub(crate) fn from_vec_env(py: Python<'_>, error: vec_env::Error) -> PyErr {
    use vec_env::Error;
    let text = error.to_string();
    match error {
        Error::NeverReset { .. } | Error::Ended { .. } => gymnasium_error(py, "ResetNeeded", text),
        Error::Action { .. } | Error::Actions | Error::State(_) => PyValueError::new_err(text),
        Error::Memory(_) => PyMemoryError::new_err(text),
    }
}

/// An error of [`async_vec`] as Python's exception.
pub(crate) fn from_async_vec(py: Python<'_>, error: async_vec::Error) -> PyErr {
    use async_vec::Error;
    let text = error.to_string();
    match error {
        Error::NeverReset { .. } | Error::Ended { .. } => gymnasium_error(py, "ResetNeeded", text),
        Error::Threads(_) | Error::Failed(_) => PyRuntimeError::new_err(text),
        Error::Memory(_) => PyMemoryError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}
