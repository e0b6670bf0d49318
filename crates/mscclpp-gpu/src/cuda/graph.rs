use std::sync::Arc;

use mscclpp_gpu_sys::cuda::{CUgraph, CUgraphExec};
use parking_lot::Mutex;

use super::{
    device::Device,
    failure::{check, log_failure},
    stream::CudaStream,
};
use crate::{
    Owner, Result,
    backend::{GraphBackend, StreamBackend},
    driver::captures::Needs,
};

pub(super) struct CudaGraph {
    device: &'static Device,
    /// Locked while it is launched: the driver does not synchronise the uses of a graph itself.
    raw: Mutex<Exec>,
    /// What its kernels need, which its launches keep, too: nothing, or one owner of all, so that a stream keeps it at once.
    owners: Vec<Owner>,
    /// The modules of its kernels.
    modules: Vec<Owner>,
}

struct Exec(CUgraphExec);

// SAFETY: a graph may be used from any thread, by one at a time; the pointer is never dereferenced here.
unsafe impl Send for Exec {}

impl CudaGraph {
    /// # Safety
    /// `graph` is a graph that nobody else uses or destroys.
    pub(super) unsafe fn instantiate(device: &'static Device, graph: CUgraph, needs: Needs) -> Result<Self> {
        let driver = device.driver();
        let _entered = device.context().enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the graph lives.
        let result = unsafe { (driver.graph_instantiate_with_flags)(&raw mut raw, graph, 0) };
        // SAFETY: given away by the caller; an instantiated graph does not need it any more.
        log_failure(driver, unsafe { (driver.graph_destroy)(graph) }, "cuGraphDestroy");
        check(driver, result, "cuGraphInstantiate")?;
        let Needs { owners, modules } = needs;
        let owners = if owners.is_empty() { owners } else { vec![Arc::new(owners) as Owner] };
        Ok(Self { device, raw: Mutex::new(Exec(raw)), owners, modules })
    }
}

impl GraphBackend for CudaGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let stream = CudaStream::of(stream)?;
        let driver = self.device.driver();
        let _bound = self.device.context().bind()?;
        let graph = self.raw.lock();
        // SAFETY: both live; what the graph does is the caller's promise.
        check(driver, unsafe { (driver.graph_launch)(graph.0, stream.handle()) }, "cuGraphLaunch")?;
        drop(graph);
        stream.keep(&self.owners, &self.modules);
        Ok(())
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let Some(_entered) = self.device.context().enter_to_drop() else { return };
        let driver = self.device.driver();
        // SAFETY: made by `instantiate`, destroyed once; launches in flight go on.
        log_failure(
            driver,
            unsafe { (driver.graph_exec_destroy)(self.raw.get_mut().0) },
            "cuGraphExecDestroy",
        );
    }
}
