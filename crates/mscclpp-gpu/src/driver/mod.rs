//! The platforms with a GPU driver, CUDA and HIP, written once: a platform is a table of entry points and what truly
//! differs ([`api::Api`]). It says what it does with devices and streams, and these are generic over it: so the files that
//! know a driver name each other.
//!
//! 1. **The calling thread is left as it was.** Each call makes its device the thread's and then restores what the
//!    thread had ([`context`]); but a thread that had none keeps the device.
//! 2. **Captures of others are not disturbed.** Calls that are forbidden during a capture run with the thread's capture
//!    mode relaxed. The library's own work runs on a separate non-blocking stream, which takes part in nobody's
//!    capture.
//! 3. **Failures in drop** are logged (target `mscclpp::gpu`) and never panic.
//! 4. **Dropping waits for no kernel.** In drivers, unloading a module and freeing page-locked memory wait, so both are
//!    put off ([`module`], [`pinned`]). What launches need is kept until they are complete ([`in_use`]).

pub(crate) mod api;
mod bookkeeping;
mod captures;
pub(crate) mod compiler;
mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod export;
pub(crate) mod failure;
mod foreign;
mod graph;
mod in_use;
pub(crate) mod memory;
pub(crate) mod module;
mod pinned;
pub(crate) mod platform;
pub(crate) mod stream;

use std::ffi::c_void;

use crate::{Result, backend::EventBackend};
use captures::CaptureId;

/// The functions of a driver's stream that the bookkeeping of its launches needs.
pub(crate) trait DriverStream: Sized + 'static {
    type Event: EventBackend;
    /// The driver's handle of a graph.
    type Graph: Copy;

    /// Returns the objects that its launches keep.
    fn uses(&self) -> &in_use::InUse<Self::Event>;
    fn device_id(&self) -> usize;
    /// Whether only the thread whose stream it is can use it, which may end at any time.
    fn is_of_a_thread(&self) -> bool {
        false
    }
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
