//! Modules and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use mscclpp_gpu::{Kernel, KernelArgs, LaunchConfig, Module};
use mscclpp_gpu_sys::hip::HipResult;
use parking_lot::Mutex;

use crate::{
    devices,
    entry::{Out, done, entry_points, require},
    rtc::Source,
    streams,
    table::Table,
};

struct FakeModule {
    module: Module,
    /// The functions that were asked for, which end with the module.
    functions: Mutex<Vec<usize>>,
}

static MODULES: Table<FakeModule> = Table::new(6);
static FUNCTIONS: Table<Kernel> = Table::new(7);

pub(crate) fn existing() -> u64 {
    MODULES.len()
}

/// # Safety
/// `name` is NUL-terminated.
unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, HipResult> {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| HipResult::INVALID_VALUE)
}

entry_points! {
    fn hipModuleLoadData(module: Out<*mut c_void>, image: *const c_void) {
        // SAFETY: the caller promises a whole code object.
        let source = unsafe { Source::decode(image) }.ok_or(HipResult::INVALID_IMAGE)?;
        let loaded = FakeModule { module: done(source.load())?, functions: Mutex::default() };
        module.give(MODULES.add(loaded))
    }

    fn hipModuleUnload(module: *mut c_void) {
        let module = MODULES.remove(module)?;
        for function in module.functions.lock().drain(..) {
            FUNCTIONS.remove(function as *mut c_void)?;
        }
        Ok(())
    }

    fn hipModuleGetFunction(function: Out<*mut c_void>, module: *mut c_void, name: *const c_char) {
        let module = MODULES.get(module)?;
        // SAFETY: the caller's promise.
        let kernel = done(module.module.kernel(unsafe { text(name) }?))?;
        let handle = FUNCTIONS.add(kernel);
        module.functions.lock().push(handle as usize);
        function.give(handle)
    }

    fn hipModuleGetGlobal(
        address: Out<*mut c_void>, bytes: Out<usize>, module: *mut c_void, name: *const c_char,
    ) {
        // SAFETY: the caller's promise.
        let (at, size) = done(MODULES.get(module)?.module.symbol(unsafe { text(name) }?))?;
        address.give(at.as_mut_ptr())?;
        bytes.give(size as usize)
    }
}

/// Returns the arguments of `kernel`, from an array of pointers: one for each parameter.
///
/// # Safety
/// `values` points to a pointer for each parameter, and each of them to a value of the parameter's type without padding.
unsafe fn arguments_of(kernel: &Kernel, values: *const *mut c_void) -> Option<KernelArgs> {
    let mut args = KernelArgs::new();
    for (i, parameter) in kernel.parameters()?.iter().enumerate() {
        // SAFETY: one of as many pointers as there are parameters, to as many bytes as this one has.
        args = args.with_bytes(unsafe {
            std::slice::from_raw_parts((*values.add(i)).cast(), parameter.size as usize)
        });
    }
    Some(args)
}

/// # Safety
/// The parameters are those of the function.
unsafe fn launch(
    function: *mut c_void,
    config: LaunchConfig,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
) -> Result<(), HipResult> {
    let kernel = FUNCTIONS.get(function)?;
    // SAFETY: the caller's promise.
    let args = unsafe { arguments_of(&kernel, parameters) }.ok_or(HipResult::NOT_SUPPORTED)?;
    // SAFETY: the caller's promise.
    streams::with(stream, |stream| unsafe { kernel.launch(stream, config, &args) })
}

entry_points! {
    fn hipModuleLaunchKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        require(extra.is_null())?;
        let config =
            LaunchConfig { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        // SAFETY: the caller's promise.
        unsafe { launch(function, config, stream, parameters) }
    }

    fn hipModuleLaunchCooperativeKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void,
    ) {
        let config =
            LaunchConfig { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        let blocks = config.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        let threads = config.block.iter().product();
        if blocks > done(FUNCTIONS.get(function)?.max_resident_blocks(threads, shared_bytes))? {
            return Err(HipResult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        // SAFETY: the caller's promise.
        unsafe { launch(function, config, stream, parameters) }
    }

    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: *mut c_void, threads: c_int, shared_bytes: usize,
    ) {
        let kernel = FUNCTIONS.get(function)?;
        let of_device = done(kernel.max_resident_blocks(threads as u32, shared_bytes as u32))?;
        let multiprocessors = devices::current_device()?.gpu.properties().multiprocessors.max(1);
        blocks.give((of_device / u64::from(multiprocessors)) as c_int)
    }
}
