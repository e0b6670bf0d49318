use mscclpp_core::{Context, ContextBuilder};
use mscclpp_gpu::Platform;

/// Contexts with the transports that this crate's features turn on.
///
/// ```
/// use mscclpp::prelude::*;
/// let context = Context::on(Platform::Host);
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

/// The transports of this crate's features, for a context that has others too.
pub trait ContextBuilderExt {
    /// Adds a provider for each transport that a feature turns on.
    #[must_use]
    fn default_providers(self) -> Self;
}

impl ContextBuilderExt for ContextBuilder {
    fn default_providers(self) -> Self {
        let this = self;
        #[cfg(feature = "cuda-ipc")]
        let this = this.provider(mscclpp_cuda_ipc::CudaIpc::new());
        #[cfg(feature = "ethernet")]
        let this = this.provider(mscclpp_ethernet::Ethernet::new());
        #[cfg(feature = "ib")]
        let this = this.provider(mscclpp_ib::InfiniBand::new());
        this
    }
}
