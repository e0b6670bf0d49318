//! Compiles kernels at run time, with hiprtc. The result is a code object for one architecture, kept in the cache.

use std::ffi::c_int;

use mscclpp_gpu_sys::{hip::Hip, rtc::Rtc};

use crate::{
    Error, KernelSource, Result, cache,
    driver::{compiler, failure},
};

/// HIP's version is the major version times this, and the rest.
const VERSION_OF_MAJOR: c_int = 10_000_000;

/// Before ROCm 7, hiprtc declares some of the types that the device API declares, and in another way.
const HAS_TYPES: &str = "-DMSCCLPP_HIPRTC_HAS_TYPES";

/// The code of `source` for `architecture`, such as `gfx942:sramecc+:xnack-`: what the cache has, for which hiprtc is not
/// needed, else what hiprtc makes of it.
pub(super) fn code(hip: &Hip, source: &KernelSource<'_>, architecture: &str) -> Result<Vec<u8>> {
    let mut runtime = 0;
    // SAFETY: `runtime` is valid for the write.
    let result = unsafe { (hip.runtime_get_version)(&raw mut runtime) };
    failure::check(hip, result, "hipRuntimeGetVersion")?;

    let offload = format!("--offload-arch={architecture}");
    let mut options = vec![offload.as_str(), "-std=c++17", "-O3"];
    if runtime / VERSION_OF_MAJOR < 7 {
        options.push(HAS_TYPES);
    }
    let headers = cache::headers(source);
    let version = format!("HIP {runtime}");
    let mut parts = vec![version.as_str(), source.cuda()];
    parts.extend(&options);
    for (name, header) in &headers {
        parts.extend([name, header]);
    }
    let entry = cache::Entry::new(source.name(), "co", &parts);
    cache::get_or_make(&entry, || {
        let hiprtc = Rtc::hiprtc()
            .map_err(|error| Error::system(format!("loading hiprtc, to compile {}", source.name()), error))?;
        compiler::compile(hiprtc, source.name(), source.cuda(), &headers, &options)
    })
}
