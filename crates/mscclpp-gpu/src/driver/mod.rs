//! What the platforms with a GPU driver share.

pub(crate) mod captures;
pub(crate) mod in_use;
pub(crate) mod pinned;

use crate::{Result, backend::EventBackend};
use captures::CaptureId;

/// A stream, as far as its bookkeeping needs the driver.
pub(crate) trait DriverStream {
    type Event: EventBackend;

    fn device_id(&self) -> usize;
    fn is_capturing(&self) -> Result<bool>;
    /// The capture in progress that it takes part in, if the driver knows of one.
    fn capture(&self) -> Option<CaptureId>;
    /// Whether all its work is complete. Not to be asked while it captures.
    fn is_idle(&self) -> bool;
    /// An event of its device, without timing.
    fn new_event(&self) -> Result<Self::Event>;
    fn record_event(&self, event: &Self::Event) -> Result<()>;
}
