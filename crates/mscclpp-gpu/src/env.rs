//! The environment variables of this crate, read here and nowhere else.

use std::{ffi::OsString, path::PathBuf};

use crate::{Error, Platform, Result};

/// `MSCCLPP_PLATFORM`: `cuda`, `hip` or `host`; unset or empty means "find out".
pub(crate) fn platform() -> Result<Option<Platform>> {
    let Some(value) = read("MSCCLPP_PLATFORM") else { return Ok(None) };
    match Platform::named(&value) {
        Some(platform) => Ok(Some(platform)),
        None => {
            Err(Error::Environment { variable: "MSCCLPP_PLATFORM", value, expected: "cuda, hip or host" })
        }
    }
}

/// `MSCCLPP_HOST_DEVICES`: how many devices the Host platform simulates, 1 to 1024, default 8.
pub(crate) fn host_devices() -> Result<usize> {
    let Some(value) = read("MSCCLPP_HOST_DEVICES") else { return Ok(8) };
    match value.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err(Error::Environment {
            variable: "MSCCLPP_HOST_DEVICES",
            value,
            expected: "a number of devices, 1 to 1024",
        }),
    }
}

/// `MSCCLPP_HOST_PEER_ACCESS`: whether devices of the Host platform reach each other's memory, `all` (default) or `none`.
pub(crate) fn host_peer_access() -> Result<bool> {
    let variable = "MSCCLPP_HOST_PEER_ACCESS";
    let Some(value) = read(variable) else { return Ok(true) };
    match value.as_str() {
        "all" => Ok(true),
        "none" => Ok(false),
        _ => Err(Error::Environment { variable, value, expected: "all or none" }),
    }
}

/// The C++ compilers to try: `MSCCLPP_CXX` alone if it is set; else `CXX` and what they are usually called.
pub(crate) fn cxx_compilers() -> Vec<OsString> {
    let set = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    match set("MSCCLPP_CXX") {
        Some(compiler) => vec![compiler],
        None => set("CXX").into_iter().chain(["c++", "g++", "clang++"].map(OsString::from)).collect(),
    }
}

/// The cache of compiled kernels: `MSCCLPP_CACHE_DIR`, else `mscclpp` in the user's cache folder, if there is one.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let folder = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    folder("MSCCLPP_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("mscclpp")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/mscclpp")))
}

/// `MSCCLPP_NVRTC_SO`: the NVRTC library to use.
#[cfg(feature = "cuda")]
pub(crate) fn nvrtc_library() -> Option<PathBuf> {
    std::env::var_os("MSCCLPP_NVRTC_SO").filter(|path| !path.is_empty()).map(Into::into)
}

/// Where a CUDA toolkit may be: `CUDA_HOME`, `CUDA_PATH`, and the usual folder.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_toolkits() -> Vec<PathBuf> {
    let set = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).filter(|path| !path.is_empty());
    set.map(Into::into).chain(["/usr/local/cuda".into()]).collect()
}

fn read(variable: &str) -> Option<String> {
    std::env::var_os(variable).map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty())
}
