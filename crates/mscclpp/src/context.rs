#[cfg(not(all(feature = "cuda-ipc", feature = "ethernet")))]
use mscclpp_core::Transport;
#[cfg(not(feature = "ib"))]
use mscclpp_core::TransportFlags;
use mscclpp_core::{Context, ContextBuilder};
use mscclpp_gpu::Platform;

/// Contexts with the transports that this crate's features turn on.
///
/// ```
/// use mscclpp::prelude::*;
/// let context = Context::on(Platform::Sim);
/// assert_eq!(context.transports().has(Transport::CUDA_IPC), cfg!(feature = "cuda-ipc"));
/// assert_eq!(context.transports().has(Transport::ETHERNET), cfg!(feature = "ethernet"));
/// ```
pub trait ContextExt {
    /// A context on the platform that [`Platform::detect`] finds when a device is first needed.
    #[must_use]
    fn new() -> Self;

    /// A context on `platform`.
    #[must_use]
    fn on(platform: Platform) -> Self;
}

impl ContextExt for Context {
    fn new() -> Self {
        Context::builder().default_providers().build()
    }

    fn on(platform: Platform) -> Self {
        Context::builder().default_providers().platform(platform).build()
    }
}

/// The hint in errors about a transport whose feature is off.
#[cfg(not(all(feature = "cuda-ipc", feature = "ethernet", feature = "ib")))]
macro_rules! off {
    ($feature:literal) => {
        concat!("the feature `", $feature, "` of the crate mscclpp is off: turn it on in Cargo.toml")
    };
}

/// Adds the transports of this crate's features to a context that has others too.
pub trait ContextBuilderExt {
    /// Adds a provider for each transport that a feature turns on. Errors about the other transports name the missing
    /// feature.
    #[must_use]
    fn default_providers(self) -> Self;
}

impl ContextBuilderExt for ContextBuilder {
    fn default_providers(self) -> Self {
        let this = self;
        #[cfg(feature = "cuda-ipc")]
        let this = this.provider(mscclpp_cuda_ipc::CudaIpc::new());
        #[cfg(not(feature = "cuda-ipc"))]
        let this = this.absent(Transport::CUDA_IPC, off!("cuda-ipc"));
        #[cfg(feature = "ethernet")]
        let this = this.provider(mscclpp_ethernet::Ethernet::new());
        #[cfg(not(feature = "ethernet"))]
        let this = this.absent(Transport::ETHERNET, off!("ethernet"));
        #[cfg(feature = "ib")]
        let this = this.provider(mscclpp_ib::InfiniBand::new());
        #[cfg(not(feature = "ib"))]
        let this = this.absent(TransportFlags::ALL_IB, off!("ib"));
        this
    }
}

#[cfg(test)]
mod tests {
    use mscclpp_core::{Device, EndpointConfig, Transport};

    use super::*;

    #[test]
    fn a_transport_whose_feature_is_off_names_it() {
        for (transport, feature, is_on) in [
            (Transport::CUDA_IPC, "`cuda-ipc`", cfg!(feature = "cuda-ipc")),
            (Transport::ETHERNET, "`ethernet`", cfg!(feature = "ethernet")),
            (Transport::IB3, "`ib`", cfg!(feature = "ib")),
        ] {
            let made =
                Context::on(Platform::Sim).create_endpoint(EndpointConfig::new(transport, Device::CPU));
            let named = made.is_err_and(|error| error.to_string().contains(&format!("feature {feature}")));
            assert_eq!(named, !is_on, "{transport}");
        }
    }
}
