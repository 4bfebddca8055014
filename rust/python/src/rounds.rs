//! Rounds of work in shared memory, for Python.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use fastrl_core::rounds;
use fastrl_core::shm::Error;
use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::errors::from_shm;
use crate::shm::{Timeout, count};

/// So often a member that waits looks whether it was told something else; nothing in the rounds depends on it.
const SLICE: Duration = Duration::from_secs(1);

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Rounds {
    rounds: rounds::Rounds,
    /// The member that this process is, and the last round that it has seen. Locked by the thread that leads or works.
    seat: Mutex<Option<(usize, u64)>>,
}

impl Rounds {
    fn over(rounds: rounds::Rounds) -> Rounds {
        Rounds { rounds, seat: Mutex::new(None) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<(usize, u64)>>> {
        match self.seat.try_lock() {
            Ok(seat) => Ok(seat),
            Err(TryLockError::Poisoned(seat)) => Ok(PoisonError::into_inner(seat)),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("another thread is using these rounds right now"))
            }
        }
    }
}

fn not_joined() -> PyErr {
    PyRuntimeError::new_err("this process is no member of these rounds: join them first")
}

#[pymethods]
impl Rounds {
    #[new]
    fn new(py: Python<'_>, members: &Bound<'_, PyAny>, nbytes: &Bound<'_, PyAny>) -> PyResult<Rounds> {
        let (members, nbytes) = (count("members", members)?, count("nbytes", nbytes)?);
        // Touching all of a large memory takes its time.
        py.detach(|| rounds::Rounds::create(members, nbytes)).map(Rounds::over).map_err(from_shm)
    }

    #[classmethod]
    fn attach(_cls: &Bound<'_, PyType>, name: &str) -> PyResult<Rounds> {
        rounds::Rounds::attach(name).map(Rounds::over).map_err(from_shm)
    }

    #[getter]
    fn name(&self) -> &str {
        self.rounds.name()
    }

    #[getter]
    fn members(&self) -> usize {
        self.rounds.members()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.rounds.nbytes()
    }

    fn data<'py>(slf: Bound<'py, Self>) -> Bound<'py, PyArray1<u8>> {
        let rounds = &slf.get().rounds;
        // SAFETY: mapped as long as this object, which the array holds, lives. Other processes write to it, in rounds;
        // the array is a view that nobody on this side of the boundary looks through.
        unsafe {
            let view = ArrayView1::from_shape_ptr(rounds.nbytes(), rounds.data().as_ptr());
            PyArray1::borrow_from_array(&view, slf.clone().into_any())
        }
    }

    fn begin(&self) -> PyResult<()> {
        let _one_thread = self.lock()?;
        self.rounds.begin().map_err(from_shm)
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let mut timeout = Timeout::new(timeout)?;
        let _one_thread = self.lock()?;
        let mut is_complete = false;
        while !is_complete {
            let goes_on = timeout.wait(py, from_shm, |slice| {
                is_complete = self.rounds.wait(slice)?;
                Ok::<bool, Error>(is_complete)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(is_complete)
    }

    fn missing(&self) -> PyResult<Vec<usize>> {
        let mut missing = Vec::new();
        for member in 0..self.rounds.members() {
            if !self.rounds.is_done(member).map_err(from_shm)? {
                missing.push(member);
            }
        }
        Ok(missing)
    }

    fn give_up(&self, member: usize) -> PyResult<()> {
        self.rounds.give_up(member).map_err(from_shm)
    }

    fn join(&self, member: usize) -> PyResult<()> {
        let mut seat = self.lock()?;
        *seat = Some((member, self.rounds.join(member).map_err(from_shm)?));
        Ok(())
    }

    fn done(&self) -> PyResult<()> {
        let seat = self.lock()?;
        let (member, round) = seat.ok_or_else(not_joined)?;
        self.rounds.finish(member, round);
        Ok(())
    }

    fn next(&self, py: Python<'_>) -> PyResult<()> {
        let mut seat = self.lock()?;
        let (member, round) = seat.ok_or_else(not_joined)?;
        self.rounds.finish(member, round);
        loop {
            if let Some(round) = py.detach(|| self.rounds.next(member, round, SLICE)) {
                *seat = Some((member, round));
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    fn close(&self) {
        self.rounds.unlink();
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("attach")?, (slf.get().name().to_owned(),)))
    }

    fn __repr__(&self) -> String {
        format!("Rounds({}, {}) named '{}'", self.members(), self.nbytes(), self.name())
    }
}
