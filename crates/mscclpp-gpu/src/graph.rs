use std::{fmt, sync::Arc};

use crate::{Event, Result, Stream, backend::GraphBackend, fork::OfProcess};

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

impl Stream {
    /// From here on, work submitted to the stream is recorded instead of being run.
    ///
    /// On CUDA, the capture has thread-local mode. End it with [`Stream::end_capture`]. On the Host platform it covers
    /// only this stream: other streams cannot join it through events.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the stream
    /// is already capturing.
    pub fn begin_capture(&self) -> Result<()> {
        let before = self.gpu().event(false)?;
        // What is refused below is left as it is.
        if !self.is_capturing()? {
            self.record(&before)?;
        }
        let backend = self.backend()?;
        backend.begin_capture()?;
        *backend.before_capture().lock() = Some(before);
        Ok(())
    }

    /// What was submitted before [`Stream::begin_capture`], until the end of that capture: it is complete when this event is. Other
    /// streams can wait for the event, which they cannot for a stream that is being captured. None if the stream is not being captured,
    /// or if other code began that. Does not block.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn before_capture(&self) -> Result<Option<Event>> {
        Ok(self.backend()?.before_capture().lock().clone())
    }

    /// Ends the capture. The graph can be launched any number of times.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the stream
    /// was not capturing.
    pub fn end_capture(&self) -> Result<Graph> {
        let backend = self.backend()?;
        let graph = backend.end_capture()?;
        backend.before_capture().lock().take();
        Ok(Graph::new(graph))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
