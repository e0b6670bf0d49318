//! Loads PTX and binaries.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::{CString, c_int, c_void},
    sync::Arc,
};

use mscclpp_gpu_sys::cuda::{
    CUfunc_st, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUstream_st, CuResult, Driver,
    KernelLaunch, LaunchAttribute,
};
use parking_lot::Mutex;

use super::{Device, cubin, ptx, source};
use crate::{
    Error, KernelParameter, KernelSource, LaunchConfig, Result,
    backend::ModuleBackend,
    driver::{
        api::{Modules, Way},
        failure::{check, failure},
        module::{Loaded, Module},
    },
    env,
};

const LOG_BYTES: usize = 16 << 10;

/// The shared memory that a kernel may have without a request for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

impl Modules<Self> for Driver {
    type ModuleState = SharedBytes;

    fn load_module(device: &'static Device, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        let capability = device.properties.compute_capability.unwrap_or((8, 0));
        let loaded = source::load(source, capability, |ptx| load_ptx(device, source.name(), ptx))?;
        Ok(Arc::new(loaded))
    }

    unsafe fn load_binary(
        device: &'static Device,
        name: &str,
        binary: &[u8],
    ) -> Result<Arc<dyn ModuleBackend>> {
        let kernels = cubin::kernels(name, binary)?;
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { load_image(device, name, binary, kernels, None)? }.0))
    }

    fn prepare(&self, name: &str, function: *mut CUfunc_st) -> Result<Option<Vec<KernelParameter>>> {
        load_now(self, name, function)?;
        // For a fatbin, the names of the kernels are not known in advance.
        provide_local(
            self,
            attribute(self, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        );
        parameters(self, function)
    }

    unsafe fn launch_by(
        &self,
        way: Way<Self>,
        function: *mut CUfunc_st,
        config: LaunchConfig,
        stream: *mut CUstream_st,
        params: *mut *mut c_void,
    ) -> Option<(&'static str, CuResult)> {
        let launch = self.launch_kernel_ex?;
        let attribute = match way {
            // The version was checked when the function was loaded.
            Way::Programmatic => LaunchAttribute::programmatic(),
            Way::Recording(event) if has_attributes(self) => LaunchAttribute::completion(event),
            Way::Recording(_) => return None,
        };
        let LaunchConfig { grid, block, shared_bytes } = config;
        let config = KernelLaunch {
            grid,
            block,
            shared_bytes,
            stream,
            attributes: &raw const attribute,
            attribute_count: 1,
        };
        // SAFETY: the caller's promise; the driver reads `config` and its attribute before it returns.
        let result = unsafe { launch(&raw const config, function, params, std::ptr::null_mut()) };
        Some(("cuLaunchKernelEx", result))
    }

    fn allow_shared(&self, state: &SharedBytes, function: *mut CUfunc_st, bytes: u32) -> Result<()> {
        state.allow(self, function, bytes)
    }

    fn prefer_shared(&self, function: *mut CUfunc_st) -> Result<()> {
        const PERCENT: u32 = 100;
        set_attribute(
            self,
            function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            PERCENT,
        )
    }
}

/// A module, and whether each of its kernels stays within the static shared memory that it may have.
type Fitted = (Module<Driver>, bool);

/// Loads every kernel of `source` at once, also under `CUDA_MODULE_LOADING=LAZY`, the driver's default: loading one at its
/// first launch may have to wait for the kernels that run, and one of them may be waiting for that launch.
fn load_ptx(device: &'static Device, name: &str, source: &str) -> Result<Fitted> {
    let may_be_early = env::programmatic_launches()? && has_attributes(device.driver());
    let text = CString::new(source)
        .map_err(|_| Error::invalid("PTX text with a NUL byte inside cannot be loaded"))?;
    let (kernels, variables) = (Some(ptx::kernels(source)), Some(ptx::variables(source)));
    let (name, image) = (format!("the PTX of {name}"), text.as_bytes_with_nul());
    // SAFETY: PTX is text that ends with NUL.
    let (mut module, fits) = unsafe { load_image(device, &name, image, kernels, variables)? };
    if may_be_early {
        module.programmatic = ptx::waiting_kernels(source);
    }
    Ok((module, fits))
}

/// # Safety
/// `image` is PTX with a NUL behind it, or a whole binary.
unsafe fn load_image(
    device: &'static Device,
    name: &str,
    image: &[u8],
    kernels: Option<Vec<String>>,
    variables: Option<Vec<String>>,
) -> Result<Fitted> {
    let driver = device.driver();
    let _entered = device.context.enter()?;
    device.retired_modules.unload(driver);
    // SAFETY: the caller's promise.
    let raw = unsafe { load(driver, name, image)? };
    let loaded = Arc::new(Loaded::new(device, raw));
    let module = Module { loaded, kernels, variables, programmatic: Vec::new() };
    let (mut most_shared, mut most_local) = (0, 0);
    for name in module.kernels.iter().flatten() {
        // The name was found in text, so it may be a word in a comment.
        if let Some(function) = module.function(name)? {
            load_now(driver, name, function)?;
            let shared =
                attribute(driver, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
            let local =
                attribute(driver, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
            most_shared = most_shared.max(shared);
            most_local = most_local.max(local);
        }
    }
    provide_local(driver, most_local);
    Ok((module, most_shared <= DEFAULT_SHARED_BYTES))
}

/// Whether the driver has all of [`LaunchAttribute`].
fn has_attributes(driver: &Driver) -> bool {
    let mut version = 0;
    // SAFETY: `version` is valid for the write.
    let result = unsafe { (driver.driver_get_version)(&raw mut version) };
    result == CuResult::SUCCESS && version >= LaunchAttribute::SINCE
}

/// Loads a function of a module that lives.
fn load_now(driver: &Driver, name: &str, function: CUfunction) -> Result<()> {
    if let Some(func_load) = driver.func_load {
        // SAFETY: a function of a module that lives.
        return check(driver, unsafe { func_load(function) }, format_args!("cuFuncLoad({name})"));
    }
    // Before CUDA 12.4 asking for an attribute is what loads a function.
    attribute(driver, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).map(|_| ())
}

/// Reads an attribute of a function, which must be one of a module that lives.
fn attribute(driver: &Driver, function: CUfunction, which: CUfunction_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is valid for the write; a function of a module that lives.
    let result = unsafe { (driver.func_get_attribute)(&raw mut value, which as u32, function) };
    check(driver, result, format_args!("cuFuncGetAttribute({which:?})"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Makes the current context set aside as much local memory for each thread as a loaded kernel needs. Otherwise the
/// driver would do so at the first launch, and wait for all kernels that run, one of which may be waiting for that
/// launch.
fn provide_local(driver: &Driver, bytes: u32) {
    const STACK_SIZE: u32 = 0;
    let (mut now, bytes) = (0, bytes as usize);
    // SAFETY: `now` is valid for the write.
    let known = unsafe { (driver.ctx_get_limit)(&raw mut now, STACK_SIZE) } == CuResult::SUCCESS;
    if !known || now >= bytes {
        return;
    }
    // SAFETY: a call without pointers.
    let result = unsafe { (driver.ctx_set_limit)(STACK_SIZE, bytes) };
    if let Err(error) = check(driver, result, format_args!("cuCtxSetLimit(CU_LIMIT_STACK_SIZE, {bytes})")) {
        tracing::debug!(target: "mscclpp::gpu", %error, "local memory is left to the first launch");
    }
}

/// # Safety
/// `image` is PTX with a NUL behind it, or a whole binary.
unsafe fn load(driver: &Driver, name: &str, image: &[u8]) -> Result<CUmodule> {
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

/// Returns the parameters of a function; nothing before CUDA 12.4. The context must be current.
fn parameters(driver: &Driver, function: CUfunction) -> Result<Option<Vec<KernelParameter>>> {
    let Some(param_info) = driver.func_get_param_info else { return Ok(None) };
    let mut all = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: both are valid for the write; a function of a module that lives.
        match unsafe { param_info(function, all.len(), &raw mut offset, &raw mut size) } {
            CuResult::SUCCESS => all.push(KernelParameter { offset: offset as u64, size: size as u64 }),
            // This is after the last parameter.
            CuResult::INVALID_VALUE => return Ok(Some(all)),
            result => return Err(failure(driver, result, format!("cuFuncGetParamInfo({})", all.len()))),
        }
    }
}

/// The dynamic shared memory that each function of a module may have, for those that asked for some.
#[derive(Default)]
pub(crate) struct SharedBytes(Mutex<HashMap<usize, u32>>);

impl SharedBytes {
    /// Raises the function's limit if necessary. Never lowers it, because all users of the function share it.
    fn allow(&self, driver: &Driver, function: CUfunction, bytes: u32) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut limits = self.0.lock();
        let limit = match limits.entry(function as usize) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // Static and dynamic shared memory have the default together.
                let own =
                    attribute(driver, function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
                new.insert(DEFAULT_SHARED_BYTES.saturating_sub(own))
            }
        };
        if bytes > *limit {
            let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            set_attribute(driver, function, which, bytes)?;
            *limit = bytes;
        }
        Ok(())
    }
}

/// Sets an attribute of a function, which must be one of a module that lives.
fn set_attribute(
    driver: &Driver,
    function: CUfunction,
    which: CUfunction_attribute,
    value: u32,
) -> Result<()> {
    let number = c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: a function of a module that lives.
    let result = unsafe { (driver.func_set_attribute)(function, which as u32, number) };
    check(driver, result, format!("cuFuncSetAttribute({which:?}, {value})"))
}
