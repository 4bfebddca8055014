//! Records, the rows of one structured numpy dtype: numpy's objects as bytes, and bytes as numpy's objects.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use fastrl_core::queue::Queue;
use numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, PyArray_Descr, PyArrayObject, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMapping, PyTuple};

/// numpy's structured scalar, as `arrayscalars.h` has it (up to what is used here).
#[repr(C)]
struct VoidScalar {
    head: ffi::PyVarObject,
    data: *mut u8,
    descr: *mut PyArray_Descr,
    flags: c_int,
    base: *mut PyObject,
}

/// The owner of numpy's views of a queue: while it lives, the memory stays mapped.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Anchor {
    _queue: Queue,
}

impl Anchor {
    pub(crate) fn new(queue: Queue) -> Anchor {
        Anchor { _queue: queue }
    }
}

/// The dtype of a queue's records.
pub(crate) struct RecordType {
    descr: Py<PyArrayDescr>,
    size: usize,
}

impl RecordType {
    pub(crate) fn new(descr: Bound<'_, PyArrayDescr>) -> PyResult<RecordType> {
        let size = descr.itemsize();
        if descr.has_object() || size == 0 || !descr.has_fields() {
            return Err(PyTypeError::new_err(format!(
                "dtype: expected a structured dtype of at least one byte and without Python objects, got {}",
                descr.str()?
            )));
        }
        Ok(RecordType { descr: descr.unbind(), size })
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> RecordType {
        RecordType { descr: self.descr.clone_ref(py), size: self.size }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn descr<'py>(&self, py: Python<'py>) -> &Bound<'py, PyArrayDescr> {
        self.descr.bind(py)
    }

    fn is(&self, py: Python<'_>, descr: *mut PyArray_Descr) -> bool {
        let own = self.descr(py).as_dtype_ptr();
        // SAFETY: both point to live descriptors.
        descr == own || unsafe { PY_ARRAY_API.PyArray_EquivTypes(py, descr, own) } != 0
    }

    /// The bytes of a structured scalar of this dtype; None if it is no scalar.
    ///
    /// # Safety
    /// As for [`RecordType::bytes`].
    #[inline]
    unsafe fn scalar_bytes<'a>(&self, row: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a [u8]>> {
        let py = row.py();
        // SAFETY: a type check of a live object.
        let is_void =
            unsafe { ffi::PyObject_TypeCheck(row.as_ptr(), npyffi::get_type_object(py, NpyTypes::PyVoidArrType_Type)) };
        if is_void == 0 {
            return Ok(None);
        }
        let scalar = row.as_ptr().cast::<VoidScalar>();
        // SAFETY: it is a void scalar or a subclass of it, which begins with these fields.
        let (data, descr) = unsafe { ((*scalar).data, (*scalar).descr) };
        if !self.is(py, descr) {
            let expected = self.descr(py).str()?;
            return Err(PyTypeError::new_err(format!(
                "row: expected a record of dtype {expected}, got one of dtype {}",
                row.getattr("dtype")?.str()?
            )));
        }
        // SAFETY: a scalar holds one item of its descriptor, which is equivalent to ours; the rest is the caller's
        // promise.
        Ok(Some(unsafe { std::slice::from_raw_parts(data, self.size) }))
    }

    /// Checks that `object` is a C-contiguous array of this dtype, of any shape. Returns it and its number of records.
    fn array<'a>(&self, name: &str, object: &'a Bound<'_, PyAny>) -> PyResult<(&'a PyArrayObject, usize)> {
        let py = object.py();
        let expected = || -> PyResult<String> {
            Ok(format!("{name}: expected a C-contiguous array of dtype {}", self.descr(py).str()?))
        };
        let Ok(array) = object.cast::<PyUntypedArray>() else {
            return Err(PyTypeError::new_err(format!(
                "{}, got {}: make one with numpy.array({name}, dtype=queue.dtype)",
                expected()?,
                object.get_type().name()?
            )));
        };
        if !self.is(py, array.dtype().as_dtype_ptr()) {
            return Err(PyTypeError::new_err(format!(
                "{}, got dtype {}: copy it field by field into an array of the queue's dtype",
                expected()?,
                array.dtype().str()?
            )));
        }
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err(format!(
                "{}, got a strided view: pass numpy.ascontiguousarray({name})",
                expected()?
            )));
        }
        // SAFETY: a live array, held by `object`.
        Ok((unsafe { &*array.as_array_ptr() }, array.len()))
    }

    /// The bytes of an array of records.
    ///
    /// # Safety
    /// While the slice lives no thread writes to the array or gives it other memory: other Python threads leave it alone
    /// during the call, as they must for numpy's own functions that release the GIL.
    pub(crate) unsafe fn bytes<'a>(&self, name: &str, object: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
        let (array, count) = self.array(name, object)?;
        if count == 0 {
            return Ok(&[]);
        }
        // SAFETY: `array` has checked that it is contiguous and holds `count` records; the rest is the caller's
        // promise.
        Ok(unsafe { std::slice::from_raw_parts(array.fields.data.cast(), count * self.size) })
    }

    /// The bytes of the first `count` records of a writeable one-dimensional array.
    ///
    /// # Safety
    /// As for [`RecordType::bytes`], and no thread reads it either.
    #[expect(clippy::mut_from_ref, reason = "numpy owns the memory; the reference only keeps it alive")]
    pub(crate) unsafe fn bytes_mut<'a>(
        &self,
        name: &str,
        object: &'a Bound<'_, PyAny>,
        count: usize,
    ) -> PyResult<&'a mut [MaybeUninit<u8>]> {
        let (array, len) = self.array(name, object)?;
        if array.fields.nd != 1 || len < count {
            return Err(PyValueError::new_err(format!(
                "{name}: expected a one-dimensional array of at least {count} records, got shape {}",
                object.getattr("shape")?.str()?
            )));
        }
        if array.fields.flags & NPY_ARRAY_WRITEABLE == 0 {
            return Err(PyValueError::new_err(format!("{name}: expected a writeable array, got a read-only one")));
        }
        // SAFETY: `array` has checked that it is contiguous, the lines above that it is writeable and holds `count`
        // records; the rest is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(array.fields.data.cast(), count * self.size) })
    }

    /// The bytes of one record: a scalar or an array of one record.
    ///
    /// # Safety
    /// As for [`RecordType::bytes`].
    #[inline]
    pub(crate) unsafe fn one<'a>(&self, row: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a [u8]>> {
        // SAFETY: the caller of `one` promises what `scalar_bytes` asks for.
        let scalar = unsafe { self.scalar_bytes(row)? };
        if scalar.is_some() {
            return Ok(scalar);
        }
        if row.cast::<PyUntypedArray>().is_err() {
            return Ok(None);
        }
        // SAFETY: the caller of `one` promises what `bytes` asks for.
        let bytes = unsafe { self.bytes("row", row)? };
        if bytes.len() != self.size {
            return Err(PyValueError::new_err(format!(
                "row: expected one record, got an array of {}: put_many takes several",
                bytes.len() / self.size
            )));
        }
        Ok(Some(bytes))
    }

    /// A tuple with a value for each field, or a mapping from their names, as an array of one record.
    pub(crate) fn array_from_python<'py>(&self, row: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = row.py();
        let descr = self.descr(py);
        let values = if let Ok(values) = row.cast::<PyTuple>() {
            values.clone()
        } else if let Ok(values) = row.cast::<PyMapping>() {
            let names = descr.names().unwrap_or_default();
            let known = |name: &String| values.contains(name).unwrap_or(false);
            if values.len()? != names.len() || !names.iter().all(known) {
                let got: Vec<String> = values.keys()?.iter().map(|key| key.to_string()).collect();
                return Err(PyValueError::new_err(format!("row: expected the fields {names:?}, got {got:?}")));
            }
            let values = names.iter().map(|name| values.get_item(name)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, values)?
        } else {
            return Err(PyTypeError::new_err(format!(
                "row: expected a record of dtype {}, a tuple of its fields' values or a mapping from their names, got {}",
                descr.str()?,
                row.get_type().name()?
            )));
        };
        let array = ARRAY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.getattr("array")?.unbind()))?;
        array.bind(py).call1((values, descr))
    }

    /// A scalar with a copy of one record.
    ///
    /// # Safety
    /// The record can be read.
    #[inline]
    pub(crate) unsafe fn scalar<'py>(&self, py: Python<'py>, record: NonNull<u8>) -> PyResult<Bound<'py, PyAny>> {
        let descr = self.descr(py).as_dtype_ptr();
        // SAFETY: a live descriptor, which is borrowed, and a readable record, which is copied as there is no base.
        unsafe {
            let scalar = PY_ARRAY_API.PyArray_Scalar(py, record.as_ptr().cast::<c_void>(), descr, null_mut());
            Bound::from_owned_ptr_or_err(py, scalar)
        }
    }

    /// A one-dimensional array, over `data` if that is not null.
    ///
    /// # Safety
    /// `data` is null or holds that many records for as long as the array lives.
    unsafe fn new_array<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        data: *mut c_void,
        flags: c_int,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let mut shape = [count as npy_intp];
        // Given strides make numpy look whether the memory is aligned.
        let mut strides = [self.size as npy_intp];
        // SAFETY: numpy steals the reference to the descriptor that `into_dtype_ptr` gives away; the rest is the
        // caller's promise.
        unsafe {
            let array = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyArray_Type),
                self.descr(py).clone().into_dtype_ptr(),
                1,
                shape.as_mut_ptr(),
                if data.is_null() { null_mut() } else { strides.as_mut_ptr() },
                data,
                flags,
                null_mut(),
            );
            Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
        }
    }

    /// A new array with whatever the memory holds.
    pub(crate) fn empty<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyUntypedArray>> {
        // SAFETY: no data: numpy allocates.
        unsafe { self.new_array(py, count, null_mut(), 0) }
    }

    /// An array over records that lie elsewhere; `owner` lives as long as the array.
    ///
    /// # Safety
    /// `data` holds `count` records for as long as `owner` lives, which may be written to if `writeable`.
    pub(crate) unsafe fn view<'py>(
        &self,
        data: NonNull<u8>,
        count: usize,
        owner: Bound<'py, PyAny>,
        writeable: bool,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = owner.py();
        let flags = if writeable { NPY_ARRAY_WRITEABLE } else { 0 };
        // SAFETY: the caller's promise; numpy steals the reference to the owner.
        unsafe {
            let view = self.new_array(py, count, data.as_ptr().cast(), flags)?;
            if PY_ARRAY_API.PyArray_SetBaseObject(py, view.as_array_ptr(), owner.into_ptr()) < 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(view)
        }
    }
}

/// Makes an array read-only: numpy refuses to write through it from now on.
pub(crate) fn make_read_only(array: &Bound<'_, PyUntypedArray>) {
    // SAFETY: a live array; flags are plain data that is changed while attached to the interpreter.
    unsafe { (*array.as_array_ptr()).fields.flags &= !NPY_ARRAY_WRITEABLE };
}
