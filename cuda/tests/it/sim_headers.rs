//! The headers that replace CUDA's where a C++ compiler makes simulated kernels: each compiles alone and without a
//! warning, and the programs in `tests/sim` find the right results.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use libtest_mimic::Failed;

/// The programs in `tests/sim`.
pub(crate) const PROGRAMS: [&str; 2] = ["builtins", "narrow"];

const STANDARDS: [&str; 2] = ["-std=c++17", "-std=c++20"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles a source with the headers.
fn compile(compiler: &OsStr, standard: &str, source: &Path, arguments: &[&OsStr]) -> Result<(), Failed> {
    let compiled = Command::new(compiler)
        .args([standard, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(arguments)
        .arg("-I")
        .arg(package().join("sim"))
        .args(["-x", "c++"])
        .arg(source)
        .stdin(Stdio::null())
        .output()?;
    if compiled.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&compiled.stderr);
    Err(format!("{arguments:?} {} does not compile as {standard}:\n{messages}", source.display()).into())
}

/// Returns all headers, without the files that are none by themselves.
fn headers() -> Vec<PathBuf> {
    let of = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut headers: Vec<PathBuf> = of(package().join("sim"))
        .chain(of(package().join("sim/mscclpp_sim")))
        .filter(|path| path.extension().is_some_and(|extension| extension == "h" || extension == "hpp"))
        .collect();
    headers.sort();
    headers
}

pub(crate) fn every_header_compiles_alone(compiler: &OsStr) -> Result<(), Failed> {
    let headers = headers();
    assert!(headers.iter().any(|header| header.ends_with("mscclpp_sim/vector_types.hpp")), "{headers:?}");
    for header in headers {
        let arguments = [OsStr::new("-fsyntax-only"), OsStr::new("-include"), header.as_os_str()];
        compile(compiler, STANDARDS[0], Path::new("/dev/null"), &arguments)?;
    }
    Ok(())
}

/// Runs a program. The programs wait for nothing, so they need no time limit.
pub(crate) fn run(compiler: &OsStr, program: &str) -> Result<(), Failed> {
    let scratch = tempfile::tempdir()?;
    let source = package().join("tests/sim").join(program).with_extension("cpp");
    let binary = scratch.path().join(program);
    // A runtime for one thread comes in front of the real one.
    let stub = package().join("tests/sim/stub");
    let arguments = ["-o".as_ref(), binary.as_os_str(), "-I".as_ref(), stub.as_os_str()];
    for standard in STANDARDS {
        compile(compiler, standard, &source, &arguments)?;
        let output = Command::new(&binary).output()?;
        if !output.status.success() {
            let messages = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{program}, {standard}: {}\n{messages}", output.status).into());
        }
    }
    Ok(())
}
