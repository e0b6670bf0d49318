//! `Rendezvous`: the rank and the job of this process, as its launcher says.

use mscclpp::Rendezvous;
use pyo3::prelude::*;

use crate::{bootstrap::PyTcpBootstrap, error::OrRaise, waiting};

/// The rank and the job of this process, and the address where the ranks meet. They come from torchrun, mpirun, srun
/// or Kubernetes, or from `MSCCLPP_RANK`, `MSCCLPP_N_RANKS` and `MSCCLPP_ADDRESS`.
#[pyclass(name = "Rendezvous", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRendezvous {
    inner: Rendezvous,
}

#[pymethods]
impl PyRendezvous {
    /// Reads the environment, and logs the values at level INFO. Two sources that disagree are an error.
    #[staticmethod]
    fn from_env() -> PyResult<Self> {
        Ok(Self { inner: Rendezvous::from_env().or_raise()? })
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The number of ranks.
    #[getter]
    fn n_ranks(&self) -> usize {
        self.inner.n_ranks
    }

    /// The address at which rank 0 listens.
    #[getter]
    fn address(&self) -> &str {
        &self.inner.address
    }

    /// The launcher's id of the job, if it has one.
    #[getter]
    fn job(&self) -> Option<&str> {
        self.inner.job.as_deref()
    }

    /// The number of this rank among the ranks of its node, if the launcher says it. It can serve as the number of
    /// the rank's device.
    #[getter]
    fn local_rank(&self) -> Option<usize> {
        self.inner.local_rank
    }

    /// The host name and port of the launcher's store, and the prefix of keys in it, if there is a store to meet
    /// through.
    #[getter]
    fn store(&self) -> Option<(&str, u16, &str)> {
        self.inner.store.as_ref().map(|store| (&*store.host, store.port, &*store.prefix))
    }

    /// Joins the job at the address.
    #[pyo3(signature = (timeout_sec = 30.0))]
    fn connect(&self, py: Python<'_>, timeout_sec: f64) -> PyResult<Py<PyTcpBootstrap>> {
        PyTcpBootstrap::of_launched(py, &self.inner, waiting::seconds(timeout_sec)?)
    }

    fn __repr__(&self) -> String {
        let Rendezvous { rank, n_ranks, address, .. } = &self.inner;
        format!("<mscclpp.Rendezvous of rank {rank} of {n_ranks} at {address}>")
    }
}

/// Logs a line of the Python layer at level INFO: how ranks meet, and what they make together.
#[pyfunction(name = "_log_meeting")]
pub(crate) fn log_meeting(text: &str) {
    tracing::info!(target: "mscclpp::bootstrap", "{text}");
}
