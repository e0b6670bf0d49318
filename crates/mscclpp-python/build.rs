//! Puts the headers of the device API, and a link to `libnccl.so.2`, into the build's output folder, from where they go into
//! the wheel, and asks git for the commit.

use std::{env, fs, io, os::unix::fs::symlink, path::Path, process::Command};

fn main() -> io::Result<()> {
    let Some(out) = env::var_os("OUT_DIR") else {
        return Err(io::Error::other("OUT_DIR is not set: this is a build script, to be run by cargo"));
    };
    let include = Path::new(&out).join("include");
    for (name, text) in mscclpp_kernels::HEADERS {
        let path = include.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&include))?;
        fs::write(path, text)?;
    }
    link_to_nccl(Path::new(&out))?;
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MSCCLPP_GIT_COMMIT");
    // The log of HEAD grows with each commit and each switch to another one.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    if env::var_os("MSCCLPP_GIT_COMMIT").is_none()
        && let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"])
    {
        println!("cargo:rustc-env=MSCCLPP_GIT_COMMIT={commit}");
    }
    Ok(())
}

/// Makes `lib/libnccl.so.2`, a link to the file that cargo makes of the dependency `mscclpp-nccl`, after this script has run.
fn link_to_nccl(out: &Path) -> io::Result<()> {
    // The output folder is PROFILE/build/PACKAGE/out.
    let Some(profile) = out.ancestors().nth(3) else {
        return Err(io::Error::other(format!(
            "OUT_DIR is {}, which is in no folder of a profile",
            out.display()
        )));
    };
    let link = out.join("lib/libnccl.so.2");
    fs::create_dir_all(out.join("lib"))?;
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    symlink(profile.join("deps/libnccl.so"), link)
}

/// The answer of git about the working tree. None outside of one, for example in a source distribution.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !answer.is_empty()).then_some(answer)
}
