//! A connection as the core sees it.

use std::sync::Arc;

use mscclpp_core::{
    Error as CoreError, IbConfig, LinkMonitor, Result as CoreResult, Transport,
    provider::{Link, Queue, TokenMemory},
};
use mscclpp_gpu::Gpu;
use mscclpp_net::links::{self, DataConnection, LinkEnd, LinkEvents};

use crate::{
    adapter::{Adapter, Port, Reliability},
    error::{Error, Result},
    hub::{EndpointPair, Hub},
    ordering::{self, Promise, SignalMode, TokenPlan},
    receiver::Complaint,
    sender::SendQueue,
};

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
    side: Side,
    mode: SignalMode,
    monitor: LinkMonitor,
}

impl LinkState {
    pub(crate) fn new(side: Side, mode: SignalMode, monitor: LinkMonitor) -> Self {
        Self { side, mode, monitor }
    }

    pub(crate) fn side(&self) -> &Side {
        &self.side
    }

    pub(crate) fn adapter(&self) -> &Arc<Adapter> {
        &self.side.adapter
    }

    pub(crate) fn port(&self) -> &Port {
        &self.side.port
    }

    pub(crate) fn reliability(&self) -> &Reliability {
        &self.side.reliability
    }

    pub(crate) fn config(&self) -> &IbConfig {
        &self.side.config
    }

    pub(crate) fn max_waiting(&self) -> Option<u32> {
        self.side.max_waiting
    }

    pub(crate) fn transport(&self) -> Transport {
        self.side.transport
    }

    /// Whether signals go as immediate data.
    pub(crate) fn immediates(&self) -> bool {
        self.mode == SignalMode::Immediates
    }

    pub(crate) fn check(&self) -> CoreResult<()> {
        self.monitor.check()
    }

    pub(crate) fn fail(&self, error: Error) {
        self.monitor.fail(error.over(self.side.transport));
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

/// A link from an endpoint of this process to a peer's.
pub(crate) struct IbLink {
    state: Arc<LinkState>,
    ends: EndpointPair,
    link: links::Link,
    hub: Arc<Hub>,
}

impl IbLink {
    pub(crate) fn new(state: Arc<LinkState>, ends: EndpointPair, link: links::Link, hub: Arc<Hub>) -> Self {
        hub.watch_link(&state);
        Self { state, ends, link, hub }
    }

    pub(crate) fn state(&self) -> &Arc<LinkState> {
        &self.state
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(crate) fn open_data(&self) -> Result<DataConnection> {
        Ok(self.link.open_data()?)
    }

    /// Reports that something is wrong with the peer. The link has a moment to end for a reason of its own.
    pub(crate) fn suspect(&self, reason: String) {
        self.link.suspicions().report(reason);
    }
}

impl Link for IbLink {
    fn open_queue(&self) -> CoreResult<Box<dyn Queue>> {
        match SendQueue::open(self) {
            Ok(queue) => Ok(Box::new(queue)),
            // What the link knows of the peer says more than that a queue to it could not be opened.
            Err(error) => Err(self.state.check().err().unwrap_or_else(|| error.over(self.state.transport()))),
        }
    }

    fn token_memory(&self) -> CoreResult<TokenMemory> {
        let side = self.state.side();
        match side.tokens(self.state.mode) {
            TokenPlan::OnDevice => Ok(TokenMemory::Device),
            TokenPlan::OnHost | TokenPlan::OnHostAfterFlush => Ok(TokenMemory::PinnedHost),
            TokenPlan::Refuse(reason) => {
                let gpu = side.gpu.as_ref().map_or(String::new(), |(gpu, _)| format!("{gpu} with "));
                Err(Error::Incompatible(format!("{gpu}{}: {reason}", side.adapter.name()))
                    .over(side.transport))
            }
        }
    }

    fn progress_inbound(&self) -> bool {
        self.hub.progress_inbound(&self.ends)
    }

    fn tell_failure(&self, reason: &str) {
        self.link.tell_failure(reason.to_owned());
    }
}
