//! The environment variables of this crate, read here and nowhere else.

use std::{ffi::OsString, path::PathBuf};

use crate::{BadVariable, Error, Platform, Result};

/// `MSCCLPP_PLATFORM`: `cuda`, `hip` or `sim`; unset or empty means "find out".
pub(crate) fn platform() -> Result<Option<Platform>> {
    parsed("MSCCLPP_PLATFORM", Platform::named, "cuda, hip or sim")
}

/// `MSCCLPP_SIM_DEVICES`: how many devices are simulated, 1 to 1024, default 8.
pub(crate) fn sim_devices() -> Result<usize> {
    let count = |value: &str| value.parse().ok().filter(|count| (1..=1024).contains(count));
    Ok(parsed("MSCCLPP_SIM_DEVICES", count, "a number of devices, 1 to 1024")?.unwrap_or(8))
}

/// `MSCCLPP_SIM_PEER_ACCESS`: whether simulated devices reach each other's memory, `all` (default) or `none`.
pub(crate) fn sim_peer_access() -> Result<bool> {
    Ok(switch("MSCCLPP_SIM_PEER_ACCESS", ["none", "all"], "all or none")?.unwrap_or(true))
}

/// `MSCCLPP_SIM_RACES`: whether races of kernels are looked for on simulated devices, `1` or `0` (default).
pub(crate) fn sim_races() -> Result<bool> {
    Ok(switch("MSCCLPP_SIM_RACES", ["0", "1"], "1 or 0")?.unwrap_or(false))
}

/// `MSCCLPP_SIM_SCHEDULE`: the seed by which simulated devices schedule the threads of kernels; unset or empty means the
/// usual schedule.
pub(crate) fn sim_schedule() -> Result<Option<u64>> {
    parsed("MSCCLPP_SIM_SCHEDULE", |value| value.parse().ok(), "a seed, a number from 0 on")
}

/// The C++ compilers to try: `MSCCLPP_CXX` alone if it is set; else `CXX` and the usual names.
pub(crate) fn cxx_compilers() -> Vec<OsString> {
    match read("MSCCLPP_CXX") {
        Some(compiler) => vec![compiler],
        None => read("CXX").into_iter().chain(["c++", "g++", "clang++"].map(OsString::from)).collect(),
    }
}

/// The cache of compiled kernels: `MSCCLPP_CACHE_DIR`, else `mscclpp` in the user's cache folder, if there is one.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let folder = |variable| read(variable).map(PathBuf::from);
    folder("MSCCLPP_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("mscclpp")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/mscclpp")))
}

/// `MSCCLPP_NVRTC_SO`: the NVRTC library to use.
#[cfg(feature = "cuda")]
pub(crate) fn nvrtc_library() -> Option<PathBuf> {
    read("MSCCLPP_NVRTC_SO").map(Into::into)
}

/// `MSCCLPP_PROGRAMMATIC_LAUNCHES`: whether kernels that wait for the launch before theirs begin early, `1` (default) or `0`.
#[cfg(feature = "cuda")]
pub(crate) fn programmatic_launches() -> Result<bool> {
    Ok(switch("MSCCLPP_PROGRAMMATIC_LAUNCHES", ["0", "1"], "1 or 0")?.unwrap_or(true))
}

/// The folders where a CUDA toolkit may be: `CUDA_HOME`, `CUDA_PATH`, and the usual folder.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_toolkits() -> Vec<PathBuf> {
    let set = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(read);
    set.map(Into::into).chain(["/usr/local/cuda".into()]).collect()
}

/// Returns whether the variable, if it is set, has the second of the `words`.
fn switch(variable: &'static str, words: [&str; 2], allowed: &'static str) -> Result<Option<bool>> {
    parsed(variable, |value| words.iter().position(|word| *word == value).map(|at| at == 1), allowed)
}

/// Returns the variable's value, if it is set, as `parse` understands it.
fn parsed<T>(
    variable: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    allowed: &'static str,
) -> Result<Option<T>> {
    let Some(value) = read(variable).map(|value| value.to_string_lossy().into_owned()) else {
        return Ok(None);
    };
    match parse(&value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(Error::Environment(BadVariable { variable, value, allowed })),
    }
}

fn read(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}
