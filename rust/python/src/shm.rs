//! Timeouts of blocking calls, and counts as arguments.

use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Copies of at least as many bytes release the GIL.
pub(crate) const LARGE: usize = 256 << 10;

/// Interval in which a blocked call lets Python handle signals.
const SLICE: Duration = Duration::from_millis(50);

/// The time limit of a blocking call.
pub(crate) struct Timeout {
    limit: Option<Duration>,
    end: Option<Instant>,
}

impl Timeout {
    #[inline]
    pub(crate) fn new(seconds: Option<f64>) -> PyResult<Timeout> {
        let limit = match seconds {
            None => None,
            Some(seconds) if seconds >= 0.0 => Duration::try_from_secs_f64(seconds).ok(),
            Some(seconds) => {
                return Err(PyValueError::new_err(format!(
                    "timeout: expected None or at least 0 seconds, got {seconds}"
                )));
            }
        };
        Ok(Timeout { limit, end: None })
    }

    /// Lets `wait` block for a while without the GIL, and Python handle signals after it. False when the time is
    /// over. The clock starts with the first call.
    pub(crate) fn wait<E: Send>(
        &mut self,
        py: Python<'_>,
        to_python: impl FnOnce(E) -> PyErr,
        wait: impl FnOnce(Duration) -> Result<bool, E> + Send,
    ) -> PyResult<bool> {
        let mut slice = SLICE;
        if let Some(limit) = self.limit {
            let now = Instant::now();
            // A limit that the clock cannot represent is no limit.
            if let Some(end) = self.end.or_else(|| now.checked_add(limit)) {
                self.end = Some(end);
                let left = end.saturating_duration_since(now);
                if left.is_zero() {
                    return Ok(false);
                }
                slice = slice.min(left);
            }
        }
        py.detach(|| wait(slice)).map_err(to_python)?;
        py.check_signals()?;
        Ok(true)
    }
}

/// A whole number of at least one.
pub(crate) fn count(name: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let refused = || {
        let got = object.str().map_or_else(|_| "?".into(), |text| text.to_string());
        PyValueError::new_err(format!("{name}: expected 1 to {}, got {got}", isize::MAX))
    };
    match object.extract::<isize>() {
        Ok(count) if count > 0 => Ok(count as usize),
        Ok(_) => Err(refused()),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Err(refused()),
        Err(_) => {
            Err(PyTypeError::new_err(format!("{name}: expected a whole number, got {}", object.get_type().name()?)))
        }
    }
}
