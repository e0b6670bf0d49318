//! What a forked child has of its parent: the memory of its objects, and none of the devices, threads and connections
//! behind them. A child that used these would wait for threads that it does not have, or write into its parent's memory.
//!
//! So what holds such things is an [`OfProcess`]: in a child its uses are [`Error::Forked`], and it is not dropped there, as
//! that could wait for such a thread, or end what the parent still uses.

use std::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    process,
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{Error, Result};

/// How many forks lie between this process and the one that first asked, and the number of this process.
static FORKS: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made. To compare it with the calling one costs a load; to ask the system for the number of
/// the process would be a call of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    process: u32,
    forks: u32,
}

impl Origin {
    /// The calling process.
    #[must_use]
    pub fn here() -> Self {
        extern "C" fn in_child() {
            // Before anything else runs in the child, on the only thread that it has.
            FORKS.fetch_add(1, Ordering::Relaxed);
            PROCESS.store(process::id(), Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            PROCESS.store(process::id(), Ordering::Relaxed);
            // SAFETY: the function touches nothing but two atomic numbers, which is allowed in the child of a process with
            // threads, and it is there as long as this library is loaded; then the C library forgets it.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            if refused != 0 {
                let error = std::io::Error::from_raw_os_error(refused);
                tracing::warn!(target: "mscclpp::gpu", %error, "forks of this process will not be noticed");
            }
        });
        Self { process: PROCESS.load(Ordering::Relaxed), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether that is the calling process, and not one from which it was forked.
    #[must_use]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// That what was made there may be used here.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(self) -> Error {
        Error::Forked { parent: self.process, child: process::id() }
    }

    /// The number of that process.
    #[must_use]
    pub fn process(self) -> u32 {
        self.process
    }
}

/// A value that is used and dropped only in the process in which it was made. In a child that was forked it is left alone.
///
/// ```
/// use mscclpp_gpu::fork::OfProcess;
///
/// let file = OfProcess::new(tempfile::tempfile().expect("a file"));
/// // In a forked child this is an error, and dropping `file` there does not close it.
/// assert_eq!(file.here()?.metadata().expect("of a file").len(), 0);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    origin: Origin,
}

impl<T> OfProcess<T> {
    /// A value of the calling process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), origin: Origin::here() }
    }

    /// Another value of the same process as this.
    #[must_use]
    pub fn beside<U>(&self, value: U) -> OfProcess<U> {
        OfProcess { value: ManuallyDrop::new(value), origin: self.origin }
    }

    /// The value, to be used. [`Deref`] gives it without a look at the process, for what only reads plain data.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child.
    pub fn here(&self) -> Result<&T> {
        self.origin.check().map(|()| &*self.value)
    }

    /// Whether it is of the calling process.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Default> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, here, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Where a device was first opened. No driver can be used in a child of that process, and so it is with simulated devices.
static DEVICES_OPENED: OnceLock<Origin> = OnceLock::new();

/// A device has been opened.
pub(crate) fn device_opened() {
    DEVICES_OPENED.get_or_init(Origin::here);
}

/// That devices can be used in this process.
pub(crate) fn check_devices() -> Result<()> {
    DEVICES_OPENED.get().map_or(Ok(()), |origin| origin.check())
}
