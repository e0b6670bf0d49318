use std::sync::Arc;

use crate::{KernelParam, Owner, Result};

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
/// let half = SecondHalf(Platform::Sim.gpu(0)?.allocate(4096)?);
/// let args = KernelArgs::new().with(&half).with(2048u64);
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
pub trait KernelArgument {
    /// The type of the kernel's parameter.
    type Param: KernelParam;

    /// Returns the value for the kernel.
    ///
    /// # Errors
    /// An error if there is no value, for example for the address of a memory that is not mapped. Launches with these
    /// arguments then fail with this error.
    fn param(&self) -> Result<Self::Param>;

    /// Returns the object that must live until a launch with this argument is complete. Calls on the same object must
    /// return clones of one [`Owner`], so that a stream keeps it once, however many launches use it.
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

/// A reference to an `Arc` is the same argument as a reference to its content.
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
