//! Errors of the core as Python's exceptions.

use fastrl_core::{actor, async_vec, shm, vec_env};
use pyo3::exceptions::{
    PyException, PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use pyo3::{create_exception, import_exception};

import_exception!(queue, Empty);
import_exception!(queue, Full);
create_exception!(
    fastrl.queue,
    QueueError,
    PyRuntimeError,
    "A queue was used in a way that cannot work, or its memory is damaged; the text says how."
);

/// `queue.ShutDown`, which Python has from 3.13 on, or our own.
pub(crate) fn shut_down_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = TYPE.get_or_try_init(py, || match py.import("queue")?.getattr("ShutDown") {
        Ok(class) => Ok(class.cast_into::<PyType>()?.unbind()),
        Err(_) => {
            let doc = c"The queue was shut down.";
            PyErr::new_type(py, c"fastrl.queue.ShutDown", Some(doc), Some(&py.get_type::<PyException>()), None)
        }
    })?;
    Ok(class.bind(py))
}

/// An exception of `gymnasium.error`; RuntimeError where Gymnasium is not installed.
pub(crate) fn gymnasium_error(py: Python<'_>, name: &str, message: String) -> PyErr {
    match py.import("gymnasium.error").and_then(|module| module.getattr(name)?.call1((&message,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(message),
    }
}

pub(crate) fn from_vec_env(py: Python<'_>, error: vec_env::Error) -> PyErr {
    use vec_env::Error;
    let text = error.to_string();
    match error {
        Error::NeverReset { .. } | Error::Ended { .. } => gymnasium_error(py, "ResetNeeded", text),
        Error::Action { .. } | Error::Actions | Error::State(_) => PyValueError::new_err(text),
        Error::Threads(_) => PyRuntimeError::new_err(text),
        Error::Memory(_) => PyMemoryError::new_err(text),
    }
}

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

pub(crate) fn from_actor(error: actor::Error) -> PyErr {
    use actor::Error;
    let text = error.to_string();
    match error {
        Error::NotFinite { .. } => PyValueError::new_err(text),
        Error::NoWeights | Error::Threads(_) => PyRuntimeError::new_err(text),
    }
}

/// An error of shared memory that holds no queue.
pub(crate) fn from_shm(error: shm::Error) -> PyErr {
    use shm::Error;
    let text = error.to_string();
    match error {
        Error::Invalid(_) | Error::TooMany(_) => PyValueError::new_err(text),
        Error::NotFound(_) => PyFileNotFoundError::new_err(text),
        Error::Exists(_) => PyFileExistsError::new_err(text),
        Error::NoRoom { .. } | Error::Io { .. } => match error.raw_os_error() {
            Some(errno) => PyOSError::new_err((errno, text)),
            None => PyOSError::new_err(text),
        },
        _ => PyRuntimeError::new_err(text),
    }
}

/// An error of a queue.
pub(crate) fn from_queue(error: shm::Error) -> PyErr {
    use shm::Error;
    let text = error.to_string();
    match error {
        Error::Full => Full::new_err(text),
        Error::ShutDown => Python::attach(|py| match shut_down_type(py) {
            Ok(class) => PyErr::from_type(class.clone(), text),
            Err(error) => error,
        }),
        Error::NoProducerLeft { .. }
        | Error::Consumer { .. }
        | Error::Borrowed(_)
        | Error::Forked(_)
        | Error::NotOwner(_)
        | Error::Foreign(_) => QueueError::new_err(text),
        other => from_shm(other),
    }
}
