//! `dist`: builds the files that a machine without Rust needs to run the tests, examples and programs of this workspace.
//!
//! The folder `target/dist/files/` gets the binaries of the release profile, which strips them, as `KIND-PACKAGE-NAME`;
//! `cache`, the PTX of the kernels that tests and benchmarks launch, for `MSCCLPP_CACHE_DIR`, so that CUDA needs no compiler
//! there; and a `manifest` with one line for each binary. A line has these fields, separated by tabs: kind (`test`, `example`,
//! `bin` or `lib`), package, name, file, and `alone` for a test beside which no other may run, otherwise `beside`. The unit
//! tests of a library are the test `lib`, those of a program `bin-NAME`. A `lib` is a library that tests load, with the name
//! that cargo gave it: `libnccl.so`. Tests that need the sources are left out.
//!
//! With `--pack`, scripts, wheels and all of these become one file, from which `ci/gpu.sh --packed` runs.

mod choice;
mod pack;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::build_kernels;
use crate::error::{Error, FileContext};
use crate::run::{capture, cargo};
use crate::toolchain::NvrtcChoice;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Only these packages [default: all except those whose tests need the sources, or use no device].
    #[arg(short, long, value_name = "PACKAGE")]
    package: Vec<String>,

    /// The NVRTC that compiles the kernels of tests and benchmarks.
    #[arg(long, value_enum, default_value_t = NvrtcChoice::Auto)]
    nvrtc: NvrtcChoice,

    /// Pack everything into target/dist/mscclpp.tar.xz, which `ci/gpu.sh --packed` runs on a machine without Rust.
    #[arg(long)]
    pack: bool,

    /// A wheel to pack: that of the Python package, or one that its tests need.
    #[arg(long, value_name = "FILE", requires = "pack")]
    wheel: Vec<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let mut binaries = build(&options.package, &[])?;
    binaries.retain(choice::is_packed);
    let folder = workspace::target().join("dist/files");
    install(&folder, &binaries)?;
    build_kernels::fill_cache(&folder.join("cache"), options.nvrtc)?;
    if options.pack {
        pack::pack(&folder, &options.wheel)?;
    }
    Ok(())
}

/// Builds the tests, examples and programs of `packages`, or of all that are packed if none is given. `which` is cargo's
/// choice of tests, such as `--test NAME`.
pub(crate) fn build(packages: &[String], which: &[&str]) -> Result<BTreeSet<Binary>, Error> {
    let mut binaries = build_programs(packages)?;
    let tests = compile(packages, &[&["test", "--no-run"], which].concat())?;
    binaries.extend(tests.into_iter().filter(|b| matches!(b.kind, Kind::Test | Kind::Library)));
    Ok(binaries)
}

/// Builds the examples and programs like [`build`], without the tests.
pub(crate) fn build_programs(packages: &[String]) -> Result<BTreeSet<Binary>, Error> {
    let programs = compile(packages, &["build", "--examples", "--bins"])?;
    Ok(programs.into_iter().filter(|b| matches!(b.kind, Kind::Example | Kind::Bin)).collect())
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Test,
    Example,
    Bin,
    Library,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Test => "test",
            Kind::Example => "example",
            Kind::Bin => "bin",
            Kind::Library => "lib",
        }
    }
}

/// An executable, or a library to be loaded, that cargo built.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binary {
    pub(crate) kind: Kind,
    package: String,
    pub(crate) name: String,
    /// The path that cargo gave it.
    pub(crate) path: PathBuf,
}

impl Binary {
    /// Reads one of cargo's messages. Returns `None` if it is not about a file to distribute.
    fn from_message(message: &Value) -> Option<Self> {
        let target = &message["target"];
        let target_name = target["name"].as_str()?.to_owned();
        let package = package_name(message["package_id"].as_str()?).to_owned();
        let Some(path) = message["executable"].as_str().map(PathBuf::from) else {
            let is_loaded = target["kind"].as_array()?.iter().any(|kind| kind == "cdylib");
            let files = message["filenames"].as_array()?.iter().filter_map(|file| file.as_str());
            let path = PathBuf::from(files.filter(|_| is_loaded).find(|file| file.ends_with(".so"))?);
            return Some(Self { kind: Kind::Library, package, name: target_name, path });
        };
        let target_kind = target["kind"][0].as_str()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let (kind, name) = match (is_test, target_kind) {
            (true, "test") => (Kind::Test, target_name),
            (true, "bin" | "example") => (Kind::Test, format!("{target_kind}-{target_name}")),
            (true, _) => (Kind::Test, "lib".to_owned()),
            (false, "example") => (Kind::Example, target_name),
            (false, "bin") => (Kind::Bin, target_name),
            (false, _) => return None,
        };
        Some(Self { kind, package, name, path })
    }

    /// The file name, which is unique among all packages: `KIND-PACKAGE-NAME`, or a library's own name.
    pub(crate) fn file_name(&self) -> String {
        if self.kind == Kind::Library {
            return format!("lib{}.so", self.name);
        }
        format!("{}-{}-{}", self.kind.name(), self.package, self.name)
    }
}

/// The name in a package id: `…/cuda#mscclpp-kernels@0.1.0`, or `…/xtask#0.1.0` if the folder has the package's name.
fn package_name(id: &str) -> &str {
    let (location, version) = id.split_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => location.rsplit('/').next().unwrap_or(location),
    }
}

fn compile(packages: &[String], command: &[&str]) -> Result<Vec<Binary>, Error> {
    let mut cargo = cargo();
    cargo.args(command).args(["--release", "--message-format", "json-render-diagnostics"]);
    if packages.is_empty() {
        cargo.arg("--workspace");
        cargo.args(choice::packages_left_out().flat_map(|package| ["--exclude", package]));
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    let mut binaries = Vec::new();
    for line in capture(&mut cargo)?.lines() {
        binaries.extend(Binary::from_message(&serde_json::from_str(line)?));
    }
    Ok(binaries)
}

fn install(folder: &Path, binaries: &BTreeSet<Binary>) -> Result<(), Error> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).context("remove", folder)?;
    }
    workspace::create_folder(folder)?;
    let mut manifest = String::new();
    for binary in binaries {
        let file = binary.file_name();
        std::fs::copy(&binary.path, folder.join(&file)).context("copy", &binary.path)?;
        let beside = if choice::runs_alone(binary) { "alone" } else { "beside" };
        manifest +=
            &format!("{}\t{}\t{}\t{file}\t{beside}\n", binary.kind.name(), binary.package, binary.name);
    }
    let path = folder.join("manifest");
    std::fs::write(&path, &manifest).context("write", &path)?;
    print!("{manifest}");
    println!("{} binaries in {}", binaries.len(), folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_are_found_in_both_forms_of_id() {
        assert_eq!(package_name("path+file:///repo/cuda#mscclpp-kernels@0.1.0"), "mscclpp-kernels");
        assert_eq!(package_name("path+file:///repo/crates/mscclpp-core#0.1.0"), "mscclpp-core");
    }

    #[test]
    fn a_library_without_an_executable_is_passed_over() {
        let message = serde_json::json!({
            "package_id": "path+file:///repo/crates/mscclpp-core#0.1.0",
            "target": { "kind": ["lib"], "name": "mscclpp_core" },
            "profile": { "test": false },
            "executable": null,
        });
        assert!(Binary::from_message(&message).is_none());
    }

    #[test]
    fn a_library_that_is_loaded_keeps_its_name() {
        let message = serde_json::json!({
            "package_id": "path+file:///repo/crates/mscclpp-nccl#0.1.0",
            "target": { "kind": ["cdylib", "rlib"], "name": "nccl" },
            "profile": { "test": false },
            "filenames": ["/repo/target/release/deps/libnccl.rlib", "/repo/target/release/deps/libnccl.so"],
            "executable": null,
        });
        let library = Binary::from_message(&message).unwrap();
        assert_eq!(library.file_name(), "libnccl.so");
        assert_eq!(library.path, PathBuf::from("/repo/target/release/deps/libnccl.so"));
    }

    #[test]
    fn unit_tests_and_integration_tests_of_one_name_stay_apart() {
        let message = |kind: &str| {
            serde_json::json!({
                "package_id": "path+file:///repo/crates/mscclpp#0.1.0",
                "target": { "kind": [kind], "name": "mscclpp" },
                "profile": { "test": true },
                "executable": "/repo/target/release/deps/mscclpp-0123",
            })
        };
        let names =
            ["lib", "test", "bin"].map(|kind| Binary::from_message(&message(kind)).unwrap().file_name());
        assert_eq!(names, ["test-mscclpp-lib", "test-mscclpp-mscclpp", "test-mscclpp-bin-mscclpp"]);
    }
}
