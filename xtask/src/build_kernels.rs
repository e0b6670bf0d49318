//! `build-kernels`: compiles CUDA sources to PTX.
//!
//! The kernels that the crate `mscclpp-kernels` embeds, which are those of the library and the examples, get a file each in
//! `cuda/ptx`, compressed, for compute_80, and one more for compute_90 if the source has a line `// build: compute_90`; with
//! `// build: only compute_90` there is no other. Those of tests and benchmarks go to the cache of compiled kernels, so that they
//! run where there is no NVRTC.
//! What comes out depends on the sources and the compiler's version alone: headers are handed to NVRTC as text, so no
//! path of this machine can end up in the PTX.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use mscclpp_gpu::{KernelSource, kernel_cache, nvrtc, store_ptx};

use crate::error::{Error, FileContext};
use crate::run::run as run_program;
use crate::toolchain::{self, NvrtcChoice};
use crate::{sources, workspace};

/// The architecture for which every kernel is built: all newer ones run its PTX.
const BASE_ARCHITECTURE: &str = "compute_80";

/// The end of the name of a file of compressed PTX, which is a zlib stream.
const COMPRESSED: &str = ".zlib";

/// The architectures for which ptxas, where there is one, assembles the PTX as a check.
const ASSEMBLED_FOR: [&str; 2] = ["sm_80", "sm_90"];

#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if the PTX that is checked in differs from that of the sources.
    #[arg(long)]
    check: bool,

    /// The NVRTC to use; MSCCLPP_NVRTC_SO, the path of one, takes precedence.
    #[arg(long, value_enum, default_value_t = NvrtcChoice::Auto)]
    nvrtc: NvrtcChoice,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    toolchain::require_nvrtc(options.nvrtc)?;
    let cache = if options.check { None } else { kernel_cache() };
    let mut kernels = kernels()?;
    // The others are not compiled for nothing.
    kernels.retain(|kernel| cache.is_some() || kernel.source.starts_with(workspace::root().join("cuda")));
    let (modules, of_tests): (Vec<_>, Vec<_>) =
        compile_all(&kernels)?.into_iter().partition(|module| module.kernel.embedded);
    let folder = workspace::root().join("cuda/ptx");
    if options.check {
        compare(&folder, &modules)?;
    } else {
        write(&folder, &modules)?;
    }
    if let Some(cache) = cache {
        store(&cache, &of_tests)?;
    }
    if let Some(ptxas) = toolchain::ptxas()? {
        assemble(&ptxas, &modules)?;
    }
    Ok(())
}

/// A `.cu` file and the architectures for which it is built.
struct Kernel {
    source: PathBuf,
    text: String,
    architectures: Vec<&'static str>,
    /// Whether `mscclpp-kernels` embeds its PTX.
    embedded: bool,
}

impl Kernel {
    /// The name of the PTX, which `cuda/ptx` has with [`COMPRESSED`] behind it.
    fn ptx_name(&self, architecture: &str) -> String {
        let stem = self.source.file_stem().unwrap_or_default().to_string_lossy();
        format!("{stem}.{architecture}.ptx")
    }
}

/// Sources of tests that are not compiled here: some include headers of a CUDA toolkit, which NVRTC alone has not, and the last
/// is for simulated devices.
const LEFT_OUT: [&str; 6] =
    ["data_types.cu", "group_builtins.cu", "half_builtins.cu", "overruns.cu", "words.cu", "bulk.cu"];

fn kernels() -> Result<Vec<Kernel>, Error> {
    let library = library()?;
    let kernel = |source: PathBuf| {
        let text = workspace::read(&source)?;
        let says = |what: &str| text.lines().any(|line| line.trim() == what);
        let architectures = match (says("// build: only compute_90"), says("// build: compute_90")) {
            (true, _) => vec!["compute_90"],
            (false, true) => vec![BASE_ARCHITECTURE, "compute_90"],
            (false, false) => vec![BASE_ARCHITECTURE],
        };
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let embedded = library.contains(&format!("kernel!(\"{stem}\""));
        Ok(Kernel { source, text, architectures, embedded })
    };
    let mut sources = sources::all()?;
    sources.retain(|source| !LEFT_OUT.contains(&workspace::name(source).as_str()));
    sources.into_iter().map(kernel).collect()
}

/// The source of the crate `mscclpp-kernels`.
fn library() -> Result<String, Error> {
    workspace::read(&workspace::root().join("cuda/src/lib.rs"))
}

/// Fills a cache of compiled kernels with the kernels of tests and benchmarks.
pub(crate) fn fill_cache(folder: &Path, nvrtc: NvrtcChoice) -> Result<(), Error> {
    toolchain::require_nvrtc(nvrtc)?;
    let mut kernels = kernels()?;
    kernels.retain(|kernel| !kernel.embedded);
    store(folder, &compile_all(&kernels)?)
}

/// Puts modules into a cache of compiled kernels.
fn store(folder: &Path, modules: &[Module<'_>]) -> Result<(), Error> {
    for Module { kernel, architecture, ptx, .. } in modules {
        let capability = architecture.trim_start_matches("compute_").parse().unwrap_or_default();
        let name = workspace::name(&kernel.source);
        let path = store_ptx(folder, &KernelSource::new(&name, &kernel.text), capability, ptx)?;
        println!("cached     {}", path.display());
    }
    Ok(())
}

/// A kernel's PTX for an architecture.
struct Module<'a> {
    kernel: &'a Kernel,
    architecture: &'static str,
    /// The name that it has in `cuda/ptx`, without [`COMPRESSED`].
    name: String,
    ptx: String,
}

impl Module<'_> {
    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{COMPRESSED}", self.name))
    }
}

/// Prints the PTX of a kernel that is checked in.
pub(crate) fn print(options: &PrintOptions) -> Result<(), Error> {
    let folder = workspace::root().join("cuda/ptx");
    let present = workspace::files(&folder, &COMPRESSED[1..])?;
    let wanted = |path: &&PathBuf| {
        let name = workspace::name(path);
        name.split('.').next() == Some(&*options.kernel)
            && options.architecture.as_ref().is_none_or(|a| name.contains(&format!(".{a}.")))
    };
    let Some(path) = present.iter().find(wanted) else {
        let names: Vec<_> = present.iter().map(|path| workspace::name(path)).collect();
        return Err(Error::NoSuchKernel { kernel: options.kernel.clone(), known: names.join(", ") });
    };
    print!("{}", unpack(path)?);
    Ok(())
}

/// The options of `ptx`.
#[derive(Args)]
pub(crate) struct PrintOptions {
    /// The kernel's file in cuda/kernels, without `.cu`.
    kernel: String,
    /// For which architecture, such as compute_90 [default: the lowest that there is].
    architecture: Option<String>,
}

/// The text of a file of compressed PTX.
fn unpack(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).context("read", path)?;
    let text = miniz_oxide::inflate::decompress_to_vec_zlib(&bytes)
        .ok()
        .and_then(|text| String::from_utf8(text).ok());
    text.ok_or_else(|| Error::NotCompressed(path.to_owned()))
}

fn compile_all(kernels: &[Kernel]) -> Result<Vec<Module<'_>>, Error> {
    let headers = headers()?;
    let texts: Vec<_> = headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    // The result is `None` if the source has errors.
    let compile = |name: &str, text: &str, architecture: &str| {
        let architecture = format!("--gpu-architecture={architecture}");
        match nvrtc::compile(name, text, &texts, &[&architecture, "-default-device", "--std=c++17"]) {
            Ok(ptx) => Ok(Some(ptx)),
            Err(error @ mscclpp_gpu::Error::Compile { .. }) => {
                eprintln!("{error}");
                Ok(None)
            }
            Err(error) => Err(Error::from(error)),
        }
    };
    // One after the other, and those of the library first: NVRTC numbers calls across the process, and the PTX has these numbers.
    let mut modules = Vec::new();
    let mut failures = 0;
    for kernel in kernels {
        for architecture in &kernel.architectures {
            match compile(&workspace::name(&kernel.source), &kernel.text, architecture)? {
                Some(ptx) => {
                    let name = kernel.ptx_name(architecture);
                    modules.push(Module { kernel, architecture, name, ptx });
                }
                None => failures += 1,
            }
        }
    }
    // Each header must include everything that it needs. Those that also need headers of a CUDA toolkit are checked with
    // nvcc (ci/headers.sh).
    let of_a_toolkit = ["mscclpp/gpu_data_types.hpp", "mscclpp/switch_channel_device.hpp"];
    for (name, _) in headers.iter().filter(|(name, _)| !of_a_toolkit.contains(&name.as_str())) {
        let text = format!("#include \"{name}\"\n");
        let compiled = compile(&format!("{name} alone"), &text, BASE_ARCHITECTURE)?;
        failures += usize::from(compiled.is_none());
    }
    if failures == 0 { Ok(modules) } else { Err(Error::Kernels(failures)) }
}

/// The name of each header in an `#include`, and its text.
fn headers() -> Result<Vec<(String, String)>, Error> {
    let paths = workspace::files(&workspace::root().join("cuda/include/mscclpp"), "hpp")?;
    let headers = paths
        .into_iter()
        .map(|path| Ok((format!("mscclpp/{}", workspace::name(&path)), workspace::read(&path)?)));
    let mut headers = headers.collect::<Result<Vec<_>, Error>>()?;
    let folder = workspace::root().join("cuda/c_headers");
    for path in workspace::entries(&folder)? {
        headers.push((workspace::name(&path), workspace::read(&path)?));
    }
    Ok(headers)
}

/// Writes the modules that differ from the files in the folder, and removes files without a source.
fn write(folder: &Path, modules: &[Module<'_>]) -> Result<(), Error> {
    for module in modules {
        let path = module.path(folder);
        if unpack(&path).is_ok_and(|present| present == module.ptx) {
            println!("unchanged  {}", module.name);
        } else {
            let bytes = miniz_oxide::deflate::compress_to_vec_zlib(module.ptx.as_bytes(), 10);
            std::fs::write(&path, bytes).context("write", &path)?;
            println!("written    {}", module.name);
        }
    }
    for path in orphans(folder, modules)? {
        std::fs::remove_file(&path).context("remove", &path)?;
        println!("removed    {}", workspace::name(&path));
    }
    Ok(())
}

/// Prints which modules differ from the files in the folder, and fails if any does.
fn compare(folder: &Path, modules: &[Module<'_>]) -> Result<(), Error> {
    let mut stale = false;
    for module in modules {
        let present = unpack(&module.path(folder)).unwrap_or_default();
        if present == module.ptx {
            println!("same       {}", module.name);
        } else {
            stale = true;
            println!("differs    {} ({})", module.name, first_difference(&present, &module.ptx));
        }
    }
    for path in orphans(folder, modules)? {
        stale = true;
        println!("no source  {}", workspace::name(&path));
    }
    if stale { Err(Error::Stale) } else { Ok(()) }
}

fn first_difference(present: &str, built: &str) -> String {
    if present.is_empty() {
        return "not there".to_owned();
    }
    let differs = present.lines().zip(built.lines()).position(|(a, b)| a != b);
    match differs {
        Some(line) => format!("first in line {}", line + 1),
        None => format!("{} lines checked in, {} built", present.lines().count(), built.lines().count()),
    }
}

fn orphans(folder: &Path, modules: &[Module<'_>]) -> Result<Vec<PathBuf>, Error> {
    let mut present = workspace::files(folder, &COMPRESSED[1..])?;
    present.retain(|path| modules.iter().all(|module| module.path(folder) != *path));
    Ok(present)
}

/// Lets ptxas assemble the modules, which shows that the inline assembly in them is legal.
fn assemble(ptxas: &Path, modules: &[Module<'_>]) -> Result<(), Error> {
    let folder = tempfile::tempdir().context("make a folder in", &std::env::temp_dir())?;
    for module in modules {
        let path = folder.path().join(&module.name);
        std::fs::write(&path, &module.ptx).context("write", &path)?;
        for architecture in ASSEMBLED_FOR {
            if module.name.contains("compute_90") && architecture == "sm_80" {
                continue;
            }
            run_program(
                Command::new(ptxas)
                    .args(["--gpu-name", architecture, "--warning-as-error", "--output-file", "/dev/null"])
                    .arg(&path),
            )?;
        }
    }
    println!("assembled  all, for {} ({})", ASSEMBLED_FOR.join(" and "), ptxas.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_by_its_line() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "first in line 2");
        assert_eq!(first_difference("a\n", "a\nb\n"), "1 lines checked in, 2 built");
        assert_eq!(first_difference("", "a\n"), "not there");
    }

    #[test]
    fn a_file_of_ptx_says_what_it_is_for() {
        let kernel = Kernel {
            source: "cuda/kernels/copy.cu".into(),
            text: String::new(),
            architectures: vec![],
            embedded: true,
        };
        assert_eq!(kernel.ptx_name("compute_90"), "copy.compute_90.ptx");
    }
}
