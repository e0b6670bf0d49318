//! The options of collectives, which groups of their ranks inherit.

use std::{sync::Arc, time::Duration};

use mscclpp::Transport;

use crate::choice::{Algorithm, NodesModel, Selector, Tuned};

/// The usual number of communicators whose calls fit on a device.
const CALLS_AT_ONCE: u32 = 2;

/// The options as the program gave them: the methods of [`CollectivesBuilder`](crate::CollectivesBuilder) say what each is.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) max_blocks: Option<u32>,
    pub(crate) calls_at_once: u32,
    pub(crate) overlap: bool,
    pub(crate) scratch: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    /// None before ranks meet: what the environment says.
    pub(crate) check_calls: Option<bool>,
    /// Whether captured calls publish the memory that they take data into. If None, the environment decides.
    pub(crate) publish_captured: Option<bool>,
    /// None: the adapter that is nearest.
    pub(crate) between_nodes: Option<Transport>,
    pub(crate) connections: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) nodes_model: Option<NodesModel>,
    pub(crate) selector: Arc<dyn Selector>,
    pub(crate) algorithms: Vec<Arc<dyn Algorithm>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_blocks: None,
            calls_at_once: CALLS_AT_ONCE,
            overlap: false,
            scratch: None,
            timeout: None,
            check_calls: None,
            publish_captured: None,
            between_nodes: Some(Transport::ETHERNET),
            connections: None,
            node: None,
            nodes_model: None,
            selector: Arc::new(Tuned),
            algorithms: Vec::new(),
        }
    }
}

impl Options {
    /// Whether calls are compared.
    pub(crate) fn checks(&self) -> bool {
        self.check_calls == Some(true)
    }
}
