//! Which NCCL library the programs of a Python environment call, tried with the modules that use NCCL.

use std::{process::Command, time::Duration};

use super::{
    child,
    finding::{Finding, Section},
};

/// The script that examines one module, in the form that [`child::run`] reads.
const SCRIPT: &str = include_str!("nccl.py");
/// The modules that load NCCL.
const MODULES: [&str; 4] = ["torch", "jax", "cupy", "nccl4py"];
/// The longest time for the import of a module.
const LIMIT: Duration = Duration::from_secs(300);

/// Examines the environment of `python`. Each module has a process of its own, as the first one that loads NCCL decides for all.
pub(super) fn examine(python: &str) -> Vec<Finding> {
    let with = |modules: &[&str]| {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).args(modules);
        child::run(Ok(command), Section::Nccl, (LIMIT, LIMIT), "name a Python that is there: --nccl=PYTHON")
    };
    let mut findings = with(&[]);
    // The examination itself is an item if it failed.
    if findings.iter().all(|finding| finding.item != "examination") {
        findings.extend(MODULES.iter().flat_map(|module| with(&[module])));
    }
    findings
}
