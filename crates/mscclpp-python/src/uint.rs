//! Unsigned integers as arguments. PyO3 notes in an error which argument it is about, and Python's own text about a number that
//! is too small or too large does not say which number that was.

use pyo3::{
    exceptions::{PyOverflowError, PyTypeError},
    prelude::*,
};

/// The number, if it fits.
pub(crate) fn uint<T: TryFrom<u64>>(given: &Bound<'_, PyAny>) -> PyResult<T> {
    let most = u64::MAX >> (64 - 8 * size_of::<T>());
    let misfit = || PyOverflowError::new_err(format!("expected a number from 0 to {most}, got {given}"));
    match given.extract::<u64>() {
        Ok(number) => T::try_from(number).map_err(|_| misfit()),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Err(misfit()),
        Err(error) if error.is_instance_of::<PyTypeError>(given.py()) => {
            Err(PyTypeError::new_err(format!("expected an int, got {}", given.get_type().name()?)))
        }
        Err(error) => Err(error),
    }
}

/// The same where nothing may be given.
pub(crate) fn uint_or_none<T: TryFrom<u64>>(given: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
    if given.is_none() { Ok(None) } else { uint(given).map(Some) }
}

/// The same for all numbers of a sequence.
pub(crate) fn uint_list<T: TryFrom<u64>>(given: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    given.extract::<Vec<Bound<'_, PyAny>>>()?.iter().map(uint).collect()
}
