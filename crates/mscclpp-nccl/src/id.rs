//! Unique ids: 128 bytes that the program sends from one process to all ranks.

use std::time::Duration;

use mscclpp::{
    TcpBootstrap,
    bootstrap::{Env as BootstrapEnv, MeetingPlace, TcpBootstrapBuilder},
};

use crate::{abi::UniqueId, env::Env, failure::Failure, interface::Pattern};

/// The first bytes of an id that has the address of `NCCL_COMM_ID` in place of a key. The address follows, up to the first zero.
const ADDRESS: &[u8; 8] = b"MSNCaddr";

/// Makes an id: one with the address in `NCCL_COMM_ID`, or, without that variable, one whose ranks meet through this process.
pub(crate) fn create(env: &Env) -> Result<UniqueId, Failure> {
    if let Some(address) = &env.address {
        return of_address(address);
    }
    own(env)
}

/// Makes an id whose ranks meet through this process, and ignores `NCCL_COMM_ID`. The process listens for them as long as a
/// communicator may take to form.
pub(crate) fn own(env: &Env) -> Result<UniqueId, Failure> {
    Ok(UniqueId(fresh(env, env.timeout)?.to_bytes()))
}

fn fresh(env: &Env, time: Duration) -> Result<mscclpp::UniqueId, Failure> {
    let mut settings = BootstrapEnv::read()?;
    if settings.interface.is_none() {
        settings.interface = env.interface.as_ref().map(Pattern::interface).transpose()?;
    }
    settings.family = settings.family.or(env.family);
    Ok(TcpBootstrap::create_unique_id_for(&settings, time)?)
}

/// Gives up an id that will not be used: this process stops listening for its ranks.
pub(crate) fn forget(id: &UniqueId) {
    // For an id that another process made, or that was used, this does nothing.
    if let Ok(id) = mscclpp::UniqueId::from_bytes(&id.0) {
        TcpBootstrap::forget_unique_id(&id);
    }
}

/// An id from which the ids of communicators are derived to which this one is shrunk. Dropping it gives the id up.
pub(crate) struct Spare(mscclpp::UniqueId);

impl Spare {
    pub(crate) fn create(env: &Env) -> Result<Self, Failure> {
        fresh(env, Duration::MAX).map(Self)
    }

    pub(crate) fn id(&self) -> UniqueId {
        UniqueId(self.0.to_bytes())
    }
}

/// The id of a communicator to which another one is shrunk. `spare` is that of its first rank, and `before` is how many times the
/// communicator was shrunk to these ranks before.
pub(crate) fn of_shrinking(spare: &UniqueId, members: &[usize], before: u32) -> Result<UniqueId, Failure> {
    let spare = mscclpp::UniqueId::from_bytes(&spare.0).map_err(|error| Failure::usage(error.to_string()))?;
    let label: Vec<u8> =
        [before as usize].iter().chain(members).flat_map(|number| (*number as u64).to_le_bytes()).collect();
    Ok(UniqueId(spare.derive(&label).to_bytes()))
}

impl Drop for Spare {
    fn drop(&mut self) {
        TcpBootstrap::forget_unique_id(&self.0);
    }
}

fn of_address(address: &str) -> Result<UniqueId, Failure> {
    let mut bytes = [0; 128];
    let room = bytes.len() - ADDRESS.len() - 1;
    if address.len() > room {
        return Err(Failure::usage(format!("NCCL_COMM_ID has {} bytes; {room} are the most", address.len())));
    }
    let (mark, rest) = bytes.split_at_mut(ADDRESS.len());
    mark.copy_from_slice(ADDRESS);
    rest[..address.len()].copy_from_slice(address.as_bytes());
    Ok(UniqueId(bytes))
}

/// The address or key at which the ranks with this id meet.
///
/// # Errors
/// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) for bytes that are no id of this library.
pub(crate) fn meeting_place(id: &UniqueId) -> Result<MeetingPlace, Failure> {
    if let Some(address) = id.0.strip_prefix(ADDRESS) {
        let text: Vec<u8> = address.iter().copied().take_while(|byte| *byte != 0).collect();
        return match String::from_utf8(text) {
            Ok(address) => Ok(MeetingPlace::Address(address)),
            Err(_) => {
                Err(Failure::argument("the address in the unique id is not UTF-8: it was damaged on the way"))
            }
        };
    }
    match mscclpp::UniqueId::from_bytes(&id.0) {
        Ok(id) => Ok(MeetingPlace::Id(id)),
        Err(error) => Err(Failure::argument(format!(
            "{error}; an id comes from ncclGetUniqueId of this library, which all ranks must load, and all its bytes must be passed on"
        ))),
    }
}

/// Applies the environment's settings of the network to a rank that joins a job.
pub(crate) fn settings(builder: TcpBootstrapBuilder, env: &Env) -> Result<TcpBootstrapBuilder, Failure> {
    let own = BootstrapEnv::read()?;
    let mut builder = builder.timeout(env.timeout);
    if let (None, Some(pattern)) = (&own.interface, &env.interface) {
        builder = builder.interface(pattern.interface()?);
    }
    if let (None, Some(family)) = (own.family, env.family) {
        builder = builder.family(family);
    }
    if let Some(node) = node(env)? {
        builder = builder.host_id(node);
    }
    Ok(builder)
}

/// The node's name in `NCCL_HOSTID`, or `None` if `MSCCLPP_HOSTID` is set, which takes precedence.
pub(crate) fn node(env: &Env) -> Result<Option<&str>, Failure> {
    let own = BootstrapEnv::read()?.host_id;
    Ok(env.host_id.as_deref().filter(|_| own.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_travels_as_an_id() {
        let id = of_address("eth0:10.0.0.1:4000").unwrap();
        assert_eq!(meeting_place(&id).unwrap(), MeetingPlace::Address("eth0:10.0.0.1:4000".to_owned()));
        assert!(of_address(&"x".repeat(120)).unwrap_err().text.contains("119 are the most"));
    }

    #[test]
    fn bytes_that_are_no_id_are_an_error() {
        for id in [UniqueId([0; 128]), UniqueId([7; 128])] {
            let text = meeting_place(&id).unwrap_err().text;
            assert!(text.contains("ncclGetUniqueId"), "{text}");
        }
        let mut damaged = of_address("a").unwrap();
        damaged.0[8] = 0xff;
        assert!(meeting_place(&damaged).unwrap_err().text.contains("UTF-8"));
    }
}
