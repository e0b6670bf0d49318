use std::{fmt, sync::Arc};

use crate::{Result, Stream, backend::GraphBackend};

/// Captured work, ready to be launched. Clones are the same graph.
#[derive(Clone)]
pub struct Graph {
    backend: Arc<dyn GraphBackend>,
}

impl Graph {
    pub(crate) fn new(backend: Arc<dyn GraphBackend>) -> Self {
        Self { backend }
    }

    /// Submits the captured work to `stream`.
    ///
    /// # Safety
    /// What was captured must still be valid: its memory, and what its kernels were promised.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.launch(&**stream.backend()) }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
