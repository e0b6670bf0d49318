//! Objects that launches keep alive, and the waits of kernels through them.

use std::{fmt, sync::Arc};

use crate::{DevicePtr, Result};

/// An object that launches keep alive, or a part of it. The stream asks it how the waits of kernels through it ended.
pub trait KernelObject: Send + Sync {
    /// Returns the peers for which kernels may wait through this object, under the names that messages use: `"rank 2"`.
    /// The default implementation returns none.
    fn peers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the waits of kernels through this object, as far as something shows whether they wait. Time-outs name the
    /// peers of waits that go on, and only if there are none, all [`KernelObject::peers`]. Called when time has run out.
    fn waits(&self) -> Vec<KernelWait> {
        Vec::new()
    }

    /// Whether [`KernelObject::check`] may return an error. Called when a launch that was given the object is complete,
    /// with locks held: it must neither block nor call a driver. The default is false.
    fn may_have_failed(&self) -> bool {
        false
    }

    /// Checks that the waits of complete kernels got what they waited for. Called by the next synchronize of the stream.
    ///
    /// # Errors
    /// The reason why a wait ended early, as [`Error::Wait`](crate::Error::Wait): a lost peer, an abort, or a bound that
    /// was reached.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for dyn KernelObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelObject").field("peers", &self.peers()).finish()
    }
}

/// Keeps an object alive: a counted reference to it, or to its parts.
pub type Owner = Arc<dyn KernelObject>;

/// A list has the peers of all its objects, each once.
impl KernelObject for Vec<Owner> {
    fn peers(&self) -> Vec<String> {
        peers_of(self)
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.iter().flat_map(|owner| owner.waits()).collect()
    }

    fn may_have_failed(&self) -> bool {
        self.iter().any(|owner| owner.may_have_failed())
    }

    fn check(&self) -> Result<()> {
        check_all(self)
    }
}

/// An object that is kept without being an argument: it has no peers that kernels wait for.
pub(crate) struct Kept<T>(pub(crate) T);

impl<T: Send + Sync> KernelObject for Kept<T> {}

/// Returns the peers of all objects, each once.
pub(crate) fn peers_of(owners: &[Owner]) -> Vec<String> {
    each_once(owners.iter().flat_map(|owner| owner.peers()))
}

/// Returns the names, each once, in their order.
pub(crate) fn each_once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut once = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once
}

/// Asks each object, so that every failure counts as reported. Returns the first error.
pub(crate) fn check_all(owners: &[Owner]) -> Result<()> {
    owners.iter().map(|owner| owner.check()).fold(Ok(()), Result::and)
}

/// A wait that kernels may be in, or are certainly in. See [`KernelObject::waits`].
#[derive(Debug, Clone)]
pub struct KernelWait {
    pub(crate) name: String,
    pub(crate) counts: Option<Counts>,
}

/// The counts of a semaphore in words of device memory.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    /// The uuid of a device that reaches them.
    pub(crate) device: [u8; 16],
    pub(crate) claimed: DevicePtr,
    pub(crate) arrived: [DevicePtr; 2],
    /// The owner of the words, which keeps them.
    pub(crate) _owner: Owner,
}
