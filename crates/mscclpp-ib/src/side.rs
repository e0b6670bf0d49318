//! What the parts of a connection know in common: the endpoint on this side, and the state of the link to the peer.

use std::sync::{Arc, OnceLock};

use mscclpp_core::{Error as CoreError, IbConfig, LinkMonitor, Result as CoreResult, Transport};
use mscclpp_gpu::Gpu;
use mscclpp_net::links::{Failures, LinkEnd, LinkEvents, Name};

use crate::{
    adapter::{Adapter, Port, Reliability},
    complaint::Complaint,
    error::Error,
    ordering::{self, Promise, SignalMode, TokenPlan},
};

/// An endpoint of this process, and one of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointPair {
    pub(crate) ours: Name,
    pub(crate) theirs: Name,
}

/// What belongs to an endpoint: this side of its connections.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) transport: Transport,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) port: Port,
    pub(crate) reliability: Reliability,
    pub(crate) config: IbConfig,
    pub(crate) max_waiting: Option<u32>,
    /// Whether signals may be atomics here: the adapter has them, and the mode allows it.
    pub(crate) atomics: bool,
    /// The GPU, and what it promises; none for a CPU, and for a simulated device, whose memory is that of the host.
    pub(crate) gpu: Option<(Gpu, Promise)>,
}

impl Side {
    /// Where tokens of this side are, and what is done before one is stored, if signals travel like that.
    pub(crate) fn tokens(&self, mode: SignalMode) -> TokenPlan {
        self.gpu.as_ref().map_or(TokenPlan::OnDevice, |(_, promise)| ordering::plan(*promise, mode))
    }
}

/// What the queues of a link share.
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

    /// How the peer is told that this side fails.
    pub(crate) fn tells_by(&self, failures: Failures) {
        let _ = self.failures.set(failures);
    }

    /// Whether signals go as immediate data.
    pub(crate) fn immediates(&self) -> bool {
        self.mode == SignalMode::Immediates
    }

    pub(crate) fn check(&self) -> CoreResult<()> {
        self.monitor.check()
    }

    /// It fails, because of this side. The peer is told: nothing that arrives there, or fails to, says so.
    pub(crate) fn fail(&self, error: Error) {
        let error = error.over(self.side.transport);
        if self.monitor.check().is_ok()
            && let Some(failures) = self.failures.get()
        {
            failures.tell(mscclpp_core::Report(&error).to_string());
        }
        self.monitor.fail(error);
    }

    /// The name of the peer in errors.
    pub(crate) fn peer(&self) -> String {
        self.monitor.label()
    }

    /// The error of a connection that is over without a reason of its own.
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
            LinkEnd::Refused { complaint, .. } => {
                self.fail(Error::Refused { reason: Complaint::from(complaint).to_string() });
            }
            other => self.fail(Error::Refused { reason: other.to_string() }),
        }
    }
}
