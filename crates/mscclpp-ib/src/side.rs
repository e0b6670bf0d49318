//! The state that the parts of a connection share: the endpoint on this side, and the link to the peer.

use std::sync::{Arc, OnceLock};

use mscclpp_core::{Error as CoreError, IbConfig, LinkMonitor, Result as CoreResult, Transport};
use mscclpp_gpu::Gpu;
use mscclpp_net::links::{Failures, LinkEnd, LinkEvents, Name};

use crate::{
    adapter::{Adapter, Port, Reliability},
    error::Error,
    ordering::{self, Promise, SignalMode, TokenPlan},
};

/// A pair of an endpoint of this process and one of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointPair {
    pub(crate) ours: Name,
    pub(crate) theirs: Name,
}

/// An endpoint of this process, which is this side of its connections.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) transport: Transport,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) port: Port,
    pub(crate) reliability: Reliability,
    pub(crate) config: IbConfig,
    pub(crate) max_waiting: Option<u32>,
    /// Whether signals to this endpoint may be atomics: the adapter has them, and the mode allows it.
    pub(crate) atomics: bool,
    /// The GPU, and what it promises; `None` for a CPU, and for a simulated device, whose memory is that of the host.
    pub(crate) gpu: Option<(Gpu, Promise)>,
    /// The function that takes the place of the GPU's own flush.
    pub(crate) flush: Option<GpuFlush>,
}

pub(crate) type GpuFlush = Arc<dyn Fn() + Send + Sync>;

impl Side {
    /// Returns where tokens of this side are, and what is done before one is stored, if signals travel by `mode`.
    pub(crate) fn tokens(&self, mode: SignalMode) -> TokenPlan {
        self.gpu.as_ref().map_or(TokenPlan::OnDevice, |(_, promise)| ordering::plan(*promise, mode))
    }

    /// Makes everything that has arrived visible to the GPU.
    pub(crate) fn flush_gpu(&self) -> Result<(), Error> {
        if let Some(flush) = &self.flush {
            flush();
        } else if let Some((gpu, _)) = &self.gpu {
            gpu.flush_gpu_direct_writes(false).map_err(|error| Error::Incompatible(error.to_string()))?;
        }
        Ok(())
    }
}

/// The state that the queues of a link share.
pub(crate) struct LinkState {
    pub(crate) side: Side,
    pub(crate) mode: SignalMode,
    monitor: LinkMonitor,
    failures: OnceLock<Failures>,
}

impl LinkState {
    pub(crate) fn new(side: Side, mode: SignalMode, monitor: LinkMonitor) -> Self {
        Self { side, mode, monitor, failures: OnceLock::new() }
    }

    /// Sets the handle by which the peer is notified that this side fails.
    pub(crate) fn set_failures(&self, failures: Failures) {
        let _ = self.failures.set(failures);
    }

    /// Returns whether signals go as immediate data.
    pub(crate) fn immediates(&self) -> bool {
        self.mode == SignalMode::Immediates
    }

    pub(crate) fn check(&self) -> CoreResult<()> {
        self.monitor.check()
    }

    /// Fails the link because of this side. The peer is notified, because it may otherwise see nothing of the
    /// failure.
    pub(crate) fn fail(&self, error: Error) {
        let error = error.over(self.side.transport);
        if self.monitor.check().is_ok()
            && let Some(failures) = self.failures.get()
        {
            failures.tell(mscclpp_core::Report(&error).to_string());
        }
        self.monitor.fail(error);
    }

    /// Returns the name of the peer in errors.
    pub(crate) fn peer(&self) -> String {
        self.monitor.label()
    }

    /// Returns the error of a connection that is over without a reason of its own.
    pub(crate) fn closed(&self) -> CoreError {
        CoreError::PeerClosed { peer: self.monitor.label() }
    }
}

impl LinkEvents for LinkState {
    fn ended(&self, end: LinkEnd) {
        match end {
            LinkEnd::Goodbye => self.monitor.closed(),
            LinkEnd::Lost(reason) => self.monitor.lost(reason),
            LinkEnd::Failed(reason) => self.monitor.peer_failed(&reason),
            LinkEnd::Refused { reason, .. } => {
                self.fail(Error::Refused { reason: LinkMonitor::printable(&reason) });
            }
            LinkEnd::System(error) => self.fail(error.into()),
            other => self.fail(Error::Incompatible(other.to_string())),
        }
    }
}
