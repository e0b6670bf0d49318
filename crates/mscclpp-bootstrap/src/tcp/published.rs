//! The unique ids that this process has made, from then until rank 0 takes the listener over.
//!
//! An id consists of bytes and can be copied and carried through any channel, so it cannot hold what belongs to it: that is in a
//! table of the process. A thread for each id answers the ranks that come; rank 0 may be in another process (`job::directory`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mscclpp_net::{SystemCall, interface, random};
use parking_lot::{Mutex, MutexGuard};

use crate::env::{Env, INTERFACE};
use crate::inbox::Inbox;
use crate::job::{Command, Directory, Formation, Job, Plan};
use crate::protocol::handshake::JobKey;
use crate::protocol::hello::JobId;
use crate::protocol::table::{MAX_ADDRESSES, Place};
use crate::tcp::forming;
use crate::tcp::handle::ReactorHandle;
use crate::tcp::listening::Places;
use crate::tcp::reactor::Reactor;
use crate::tcp::socket::{self, Listener};
use crate::{Error, Family, Result, UniqueId};

/// The most ranks that an id is meant for: so many connections may be about to prove themselves at the same time.
const CALLERS: usize = 1 << 16;

static PUBLISHED: Mutex<Vec<Published>> = Mutex::new(Vec::new());

struct Published {
    job: JobId,
    /// The process that made the id. A fork of it has a copy of this, and no thread that answers.
    process: u32,
    listener: Arc<Listener>,
    claimed: Arc<AtomicBool>,
    thread: Arc<ReactorHandle>,
}

/// Makes an id, and listens for its ranks for at most `time`.
pub(crate) fn create(env: &Env, time: Duration) -> Result<UniqueId> {
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
        return Err(Error::NoNetwork);
    }
    addresses.truncate(MAX_ADDRESSES);
    let id = UniqueId::new(&addresses, local.port(), random()?, random()?);
    publish(&id, listener, Place { port: local.port(), addresses }, time)?;
    Ok(id)
}

/// Starts the thread that answers the ranks of an id.
fn publish(id: &UniqueId, listener: Listener, here: Place, time: Duration) -> Result<()> {
    let (job, claimed, now) = (id.job(), Arc::new(AtomicBool::new(false)), Instant::now());
    let key = JobKey::of_unique_id(id.key());
    let plan = Plan { job: Some(job), ..Plan::new(0, CALLERS, key, now, time) };
    let formation = Formation::of_directory(Directory::new(here, Arc::clone(&claimed)));
    let thread = Arc::new(ReactorHandle::new(Arc::new(Inbox::default()))?);
    let listener = Arc::new(listener);
    let directory = Job::new(plan, formation, now);
    let reactor =
        Reactor::new(0, directory, Arc::clone(&thread), Some(Arc::clone(&listener)), Places::default())?;
    let process = std::process::id();
    own().push(Published { job, process, listener, claimed, thread });
    let started = forming::start_thread("mscclpp-id", reactor, move || {
        PUBLISHED.lock().retain(|published| published.job != job);
    });
    if started.is_err() {
        PUBLISHED.lock().retain(|published| published.job != job);
    }
    started.map(drop)
}

/// Returns all ids of this process. The child of a fork forgets those of its parent, whose sockets it has not.
fn own() -> MutexGuard<'static, Vec<Published>> {
    let (mut all, here) = (PUBLISHED.lock(), std::process::id());
    if all.iter().any(|published| published.process != here) {
        std::mem::forget(std::mem::take(&mut *all));
    }
    all
}

/// Takes the listener of an id for its rank 0. Returns `None` if another process made the id, or has its rank 0, or if
/// the listener was taken or closed before.
pub(crate) fn take(id: &UniqueId) -> Option<Arc<Listener>> {
    let published = {
        let mut all = own();
        let at = all.iter().position(|published| published.job == id.job())?;
        if all[at].claimed.swap(true, Ordering::AcqRel) {
            return None;
        }
        all.swap_remove(at)
    };
    // Rank 0 must be the only one that accepts.
    published.thread.close();
    Some(published.listener)
}

/// Stops to listen for the ranks of an id. Returns whether this process has listened.
pub(crate) fn forget(id: &UniqueId) -> bool {
    let mut all = own();
    let Some(at) = all.iter().position(|published| published.job == id.job()) else { return false };
    all.swap_remove(at).thread.command(Command::Close);
    true
}
