//! `dist`: what a machine without Rust needs to run the tests, examples and programs of this workspace.
//!
//! `target/dist/files/` (`target/dist` is also where cargo builds this profile) gets the binaries, stripped, as
//! `KIND-PACKAGE-NAME`; `cache`, the PTX of the kernels that tests and benchmarks launch, for `MSCCLPP_CACHE_DIR`, so that
//! CUDA needs no compiler there; and a `manifest` with one line for each: kind (`test`, `example` or `bin`), package, name and
//! file, separated by tabs. The unit tests of a library are the test `lib`, those of a program `bin-NAME`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::Value;

use crate::build_kernels;
use crate::error::{Error, FileContext};
use crate::run::capture;
use crate::toolchain::NvrtcChoice;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Only these packages [default: all but xtask].
    #[arg(short, long, value_name = "PACKAGE")]
    package: Vec<String>,

    /// Which NVRTC compiles the kernels of tests and benchmarks.
    #[arg(long, value_enum, default_value_t = NvrtcChoice::Auto)]
    nvrtc: NvrtcChoice,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let binaries = build(&options.package, &[])?;
    let folder = workspace::target().join("dist/files");
    install(&folder, &binaries)?;
    build_kernels::fill_cache(&folder.join("cache"), options.nvrtc)
}

/// Builds the tests, examples and programs of `packages`, or of all but xtask if there are none. `which` is cargo's choice
/// of tests, such as `--test NAME`.
pub(crate) fn build(packages: &[String], which: &[&str]) -> Result<BTreeSet<Binary>, Error> {
    let mut binaries = build_programs(packages)?;
    let tests = compile(packages, &[&["test", "--no-run"], which].concat())?;
    binaries.extend(tests.into_iter().filter(|b| b.kind == Kind::Test));
    Ok(binaries)
}

/// As [`build`], without the tests.
pub(crate) fn build_programs(packages: &[String]) -> Result<BTreeSet<Binary>, Error> {
    let programs = compile(packages, &["build", "--examples", "--bins"])?;
    Ok(programs.into_iter().filter(|b| b.kind != Kind::Test).collect())
}

/// What an executable is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Test,
    Example,
    Bin,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Test => "test",
            Kind::Example => "example",
            Kind::Bin => "bin",
        }
    }
}

/// An executable that cargo built.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binary {
    pub(crate) kind: Kind,
    package: String,
    name: String,
    /// Where cargo put it.
    pub(crate) path: PathBuf,
}

impl Binary {
    /// As cargo calls it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads one of cargo's messages; `None` if it is not about an executable to distribute.
    fn from_message(message: &Value) -> Option<Self> {
        let path = PathBuf::from(message["executable"].as_str()?);
        let target = &message["target"];
        let target_name = target["name"].as_str()?.to_owned();
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
        let package = package_name(message["package_id"].as_str()?).to_owned();
        Some(Self { kind, package, name, path })
    }

    /// Its name among those of all packages: `KIND-PACKAGE-NAME`.
    pub(crate) fn file_name(&self) -> String {
        format!("{}-{}-{}", self.kind.name(), self.package, self.name)
    }
}

/// The name in a package id: `…/cuda#mscclpp-kernels@0.1.0`, or `…/xtask#0.1.0` where the folder has the name.
fn package_name(id: &str) -> &str {
    let (location, version) = id.split_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => location.rsplit('/').next().unwrap_or(location),
    }
}

fn compile(packages: &[String], command: &[&str]) -> Result<Vec<Binary>, Error> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace::root()).args(command);
    cargo.args(["--profile", "dist", "--message-format", "json-render-diagnostics"]);
    if packages.is_empty() {
        cargo.args(["--workspace", "--exclude", "xtask"]);
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
        manifest += &format!("{}\t{}\t{}\t{file}\n", binary.kind.name(), binary.package, binary.name);
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
    fn unit_tests_and_integration_tests_of_one_name_stay_apart() {
        let message = |kind: &str| {
            serde_json::json!({
                "package_id": "path+file:///repo/crates/mscclpp#0.1.0",
                "target": { "kind": [kind], "name": "mscclpp" },
                "profile": { "test": true },
                "executable": "/repo/target/dist/deps/mscclpp-0123",
            })
        };
        let names =
            ["lib", "test", "bin"].map(|kind| Binary::from_message(&message(kind)).unwrap().file_name());
        assert_eq!(names, ["test-mscclpp-lib", "test-mscclpp-mscclpp", "test-mscclpp-bin-mscclpp"]);
    }
}
