//! The lockstep barrier for Python.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use fastrl_binding::timeout::Timeout;
use fastrl_core::barrier;
use fastrl_core::shm::Error;
use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::errors::from_shm;
use crate::shm::count;

/// Interval in which a waiting member lets Python handle signals; nothing in the barrier depends on it.
const SLICE: Duration = Duration::from_secs(1);

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct LockstepBarrier {
    inner: barrier::LockstepBarrier,
    /// The member that this process is, and the last round that it has seen. Locked by the thread that uses the
    /// barrier.
    joined: Mutex<Option<(usize, u64)>>,
}

impl LockstepBarrier {
    fn over(inner: barrier::LockstepBarrier) -> LockstepBarrier {
        LockstepBarrier { inner, joined: Mutex::new(None) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<(usize, u64)>>> {
        match self.joined.try_lock() {
            Ok(joined) => Ok(joined),
            Err(TryLockError::Poisoned(joined)) => Ok(PoisonError::into_inner(joined)),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread is using this barrier right now"))
            }
        }
    }
}

fn not_joined() -> PyErr {
    PyRuntimeError::new_err("this process is no member of this barrier: join it first")
}

#[pymethods]
impl LockstepBarrier {
    #[new]
    fn new(py: Python<'_>, members: &Bound<'_, PyAny>, nbytes: &Bound<'_, PyAny>) -> PyResult<LockstepBarrier> {
        let (members, nbytes) = (count("members", members)?, count("nbytes", nbytes)?);
        // Touching all of a large memory takes its time.
        py.detach(|| barrier::LockstepBarrier::create(members, nbytes)).map(LockstepBarrier::over).map_err(from_shm)
    }

    #[classmethod]
    fn attach(_cls: &Bound<'_, PyType>, name: &str) -> PyResult<LockstepBarrier> {
        barrier::LockstepBarrier::attach(name).map(LockstepBarrier::over).map_err(from_shm)
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn members(&self) -> usize {
        self.inner.members()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    fn data<'py>(slf: Bound<'py, Self>) -> Bound<'py, PyArray1<u8>> {
        let barrier = &slf.get().inner;
        // SAFETY: the data stay mapped as long as this object, which the array keeps alive. Rust code never reads or
        // writes them; Python code does in the rounds that belong to it.
        unsafe {
            let view = ArrayView1::from_shape_ptr(barrier.nbytes(), barrier.data().as_ptr());
            PyArray1::borrow_from_array(&view, slf.clone().into_any())
        }
    }

    fn start_round(&self) -> PyResult<()> {
        let _one_thread = self.lock()?;
        self.inner.start_round().map_err(from_shm)
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let mut timeout = Timeout::new(timeout)?;
        let _one_thread = self.lock()?;
        let mut is_complete = false;
        while !is_complete {
            let in_time = timeout.wait(py, from_shm, |slice| {
                is_complete = self.inner.wait(slice)?;
                Ok::<bool, Error>(is_complete)
            })?;
            if !in_time {
                break;
            }
        }
        Ok(is_complete)
    }

    fn missing(&self) -> PyResult<Vec<usize>> {
        let mut missing = Vec::new();
        for member in 0..self.inner.members() {
            if !self.inner.is_done(member).map_err(from_shm)? {
                missing.push(member);
            }
        }
        Ok(missing)
    }

    fn mark_dead(&self, member: usize) -> PyResult<()> {
        self.inner.mark_dead(member).map_err(from_shm)
    }

    fn join(&self, member: usize) -> PyResult<()> {
        let mut joined = self.lock()?;
        *joined = Some((member, self.inner.join(member).map_err(from_shm)?));
        Ok(())
    }

    fn done(&self) -> PyResult<()> {
        let (member, round) = self.lock()?.ok_or_else(not_joined)?;
        self.inner.finish(member, round);
        Ok(())
    }

    fn next(&self, py: Python<'_>) -> PyResult<()> {
        let mut joined = self.lock()?;
        let (member, round) = joined.ok_or_else(not_joined)?;
        self.inner.finish(member, round);
        loop {
            if let Some(round) = py.detach(|| self.inner.next(member, round, SLICE)) {
                *joined = Some((member, round));
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    fn close(&self) {
        self.inner.unlink();
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("attach")?, (slf.get().name().to_owned(),)))
    }

    fn __repr__(&self) -> String {
        format!("LockstepBarrier({}, {}) named '{}'", self.members(), self.nbytes(), self.name())
    }
}
