//! Puts the headers of the device API into the build's output folder, from where they go into the wheel, and asks git
//! for the commit.

use std::{env, fs, io, path::Path, process::Command};

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
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MSCCLPP_GIT_COMMIT");
    if env::var_os("MSCCLPP_GIT_COMMIT").is_none()
        && let Some(commit) = commit()
    {
        println!("cargo:rustc-env=MSCCLPP_GIT_COMMIT={commit}");
    }
    Ok(())
}

/// The commit of the working tree. None outside of one, for example in a source distribution.
fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}
