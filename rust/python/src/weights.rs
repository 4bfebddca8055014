//! The weight broadcast for Python.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fastrl_core::weight_broadcast::WeightBroadcast;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::errors::from_shm;
use crate::shm::{LARGE, count};

/// The contiguous bytes of an object that speaks the buffer protocol, for as long as this lives.
pub(crate) struct Bytes(ffi::Py_buffer);

impl Bytes {
    pub(crate) fn of(name: &str, object: &Bound<'_, PyAny>, nbytes: usize, writeable: bool) -> PyResult<Bytes> {
        let py = object.py();
        let kind = if writeable { "writeable" } else { "readable" };
        let expected = format!("{name}: expected a {kind}, contiguous buffer of {nbytes} bytes");
        let flags = if writeable { ffi::PyBUF_WRITABLE } else { ffi::PyBUF_SIMPLE };
        let mut buffer = MaybeUninit::uninit();
        // SAFETY: `object` is alive, and PyObject_GetBuffer has filled the buffer in if it returns zero.
        let bytes = unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) != 0 {
                let error = PyErr::fetch(py);
                return Err(if error.is_instance_of::<PyTypeError>(py) {
                    let class = object.get_type().name()?;
                    PyTypeError::new_err(format!("{expected}, as numpy arrays are, got {class}"))
                } else if error.is_instance_of::<PyBufferError>(py) || error.is_instance_of::<PyValueError>(py) {
                    PyValueError::new_err(format!("{expected}: {}", error.value(py)))
                } else {
                    error
                });
            }
            Bytes(buffer.assume_init())
        };
        if bytes.0.len as usize != nbytes {
            return Err(PyValueError::new_err(format!("{expected}, got one of {} bytes", bytes.0.len)));
        }
        Ok(bytes)
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        if self.0.len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { self.0.buf.cast() }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: PyObject_GetBuffer filled it in; it is released once, by a thread that is attached to Python.
        unsafe { ffi::PyBuffer_Release(&mut self.0) };
    }
}

#[pyclass(frozen, module = "fastrl.collectors.weights")]
pub(crate) struct Weights {
    /// Never locked for longer than it takes to clone, so that a fork finds it free.
    reader: Mutex<Option<Arc<WeightBroadcast>>>,
    /// The writing side, in the process that created the weights; locked by the thread that publishes.
    writer: Mutex<Option<WeightBroadcast>>,
    name: String,
    nbytes: usize,
}

impl Weights {
    fn over(reader: WeightBroadcast, writer: Option<WeightBroadcast>) -> Weights {
        Weights {
            name: reader.name().to_owned(),
            nbytes: reader.nbytes(),
            reader: Mutex::new(Some(Arc::new(reader))),
            writer: Mutex::new(writer),
        }
    }

    fn reader(&self) -> PyResult<Arc<WeightBroadcast>> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.clone().ok_or_else(closed)
    }

    fn writer(&self) -> PyResult<MutexGuard<'_, Option<WeightBroadcast>>> {
        match self.writer.try_lock() {
            Ok(writer) => Ok(writer),
            Err(TryLockError::Poisoned(writer)) => Ok(writer.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread is publishing these weights right now"))
            }
        }
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("these weights are closed")
}

#[pymethods]
impl Weights {
    #[new]
    fn new(py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<Weights> {
        let nbytes = count("nbytes", nbytes)?;
        // Touching all of a large memory takes its time.
        py.detach(|| {
            let writer = WeightBroadcast::create(nbytes)?;
            Ok(Weights::over(WeightBroadcast::attach(writer.name())?, Some(writer)))
        })
        .map_err(from_shm)
    }

    #[classmethod]
    fn attach(_cls: &Bound<'_, PyType>, name: &str) -> PyResult<Weights> {
        WeightBroadcast::attach(name).map(|reader| Weights::over(reader, None)).map_err(from_shm)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    #[getter]
    fn version(&self) -> PyResult<u64> {
        Ok(self.reader()?.version())
    }

    fn publish(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.reader()?;
        let mut writer = self.writer()?;
        let Some(writer) = writer.as_mut() else {
            return Err(PyRuntimeError::new_err(
                "only the process that made these weights can publish them, on the object that it made",
            ));
        };
        let bytes = Bytes::of("data", data, self.nbytes, false)?;
        // SAFETY: the buffer is held, and its owner leaves it alone during the call.
        let data = unsafe { std::slice::from_raw_parts(bytes.pointer(), self.nbytes) };
        let version = if data.len() >= LARGE { py.detach(|| writer.publish(data)) } else { writer.publish(data) };
        version.map_err(from_shm)
    }

    #[pyo3(signature = (out, newer_than=0))]
    fn read(&self, py: Python<'_>, out: &Bound<'_, PyAny>, newer_than: u64) -> PyResult<u64> {
        let reader = self.reader()?;
        let bytes = Bytes::of("out", out, self.nbytes, true)?;
        if reader.version() <= newer_than {
            return Ok(0);
        }
        // SAFETY: `Bytes::of` has asked for a writeable buffer of this length, it is held, and its owner leaves it
        // alone during the call.
        let out = unsafe { std::slice::from_raw_parts_mut(bytes.pointer(), self.nbytes) };
        let version =
            if out.len() >= LARGE { py.detach(|| reader.read(out, newer_than)) } else { reader.read(out, newer_than) };
        Ok(version.map_err(from_shm)?.unwrap_or(0))
    }

    fn close(&self) -> PyResult<()> {
        // Dropped, it takes its name away.
        drop(self.writer()?.take());
        drop(self.reader.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("attach")?, (slf.get().name.clone(),)))
    }

    fn __repr__(&self) -> String {
        format!("Weights({}) named '{}'", self.nbytes, self.name)
    }
}
