//! The listeners of unique ids, from the time when an id is made until rank 0 takes its listener over.
//!
//! An id consists of bytes and can be copied and carried through any channel, so it cannot hold the socket that
//! belongs to it: the socket waits in a table of the process.

use std::net::{SocketAddr, TcpListener};

use mscclpp_net::{SystemCall, interface, random};
use parking_lot::Mutex;

use crate::env::{Env, INTERFACE};
use crate::protocol::hello::JobId;
use crate::tcp::socket;
use crate::{Error, Family, Result, UniqueId};

static PUBLISHED: Mutex<Vec<(JobId, TcpListener)>> = Mutex::new(Vec::new());

/// Makes an id and begins to listen for its ranks.
pub(crate) fn create(env: &Env) -> Result<UniqueId> {
    let interfaces = interface::list()?;
    let mut addresses = interface::candidates(&interfaces, env.interface.as_deref(), env.family)
        .map_err(|error| Error::no_such_interface(error, Some(INTERFACE)))?;
    let listener = match (&env.interface, addresses.first()) {
        (Some(_), Some(&first)) => {
            addresses.truncate(1);
            socket::listen(SocketAddr::new(first, 0))
        }
        _ => socket::listen_everywhere(env.family != Some(Family::V4)),
    }
    .during("listening for the ranks of a job")?;
    let local = listener.local_addr().during("asking for a socket's address")?;
    if local.is_ipv4() {
        addresses.retain(std::net::IpAddr::is_ipv4);
    }
    if addresses.is_empty() {
        return Err(Error::NoSuchInterface {
            name: "(any)".to_owned(),
            variable: None,
            available: Vec::new(),
        });
    }
    let (job, key) = (random()?, random()?);
    PUBLISHED.lock().push((job, listener));
    Ok(UniqueId::new(&addresses, local.port(), job, key))
}

/// Takes the listener of an id. Returns `None` if another process made the id, or if the listener was taken before.
pub(crate) fn take(id: &UniqueId) -> Option<TcpListener> {
    let mut published = PUBLISHED.lock();
    let at = published.iter().position(|(job, _)| *job == id.job())?;
    Some(published.swap_remove(at).1)
}
