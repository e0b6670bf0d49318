//! Unsigned integers as arguments. An error of Python about a number that is too small or too large does not quote
//! the number; the errors of these do.

use pyo3::{
    exceptions::{PyOverflowError, PyTypeError},
    inspect::PyStaticExpr,
    prelude::*,
};

use crate::error;

/// A number that fits in `T`.
#[derive(Clone, Copy)]
pub(crate) struct Uint<T>(pub(crate) T);

impl<'a, 'py, T: TryFrom<u64>> FromPyObject<'a, 'py> for Uint<T> {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr = u64::INPUT_TYPE;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        let given = &*given;
        let misfit = || PyOverflowError::new_err(format!("expected a number from 0 to {most}, got {given}"));
        match given.extract::<u64>() {
            Ok(number) => T::try_from(number).map(Self).map_err(|_| misfit()),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Err(misfit()),
            Err(error) if error.is_instance_of::<PyTypeError>(given.py()) => {
                Err(error::unexpected("expected an int, got", given))
            }
            Err(error) => Err(error),
        }
    }
}

/// Converts an argument that has a default.
pub(crate) fn uint<T: TryFrom<u64>>(given: &Bound<'_, PyAny>) -> PyResult<T> {
    given.extract().map(|Uint(number)| number)
}

/// Converts an optional number to Python's form, in which -1 stands for none.
pub(crate) fn optional<T: TryInto<i64>>(value: Option<T>) -> i64 {
    value.and_then(|value| value.try_into().ok()).unwrap_or(-1)
}

/// Converts a number from Python, in which -1 leaves the choice to the library.
pub(crate) fn chosen<T: TryFrom<i64>>(what: &str, value: i64) -> PyResult<Option<T>> {
    if value == -1 { Ok(None) } else { number(what, value).map(Some) }
}

pub(crate) fn number<T: TryFrom<i64>>(what: &str, value: i64) -> PyResult<T> {
    T::try_from(value).map_err(|_| {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        error::misuse(format!("{what} is {value}, which is no number from 0 to {most}"))
    })
}
