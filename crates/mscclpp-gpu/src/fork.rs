//! A forked child has the memory of its parent's objects, and none of the devices, threads and connections behind them. A
//! child that used these would wait for threads that it does not have, or write into its parent's memory.
//!
//! So an object with such parts is an [`OfProcess`]: in a child its uses return [`Error::Forked`], and it is not dropped there,
//! as that could wait for such a thread, or end objects that the parent still uses.

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

/// The number of forks between this process and the one that first asked, and the number of this process.
static FORKS: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made. Comparing it with the calling process costs a load; asking the system for the
/// number of the process would be a system call.
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
            // This runs before anything else in the child, on its only thread.
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

    /// Whether it is the calling process, and not one from which it was forked.
    #[must_use]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// Checks that an object of that process may be used here.
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

    /// Returns the number of that process.
    #[must_use]
    pub fn process(self) -> u32 {
        self.process
    }
}

/// A value that is used and dropped only in the process in which it was made. A forked child leaves it alone.
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
    /// Wraps a value of the calling process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), origin: Origin::here() }
    }

    /// Wraps another value of the same process as this one.
    #[must_use]
    pub fn beside<U>(&self, value: U) -> OfProcess<U> {
        OfProcess { value: ManuallyDrop::new(value), origin: self.origin }
    }

    /// Returns the value for use. [`Deref`] returns it without a check of the process, for code that only reads plain
    /// data.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child.
    pub fn here(&self) -> Result<&T> {
        self.origin.check().map(|()| &*self.value)
    }

    /// Whether the value belongs to the calling process.
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

/// The process in which a device was first opened. No driver can be used in a child of that process, and neither can
/// simulated devices.
static DEVICES_OPENED: OnceLock<Origin> = OnceLock::new();

/// Notes that a device has been opened.
pub(crate) fn device_opened() {
    DEVICES_OPENED.get_or_init(Origin::here);
}

/// Checks that devices can be used in this process.
pub(crate) fn check_devices() -> Result<()> {
    DEVICES_OPENED.get().map_or(Ok(()), |origin| origin.check())
}
