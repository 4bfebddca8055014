//! The experience queue for Python: a producer's side.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use fastrl_binding::guard::try_lock;
use fastrl_binding::timeout::Timeout;
use fastrl_core::queue::{self as core, Policy};
use fastrl_core::shm::process;
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{Full, QueueError, from_queue};
use crate::records::{Anchor, RecordType, make_read_only};
use crate::shm::{LARGE, count};

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Producer {
    writing: Mutex<Option<Writing>>,
    records: RecordType,
    policy: Policy,
    /// Free slots that are worth waking up for.
    batch: usize,
    /// `process::forks()` of the process that the producer belongs to.
    forks: u64,
}

struct Writing {
    producer: core::Producer,
    anchor: Py<Anchor>,
    reserved: Option<Reserved>,
    reservations: u64,
}

/// An open reservation.
struct Reserved {
    view: Py<PyUntypedArray>,
    /// The view is not of the queue's memory: there was no room, and the policy is to drop.
    is_scratch: bool,
    number: u64,
}

fn borrowed() -> PyErr {
    QueueError::new_err("records are reserved: leave the reserve(...) block first")
}

fn full() -> PyErr {
    Full::new_err("the queue is full")
}

impl Producer {
    pub(crate) fn new(
        producer: core::Producer,
        records: RecordType,
        anchor: Py<Anchor>,
        policy: Policy,
        capacity: usize,
    ) -> Producer {
        let writing = Writing { producer, anchor, reserved: None, reservations: 0 };
        let batch = (capacity / 4).max(1);
        Producer { writing: Mutex::new(Some(writing)), records, policy, batch, forks: process::forks() }
    }

    #[inline]
    fn writing(&self) -> PyResult<MutexGuard<'_, Option<Writing>>> {
        try_lock("producer", &self.writing).map_err(QueueError::new_err)
    }

    #[inline]
    fn write<R>(&self, call: impl FnOnce(&mut Writing) -> PyResult<R>) -> PyResult<R> {
        let mut writing = self.writing()?;
        call(writing.as_mut().ok_or_else(|| QueueError::new_err("this producer is closed"))?)
    }

    /// Puts records until all are put or the time is over. Returns how many. `bytes` is called again after each wait,
    /// because other threads need not have left the array alone meanwhile.
    #[inline]
    fn put_bytes<'a>(
        &self,
        py: Python<'_>,
        bytes: impl Fn() -> PyResult<&'a [u8]>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let mut timeout = Timeout::new(timeout)?;
        let mut records = bytes()?;
        let size = self.records.size();
        let total = records.len() / size;
        let mut done = 0;
        self.write(|Writing { producer, reserved, .. }| {
            if reserved.is_some() {
                return Err(borrowed());
            }
            loop {
                let rest = &records[done * size..];
                let put = if rest.len() >= LARGE { py.detach(|| producer.offer(rest)) } else { producer.offer(rest) };
                done += put.map_err(from_queue)?;
                if done == total {
                    return Ok(done);
                }
                let room = self.batch.min(total - done);
                if !timeout.wait(py, from_queue, |slice| producer.wait(room, slice))? {
                    return if done > 0 { Ok(done) } else { Err(full()) };
                }
                records = bytes()?;
                if records.len() != total * size {
                    return Err(PyValueError::new_err("rows: the array was changed during the call"));
                }
            }
        })
    }

    fn reserve_view<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        timeout: Option<f64>,
    ) -> PyResult<(Bound<'py, PyUntypedArray>, u64)> {
        let mut timeout = Timeout::new(timeout)?;
        self.write(|writing| {
            let producer = &mut writing.producer;
            if writing.reserved.is_some() {
                return Err(borrowed());
            }
            let records = loop {
                if let Some(records) = producer.reserve(count).map_err(from_queue)? {
                    break Some(records);
                }
                if self.policy != Policy::Block {
                    break None;
                }
                if !timeout.wait(py, from_queue, |slice| producer.wait(count, slice))? {
                    return Err(full());
                }
            };
            let anchor = writing.anchor.clone_ref(py).into_bound(py).into_any();
            let view = match records {
                // SAFETY: the anchor keeps the memory mapped. No consumer reads reserved records before they are
                // committed, and then this view is made read-only.
                Some(records) => unsafe { self.records.view(records, count, anchor, true) },
                None => self.records.empty(py, count),
            };
            if view.is_err() {
                producer.abort();
            }
            let view = view?;
            writing.reservations += 1;
            writing.reserved = Some(Reserved {
                view: view.clone().unbind(),
                is_scratch: records.is_none(),
                number: writing.reservations,
            });
            Ok((view, writing.reservations))
        })
    }

    fn end_reservation(&self, py: Python<'_>, number: u64, commit: bool) -> PyResult<()> {
        self.write(|writing| {
            let Some(reserved) = writing.reserved.take_if(|reserved| reserved.number == number) else {
                return Err(QueueError::new_err("this reservation is not open"));
            };
            make_read_only(reserved.view.bind(py));
            if self.forks != process::forks() {
                return Err(QueueError::new_err("this reservation belongs to the process that was forked"));
            }
            match (reserved.is_scratch, commit) {
                (true, true) => writing.producer.drop_newest(reserved.view.bind(py).len()),
                (true, false) => {}
                (false, true) => writing.producer.commit(),
                (false, false) => writing.producer.abort(),
            }
            Ok(())
        })
    }
}

#[pymethods]
impl Producer {
    #[pyo3(signature = (row, timeout=None))]
    fn put(&self, py: Python<'_>, row: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        // SAFETY: other Python threads leave the caller's record alone while it is being copied.
        let bytes = unsafe { self.records.one(row)? };
        if let Some(bytes) = bytes {
            // SAFETY: `put_bytes` asks again after each wait, and other Python threads leave the record alone in
            // between.
            self.put_bytes(py, || Ok(unsafe { self.records.one(row)? }.unwrap_or(bytes)), timeout)?;
        } else {
            let array = self.records.array_from_python(row)?;
            // SAFETY: `array` was made here, so no other thread knows it.
            self.put_bytes(py, || unsafe { self.records.bytes("row", &array) }, timeout)?;
        }
        Ok(())
    }

    #[pyo3(signature = (rows, timeout=None))]
    fn put_many(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        // SAFETY: `put_bytes` asks again after each wait, and other Python threads leave the array alone in between.
        self.put_bytes(py, || unsafe { self.records.bytes("rows", rows) }, timeout)
    }

    #[pyo3(signature = (n, timeout=None))]
    fn reserve(slf: Bound<'_, Self>, n: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Reservation> {
        let n = count("n", n)?;
        Timeout::new(timeout)?;
        Ok(Reservation { producer: slf.unbind(), count: n, timeout, number: AtomicU64::new(0) })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let writing = self.writing()?.take();
        if let Some(reserved) = writing.and_then(|writing| writing.reserved) {
            make_read_only(reserved.view.bind(py));
        }
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

/// Records that are filled in place in the queue's memory: a context manager.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Reservation {
    producer: Py<Producer>,
    count: usize,
    timeout: Option<f64>,
    /// The number of the last view; zero before the first.
    number: AtomicU64,
}

#[pymethods]
impl Reservation {
    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let (view, number) = self.producer.get().reserve_view(py, self.count, self.timeout)?;
        self.number.store(number, Ordering::Relaxed);
        Ok(view)
    }

    #[pyo3(signature = (exception, *_rest))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyAny>, _rest: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.producer.get().end_reservation(py, self.number.load(Ordering::Relaxed), exception.is_none())
    }
}
