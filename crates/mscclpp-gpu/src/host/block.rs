//! What a host twin sees of its launch.

use crate::{DevicePtr, KernelParam, LaunchConfig};

/// A kernel of the Host platform: the *host twin* of the PTX entry of the same name.
///
/// It is called once per block, each block on a thread of its own. The threads of a block are folded into loops, one
/// per phase between barriers, so no thread may wait for another of its own phase.
#[derive(Debug, Clone, Copy)]
pub struct HostKernel {
    /// The name, that of the PTX entry.
    pub name: &'static str,
    /// The code.
    ///
    /// # Safety
    /// Called with the arguments of the launch, whose promises ([`crate::Kernel::launch`]) are its preconditions.
    pub run: unsafe fn(&HostBlock<'_>),
}

/// A variable of a module on the Host platform, zeroed when the module is loaded.
#[derive(Debug, Clone, Copy)]
pub struct HostSymbol {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: u64,
}

/// One block of a launch, as its host twin sees it.
pub struct HostBlock<'a> {
    pub(crate) config: LaunchConfig,
    pub(crate) index: [u32; 3],
    pub(crate) args: &'a crate::KernelArgs,
    pub(crate) symbols: &'a dyn Fn(&str) -> Option<DevicePtr>,
}

impl HostBlock<'_> {
    /// `gridDim`.
    #[must_use]
    pub fn grid_dim(&self) -> [u32; 3] {
        self.config.grid
    }

    /// `blockDim`.
    #[must_use]
    pub fn block_dim(&self) -> [u32; 3] {
        self.config.block
    }

    /// `blockIdx`.
    #[must_use]
    pub fn block_idx(&self) -> [u32; 3] {
        self.index
    }

    /// Argument `i`.
    ///
    /// # Safety
    /// `T` must be the type that was pushed.
    ///
    /// # Panics
    /// If there is no such argument or its size is not that of `T`; the launch then fails with
    /// [`crate::Error::KernelFailed`].
    #[must_use]
    pub unsafe fn arg<T: KernelParam>(&self, i: usize) -> T {
        let Some(value) = self.args.values().get(i) else {
            panic!("argument {i} of {} was read", self.args.len());
        };
        assert!(value.len() == size_of::<T>(), "argument {i} has {} bytes, {} were read", value.len(), size_of::<T>());
        // SAFETY: `value` holds the bytes of a `T` (the caller's promise; the size was compared), aligned to 16.
        unsafe { value.as_ptr().cast::<T>().read() }
    }

    /// Address of a variable of the module.
    ///
    /// # Panics
    /// If the module has none of that name; the launch then fails with [`crate::Error::KernelFailed`].
    #[must_use]
    pub fn symbol(&self, name: &str) -> DevicePtr {
        (self.symbols)(name).unwrap_or_else(|| panic!("the module has no symbol {name:?}"))
    }
}
