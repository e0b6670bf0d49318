use mscclpp_core::{Endpoint, EndpointConfig, Transport};

/// This side of a connection to be made: an endpoint, or the configuration of a new one.
#[derive(Debug, Clone)]
pub enum LocalEnd {
    /// One made before; it may serve several connections.
    Endpoint(Endpoint),
    /// A new one.
    Config(EndpointConfig),
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
    /// On the current GPU.
    fn from(transport: Transport) -> Self {
        Self::Config(transport.into())
    }
}
