//! Modules and their kernels.
//!
//! Unloading a module waits until every kernel that runs on the device is complete, and such a kernel may wait for work
//! that comes after it. So a module that is no longer used is unloaded when the next one is loaded: loading may wait
//! for kernels anyway, and its documentation says so. Because of that wait, a launch need not keep its module; a graph
//! must, as it is launched again.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::{CString, c_int, c_void},
    sync::Arc,
};

use mscclpp_gpu_sys::cuda::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CuResult, Driver};
use parking_lot::Mutex;

use super::{
    cubin,
    device::Device,
    failure::{check, failure, log_failure},
    ptx, source,
    stream::CudaStream,
};
use crate::{
    DevicePtr, Error, KernelArgs, KernelObject, KernelParameter, LaunchConfig, Owner, Result,
    backend::{KernelBackend, ModuleBackend, StreamBackend},
};

const LOG_BYTES: usize = 16 << 10;

/// What a kernel may have without asking for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

pub(super) struct CudaModule {
    loaded: Arc<Loaded>,
    /// What it holds, as far as that is known, for messages.
    kernels: Option<Vec<String>>,
    variables: Option<Vec<String>>,
    /// The most static shared memory that one of the kernels has, in bytes.
    most_shared: u32,
}

impl source::Loaded for CudaModule {
    fn fits(&self) -> bool {
        self.most_shared <= DEFAULT_SHARED_BYTES
    }
}

struct Loaded {
    device: &'static Device,
    raw: CUmodule,
    /// How much dynamic shared memory each function may have, of those that asked for some.
    shared_bytes: Mutex<HashMap<usize, u32>>,
}

// SAFETY: the driver's functions may be called with a module from any thread; `raw` is never dereferenced here.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl CudaModule {
    /// Loads every kernel of `source` at once, also under `CUDA_MODULE_LOADING=LAZY`, the driver's default: loading one
    /// at its first launch may have to wait for the kernels that run, and one of them may be waiting for that launch.
    pub(super) fn load(device: &'static Device, name: &str, source: &str) -> Result<Self> {
        let text = CString::new(source).map_err(|_| {
            Error::InvalidArgument("PTX text with a NUL byte inside cannot be loaded".to_owned())
        })?;
        let (kernels, variables) = (Some(ptx::kernels(source)), Some(ptx::variables(source)));
        // SAFETY: PTX is text that ends with NUL.
        unsafe {
            Self::load_image(
                device,
                &format!("the PTX of {name}"),
                text.as_bytes_with_nul(),
                kernels,
                variables,
            )
        }
    }

    /// The same of a cubin or fatbin.
    ///
    /// # Safety
    /// It is as a compiler made it.
    pub(super) unsafe fn load_binary(device: &'static Device, name: &str, binary: &[u8]) -> Result<Self> {
        let kernels = cubin::kernels(name, binary)?;
        // SAFETY: the caller's promise.
        unsafe { Self::load_image(device, name, binary, kernels, None) }
    }

    /// # Safety
    /// `image` is PTX with a NUL behind it, or a whole binary.
    unsafe fn load_image(
        device: &'static Device,
        name: &str,
        image: &[u8],
        kernels: Option<Vec<String>>,
        variables: Option<Vec<String>>,
    ) -> Result<Self> {
        let _entered = device.context().enter()?;
        device.retired_modules().unload(device.driver());
        // SAFETY: the caller's promise.
        let raw = unsafe { load(device, name, image)? };
        let loaded = Arc::new(Loaded { device, raw, shared_bytes: Mutex::default() });
        let mut module = Self { loaded, kernels, variables, most_shared: 0 };
        for name in module.kernels.iter().flatten() {
            // Found in text, so it may be a word in a comment.
            if let Some(function) = module.function(name)? {
                module.load_now(name, function)?;
                module.most_shared = module.most_shared.max(static_shared_bytes(device.driver(), function)?);
            }
        }
        Ok(module)
    }

    fn function(&self, name: &str) -> Result<Option<CUfunction>> {
        let Ok(name) = CString::new(name) else { return Ok(None) };
        let driver = self.loaded.device.driver();
        let mut function = std::ptr::null_mut();
        // SAFETY: `function` is valid for the write; the module lives and the name is NUL-terminated.
        match unsafe { (driver.module_get_function)(&raw mut function, self.loaded.raw, name.as_ptr()) } {
            CuResult::SUCCESS => Ok(Some(function)),
            CuResult::NOT_FOUND => Ok(None),
            result => {
                Err(failure(driver, result, format!("cuModuleGetFunction({})", name.to_string_lossy())))
            }
        }
    }

    fn load_now(&self, name: &str, function: CUfunction) -> Result<()> {
        let driver = self.loaded.device.driver();
        if let Some(func_load) = driver.func_load {
            // SAFETY: a function of a module that lives.
            return check(driver, unsafe { func_load(function) }, format!("cuFuncLoad({name})"));
        }
        // Before CUDA 12.4 asking for an attribute is what loads a function.
        let mut registers = 0;
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS as u32;
        // SAFETY: `registers` is valid for the write; a function of a module that lives.
        let result = unsafe { (driver.func_get_attribute)(&raw mut registers, which, function) };
        check(driver, result, format!("cuFuncGetAttribute({name})"))
    }
}

/// The function is one of a module that lives.
fn static_shared_bytes(driver: &Driver, function: CUfunction) -> Result<u32> {
    let mut bytes = 0;
    let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as u32;
    // SAFETY: `bytes` is valid for the write; a function of a module that lives.
    let result = unsafe { (driver.func_get_attribute)(&raw mut bytes, which, function) };
    check(driver, result, "cuFuncGetAttribute(SHARED_SIZE_BYTES)")?;
    Ok(u32::try_from(bytes).unwrap_or(0))
}

/// # Safety
/// `image` is PTX with a NUL behind it, or a whole binary.
unsafe fn load(device: &Device, name: &str, image: &[u8]) -> Result<CUmodule> {
    let driver = device.driver();
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32,
    ];
    // A size is passed as the value of the pointer. The last byte of the buffer stays NUL.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), (LOG_BYTES - 1) as *mut c_void];
    let mut raw = std::ptr::null_mut();
    // SAFETY: the caller's promise; options and values are as many as is said; the log buffer has that size.
    let result = unsafe {
        (driver.module_load_data_ex)(
            &raw mut raw,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if result == CuResult::SUCCESS {
        return Ok(raw);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG_BYTES);
    let log = String::from_utf8_lossy(&log[..end]);
    let error = failure(driver, result, "cuModuleLoadDataEx");
    if is_about_the_code(result) || !log.trim().is_empty() {
        return Err(Error::Compile { name: name.to_owned(), log: format!("{error}\n{}", log.trim()) });
    }
    Err(error)
}

/// Whether the driver rejects the program, and not the call.
fn is_about_the_code(result: CuResult) -> bool {
    matches!(
        result,
        CuResult::INVALID_IMAGE
            | CuResult::NO_BINARY_FOR_GPU
            | CuResult::INVALID_PTX
            | CuResult::JIT_COMPILER_NOT_FOUND
            | CuResult::UNSUPPORTED_PTX_VERSION
            | CuResult::JIT_COMPILATION_DISABLED
            | CuResult::INVALID_SOURCE
            | CuResult::SHARED_OBJECT_SYMBOL_NOT_FOUND
    )
}

impl KernelObject for Loaded {}

impl ModuleBackend for CudaModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn KernelBackend>> {
        let _entered = self.loaded.device.context().enter()?;
        let Some(function) = self.function(name)? else {
            return Err(no_such("kernel", name, self.kernels.as_deref()));
        };
        self.load_now(name, function)?;
        let module = Arc::clone(&self.loaded);
        let parameters = parameters(module.device.driver(), function)?;
        Ok(Arc::new(CudaKernel { owner: module.clone(), module, function, parameters }))
    }

    fn symbol(&self, name: &str) -> Result<(DevicePtr, u64)> {
        let unknown = || no_such("symbol", name, self.variables.as_deref());
        let c_name = CString::new(name).map_err(|_| unknown())?;
        let _entered = self.loaded.device.context().enter()?;
        let driver = self.loaded.device.driver();
        let (mut address, mut size) = (0, 0usize);
        // SAFETY: both are valid for the write; the module lives and the name is NUL-terminated.
        match unsafe {
            (driver.module_get_global)(&raw mut address, &raw mut size, self.loaded.raw, c_name.as_ptr())
        } {
            CuResult::SUCCESS => Ok((DevicePtr(address), size as u64)),
            CuResult::NOT_FOUND => Err(unknown()),
            result => Err(failure(driver, result, format!("cuModuleGetGlobal({name})"))),
        }
    }
}

fn no_such(kind: &'static str, name: &str, available: Option<&[String]>) -> Error {
    let available = match available {
        None => "what is not known of compiled code".to_owned(),
        Some([]) => "none".to_owned(),
        Some(names) => names.join(", "),
    };
    Error::NoSuchSymbol { kind, name: name.to_owned(), available }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.device.retired_modules().modules.lock().push(Retired(self.raw));
    }
}

/// Modules that are no longer used, to be unloaded with the next load. It lives as long as the process.
#[derive(Default)]
pub(super) struct RetiredModules {
    modules: Mutex<Vec<Retired>>,
}

struct Retired(CUmodule);

// SAFETY: the driver's functions may be called with a module from any thread; the pointer is never dereferenced here.
unsafe impl Send for Retired {}

impl RetiredModules {
    /// The device's context is current. May wait for kernels that run.
    fn unload(&self, driver: &Driver) {
        let retired = std::mem::take(&mut *self.modules.lock());
        for Retired(raw) in retired {
            // SAFETY: loaded once, and unloaded once, as it is in one list; its owners are gone, kernels and graphs too,
            // and the driver waits for their launches.
            log_failure(driver, unsafe { (driver.module_unload)(raw) }, "cuModuleUnload");
        }
    }
}

struct CudaKernel {
    module: Arc<Loaded>,
    /// The module again, as graphs keep it.
    owner: Owner,
    function: CUfunction,
    parameters: Option<Vec<KernelParameter>>,
}

/// What the driver says of a function's parameters; nothing before CUDA 12.4. The context is current.
fn parameters(driver: &Driver, function: CUfunction) -> Result<Option<Vec<KernelParameter>>> {
    let Some(param_info) = driver.func_get_param_info else { return Ok(None) };
    let mut all = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: both are valid for the write; a function of a module that lives.
        match unsafe { param_info(function, all.len(), &raw mut offset, &raw mut size) } {
            CuResult::SUCCESS => all.push(KernelParameter { offset: offset as u64, size: size as u64 }),
            // Behind the last one.
            CuResult::INVALID_VALUE => return Ok(Some(all)),
            result => return Err(failure(driver, result, format!("cuFuncGetParamInfo({})", all.len()))),
        }
    }
}

// SAFETY: the driver's functions may be called with a function from any thread; it is never dereferenced here.
unsafe impl Send for CudaKernel {}
// SAFETY: as above.
unsafe impl Sync for CudaKernel {}

impl CudaKernel {
    /// Raises the function's limit if it must be. Never lowers it, for it is that of all who launch the function.
    fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let driver = self.module.device.driver();
        let mut limits = self.module.shared_bytes.lock();
        let limit = match limits.entry(self.function as usize) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // Static and dynamic shared memory have the default together.
                let own = static_shared_bytes(driver, self.function)?;
                new.insert(DEFAULT_SHARED_BYTES.saturating_sub(own))
            }
        };
        if bytes > *limit {
            let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
            let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            // SAFETY: a function of a module that lives.
            let result = unsafe { (driver.func_set_attribute)(self.function, which, value) };
            check(driver, result, format!("cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, {bytes})"))?;
            *limit = bytes;
        }
        Ok(())
    }
}

impl KernelBackend for CudaKernel {
    unsafe fn launch(
        &self,
        stream: &dyn StreamBackend,
        config: LaunchConfig,
        args: &KernelArgs,
        cooperative: bool,
    ) -> Result<()> {
        const ON_STACK: usize = 16;
        let stream = CudaStream::of(stream)?;
        let device = self.module.device;
        let driver = device.driver();
        let _bound = device.context().bind()?;
        self.allow_shared(config.shared_bytes)?;
        let mut few = [std::ptr::null_mut(); ON_STACK];
        let mut many = Vec::new();
        let pointers = args.values().iter().map(|value| value.as_ptr().cast_mut().cast::<c_void>());
        let params: &mut [*mut c_void] = if args.len() <= ON_STACK {
            few.iter_mut().zip(pointers).for_each(|(slot, pointer)| *slot = pointer);
            &mut few
        } else {
            many.extend(pointers);
            &mut many
        };
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let (shared, params) = (config.shared_bytes, params.as_mut_ptr());
        // SAFETY: the function and the stream live. `params` points to as many arguments as the kernel has, each of its
        // type (the caller's promise); the driver copies them before it returns and does not write to them.
        let (call, result) = unsafe {
            if cooperative {
                let launch = driver.launch_cooperative_kernel;
                let result = launch(self.function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params);
                ("cuLaunchCooperativeKernel", result)
            } else {
                let (launch, extra) = (driver.launch_kernel, std::ptr::null_mut());
                let result =
                    launch(self.function, gx, gy, gz, bx, by, bz, shared, stream.handle(), params, extra);
                ("cuLaunchKernel", result)
            }
        };
        if result == CuResult::SUCCESS {
            stream.keep(args.owners(), std::slice::from_ref(&self.owner));
            return Ok(());
        }
        Err(failure(driver, result, format!("{call}({config:?}, {} arguments)", args.len())))
    }

    fn parameters(&self) -> Option<&[KernelParameter]> {
        self.parameters.as_deref()
    }

    fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u64> {
        let device = self.module.device;
        let driver = device.driver();
        let _entered = device.context().enter()?;
        self.allow_shared(shared_bytes)?;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let occupancy = driver.occupancy_max_active_blocks_per_multiprocessor;
        // SAFETY: `blocks` is valid for the write; a function of a module that lives.
        let result = unsafe { occupancy(&raw mut blocks, self.function, threads, shared_bytes as usize) };
        check(driver, result, format!("cuOccupancyMaxActiveBlocksPerMultiprocessor({threads} threads)"))?;
        Ok(u64::try_from(blocks).unwrap_or(0) * u64::from(device.multiprocessors()))
    }
}
