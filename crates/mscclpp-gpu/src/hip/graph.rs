use std::sync::Arc;

use mscclpp_gpu_sys::hip::{Graph, GraphExec};
use parking_lot::Mutex;

use super::{
    device::Device,
    failure::{check, log_failure},
    stream::HipStream,
};
use crate::{
    Owner, Result,
    backend::{GraphBackend, StreamBackend},
    driver::captures::Needs,
};

pub(super) struct HipGraph {
    device: &'static Device,
    /// Locked while it is launched: HIP does not say that one graph may be launched by several threads.
    raw: Mutex<Exec>,
    /// What its kernels need, which its launches keep, too: nothing, or one owner of all, so that a stream keeps it at once.
    owners: Vec<Owner>,
    /// The modules of its kernels.
    modules: Vec<Owner>,
}

struct Exec(GraphExec);

// SAFETY: a graph may be used from any thread, by one at a time; the pointer is never dereferenced here.
unsafe impl Send for Exec {}

impl HipGraph {
    /// # Safety
    /// `graph` is a graph that nobody else uses or destroys.
    pub(super) unsafe fn instantiate(device: &'static Device, graph: Graph, needs: Needs) -> Result<Self> {
        let hip = device.hip();
        let _entered = device.ordinal().enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; the graph lives.
        let result = unsafe { (hip.graph_instantiate_with_flags)(&raw mut raw, graph, 0) };
        // SAFETY: given away by the caller; an instantiated graph does not need it any more.
        log_failure(hip, unsafe { (hip.graph_destroy)(graph) }, "hipGraphDestroy");
        check(hip, result, "hipGraphInstantiateWithFlags")?;
        let Needs { owners, modules } = needs;
        let owners = if owners.is_empty() { owners } else { vec![Arc::new(owners) as Owner] };
        Ok(Self { device, raw: Mutex::new(Exec(raw)), owners, modules })
    }
}

impl GraphBackend for HipGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let stream = HipStream::of(stream)?;
        let hip = self.device.hip();
        let _bound = self.device.ordinal().bind()?;
        let graph = self.raw.lock();
        // SAFETY: both live; what the graph does is the caller's promise.
        check(hip, unsafe { (hip.graph_launch)(graph.0, stream.handle()) }, "hipGraphLaunch")?;
        drop(graph);
        stream.keep(&self.owners, &self.modules);
        Ok(())
    }
}

impl Drop for HipGraph {
    fn drop(&mut self) {
        let Some(_entered) = self.device.ordinal().enter_to_drop() else { return };
        let hip = self.device.hip();
        // SAFETY: made by `instantiate`, destroyed once; launches in flight go on.
        log_failure(hip, unsafe { (hip.graph_exec_destroy)(self.raw.get_mut().0) }, "hipGraphExecDestroy");
    }
}
