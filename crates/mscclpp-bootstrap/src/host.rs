//! Which host this process is on, as far as sharing memory is concerned.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

/// Equal in two processes that can reach each other's memory and Unix sockets.
pub(crate) type HostId = [u8; 16];

/// The identity of a text that somebody chose.
pub(crate) fn named(kind: &str, name: &str) -> HostId {
    digest(&[kind, name])
}

/// The identity of this boot of this machine, as seen from this process's namespaces.
///
/// Not the host name: containers share or lack one. The boot id is the machine's, also inside containers; processes of
/// different network namespaces cannot meet over Unix sockets without a file system in common, so these count as
/// different hosts.
pub(crate) fn detected() -> HostId {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::metadata("/proc/self/ns/net")
        .map_or_else(|_| String::new(), |meta| format!("{}:{}", meta.dev(), meta.ino()));
    if boot.is_empty() {
        // Nothing to tell machines apart by: a rank is then alone on its host, which is slow but never wrong.
        tracing::warn!(target: crate::LOG, "no boot id in /proc: set MSCCLPP_HOSTID to say which ranks share a host");
        let mut random = [0; 16];
        let _ = getrandom::fill(&mut random);
        return random;
    }
    digest(&["boot", boot.trim(), &network])
}

fn digest(parts: &[&str]) -> HostId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    std::array::from_fn(|i| digest[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_distinct() {
        assert_eq!(detected(), detected());
        assert_eq!(named("host", "a"), named("host", "a"));
        assert_ne!(named("host", "a"), named("host", "b"));
        assert_ne!(named("host", "a"), named("domain", "a"));
        assert_ne!(named("hos", "ta"), named("host", "a"));
    }
}
