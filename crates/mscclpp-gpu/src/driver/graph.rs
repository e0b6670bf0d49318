use std::sync::Arc;

use mscclpp_gpu_sys::Entry;
use parking_lot::Mutex;

use super::{
    api::{Api, Handle},
    captures::Needs,
    device::Device,
    failure::{check, log_failure},
    stream::Stream,
};
use crate::{
    Owner, Result,
    backend::{GraphBackend, StreamBackend},
};

pub(crate) struct Graph<D: Api> {
    device: &'static Device<D>,
    /// Locked while it is launched: CUDA does not synchronise the uses of a graph itself, and HIP does not say that it does.
    raw: Mutex<Handle<D::GraphExec>>,
    /// The objects that its kernels need, which its launches keep, too: nothing, or one owner of all, so that a stream
    /// keeps it at once.
    owners: Vec<Owner>,
    /// The modules of its kernels, where launches need not keep them.
    modules: Vec<Owner>,
}

impl<D: Api> Graph<D> {
    /// # Safety
    /// `graph` is a graph that nobody else uses or destroys.
    pub(super) unsafe fn instantiate(
        device: &'static Device<D>,
        graph: *mut D::Graph,
        needs: Needs,
    ) -> Result<Self> {
        let Entry(name, instantiate) = device.functions().graph_instantiate;
        let Entry(name_of_destroy, destroy) = device.functions().graph_destroy;
        let entered = device.context.enter();
        let mut raw = std::ptr::null_mut();
        let instantiated = entered.as_ref().map_err(Clone::clone).and_then(|_entered| {
            // SAFETY: `raw` is valid for the write; the graph lives.
            check(device.driver(), unsafe { instantiate(&raw mut raw, graph, 0) }, name)
        });
        // SAFETY: given away by the caller; an instantiated graph does not need it any more.
        log_failure(device.driver(), unsafe { destroy(graph) }, name_of_destroy);
        instantiated?;
        let Needs { owners, modules } = needs;
        let owners = if owners.is_empty() { owners } else { vec![Arc::new(owners) as Owner] };
        Ok(Self { device, raw: Mutex::new(Handle(raw)), owners, modules })
    }
}

impl<D: Api> GraphBackend for Graph<D> {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let stream = Stream::<D>::of(stream)?;
        let Entry(name, launch) = self.device.functions().graph_launch;
        let _bound = self.device.context.bind()?;
        let graph = self.raw.lock();
        // SAFETY: both live; what the graph does is the caller's promise.
        check(self.device.driver(), unsafe { launch(graph.0, stream.handle()) }, name)?;
        drop(graph);
        stream.keep(&self.owners, &self.modules);
        Ok(())
    }
}

impl<D: Api> Drop for Graph<D> {
    fn drop(&mut self) {
        let destroy = self.device.functions().graph_exec_destroy;
        // SAFETY: made by `instantiate`, destroyed once; launches in flight go on.
        self.device.context.take_down(|_| destroy.call(|destroy| unsafe { destroy(self.raw.get_mut().0) }));
    }
}
