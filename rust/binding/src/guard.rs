//! Guards of what one Python thread, of one process, may use at a time.

use std::process;
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::gymnasium_error;

/// Locks without waiting: a thread that waits inside has released the GIL, so another one may get here. The error is
/// the text for the user, `what` being the thing that is locked.
#[inline]
pub fn try_lock<'a, T>(what: &str, mutex: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, String> {
    mutex.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => format!("this {what} is being used by another thread right now"),
        TryLockError::Poisoned(_) => format!("an earlier call failed inside this {what}: make a new one"),
    })
}

/// An environment with threads of its own. It refuses, with a Python exception, to be used by two Python threads at
/// once, in a fork of its process, or after it was closed.
pub(crate) struct Guard<T> {
    /// None once it is closed.
    inner: Mutex<Option<T>>,
    /// The process that made it: threads do not survive a fork.
    owner: u32,
}

impl<T: Send> Guard<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Mutex::new(Some(inner)), owner: process::id() }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        if process::id() != self.owner {
            return Err(PyRuntimeError::new_err(format!(
                "this environment belongs to process {} and this is a fork of it, process {}: make a new environment here",
                self.owner,
                process::id()
            )));
        }
        try_lock("environment", &self.inner).map_err(PyRuntimeError::new_err)
    }

    pub(crate) fn with<R>(&self, py: Python<'_>, use_it: impl FnOnce(&mut T) -> PyResult<R>) -> PyResult<R> {
        match self.lock()?.as_mut() {
            Some(inner) => use_it(inner),
            None => Err(closed(py)),
        }
    }

    /// Takes the environment out: the guard is closed from now on.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<T> {
        self.lock()?.take().ok_or_else(|| closed(py))
    }

    /// Drops the environment. Does nothing in a fork, which holds a copy without threads, and after a failed call.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if process::id() != self.owner || self.inner.is_poisoned() {
            return Ok(());
        }
        let inner = self.lock()?.take();
        // Joining its threads waits for the steps that they are in.
        py.detach(|| drop(inner));
        Ok(())
    }
}

fn closed(py: Python<'_>) -> PyErr {
    gymnasium_error(py, "ClosedEnvironmentError", "this environment is closed: make a new one".into())
}
