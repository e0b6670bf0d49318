//! What the platforms with a GPU driver share.

pub(crate) mod captures;
pub(crate) mod foreign;
pub(crate) mod in_use;
pub(crate) mod pinned;

use std::ffi::c_void;

use crate::{Result, backend::EventBackend};
use captures::CaptureId;

/// A stream, as far as its bookkeeping needs the driver.
pub(crate) trait DriverStream {
    type Event: EventBackend;
    /// The driver's handle of a graph.
    type Graph: Copy;

    fn device_id(&self) -> usize;
    fn is_capturing(&self) -> Result<bool>;
    /// Whether others know the stream, or it waited for an event: else only what was begun here captures it.
    fn may_be_captured(&self) -> bool;
    /// The capture in progress that it takes part in, if the driver knows of one, and the graph that it makes.
    fn capture(&self) -> Option<(CaptureId, Self::Graph)>;
    /// Has the graph, its copies and their launches keep `held`: when they are gone, the driver calls `released` with it,
    /// once. If the driver refuses that, it is called at once, by the driver or by this; that is logged.
    ///
    /// # Safety
    /// `released` may be called with `held`, in any thread.
    unsafe fn give_to_graph(
        &self,
        graph: Self::Graph,
        held: *mut c_void,
        released: unsafe extern "C" fn(*mut c_void),
    );
    /// Whether all its work is complete. Not to be asked while it captures.
    fn is_idle(&self) -> bool;
    /// An event of its device, without timing.
    fn new_event(&self) -> Result<Self::Event>;
    fn record_event(&self, event: &Self::Event) -> Result<()>;
}
