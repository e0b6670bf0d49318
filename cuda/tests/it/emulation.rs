//! The headers of the device API on a CPU: their real text, compiled by a plain C++ compiler over `tests/emulation`,
//! which replaces the parts of a GPU that they need. Each program there is one test. They test what simulated devices
//! cannot: a thread of the test's choice goes on before each access, so that windows of one access are met; the test
//! says which bytes may be read and written, inside of a memory too; and there are hundreds of thousands of sizes and
//! alignments.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::Failed;

/// The programs in `tests/emulation`.
pub(crate) const PROGRAMS: [&str; 5] = ["concurrency", "copies", "handles", "packets", "ports"];

/// The time limit of a program. Most need a few seconds; one that hangs is ended.
const DEADLINE: Duration = Duration::from_secs(300);

/// The folder of a program's files, removed when the program is done.
struct Scratch(PathBuf);

impl Scratch {
    fn new(program: &str) -> std::io::Result<Self> {
        let path = env::temp_dir().join(format!("mscclpp-{program}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

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

/// Runs the program; its output goes to this test's own error output.
fn run(program: &str, binary: &Path) -> Result<(), Failed> {
    let mut child = Command::new(binary).spawn()?;
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { Err(format!("{program}: {status}").into()) };
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(format!("{program} has not ended after {DEADLINE:?}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn test(compiler: &OsStr, program: &str) -> Result<(), Failed> {
    let scratch = Scratch::new(program)?;
    let binary = scratch.0.join(program);
    compile(compiler, program, &binary)?;
    run(program, &binary)
}
