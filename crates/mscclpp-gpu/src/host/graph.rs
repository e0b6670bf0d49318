use std::sync::Arc;

use super::{queue::Op, stream::HostStream};
use crate::{
    Result,
    backend::{GraphBackend, StreamBackend},
};

/// Captured operations, in their order.
pub(super) struct HostGraph {
    ops: Arc<[Op]>,
}

impl HostGraph {
    pub(super) fn new(ops: Vec<Op>) -> Self {
        Self { ops: ops.into() }
    }
}

impl GraphBackend for HostGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        HostStream::of(stream)?.queue().submit(Op::Graph(Arc::clone(&self.ops)))
    }
}
