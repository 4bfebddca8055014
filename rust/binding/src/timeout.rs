//! Timeouts of blocking calls.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Interval in which a blocked call lets Python handle signals.
const SLICE: Duration = Duration::from_millis(50);

/// The time limit of a blocking call.
pub struct Timeout {
    limit: Option<Duration>,
    end: Option<Instant>,
}

impl Timeout {
    /// A limit of so many seconds, none if None. ValueError: below 0, or NaN.
    #[inline]
    pub fn new(seconds: Option<f64>) -> PyResult<Timeout> {
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
    pub fn wait<E: Send>(
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
