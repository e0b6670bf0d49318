use mscclpp_gpu_sys::cuda::{CUgraph, CUgraphExec};

use super::{
    device::Device,
    failure::{check, log_failure},
    stream::CudaStream,
};
use crate::{
    Result,
    backend::{GraphBackend, StreamBackend},
};

pub(super) struct CudaGraph {
    device: &'static Device,
    raw: CUgraphExec,
}

// SAFETY: a graph is launched from one thread at a time or many, as the driver locks it; `raw` is never dereferenced.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// # Safety
    /// `graph` is a graph that nobody else uses or destroys.
    pub(super) unsafe fn instantiate(device: &'static Device, graph: CUgraph) -> Result<Self> {
        let driver = device.driver();
        let _entered = device.context().enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the graph lives.
        let result = unsafe { (driver.graph_instantiate_with_flags)(&raw mut raw, graph, 0) };
        // SAFETY: given away by the caller; an instantiated graph does not need it any more.
        log_failure(driver, unsafe { (driver.graph_destroy)(graph) }, "cuGraphDestroy");
        check(driver, result, "cuGraphInstantiate")?;
        Ok(Self { device, raw })
    }
}

impl GraphBackend for CudaGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let stream = CudaStream::of(stream)?;
        let driver = self.device.driver();
        let _bound = self.device.context().bind()?;
        // SAFETY: both live; what the graph does is the caller's promise.
        check(driver, unsafe { (driver.graph_launch)(self.raw, stream.handle()) }, "cuGraphLaunch")
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.context().enter() else { return };
        let driver = self.device.driver();
        // SAFETY: made by `instantiate`, destroyed once; launches in flight go on.
        log_failure(driver, unsafe { (driver.graph_exec_destroy)(self.raw) }, "cuGraphExecDestroy");
    }
}
