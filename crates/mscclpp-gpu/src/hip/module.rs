//! Modules and their kernels.
//!
//! Unloading a module may wait for running kernels, and such a kernel may wait for work that comes after it. So a
//! module that is no longer used is unloaded when the next one is loaded: loading may wait for kernels anyway, and its
//! documentation says so. But HIP does not promise that unloading waits, so a launch keeps its module until it is
//! complete, and so does a graph.

use std::{
    ffi::{CString, c_int, c_void},
    sync::Arc,
};

use mscclpp_gpu_sys::hip::{self, Function, Hip, HipResult};
use parking_lot::Mutex;

use super::{
    device::Device,
    failure::{check, failure, forget, log_failure},
    stream::HipStream,
};
use crate::{
    DevicePtr, Error, KernelArgs, KernelObject, LaunchConfig, Owner, Result,
    backend::{KernelBackend, ModuleBackend, StreamBackend},
};

pub(super) struct HipModule {
    loaded: Arc<Loaded>,
}

struct Loaded {
    device: &'static Device,
    raw: hip::Module,
}

// SAFETY: HIP's functions may be called with a module from any thread; `raw` is never dereferenced here.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl HipModule {
    /// Loads a code object of the program `name`.
    ///
    /// # Safety
    /// It is whole, as a compiler made it.
    pub(super) unsafe fn load(device: &'static Device, name: &str, code: &[u8]) -> Result<Self> {
        let _entered = device.ordinal().enter()?;
        let hip = device.hip();
        device.retired_modules().unload(hip);
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for the write; `code` is a whole code object (the caller's promise), whose size is in it.
        match unsafe { (hip.module_load_data)(&raw mut raw, code.as_ptr().cast()) } {
            HipResult::SUCCESS => Ok(Self { loaded: Arc::new(Loaded { device, raw }) }),
            result @ (HipResult::INVALID_IMAGE
            | HipResult::NO_BINARY_FOR_GPU
            | HipResult::INVALID_KERNEL_FILE) => Err(Error::Compile {
                name: format!("the code of {name}"),
                log: failure(hip, result, "hipModuleLoadData").to_string(),
            }),
            result => Err(failure(hip, result, "hipModuleLoadData")),
        }
    }
}

impl KernelObject for Loaded {}

impl ModuleBackend for HipModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let c_name = CString::new(name).map_err(|_| no_such("kernel", name))?;
        let _entered = self.loaded.device.ordinal().enter()?;
        let hip = self.loaded.device.hip();
        let mut function = std::ptr::null_mut();
        // SAFETY: `function` is valid for the write; the module lives and the name is NUL-terminated.
        match unsafe { (hip.module_get_function)(&raw mut function, self.loaded.raw, c_name.as_ptr()) } {
            HipResult::SUCCESS => {
                let module = Arc::clone(&self.loaded);
                Ok(Arc::new(HipKernel { owner: module.clone(), module, function }))
            }
            HipResult::NOT_FOUND => {
                forget(hip);
                Err(no_such("kernel", name))
            }
            result => Err(failure(hip, result, format!("hipModuleGetFunction({name})"))),
        }
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        let c_name = CString::new(name).map_err(|_| no_such("symbol", name))?;
        let _entered = self.loaded.device.ordinal().enter()?;
        let hip = self.loaded.device.hip();
        let (mut address, mut size) = (std::ptr::null_mut(), 0usize);
        // SAFETY: both are valid for the write; the module lives and the name is NUL-terminated.
        match unsafe {
            (hip.module_get_global)(&raw mut address, &raw mut size, self.loaded.raw, c_name.as_ptr())
        } {
            HipResult::SUCCESS => Ok((DevicePtr::from_ptr(address), size as u64)),
            // Releases of ROCm differ in which of these it is.
            HipResult::NOT_FOUND | HipResult::INVALID_VALUE => {
                forget(hip);
                Err(no_such("symbol", name))
            }
            result => Err(failure(hip, result, format!("hipModuleGetGlobal({name})"))),
        }
    }
}

/// HIP does not tell what a module has.
fn no_such(kind: &'static str, name: &str) -> Error {
    Error::NoSuchSymbol { kind, name: name.to_owned(), available: "HIP does not say what".to_owned() }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.device.retired_modules().modules.lock().push(Retired(self.raw));
    }
}

/// Modules that nobody has any more, to be unloaded with the next load. It lives as long as the process.
#[derive(Default)]
pub(super) struct RetiredModules {
    modules: Mutex<Vec<Retired>>,
}

struct Retired(hip::Module);

// SAFETY: HIP's functions may be called with a module from any thread; the pointer is never dereferenced here.
unsafe impl Send for Retired {}

impl RetiredModules {
    /// The device is the thread's. May wait for kernels that run.
    fn unload(&self, hip: &Hip) {
        let retired = std::mem::take(&mut *self.modules.lock());
        for Retired(raw) in retired {
            // SAFETY: loaded once, and unloaded once, as it is in one list; its owners are gone, kernels, graphs and launches
            // that are not complete too.
            log_failure(hip, unsafe { (hip.module_unload)(raw) }, "hipModuleUnload");
        }
    }
}

struct HipKernel {
    module: Arc<Loaded>,
    /// The module again, as launches keep it.
    owner: Owner,
    function: Function,
}

// SAFETY: HIP's functions may be called with a function from any thread; it is never dereferenced here.
unsafe impl Send for HipKernel {}
// SAFETY: as above.
unsafe impl Sync for HipKernel {}

impl KernelBackend for HipKernel {
    unsafe fn launch(
        &self,
        stream: &dyn StreamBackend,
        config: LaunchConfig,
        args: &KernelArgs,
        cooperative: bool,
    ) -> Result<()> {
        let stream = HipStream::of(stream)?;
        let device = self.module.device;
        let hip = device.hip();
        let _bound = device.ordinal().bind()?;
        let mut params: Vec<*mut c_void> =
            args.values().iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let (shared, params) = (config.shared_bytes, params.as_mut_ptr());
        // SAFETY: the function and the stream live. `params` points to as many arguments as the kernel has, each of its
        // type (the caller's promise); the runtime copies them before it returns and does not write to them.
        let (call, result) = unsafe {
            if cooperative {
                let launch = hip.module_launch_cooperative_kernel;
                let result = launch(self.function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params);
                ("hipModuleLaunchCooperativeKernel", result)
            } else {
                let (launch, extra) = (hip.module_launch_kernel, std::ptr::null_mut());
                let result =
                    launch(self.function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params, extra);
                ("hipModuleLaunchKernel", result)
            }
        };
        if result == HipResult::SUCCESS {
            let owners: Vec<Owner> = args.owners().iter().chain([&self.owner]).cloned().collect();
            stream.keep(&owners);
            return Ok(());
        }
        Err(failure(hip, result, format!("{call}({config:?}, {} arguments)", args.len())))
    }

    fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u64> {
        let device = self.module.device;
        let hip = device.hip();
        let _entered = device.ordinal().enter()?;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let occupancy = hip.occupancy_max_active_blocks_per_multiprocessor;
        // SAFETY: `blocks` is valid for the write; a function of a module that lives.
        let result = unsafe { occupancy(&raw mut blocks, self.function, threads, shared_bytes as usize) };
        check(hip, result, format!("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor({threads} threads)"))?;
        Ok(u64::try_from(blocks).unwrap_or(0) * u64::from(device.multiprocessors()))
    }
}
