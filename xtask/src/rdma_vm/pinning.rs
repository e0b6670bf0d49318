//! Pinning of each processor of a machine to a core of its own.
//!
//! The processors of a machine are threads of qemu. Two programs in it that wait for each other need both at once. If both
//! threads run on one core, they take turns of some milliseconds, and measurements have no meaning.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, FileContext};
use crate::run::capture;

/// Gives the processors of the machine that process `qemu` runs a core each: the first core to processor 0, and so on.
pub(super) fn pin(qemu: u32) -> Result<(), Error> {
    let tasks = Path::new("/proc").join(qemu.to_string()).join("task");
    for task in fs::read_dir(&tasks).context("list", &tasks)? {
        let task = task.context("list", &tasks)?;
        // A thread that has just ended no longer has a name.
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
        if let Some(processor) = processor(&name) {
            let (core, thread) = (processor.to_string(), task.file_name());
            capture(Command::new("taskset").args(["--cpu-list", "--pid", &core]).arg(thread))?;
        }
    }
    Ok(())
}

/// The number of the processor whose thread has this name, such as `CPU 1/TCG`.
fn processor(thread: &str) -> Option<u32> {
    thread.strip_prefix("CPU ")?.split('/').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_processors_are_known_by_their_names() {
        assert_eq!(processor("CPU 1/TCG\n"), Some(1));
        assert_eq!(processor("CPU 0/KVM\n"), Some(0));
        assert_eq!(processor("qemu-system-x86\n"), None);
    }
}
