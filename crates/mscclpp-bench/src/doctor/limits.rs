//! The limits that the system sets for this process.

use rustix::{
    fs::statvfs,
    process::{Resource, getrlimit},
};
use serde_json::json;

use super::{child::Teller, finding::Finding, finding::Section::Limits as SECTION};

/// The limit of locked memory below which a job of a few buffers fails.
const FEW_BYTES: u64 = 64 << 20;
/// The limit of descriptors below which a job of some tens of connections and buffers fails.
const FEW_DESCRIPTORS: u64 = 1024;

pub(super) fn examine(teller: &Teller) {
    teller.trying("reading limits");
    teller.found(locked_memory(getrlimit(Resource::Memlock).current));
    teller.found(descriptors(getrlimit(Resource::Nofile).current));
    teller.trying("asking for the size of /dev/shm");
    teller.found(shared_memory());
}

fn locked_memory(limit: Option<u64>) -> Finding {
    let is_low = limit.is_some_and(|bytes| bytes < FEW_BYTES);
    let shown = limit.map(|bytes| match is_low {
        true => format!("{} KiB", bytes >> 10),
        false => format!("{} MiB", bytes >> 20),
    });
    let why = "more than that can be pinned or registered with adapters only by root";
    let remedy = "raise it: `ulimit -l unlimited`, LimitMEMLOCK of systemd, --ulimit memlock=-1 of docker";
    judge("locked memory", shown, is_low, why, remedy).facts(json!({"bytes": limit}))
}

fn descriptors(limit: Option<u64>) -> Finding {
    let is_low = limit.is_some_and(|count| count < FEW_DESCRIPTORS);
    let why = "connections, and buffers of simulated devices, take one or more each";
    let remedy = "raise it: `ulimit -n 65536`, LimitNOFILE of systemd";
    let shown = limit.map(|count| count.to_string());
    judge("open descriptors", shown, is_low, why, remedy).facts(json!({"count": limit}))
}

fn judge(item: &str, limit: Option<String>, is_low: bool, why: &str, remedy: &str) -> Finding {
    match limit {
        Some(limit) if is_low => SECTION.unavailable(item, format!("{limit} at most: {why}"), remedy),
        Some(limit) => SECTION.ok(item, format!("{limit} at most")),
        None => SECTION.ok(item, "no limit"),
    }
}

/// Examines /dev/shm. This library does not use it; other libraries of the same job do.
fn shared_memory() -> Finding {
    let item = "/dev/shm";
    match statvfs(item) {
        Ok(all) => {
            let unit = all.f_frsize;
            let (size, free) = (all.f_blocks * unit, all.f_bavail * unit);
            let text = format!(
                "{} MiB of {} free; for NCCL and PyTorch, not for this library",
                free >> 20,
                size >> 20
            );
            SECTION.note(item, text).facts(json!({"bytes": size, "free_bytes": free}))
        }
        Err(error) => {
            let remedy = "none is needed by this library; NCCL and PyTorch want it (docker: --shm-size)";
            SECTION.unavailable(item, error, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Outcome;

    #[test]
    fn limits_that_are_too_low_have_a_remedy() {
        for finding in [locked_memory(Some(64 << 10)), descriptors(Some(256))] {
            let Outcome::Unavailable { remedy, .. } = &finding.outcome else { panic!("{finding:?}") };
            assert!(remedy.contains("ulimit"), "{remedy}");
        }
        for finding in [locked_memory(None), locked_memory(Some(FEW_BYTES)), descriptors(Some(1 << 20))] {
            assert!(matches!(finding.outcome, Outcome::Ok { .. }), "{finding:?}");
        }
    }
}
