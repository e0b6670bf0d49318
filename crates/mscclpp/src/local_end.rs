use mscclpp_core::{Context, Endpoint, EndpointConfig, Transport};

use crate::Result;

/// This side of a connection to be made: an endpoint, or the configuration of a new one.
#[derive(Debug, Clone)]
pub enum LocalEnd {
    /// An endpoint that exists; it may serve several connections.
    Endpoint(Endpoint),
    /// The configuration with which each connection gets a new endpoint.
    Config(EndpointConfig),
}

impl LocalEnd {
    pub(crate) fn open(self, context: &Context) -> Result<Endpoint> {
        Ok(match self {
            Self::Endpoint(endpoint) => endpoint,
            Self::Config(config) => context.create_endpoint(config)?,
        })
    }
}

impl From<Endpoint> for LocalEnd {
    fn from(endpoint: Endpoint) -> Self {
        Self::Endpoint(endpoint)
    }
}

impl From<&Endpoint> for LocalEnd {
    fn from(endpoint: &Endpoint) -> Self {
        Self::Endpoint(endpoint.clone())
    }
}

impl From<EndpointConfig> for LocalEnd {
    fn from(config: EndpointConfig) -> Self {
        Self::Config(config)
    }
}

impl From<Transport> for LocalEnd {
    /// A new endpoint of `transport` on the current GPU.
    fn from(transport: Transport) -> Self {
        Self::Config(transport.into())
    }
}
