//! The races that the race detector of simulated devices has found.

use mscclpp::testing;
use pyo3::prelude::*;

/// One of the two accesses of a race.
#[pyclass(name = "RaceAccess", module = "mscclpp._mscclpp", frozen, get_all)]
pub(crate) struct PyRaceAccess {
    /// The kind of the access, such as `write` or `atomic read at device scope`.
    what: String,
    /// The origin of the access: kernel, device, block and thread, or the stream, or the host.
    who: String,
    /// File and line of the kernel, and in parentheses those of a header if the access is in one. For the host, the
    /// name of its call.
    place: String,
}

#[pymethods]
impl PyRaceAccess {
    fn __repr__(&self) -> String {
        format!("<mscclpp.RaceAccess {} at {} by {}>", self.what, self.place, self.who)
    }
}

impl From<testing::RaceAccess> for PyRaceAccess {
    fn from(access: testing::RaceAccess) -> Self {
        Self { what: access.what, who: access.who, place: access.place }
    }
}

/// Two accesses to the same bytes that nothing orders, though one of them writes; or a read of bytes that nobody has written.
/// `str()` gives the whole report.
#[pyclass(name = "Race", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRace {
    /// The access that came first in this run. None for a read of bytes that nobody has written.
    #[pyo3(get)]
    earlier: Option<Py<PyRaceAccess>>,
    /// The access that came second.
    #[pyo3(get)]
    later: Py<PyRaceAccess>,
    /// The memory: whose it is, its address and size, and the offset in it.
    #[pyo3(get)]
    memory: String,
    /// An operation that would have ordered the two accesses.
    #[pyo3(get)]
    hint: String,
    text: String,
}

#[pymethods]
impl PyRace {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("<mscclpp.Race: {}>", self.text)
    }
}

impl PyRace {
    fn new(py: Python<'_>, race: testing::Race) -> PyResult<Self> {
        let text = race.to_string();
        let testing::Race { earlier, later, memory, hint, .. } = race;
        Ok(Self {
            earlier: earlier.map(|access| Py::new(py, PyRaceAccess::from(access))).transpose()?,
            later: Py::new(py, PyRaceAccess::from(later))?,
            memory,
            hint,
            text,
        })
    }
}

/// The races of kernels that simulated devices have found in this process so far, each pair of lines once. The list
/// is empty unless `MSCCLPP_SIM_RACES=1` is set. A kernel with a race also fails when it ends, and the next
/// `synchronize()` raises the report.
#[pyfunction]
pub(crate) fn races(py: Python<'_>) -> PyResult<Vec<PyRace>> {
    py.detach(testing::races).into_iter().map(|race| PyRace::new(py, race)).collect()
}
