//! The identity of the node that this process is on, as far as sharing memory is concerned.

use mscclpp_net::random;
use mscclpp_os::host::Host;

use crate::digest::digest;
use crate::{LOG, Result};

/// An identity that is equal in two processes that can reach each other's memory and Unix sockets.
pub(crate) type HostId = [u8; 16];

/// Returns the identity for a text that the user chose.
pub(crate) fn named(kind: &str, name: &str) -> HostId {
    id_of(&[kind, name])
}

pub(crate) fn detected() -> Result<HostId> {
    match Host::detect() {
        Ok(Host { boot_id, network_namespace: (device, inode) }) => {
            Ok(id_of(&["boot", &boot_id, &format!("{device}:{inode}")]))
        }
        Err(error) => {
            let why = mscclpp_net::Report(&error).to_string();
            // Nothing distinguishes nodes here. A rank that counts as alone on its node is slow, but never wrong.
            tracing::warn!(target: LOG, why, "this rank counts as the only one of its node");
            Ok(random()?)
        }
    }
}

fn id_of(parts: &[&str]) -> HostId {
    let parts =
        parts.iter().map(|part| [(part.len() as u64).to_le_bytes().as_slice(), part.as_bytes()].concat());
    digest(&[&parts.collect::<Vec<_>>().concat()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_distinct() {
        assert_eq!(detected().unwrap(), detected().unwrap());
        assert_eq!(named("host", "a"), named("host", "a"));
        assert_ne!(named("host", "a"), named("host", "b"));
        assert_ne!(named("host", "a"), named("domain", "a"));
        assert_ne!(named("hos", "ta"), named("host", "a"));
    }
}
