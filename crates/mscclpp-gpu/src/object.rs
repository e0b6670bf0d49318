//! Objects that launches keep alive, and the waits of kernels through them.

use std::{fmt, sync::Arc};

use crate::{DevicePtr, Result};

/// An object that launches keep alive, or a part of it. The stream asks it what became of the waits of kernels through it.
pub trait KernelObject: Send + Sync {
    /// For whom kernels may wait through this object, under the names that messages use: `"rank 2"`. By default nobody.
    fn peers(&self) -> Vec<String> {
        Vec::new()
    }

    /// The waits of kernels through this object, as far as something tells whether they wait. Time-outs name those that
    /// do, and only if there are none, all [`KernelObject::peers`]. Called when time has run out.
    fn waits(&self) -> Vec<KernelWait> {
        Vec::new()
    }

    /// Whether [`KernelObject::check`] may have something to tell. Called when a launch is complete that was given the
    /// object, with locks held: it must neither block nor call a driver. By default there is nothing.
    fn may_have_failed(&self) -> bool {
        false
    }

    /// Checks that the waits of complete kernels got what they waited for. Called by the next synchronize of the stream.
    ///
    /// # Errors
    /// Why a wait ended early, as [`Error::Wait`](crate::Error::Wait): a lost peer, an abort, or a bound that was reached.
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

/// The peers of all its objects, each once.
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

/// An object that is kept without being an argument: no peer is known for which kernels wait through it.
pub(crate) struct Kept<T>(pub(crate) T);

impl<T: Send + Sync> KernelObject for Kept<T> {}

/// The peers of all, each once.
pub(crate) fn peers_of(owners: &[Owner]) -> Vec<String> {
    let mut peers = Vec::new();
    for peer in owners.iter().flat_map(|owner| owner.peers()) {
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    peers
}

/// Asks each of them, so that all is told that is told once. The first error.
pub(crate) fn check_all(owners: &[Owner]) -> Result<()> {
    owners.iter().map(|owner| owner.check()).fold(Ok(()), Result::and)
}

/// A wait that kernels may be in, or are in for certain. See [`KernelObject::waits`].
#[derive(Debug, Clone)]
pub struct KernelWait {
    pub(crate) name: String,
    pub(crate) counts: Option<Counts>,
}

/// Words of device memory.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    /// The uuid of a device that reaches them.
    pub(crate) device: [u8; 16],
    pub(crate) claimed: DevicePtr,
    pub(crate) arrived: [DevicePtr; 2],
    /// Keeps them.
    pub(crate) _owner: Owner,
}
