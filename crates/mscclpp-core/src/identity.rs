//! Identifiers by which peers recognise this process and this node.

use std::{fmt, sync::OnceLock};

use mscclpp_gpu::fork::Origin;
use mscclpp_os::{env, host::Host};

use crate::Result;

/// A number that identifies one process: its number in the system, in 4 bytes, and 12 random bytes. By it a process recognises
/// bytes that it has serialized itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId([u8; 16]);

impl ProcessId {
    /// The number of this process, chosen once. A forked child has a number of its own.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the system has no random numbers.
    pub fn current() -> Result<Self> {
        static DRAWN: OnceLock<(Origin, ProcessId)> = OnceLock::new();
        let (origin, mut id) = match DRAWN.get() {
            Some(drawn) => *drawn,
            None => {
                let drawn = (Origin::here(), Self(mscclpp_os::random()?).of_this_process());
                *DRAWN.get_or_init(|| drawn)
            }
        };
        if !origin.is_here() {
            id = id.of_this_process();
        }
        Ok(id)
    }

    /// The same random bytes, with the number of this process: forks of one process differ in it.
    fn of_this_process(mut self) -> Self {
        self.0[..4].copy_from_slice(&std::process::id().to_le_bytes());
        self
    }

    /// The number that the process had in its system, or in its container.
    pub(crate) fn pid(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_le_bytes([a, b, c, d])
    }

    /// The bytes of the number.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Makes the number from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// Returns the identifier that two processes share exactly if they are on one node: `MSCCLPP_HOSTID`, else the boot
/// id and the network namespace. The node's host name is not used, because containers share and clone names.
///
/// # Errors
/// [`Error::Environment`](crate::Error::Environment) for a malformed `MSCCLPP_HOSTID`,
/// [`Error::System`](crate::Error::System) if `/proc` cannot be read.
pub fn host_id() -> Result<String> {
    if let Some(id) = env::host_id(std::env::var_os)? {
        return Ok(id);
    }
    let host = Host::detect()?;
    Ok(format!("{} net:[{}]", host.boot_id, host.network_namespace.1))
}

#[cfg(test)]
mod tests {
    use mscclpp_test_support::{LIMIT, in_fork};

    use super::*;

    #[test]
    fn a_process_is_itself() {
        assert_eq!(ProcessId::current().unwrap(), ProcessId::current().unwrap());
        assert_eq!(ProcessId::current().unwrap().pid(), std::process::id());
        assert!(!host_id().unwrap().is_empty());
    }

    #[test]
    fn a_forked_child_is_another_process_than_its_parent() {
        let id = || format!("{:?}", ProcessId::current().unwrap());
        let ids = [id(), in_fork(LIMIT, id), in_fork(LIMIT, || in_fork(LIMIT, id))];
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[2] != ids[0], "{ids:?}");
        assert_eq!(id(), ids[0]);
    }
}
