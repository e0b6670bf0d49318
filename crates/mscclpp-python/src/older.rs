//! Older names, which warn when they are first used.

use pyo3::prelude::*;

/// Says once that `instead` has taken the place of `name`.
pub(crate) fn warn(py: Python<'_>, name: &str, instead: &str) -> PyResult<()> {
    py.import("mscclpp._older")?.call_method1("warn", (name, instead)).map(drop)
}
