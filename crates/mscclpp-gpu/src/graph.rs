use std::{fmt, sync::Arc};

use crate::{Result, Stream, backend::GraphBackend, fork::OfProcess};

/// Captured work, ready to be launched. Clones are the same graph.
///
/// The graph keeps alive the modules of its kernels and the objects among their arguments
/// ([`KernelArgs`](crate::KernelArgs)), as long as it exists and until its launches are complete.
#[derive(Clone)]
pub struct Graph {
    backend: OfProcess<Arc<dyn GraphBackend>>,
}

impl Graph {
    pub(crate) fn new(backend: Arc<dyn GraphBackend>) -> Self {
        Self { backend: OfProcess::new(backend) }
    }

    /// Submits the captured work to `stream`.
    ///
    /// # Safety
    /// Everything that was captured must be valid until this launch is complete: the memory of copies, and the memory
    /// to which plain pointers and device handles among the kernels' arguments point.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.here()?.launch(&**stream.backend()?) }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
