//! Compiles CUDA C++ at run time, with NVRTC.
//!
//! NVRTC is loaded when first used: the library that `MSCCLPP_NVRTC_SO` names, if it is set. Otherwise the dynamic
//! loader looks for `libnvrtc.so.13`, `.12`, `.11.2` and `libnvrtc.so`; after that, they are looked for under
//! `CUDA_HOME`, `CUDA_PATH` and `/usr/local/cuda`. NVRTC needs neither a GPU nor a driver.

use std::{
    ffi::c_int,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use mscclpp_gpu_sys::{Entry, rtc::Rtc};

use crate::{
    Error, Result,
    driver::compiler::{self, check},
    env,
};

/// Compiles CUDA C++ to PTX. This is for programs that load PTX in other ways than with
/// [`Module::load`](crate::Module::load), which compiles by itself.
///
/// `name` appears in messages. `headers` are pairs of the name in `#include` and the text. `options` are NVRTC's, such
/// as `--gpu-architecture=compute_80`; without that option, NVRTC chooses an architecture. Kernels must be `extern "C"`
/// to be found under their own name. Blocks until done; any number of threads may compile at once.
///
/// ```no_run
/// # use mscclpp_gpu::nvrtc;
///
/// let ptx = nvrtc::compile(
///     "add_one.cu",
///     r#"
///     #include "one.hpp"
///     extern "C" __global__ void add_one(int* p) { p[threadIdx.x] += ONE; }
///     "#,
///     &[("one.hpp", "#define ONE 1\n")],
///     &["--gpu-architecture=compute_80", "--std=c++17"],
/// )?;
/// assert!(ptx.contains(".entry add_one"));
/// # Ok::<(), mscclpp_gpu::Error>(())
/// ```
///
/// # Errors
/// [`Error::Compile`] with the compiler's log; [`Error::System`], with everything that was tried, if there is no NVRTC;
/// [`Error::InvalidArgument`] if a text contains a NUL byte.
pub fn compile(name: &str, source: &str, headers: &[(&str, &str)], options: &[&str]) -> Result<String> {
    compiler::compile(library()?, name, source, headers, options).map(compiler::text)
}

/// Returns the library that compiles, and its version: `libnvrtc.so.12: NVRTC 12.4`.
///
/// # Errors
/// [`Error::System`], with everything that was tried, if there is no NVRTC.
pub fn description() -> Result<String> {
    let nvrtc = library()?;
    let (major, minor) = version(nvrtc)?;
    Ok(format!("{}: NVRTC {major}.{minor}", nvrtc.path()))
}

fn version(nvrtc: &Rtc) -> Result<(c_int, c_int)> {
    let Entry(operation, version) = nvrtc.functions.version;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are valid for the write.
    check(nvrtc, unsafe { version(&raw mut major, &raw mut minor) }, operation)?;
    Ok((major, minor))
}

fn library() -> Result<&'static Rtc> {
    static LIBRARY: OnceLock<Result<Rtc>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Rtc> {
    let chosen = env::nvrtc_library();
    let (operation, candidates) = match chosen {
        Some(path) => (format!("loading NVRTC from MSCCLPP_NVRTC_SO={}", path.display()), vec![path]),
        None => {
            let toolkits = env::cuda_toolkits();
            let places =
                toolkits.iter().map(|home| home.display().to_string()).collect::<Vec<_>>().join(", ");
            (
                format!("loading NVRTC (by name, then from {places}; MSCCLPP_NVRTC_SO names a file)"),
                candidates(&toolkits),
            )
        }
    };
    // SAFETY: the names are NVRTC's, or the user says that it is.
    let nvrtc = unsafe { Rtc::nvrtc(candidates) }.map_err(|error| Error::system(operation, error))?;
    tracing::debug!(target: "mscclpp::gpu", path = nvrtc.path(), "loaded NVRTC");
    Ok(nvrtc)
}

/// Returns the names of libraries to try: first those for the dynamic loader, then those in the toolkits' folders.
fn candidates(toolkits: &[PathBuf]) -> Vec<PathBuf> {
    let folders = toolkits
        .iter()
        .flat_map(|home| ["lib64", "lib", "targets/x86_64-linux/lib"].map(|lib| home.join(lib)));
    let by_loader = Rtc::NVRTC_NAMES.iter().map(PathBuf::from);
    by_loader
        .chain(
            folders.flat_map(|folder| Rtc::NVRTC_NAMES.map(|name| folder.join(name))).filter(|p| p.exists()),
        )
        .collect()
}

/// Returns the folders with CUDA's own headers: that with `cuda_fp16.h`, of the wheels that NVRTC came with, or a
/// toolkit's, if they are of NVRTC's major version (others need not compile); and the one for `cuda/std`, if that is
/// apart, as from CUDA 13 on.
///
/// # Errors
/// [`Error::System`], with everything that was tried, if there is no NVRTC.
pub(crate) fn cuda_headers() -> Result<Vec<PathBuf>> {
    let nvrtc = library()?;
    let (major, _) = version(nvrtc)?;
    let wheels = Path::new(nvrtc.path()).ancestors().skip(2).take(2);
    let wheels = wheels.flat_map(|folder| ["include", "cuda_runtime/include"].map(|name| folder.join(name)));
    let toolkits = env::cuda_toolkits().into_iter().map(|home| home.join("include"));
    let found = wheels.chain(toolkits).find(|folder| {
        let runtime = std::fs::read_to_string(folder.join("cuda_runtime_api.h")).unwrap_or_default();
        let mut lines = runtime.lines().filter_map(|line| line.strip_prefix("#define CUDART_VERSION"));
        let version = lines.find_map(|number| number.trim().parse::<c_int>().ok());
        version.is_some_and(|version| version / 1000 == major) && folder.join("cuda_fp16.h").is_file()
    });
    Ok(found.into_iter().flat_map(|folder| [folder.join("cccl"), folder]).filter(|f| f.is_dir()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemFailure;

    const SOURCE: &str = "#include \"one.hpp\"\nextern \"C\" __global__ void add(int* p) { *p += ONE; }\n";
    const HEADERS: [(&str, &str); 1] = [("one.hpp", "#define ONE 1\n")];

    /// Without NVRTC, the error lists what was tried; with it, it compiles, without a GPU.
    #[test]
    fn compiles_or_says_what_is_missing() {
        match compile("add.cu", SOURCE, &HEADERS, &["--gpu-architecture=compute_80"]) {
            Ok(ptx) => assert!(ptx.contains(".entry add") && ptx.contains("sm_80"), "{ptx}"),
            Err(Error::System(SystemFailure { operation, source })) => {
                let message = source.to_string();
                assert!(operation.contains("MSCCLPP_NVRTC_SO"), "{operation}");
                assert!(message.contains("libnvrtc"), "{message}");
                return;
            }
            Err(other) => panic!("{other}"),
        }
        let broken = compile("broken.cu", "__global__ void f() { nonsense; }", &[], &[]);
        let Err(Error::Compile { name, log }) = broken else { panic!("{broken:?}") };
        assert!(name == "broken.cu" && log.contains("nonsense"), "{name} {log}");
        let option = compile("add.cu", SOURCE, &HEADERS, &["--no-such-option"]);
        assert!(matches!(option, Err(Error::Compile { .. })), "{option:?}");
        assert!(matches!(compile("a\0b", SOURCE, &HEADERS, &[]), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn toolkits_come_after_the_dynamic_loader() {
        let found = candidates(&["/no/such/toolkit".into()]);
        assert_eq!(found, Rtc::NVRTC_NAMES.map(PathBuf::from));
    }
}
