use std::sync::Arc;

use mscclpp_core::IbMode;
use mscclpp_gpu::GpuDirect;
use mscclpp_verbs_sys::Verbs;

use crate::InfiniBand;

/// Sets up an [`InfiniBand`] provider.
///
/// ```
/// # use mscclpp_core::Context;
/// # use mscclpp_ib::InfiniBand;
/// let infiniband = InfiniBand::builder().relaxed_ordering(false).build();
/// let context = Context::builder().provider(infiniband).build();
/// ```
#[derive(Default)]
#[must_use]
pub struct InfiniBandBuilder {
    provider: InfiniBand,
}

impl InfiniBand {
    /// Makes a builder of a provider with other settings than the defaults.
    pub fn builder() -> InfiniBandBuilder {
        InfiniBandBuilder::default()
    }
}

impl InfiniBandBuilder {
    /// Sets whether data may overtake other data on the way from the adapter to memory. Some nodes need this for full
    /// speed. Updates of words never overtake data either way. Takes precedence over `MSCCLPP_IB_RELAXED_ORDERING`;
    /// on by default.
    pub fn relaxed_ordering(mut self, on: bool) -> Self {
        self.provider.relaxed_ordering = Some(on);
        self
    }

    /// Sets how signals travel to and from endpoints whose configuration does not say. Takes precedence over
    /// `MSCCLPP_IBV_MODE`. The two ends of a connection may have different modes, as [`IbMode`] describes.
    pub fn mode(mut self, mode: IbMode) -> Self {
        self.provider.mode = mode;
        self
    }

    /// Uses these functions instead of the library's, for tests with a simulated adapter.
    ///
    /// # Safety
    /// The functions must behave like those of libibverbs.
    pub unsafe fn verbs(mut self, verbs: &'static Verbs) -> Self {
        self.provider.verbs = Some(verbs);
        self
    }

    /// Treats simulated devices as GPUs with these properties, whose memory adapters reach and the host does not. For
    /// tests with a simulated adapter.
    #[doc(hidden)]
    pub fn gpus_like(mut self, direct: GpuDirect) -> Self {
        self.provider.gpus_like = Some(direct);
        self
    }

    /// Calls this instead of a GPU's own flush, before a thread stores a token in host memory. For tests with a
    /// simulated adapter.
    #[doc(hidden)]
    pub fn flush_gpus_by(mut self, flush: impl Fn() + Send + Sync + 'static) -> Self {
        self.provider.flush_gpus_by = Some(Arc::new(flush));
        self
    }

    /// Makes the provider. Nothing is loaded before its first use.
    #[must_use]
    pub fn build(self) -> InfiniBand {
        self.provider
    }
}
