//! The headers of the device API on a CPU: their real text, compiled by a plain C++ compiler over `tests/emulation`,
//! which replaces the parts of a GPU that they need. Each program there is one test. They test what simulated devices
//! cannot: a thread of the test's choice goes on before each access, so that windows of one access are met; the test
//! says which bytes may be read and written, inside of a memory too; and there are hundreds of thousands of sizes and
//! alignments.

use std::{ffi::OsStr, path::Path, process::Command, time::Duration};

use libtest_mimic::Failed;
use mscclpp_test_support::child;

/// The programs in `tests/emulation`.
pub(crate) const PROGRAMS: [&str; 4] = ["concurrency", "copies", "packets", "ports"];

/// The time limit of a program. Most need a few seconds; one that hangs is ended.
const DEADLINE: Duration = Duration::from_secs(300);

fn compile(compiler: &OsStr, program: &str, binary: &Path) -> Result<(), Failed> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let emulation = package.join("tests/emulation");
    let compiled = Command::new(compiler)
        // The headers have pragmas for the compilers of GPUs.
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-pthread"])
        // Kernels are compiled with these options, too (mscclpp-gpu, sim/compiler.rs).
        .args(["-fno-strict-aliasing", "-fwrapv"])
        // With this option, jumping to another thread's stack would count as a defect.
        .arg("-U_FORTIFY_SOURCE")
        .arg("-I")
        .arg(package.join("include"))
        .arg("-I")
        .arg(package.join("sim"))
        .arg("-include")
        .arg(emulation.join("emulation.hpp"))
        .arg(emulation.join(program).with_extension("cpp"))
        .arg("-o")
        .arg(binary)
        .output()?;
    if compiled.status.success() {
        Ok(())
    } else {
        Err(format!("{program}.cpp does not compile:\n{}", String::from_utf8_lossy(&compiled.stderr)).into())
    }
}

pub(crate) fn test(compiler: &OsStr, program: &str) -> Result<(), Failed> {
    let scratch = tempfile::tempdir()?;
    let binary = scratch.path().join(program);
    compile(compiler, program, &binary)?;
    let output = child::output_within(DEADLINE, &mut Command::new(&binary));
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}\n{}{messages}", output.status, String::from_utf8_lossy(&output.stdout)).into())
}
