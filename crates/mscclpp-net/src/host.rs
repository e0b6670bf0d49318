//! Which host a process is on, as far as sharing memory and Unix sockets is concerned.

use std::{fs, os::unix::fs::MetadataExt};

use crate::{SystemCall, SystemError};

/// What two processes of one host have in common, and two processes of different hosts do not.
///
/// Not the host's name: containers share or lack one. The boot id is the machine's, also inside containers. Processes of
/// different network namespaces cannot meet over abstract Unix sockets, so these count as different hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The random id of this boot of the machine.
    pub boot_id: String,
    /// The network namespace: device and inode of its file.
    pub network_namespace: (u64, u64),
}

impl Host {
    /// The host of this process.
    ///
    /// # Errors
    /// If `/proc` cannot be read, as in some containers.
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
