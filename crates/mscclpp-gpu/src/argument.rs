//! Arguments of kernels: plain values, and objects that a launch keeps alive.

use std::{fmt, sync::Arc};

use crate::{DeviceBuffer, DevicePtr, KernelParam, KernelWait, PinnedBuffer, PinnedWord, Result, failed};

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
        failed::check_all(self)
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

/// An argument of a kernel, for [`KernelArgs::with`](crate::KernelArgs::with).
///
/// Every [`KernelParam`] is an argument: a number, a pointer, a plain device handle. Nothing is kept alive for it.
/// References to objects that kernels use are arguments too: buffers, memories, semaphores, channels, FIFOs. The kernel
/// gets the object's address or device handle, and launches keep the object alive until they are complete.
///
/// It can be implemented for references to types of your own:
///
/// ```
/// # use mscclpp_gpu::{DeviceBuffer, DevicePtr, KernelArgs, KernelArgument, Owner, Platform, Result};
/// #
/// /// The second half of a buffer.
/// struct SecondHalf(DeviceBuffer);
///
/// impl KernelArgument for &SecondHalf {
///     type Param = DevicePtr;
///     fn param(&self) -> Result<DevicePtr> {
///         Ok(self.0.ptr().add(self.0.len() / 2))
///     }
///     fn owner(&self) -> Option<Owner> {
///         (&self.0).owner()
///     }
/// }
///
/// let half = SecondHalf(Platform::Host.gpu(0)?.allocate(4096)?);
/// let args = KernelArgs::new().with(&half).with(2048u64);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
pub trait KernelArgument {
    /// The type of the kernel's parameter.
    type Param: KernelParam;

    /// The value for the kernel.
    ///
    /// # Errors
    /// If there is no value, for example the address of a memory that is not mapped. Launches with these arguments then
    /// fail with this error.
    fn param(&self) -> Result<Self::Param>;

    /// The object that must live until a launch with this argument is complete. Calls on the same object must return
    /// clones of one [`Owner`], so that a stream keeps it once, however many launches use it.
    fn owner(&self) -> Option<Owner>;
}

impl<T: KernelParam> KernelArgument for T {
    type Param = T;

    fn param(&self) -> Result<T> {
        Ok(*self)
    }

    fn owner(&self) -> Option<Owner> {
        None
    }
}

/// The kernel gets the address of its first byte.
impl KernelArgument for &DeviceBuffer {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Ok(self.ptr())
    }

    fn owner(&self) -> Option<Owner> {
        Some(DeviceBuffer::owner(self))
    }
}

/// The kernel gets the address of its first byte.
impl<W: PinnedWord> KernelArgument for &PinnedBuffer<W> {
    type Param = DevicePtr;

    fn param(&self) -> Result<DevicePtr> {
        Ok(self.ptr())
    }

    fn owner(&self) -> Option<Owner> {
        Some(PinnedBuffer::owner(self))
    }
}

/// The same as for a reference to its content.
impl<'a, T> KernelArgument for &'a Arc<T>
where
    &'a T: KernelArgument,
{
    type Param = <&'a T as KernelArgument>::Param;

    fn param(&self) -> Result<Self::Param> {
        let object: &'a T = self;
        object.param()
    }

    fn owner(&self) -> Option<Owner> {
        let object: &'a T = self;
        object.owner()
    }
}
