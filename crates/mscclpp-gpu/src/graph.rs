use std::sync::Arc;

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
    fn new(backend: Arc<dyn GraphBackend>) -> Self {
        Self { backend: OfProcess::new(backend) }
    }

    /// Submits the captured work to `stream`.
    ///
    /// # Safety
    /// All memory of the captured work must be valid until this launch is complete: the memory of copies, and the memory
    /// to which plain pointers and device handles among the kernels' arguments point.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.here()?.launch(&**stream.backend()?) }
    }
}

impl Stream {
    /// Begins a capture: work that is submitted to the stream from now on is recorded instead of being run.
    ///
    /// On CUDA, the capture has thread-local mode. End it with [`Stream::end_capture`]. On simulated devices it covers
    /// only this stream: other streams cannot join it through events.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the stream
    /// is already capturing.
    pub fn begin_capture(&self) -> Result<()> {
        self.backend()?.begin_capture()
    }

    /// Ends the capture. The graph can be launched any number of times.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the stream
    /// was not capturing.
    pub fn end_capture(&self) -> Result<Graph> {
        Ok(Graph::new(self.backend()?.end_capture()?))
    }
}

mscclpp_os::debug_fields!(Graph, ..);
