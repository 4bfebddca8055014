//! Errors of the core as Python's exceptions.

use fastrl_core::{actor, shm};
use pyo3::exceptions::{PyException, PyFileExistsError, PyFileNotFoundError, PyOSError, PyRuntimeError, PyValueError};
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

pub(crate) fn from_actor(error: actor::Error) -> PyErr {
    use actor::Error;
    let text = error.to_string();
    match error {
        Error::NotFinite { .. } => PyValueError::new_err(text),
        Error::NoWeights => PyRuntimeError::new_err(text),
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
