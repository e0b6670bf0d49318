//! Collectives that give their memory back for a while.

use std::sync::atomic::Ordering;

use crate::{Collectives, Error, Result};

impl Collectives {
    /// The part of [`device_bytes`](Self::device_bytes) that [`suspend`](Self::suspend) gives back: the memory through which
    /// ranks of a node send, on CUDA with virtual memory and on simulated devices. If the device of one rank cannot, no rank
    /// gives any back.
    #[must_use]
    pub fn suspendable_bytes(&self) -> u64 {
        self.engine.suspendable_bytes()
    }

    /// Whether the collectives are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.rank.suspended.load(Ordering::Relaxed)
    }

    /// Gives memory back to the device until [`resume`](Self::resume), for other uses, and refuses calls meanwhile. All ranks
    /// call this. Blocks until they do, and nobody returns before the memory of all is given back. If the device of one rank
    /// cannot, no rank gives any back, and calls are refused all the same. What is registered stays, and so do addresses:
    /// graphs may be launched again when the collectives are resumed.
    ///
    /// # Safety
    /// Until the collectives are resumed, no thread makes a call, and no graph that has a call is launched; graphs that were
    /// launched before are complete. This holds on this rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if calls of this rank are not complete, and if it is suspended: then nothing is done, and the
    /// other ranks wait for it until it calls this again, leaves or aborts.
    /// [`Error::Below`] if memory cannot be unmapped, on the rank where it is so, and an error that names the rank on the others:
    /// the collectives are suspended then, too. [`Error::Failed`] and [`Error::Below`] after a rank was lost.
    pub unsafe fn suspend(&self) -> Result<()> {
        self.check_usable()?;
        self.check_resumed()?;
        if !self.is_idle()? {
            let text = "calls are not complete; synchronize their streams, and then suspend the collectives";
            return Err(Error::InvalidArgument(text.into()));
        }
        self.rank.suspended.store(true, Ordering::Relaxed);
        // SAFETY: the calls are complete, and the caller has promised the rest.
        unsafe { self.engine.suspend(&self.rank) }
    }

    /// Takes the memory again that [`suspend`](Self::suspend) gave back. All ranks call this, and it blocks until they do.
    ///
    /// # Errors
    /// [`Error::Below`] if memory is short or cannot be mapped, on the rank where it is so, and an error that names the rank on
    /// the others: all ranks may call this again. [`Error::Below`] after a rank was lost.
    pub fn resume(&self) -> Result<()> {
        self.engine.resume(&self.rank)?;
        self.rank.suspended.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that the collectives are not suspended.
    pub(crate) fn check_resumed(&self) -> Result<()> {
        match self.is_suspended() {
            false => Ok(()),
            true => {
                Err(Error::InvalidArgument("the collectives are suspended; all ranks resume them".into()))
            }
        }
    }
}
