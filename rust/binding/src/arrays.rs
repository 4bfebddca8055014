//! numpy arrays that belong to the caller: checked, then seen as slices for the length of one call.

use std::ops::Range;

use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::ffi::PySequence_Check;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// An element type of numpy arrays.
///
/// # Safety
/// Any bytes that an array of this kind and item size may hold are a value of the type.
pub unsafe trait Element: Copy {
    /// The name in numpy.
    const NAME: &'static str;
    /// The kind in numpy, `dtype.kind`.
    const KIND: u8;
}

macro_rules! element {
    ($($type:ty: $name:literal, $kind:literal;)*) => {
        // SAFETY: a number of that many bytes, or a byte; all their patterns are values.
        $(unsafe impl Element for $type {
            const NAME: &'static str = $name;
            const KIND: u8 = $kind;
        })*
    };
}

element! {
    f32: "float32", b'f';
    f64: "float64", b'f';
    i8: "int8", b'i';
    i16: "int16", b'i';
    i32: "int32", b'i';
    i64: "int64", b'i';
    u8: "uint8", b'u';
    u16: "uint16", b'u';
    u64: "uint64", b'u';
    Flag: "bool", b'b';
}

/// A numpy boolean: one byte, which need not be 0 or 1 if it is a view of other data as bool.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Flag(u8);

/// A checked array.
pub struct Array<'a, 'py, T> {
    name: &'static str,
    array: &'a Bound<'py, PyUntypedArray>,
    data: *mut T,
    len: usize,
}

fn has_type<T: Element>(dtype: &Bound<'_, PyArrayDescr>) -> bool {
    dtype.kind() == T::KIND && dtype.itemsize() == size_of::<T>() && dtype.byteorder() != b'>'
}

/// Returns whether `object` is an array of `T`.
pub fn is_of<T: Element>(object: &Bound<'_, PyAny>) -> bool {
    object.cast::<PyUntypedArray>().is_ok_and(|array| has_type::<T>(&array.dtype()))
}

/// Checks that `object` is an aligned, C-contiguous array of `T` with this shape.
pub fn readable<'a, 'py, T: Element>(
    name: &'static str,
    object: &'a Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Array<'a, 'py, T>> {
    let expected = || {
        let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
        let comma = if shape.len() == 1 { "," } else { "" };
        format!("{name}: expected a C-contiguous {} array of shape ({}{comma})", T::NAME, shape.join(", "))
    };
    let Ok(array) = object.cast::<PyUntypedArray>() else {
        return Err(PyTypeError::new_err(format!("{}, got {}", expected(), object.get_type().name()?)));
    };
    let dtype = array.dtype();
    if !has_type::<T>(&dtype) {
        return Err(PyTypeError::new_err(format!("{}, got dtype {}", expected(), dtype.str()?)));
    }
    if array.shape() != shape {
        return Err(PyValueError::new_err(format!("{}, got shape {}", expected(), array.getattr("shape")?.str()?)));
    }
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{}, got a strided view: pass numpy.ascontiguousarray(...)",
            expected()
        )));
    }
    // SAFETY: the pointer is a live PyArrayObject, held by `array`.
    let data = unsafe { (*array.as_array_ptr()).fields.data.cast::<T>() };
    if !data.is_aligned() {
        return Err(PyValueError::new_err(format!("{}, got misaligned memory", expected())));
    }
    Ok(Array { name, array, data, len: shape.iter().product() })
}

/// Checks as [`readable`] does, and that the array can be written.
pub fn writeable<'a, 'py, T: Element>(
    name: &'static str,
    object: &'a Bound<'py, PyAny>,
    shape: &[usize],
) -> PyResult<Array<'a, 'py, T>> {
    let array = readable(name, object, shape)?;
    // SAFETY: the pointer is a live PyArrayObject, held by `array`.
    if unsafe { (*array.array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0 {
        return Err(PyValueError::new_err(format!("{name}: expected a writeable array, got a read-only one")));
    }
    Ok(array)
}

impl<'a, T> Array<'a, '_, T> {
    /// The name and the addresses, for [`disjoint`].
    pub fn place(&self) -> (&'static str, Range<usize>) {
        let start = self.data as usize;
        (self.name, start..start + self.len * size_of::<T>())
    }

    /// The elements.
    ///
    /// # Safety
    /// No thread may write to the array while the slice lives: no mutable slice overlaps it ([`disjoint`]), and other
    /// Python threads leave it alone during the call, as they must for numpy's own functions that release the GIL.
    pub unsafe fn slice(&self) -> &'a [T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `readable` has checked that it is aligned, contiguous and of this length; `'a` keeps the array alive;
        // the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }

    /// The elements, to be written.
    ///
    /// # Safety
    /// See [`Array::slice`], and no thread may read it either; and [`writeable`] has checked it.
    pub unsafe fn slice_mut(&self) -> &'a mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: `readable` has checked that it is aligned, contiguous and of this length, `writeable` that it may be
        // written; `'a` keeps the array alive; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<'a> Array<'a, '_, Flag> {
    /// The flags as bytes.
    ///
    /// # Safety
    /// See [`Array::slice`].
    pub unsafe fn bytes(&self) -> &'a [u8] {
        // SAFETY: `Flag` is a transparent byte; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.slice().as_ptr().cast(), self.len) }
    }

    /// The flags as bytes, to be written: 0 or 1.
    ///
    /// # Safety
    /// See [`Array::slice_mut`].
    pub unsafe fn bytes_mut(&self) -> &'a mut [u8] {
        // SAFETY: `Flag` is a transparent byte; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.slice_mut().as_mut_ptr().cast(), self.len) }
    }
}

/// An empty list with capacity for `count` items. MemoryError: there is too little memory.
pub fn room<T>(count: usize) -> PyResult<Vec<T>> {
    let mut things = Vec::new();
    match things.try_reserve_exact(count) {
        Ok(()) => Ok(things),
        Err(error) => Err(PyMemoryError::new_err(error.to_string())),
    }
}

/// A list of `count` copies of an item. MemoryError: there is too little memory.
pub fn filled<T: Clone>(thing: T, count: usize) -> PyResult<Vec<T>> {
    let mut things = room(count)?;
    things.resize(count, thing);
    Ok(things)
}

/// The items of a sequence of Python's, for `from_py_with`. PyO3's own conversion panics where `__len__` lies.
/// TypeError: it is no sequence, or has an item of another type. ValueError: it has more items than it says.
pub fn list<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>) -> PyResult<Vec<T>> {
    // SAFETY: `object` is a live object.
    let is_sequence = unsafe { PySequence_Check(object.as_ptr()) } != 0;
    if !is_sequence || object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("expected a sequence, got {}", object.get_type().name()?)));
    }
    let len = object.len()?;
    let mut items = Vec::new();
    for item in object.try_iter()? {
        if items.len() >= len {
            return Err(PyValueError::new_err(format!(
                "expected a sequence, got one of more items than its length {len}"
            )));
        }
        items.try_reserve(1).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        items.push(item?.extract::<T>().map_err(Into::into)?);
    }
    Ok(items)
}

/// As [`list`], or None.
pub fn list_or_none<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>) -> PyResult<Option<Vec<T>>> {
    if object.is_none() { Ok(None) } else { list(object).map(Some) }
}

/// Refuses arrays that share memory.
pub fn disjoint(places: &[(&'static str, Range<usize>)]) -> PyResult<()> {
    for (i, (name, a)) in places.iter().enumerate() {
        for (other, b) in &places[..i] {
            if a.start < b.end && b.start < a.end {
                return Err(PyValueError::new_err(format!(
                    "{other} and {name} share memory: expected arrays of their own"
                )));
            }
        }
    }
    Ok(())
}
