//! The results of calls of experts: the routing of a dispatch, and the second half of a call.

use std::sync::Arc;

use mscclpp::{DevicePtr, Gpu};
use mscclpp_ep::{Error, HostCounts, Receive, Routed};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{
    device, error,
    experts::{Made, raised},
    owned::{Held, Owned},
    simulated::{Copies, KeptCopies},
};

/// The routing of a dispatch. It keeps the experts, whose memory it speaks of.
#[pyclass(name = "_Routed", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyRouted {
    pub(crate) inner: Owned<(Routed, Held<Made>)>,
}

/// How many rows came in a dispatch, in memory of the host: made by `Experts.counts_to_host`. Its methods do not block. The
/// counts are there when the work of the stream up to that call is complete; a graph stores them anew with each replay.
#[pyclass(name = "HostCounts", module = "mscclpp.ep", frozen)]
pub(crate) struct PyHostCounts(HostCounts);

#[pymethods]
impl PyHostCounts {
    /// Return how many rows came for each expert of this rank.
    fn rows_of_experts(&self) -> Vec<u32> {
        self.0.rows_of_experts()
    }

    /// Return how many rows came from each rank.
    fn rows_of_ranks(&self) -> Vec<u32> {
        self.0.rows_of_ranks()
    }
}

/// The second half of a call that has sent.
#[pyclass(name = "_Receive", module = "mscclpp._mscclpp", frozen)]
pub(crate) struct PyReceive {
    pub(crate) inner: Owned<Mutex<Option<Unreceived>>>,
}

pub(crate) struct Unreceived {
    pub(crate) receive: Receive,
    pub(crate) gpu: Gpu,
    /// The copies of a simulated device, and the memory of the program to which what comes is copied back.
    pub(crate) copies: Option<(Copies, Vec<(DevicePtr, u64)>)>,
    pub(crate) kept: Arc<KeptCopies>,
}

#[pymethods]
impl PyReceive {
    /// Puts the second half into a stream. Once only.
    #[pyo3(signature = (stream: "int"))]
    fn receive(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let half = self.inner.get()?;
        let Some(Unreceived { receive, gpu, copies, kept }) = half.lock().take() else {
            return Err(error::misuse("this call has received"));
        };
        py.detach(|| -> Result<(), Error> {
            let stream = device::stream(&gpu, stream)?;
            receive.receive(&stream)?;
            if let Some((copies, written)) = copies {
                // SAFETY: the program's memory, which it keeps until the call is complete.
                kept.keep(unsafe { copies.back(&stream, &written)? });
            }
            Ok(())
        })
        .map_err(raised)
    }
}

#[pymethods]
impl PyRouted {
    /// Has the counts stored into memory of the host, behind the work in the stream.
    #[pyo3(signature = (stream: "int"))]
    fn counts_to_host(&self, py: Python<'_>, stream: usize) -> PyResult<PyHostCounts> {
        let held = self.inner.get()?;
        let counts = py.detach(|| held.0.counts_to_host(&device::stream(&held.1.gpu, stream)?));
        counts.map(PyHostCounts).map_err(raised)
    }

    /// Checks, behind the work in the stream, that the rows of `received` are still there.
    #[pyo3(signature = (stream: "int"))]
    fn check_received(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let held = self.inner.get()?;
        py.detach(|| held.0.check_received(&device::stream(&held.1.gpu, stream)?)).map_err(raised)
    }

    /// How many rows came from each rank.
    fn rows_of_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let held = self.inner.get()?;
        py.detach(|| held.0.rows_of_ranks()).map_err(raised)
    }

    /// How many rows came for each expert of this rank.
    fn rows_of_experts(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let held = self.inner.get()?;
        py.detach(|| held.0.rows_of_experts()).map_err(raised)
    }

    /// Returns what came with a row: the number of the token, the local expert of each choice, and the weights.
    fn row(&self, py: Python<'_>, rank: usize, n: usize) -> PyResult<(u32, Vec<i32>, Vec<f32>)> {
        let held = self.inner.get()?;
        py.detach(|| held.0.row(rank, n)).map_err(raised)
    }

    /// The address of the counts of `rows_of_experts`.
    fn rows_of_experts_on_device(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.0.rows_of_experts_on_device().0)
    }

    /// The address of the counts of each rank.
    fn rows_of_ranks_on_device(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.0.rows_of_ranks_on_device().0)
    }

    /// The address of the offsets of the layout "flat".
    fn offsets_on_device(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.0.offsets_on_device().0)
    }

    /// Where the rows of a tensor are in the layout "rank": the address, the bytes of a row, from a row to the next,
    /// and from a rank to the next.
    fn received(&self, part: usize) -> PyResult<(u64, u64, u64, u64)> {
        let it = self.inner.get()?.0.received(part).map_err(raised)?;
        Ok((it.ptr.0, it.row_bytes, it.row_stride, it.rank_stride))
    }
}
