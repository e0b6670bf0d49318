//! Compiles kernels at run time, with hiprtc, and loads them. The result of hiprtc is a code object for one architecture,
//! which is stored in the cache.

use std::{ffi::c_int, ptr, sync::Arc};

use mscclpp_gpu_sys::{
    hip::{Hip, HipResult},
    rtc::Rtc,
};

use super::Device;
use crate::{
    Error, KernelSource, Result,
    backend::ModuleBackend,
    cache,
    driver::{
        api::Modules,
        compiler,
        failure::{check, failure},
        module::{Loaded, Module},
    },
};

impl Modules<Self> for Hip {
    type ModuleState = ();

    fn load_module(device: &'static Device, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        let code = code(device.driver(), source, &device.extra.architecture)?;
        // SAFETY: hiprtc made it.
        unsafe { Self::load_binary(device, source.name(), &code) }
    }

    unsafe fn load_binary(
        device: &'static Device,
        name: &str,
        binary: &[u8],
    ) -> Result<Arc<dyn ModuleBackend>> {
        let hip = device.driver();
        let _entered = device.context.enter()?;
        device.retired_modules.unload(hip);
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is valid for the write; `binary` is a whole code object (the caller's promise), whose size is in it.
        let result = unsafe { (hip.module_load_data)(&raw mut raw, binary.as_ptr().cast()) };
        if let HipResult::INVALID_IMAGE | HipResult::NO_BINARY_FOR_GPU | HipResult::INVALID_KERNEL_FILE =
            result
        {
            let log = failure(hip, result, "hipModuleLoadData").to_string();
            return Err(Error::Compile { name: format!("the code of {name}"), log });
        }
        check(hip, result, "hipModuleLoadData")?;
        let loaded = Arc::new(Loaded::new(device, raw));
        Ok(Arc::new(Module { loaded, kernels: None, variables: None, programmatic: Vec::new() }))
    }
}

/// The factor of the major version in HIP's version number.
const VERSION_OF_MAJOR: c_int = 10_000_000;

/// Tells the headers about hiprtc before ROCm 7, which declares some of the types that the device API declares, in
/// another way.
const HAS_TYPES: &str = "-DMSCCLPP_HIPRTC_HAS_TYPES";

/// Returns the code of `source` for `architecture`, such as `gfx942:sramecc+:xnack-`: that in the cache, which needs no
/// hiprtc, else the result of hiprtc.
fn code(hip: &Hip, source: &KernelSource<'_>, architecture: &str) -> Result<Vec<u8>> {
    let mut runtime = 0;
    // SAFETY: `runtime` is valid for the write.
    let result = unsafe { (hip.runtime_get_version)(&raw mut runtime) };
    check(hip, result, "hipRuntimeGetVersion")?;

    let offload = format!("--offload-arch={architecture}");
    let mut options = vec![offload.as_str(), "-std=c++17", "-O3"];
    if runtime / VERSION_OF_MAJOR < 7 {
        options.push(HAS_TYPES);
    }
    let headers = cache::headers(source);
    let version = format!("HIP {runtime}");
    let mut parts = vec![version.as_str(), source.cuda()];
    parts.extend(&options);
    parts.extend(headers.iter().copied().flat_map(<[&str; 2]>::from));
    let entry = cache::Entry::new(source.name(), "co", &parts);
    cache::get_or_make(&entry, || {
        let hiprtc = Rtc::hiprtc()
            .map_err(|error| Error::system(format!("loading hiprtc, to compile {}", source.name()), error))?;
        compiler::compile(hiprtc, source.name(), source.cuda(), &headers, &options)
    })
}
