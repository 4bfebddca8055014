//! The experience queue for Python: the consumer's side. `producer.rs` has the other one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrl_binding::guard::try_lock;
use fastrl_binding::timeout::Timeout;
use fastrl_core::queue::{self as core, Options, Order, Policy, Shared};
use fastrl_core::shm::process;
use numpy::PyArrayDescr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};

use crate::errors::{Empty, QueueError, from_queue};
use crate::producer::Producer;
use crate::records::{Anchor, RecordType};
use crate::shm::{LARGE, count};

fn policy_from_name(name: &str) -> PyResult<Policy> {
    match name {
        "block" => Ok(Policy::Block),
        "error" => Ok(Policy::Error),
        "drop_newest" => Ok(Policy::DropNewest),
        "drop_oldest" => Ok(Policy::DropOldest),
        _ => Err(PyValueError::new_err(format!(
            "policy: expected 'block', 'error', 'drop_newest' or 'drop_oldest', got '{name}'"
        ))),
    }
}

fn order_from_name(name: &str) -> PyResult<Order> {
    match name {
        "per_producer" => Ok(Order::PerProducer),
        "total" => Ok(Order::Total),
        _ => Err(PyValueError::new_err(format!("order: expected 'per_producer' or 'total', got '{name}'"))),
    }
}

/// A queue's memory, before Python knows the dtype of its records.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct QueueMemory(core::Queue);

#[pymethods]
impl QueueMemory {
    #[staticmethod]
    #[pyo3(signature = (record_size, schema, capacity, *, max_producers, policy, order, shared, name))]
    #[expect(clippy::too_many_arguments, reason = "the options of a queue, by name")]
    fn create(
        py: Python<'_>,
        record_size: usize,
        schema: String,
        capacity: &Bound<'_, PyAny>,
        max_producers: &Bound<'_, PyAny>,
        policy: &str,
        order: &str,
        shared: bool,
        name: Option<String>,
    ) -> PyResult<QueueMemory> {
        let options = Options {
            record_size,
            schema,
            capacity: count("capacity", capacity)?,
            max_producers: count("max_producers", max_producers)?,
            policy: policy_from_name(policy)?,
            order: order_from_name(order)?,
            shared: match (shared, name) {
                (_, Some(name)) => Shared::Named(name),
                (true, None) => Shared::Anonymous,
                (false, None) => Shared::No,
            },
        };
        // Touching all of a large memory takes its time.
        py.detach(|| core::Queue::create(&options)).map(QueueMemory).map_err(from_queue)
    }

    #[staticmethod]
    fn attach(name: &str) -> PyResult<QueueMemory> {
        core::Queue::attach(name).map(QueueMemory).map_err(from_queue)
    }

    #[getter]
    fn schema(&self) -> &str {
        self.0.schema()
    }

    #[getter]
    fn record_size(&self) -> usize {
        self.0.record_size()
    }
}

struct Open {
    queue: core::Queue,
    anchor: Py<Anchor>,
}

/// The consumer's role, taken by the first call that needs it.
struct Reading {
    consumer: Option<core::Consumer>,
    /// `process::forks()` when this process took the role, which a forked child does not inherit.
    forks: u64,
    /// The number of the open `peek`, if one is open, and of the last one.
    open_peek: Option<u64>,
    last_peek: u64,
}

#[pyclass(frozen, subclass, module = "fastrl._native._rust")]
pub(crate) struct Queue {
    open: Mutex<Option<Open>>,
    reading: Mutex<Reading>,
    records: RecordType,
    name: Option<String>,
    capacity: usize,
    max_producers: usize,
    policy: Policy,
    order: Order,
}

type Names = Vec<(&'static str, u64)>;
type Counters = (Names, Vec<Names>);

fn closed() -> PyErr {
    QueueError::new_err("this queue is closed")
}

fn empty() -> PyErr {
    Empty::new_err("the queue is empty")
}

impl Queue {
    fn with_open<R>(&self, use_it: impl FnOnce(&Open) -> R) -> PyResult<R> {
        // Held for moments only.
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(use_it).ok_or_else(closed)
    }

    fn reading(&self) -> PyResult<MutexGuard<'_, Reading>> {
        try_lock("queue's consumer", &self.reading).map_err(QueueError::new_err)
    }

    /// Calls the consumer, which the first call makes. The first call in a forked child makes a new one: a child must
    /// not use the one that it inherited.
    #[inline]
    fn consume<R>(&self, call: impl FnOnce(&mut core::Consumer) -> PyResult<R>) -> PyResult<R> {
        let mut reading = self.reading()?;
        if reading.forks == process::forks()
            && let Some(consumer) = reading.consumer.as_mut()
        {
            return call(consumer);
        }
        let consumer = self.with_open(|open| open.queue.consumer())?.map_err(from_queue)?;
        reading.forks = process::forks();
        reading.open_peek = None;
        call(reading.consumer.insert(consumer))
    }

    fn show<'py>(&self, py: Python<'py>, max: usize, timeout: Option<f64>) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let mut timeout = Timeout::new(timeout)?;
        let anchor = self.with_open(|open| open.anchor.clone_ref(py).into_bound(py).into_any())?;
        let view = self.consume(|consumer| {
            loop {
                if let Some((records, count)) = consumer.peek(max).map_err(from_queue)? {
                    // SAFETY: the anchor keeps the memory mapped; no producer writes to records that are peeked at
                    // before they are released, and after that the view still shows valid memory with other contents.
                    return unsafe { self.records.view(records, count, anchor, false) };
                }
                if !timeout.wait(py, from_queue, |slice| consumer.wait(slice))? {
                    return Err(empty());
                }
            }
        })?;
        let mut reading = self.reading()?;
        reading.last_peek += 1;
        reading.open_peek = Some(reading.last_peek);
        Ok((view.into_any(), reading.last_peek))
    }

    fn unshow(&self, number: u64) -> PyResult<()> {
        let mut reading = self.reading()?;
        if reading.open_peek == Some(number) && reading.forks == process::forks() {
            reading.open_peek = None;
            if let Some(consumer) = reading.consumer.as_mut() {
                consumer.release();
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>, memory: &QueueMemory, dtype: Bound<'_, PyArrayDescr>) -> PyResult<Queue> {
        let queue = &memory.0;
        let records = RecordType::new(dtype)?;
        if records.size() != queue.record_size() {
            return Err(QueueError::new_err(format!(
                "the queue has records of {} bytes, its dtype {}",
                queue.record_size(),
                records.size()
            )));
        }
        let anchor = Py::new(py, Anchor::new(queue.clone()))?;
        Ok(Queue {
            reading: Mutex::new(Reading { consumer: None, forks: 0, open_peek: None, last_peek: 0 }),
            records,
            name: queue.name().map(str::to_owned),
            capacity: queue.capacity(),
            max_producers: queue.max_producers(),
            policy: queue.policy(),
            order: queue.order(),
            open: Mutex::new(Some(Open { queue: queue.clone(), anchor })),
        })
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDescr> {
        self.records.descr(py).clone()
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[getter]
    fn capacity(&self) -> usize {
        self.capacity
    }

    #[getter]
    fn max_producers(&self) -> usize {
        self.max_producers
    }

    #[getter]
    fn policy(&self) -> &'static str {
        match self.policy {
            Policy::Block => "block",
            Policy::Error => "error",
            Policy::DropNewest => "drop_newest",
            Policy::DropOldest => "drop_oldest",
        }
    }

    #[getter]
    fn order(&self) -> &'static str {
        match self.order {
            Order::PerProducer => "per_producer",
            Order::Total => "total",
        }
    }

    fn producer(&self, py: Python<'_>) -> PyResult<Producer> {
        let (producer, anchor) = self.with_open(|open| (open.queue.producer(), open.anchor.clone_ref(py)))?;
        let records = self.records.clone_ref(py);
        Ok(Producer::new(producer.map_err(from_queue)?, records, anchor, self.policy, self.capacity))
    }

    #[pyo3(signature = (block=true, timeout=None))]
    fn get<'py>(&self, py: Python<'py>, block: bool, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let mut timeout = Timeout::new(if block { timeout } else { Some(0.0) })?;
        self.consume(|consumer| {
            loop {
                if let Some((record, _)) = consumer.peek(1).map_err(from_queue)? {
                    // SAFETY: no producer writes to records that are peeked at before they are released.
                    let row = unsafe { self.records.scalar(py, record) };
                    consumer.release();
                    return row;
                }
                if !timeout.wait(py, from_queue, |slice| consumer.wait(slice))? {
                    return Err(empty());
                }
            }
        })
    }

    #[pyo3(signature = (max, out=None, timeout=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        max: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let max = count("max", max)?;
        let mut timeout = Timeout::new(timeout)?;
        if let Some(out) = &out {
            // SAFETY: only checked, not used.
            unsafe { self.records.bytes_mut("out", out, max)? };
        }
        self.consume(|consumer| {
            loop {
                let (array, room) = match &out {
                    Some(out) => (out.clone(), max),
                    None => {
                        let waiting = self.with_open(|open| open.queue.depth())?.clamp(1, max);
                        (self.records.empty(py, waiting)?.into_any(), waiting)
                    }
                };
                // SAFETY: the caller leaves the array alone during this call; it is looked up again after each wait,
                // because other threads may have changed it meanwhile.
                let bytes = unsafe { self.records.bytes_mut("out", &array, room)? };
                let taken =
                    if bytes.len() >= LARGE { py.detach(|| consumer.take(bytes)) } else { consumer.take(bytes) };
                match taken.map_err(from_queue)? {
                    0 => {}
                    count if count == array.len()? => return Ok(array),
                    count => return array.get_item(PySlice::new(py, 0, count as isize, 1)),
                }
                if !timeout.wait(py, from_queue, |slice| consumer.wait(slice))? {
                    return Err(empty());
                }
            }
        })
    }

    #[pyo3(signature = (max=None, timeout=None))]
    fn peek(slf: Bound<'_, Self>, max: Option<&Bound<'_, PyAny>>, timeout: Option<f64>) -> PyResult<Peek> {
        let max = max.map_or(Ok(usize::MAX), |max| count("max", max))?;
        Timeout::new(timeout)?;
        Ok(Peek { queue: slf.unbind(), max, timeout, number: AtomicU64::new(0) })
    }

    /// Counters as (name, value), of the whole queue and of each producer.
    fn counters(&self) -> PyResult<Counters> {
        let stats = self.with_open(|open| open.queue.stats())?;
        let all = vec![
            ("got", stats.got),
            ("depth", stats.depth),
            ("high_water", stats.high_water),
            ("abandoned", stats.abandoned),
            ("consumer_wait_ns", stats.consumer_wait_ns),
            ("consumer", stats.consumer.map_or(0, u64::from)),
        ];
        let of_producer = |producer: &core::ProducerStats| {
            vec![
                ("owner", producer.owner.map_or(0, u64::from)),
                ("put", producer.put),
                ("dropped_newest", producer.dropped_newest),
                ("dropped_oldest", producer.dropped_oldest),
                ("full_waits", producer.full_waits),
                ("wait_ns", producer.wait_ns),
                ("depth", producer.depth),
            ]
        };
        Ok((all, stats.producers.iter().map(of_producer).collect()))
    }

    #[pyo3(signature = (immediate=false))]
    fn shutdown(&self, immediate: bool) -> PyResult<()> {
        self.with_open(|open| open.queue.shutdown(immediate))
    }

    fn close(&self) -> PyResult<()> {
        let mut reading = self.reading()?;
        reading.consumer = None;
        reading.open_peek = None;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(open) = open {
            open.queue.unlink();
        }
        Ok(())
    }
}

/// A view of records in the queue's memory: a context manager.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Peek {
    queue: Py<Queue>,
    max: usize,
    timeout: Option<f64>,
    /// The number of the last view; zero before the first.
    number: AtomicU64,
}

#[pymethods]
impl Peek {
    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (view, number) = self.queue.get().show(py, self.max, self.timeout)?;
        self.number.store(number, Ordering::Relaxed);
        Ok(view)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.queue.get().unshow(self.number.load(Ordering::Relaxed))
    }
}
