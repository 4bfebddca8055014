//! Counts as arguments, and the size from which copies release the GIL.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Copies of at least as many bytes release the GIL.
pub(crate) const LARGE: usize = 256 << 10;

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
