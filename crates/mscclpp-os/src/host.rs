//! The node that a process is on, as far as sharing memory and Unix sockets is concerned.

use std::{fs, os::unix::fs::MetadataExt};

use crate::{SystemCall, SystemError};

/// The identity of a node: two processes have the same if they are on one node, and only then.
///
/// A node's host name would not do: containers may share one or have none. The boot id belongs to the node and is the
/// same inside containers. Processes in different network namespaces cannot meet over abstract Unix sockets, so they
/// count as being on different nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The random id of this boot of the node.
    pub boot_id: String,
    /// The network namespace: device and inode of its file.
    pub network_namespace: (u64, u64),
}

impl Host {
    /// Returns the identity of this process's node.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read, as in some containers.
    pub fn detect() -> Result<Self, SystemError> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").during(
            "reading /proc/sys/kernel/random/boot_id to identify this host (or set MSCCLPP_HOSTID)",
        )?;
        let network = fs::metadata("/proc/self/ns/net")
            .during("reading /proc/self/ns/net to identify this host (or set MSCCLPP_HOSTID)")?;
        Ok(Self { boot_id: boot_id.trim().to_owned(), network_namespace: (network.dev(), network.ino()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_itself() {
        assert_eq!(Host::detect().unwrap(), Host::detect().unwrap());
    }

    #[test]
    fn a_network_namespace_is_the_one_that_the_system_names() {
        let link = fs::read_link("/proc/self/ns/net").unwrap();
        let (_, inode) = Host::detect().unwrap().network_namespace;
        assert_eq!(link.to_str(), Some(format!("net:[{inode}]").as_str()));
    }
}
