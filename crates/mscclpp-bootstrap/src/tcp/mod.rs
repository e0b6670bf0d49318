//! A job of processes that are connected by TCP.

mod accepting;
mod bootstrap;
mod builder;
mod forming;
mod generations;
mod handle;
mod listening;
mod published;
mod reactor;
mod socket;

use std::time::Duration;

pub use bootstrap::TcpBootstrap;
pub use builder::{MeetingPlace, TcpBootstrapBuilder};
pub use forming::Forming;
pub use generations::Job;

#[allow(unused_imports, reason = "the documentation names its variants")]
use crate::Error;
use crate::{Env, Result, UniqueId};

/// The time for which a process listens for the ranks of an id, unless it is told otherwise.
const HALF_AN_HOUR: Duration = Duration::from_secs(30 * 60);

impl TcpBootstrap {
    /// Makes the identity of a new job, and begins to listen for its ranks: in the process of rank 0, or in any other that
    /// lives until all ranks have come.
    ///
    /// The environment variables `MSCCLPP_SOCKET_IFNAME` and `MSCCLPP_SOCKET_FAMILY` choose the addresses; see
    /// [`Env`]. The process listens until its rank 0 takes the socket over, [`forget_unique_id`](Self::forget_unique_id)
    /// is called, half an hour has passed, or the process ends. An id serves one job.
    pub fn create_unique_id() -> Result<UniqueId> {
        Self::create_unique_id_in(&Env::read()?)
    }

    /// Does the same as [`create_unique_id`](Self::create_unique_id) with an environment given by the caller.
    pub fn create_unique_id_in(env: &Env) -> Result<UniqueId> {
        Self::create_unique_id_for(env, HALF_AN_HOUR)
    }

    /// Does the same as [`create_unique_id_in`](Self::create_unique_id_in), and listens for another time than half an hour. A
    /// time of more than a year counts as a year.
    pub fn create_unique_id_for(env: &Env, time: Duration) -> Result<UniqueId> {
        published::create(env, time)
    }

    /// Stops listening for the ranks of an id that this process made and that no rank 0 has taken over. Returns
    /// whether it did. Ranks that come with the id later fail with [`Error::NobodyListens`].
    ///
    /// ```
    /// # use mscclpp_bootstrap::TcpBootstrap;
    /// let id = TcpBootstrap::create_unique_id()?;
    /// assert!(TcpBootstrap::forget_unique_id(&id));
    /// assert!(!TcpBootstrap::forget_unique_id(&id));
    /// # Ok::<(), mscclpp_bootstrap::Error>(())
    /// ```
    pub fn forget_unique_id(id: &UniqueId) -> bool {
        published::forget(id)
    }

    /// Joins a job of `n_ranks` ranks as `rank`. Returns when all ranks are connected, or with an error within
    /// `timeout`.
    ///
    /// The job is named by a [`UniqueId`], or by the address at which rank 0 is to listen: `"ip:port"`,
    /// `"[ipv6]:port"`, `"host:port"` or one of these after `"interface:"`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for numbers that make no sense;
    /// - [`Error::BadAddress`], [`Error::NoSuchInterface`], [`Error::NobodyListens`] and [`Error::AddressInUse`] for
    ///   bad names;
    /// - [`Error::Mismatch`], [`Error::DuplicateRank`], [`Error::JobComplete`], [`Error::OtherJob`] and
    ///   [`Error::Unauthenticated`] for ranks that do not fit together;
    /// - [`Error::PeerLost`] and [`Error::Aborted`] for ranks that fail;
    /// - [`Error::Timeout`], which lists who did not come and which address failed how. With a key,
    ///   [`Error::Unauthenticated`] also comes only when time is up: until then the process that answers may be a
    ///   stranger.
    ///
    /// When the job fails while ranks have yet to come, rank 0 tells those that come in the next two seconds, and
    /// returns after that.
    pub fn new(rank: usize, n_ranks: usize, at: impl Into<MeetingPlace>, timeout: Duration) -> Result<Self> {
        Self::builder(rank, n_ranks).timeout(timeout).connect(at)
    }

    /// Begins to join a job like [`new`](Self::new), and returns without waiting for other ranks, so that one thread
    /// can bring up several. The time-out begins now.
    ///
    /// Only the look-up of a host name, if the address has one, can take time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::BadAddress`], [`Error::NoSuchInterface`], [`Error::BadEnvironment`],
    /// [`Error::EnvironmentConflict`], and [`Error::Io`]. All other
    /// errors of [`new`](Self::new) come from [`Forming::wait`].
    pub fn start(
        rank: usize,
        n_ranks: usize,
        at: impl Into<MeetingPlace>,
        timeout: Duration,
    ) -> Result<Forming> {
        Self::builder(rank, n_ranks).timeout(timeout).start(at)
    }

    /// Returns the settings of a rank, to be followed by [`connect`](TcpBootstrapBuilder::connect) or
    /// [`start`](TcpBootstrapBuilder::start).
    pub fn builder(rank: usize, n_ranks: usize) -> TcpBootstrapBuilder {
        TcpBootstrapBuilder::new(rank, n_ranks)
    }
}
