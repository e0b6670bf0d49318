//! Records the git commit in the program, unless the environment names it.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let given = ["MSCCLPP_GIT_COMMIT", "GIT_COMMIT"].into_iter().find_map(|name| {
        println!("cargo:rerun-if-env-changed={name}");
        env::var(name).ok().filter(|commit| !commit.is_empty())
    });
    // This file grows with each commit and checkout. It must exist, because otherwise cargo would run this each time.
    if let Some(log) = git(&["--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = given.or_else(|| git(&["--short=12", "HEAD"])) {
        println!("cargo:rustc-env=MSCCLPP_GIT_COMMIT={commit}");
    }
}

/// The output of `git rev-parse`; none outside of a checkout, or without git.
fn git(what: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("rev-parse").args(what).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}
