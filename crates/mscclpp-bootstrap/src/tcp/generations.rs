//! A job that forms again after ranks of it are gone.

use std::sync::Arc;

use crate::tcp::handle::ReactorHandle;
use crate::tcp::{Forming, TcpBootstrap, TcpBootstrapBuilder};
use crate::{Error, Result};

/// A job whose ranks can be replaced: it forms again, as its next generation, at the same address.
///
/// When a rank is lost, or has left, the calls of the others fail ([`Error::PeerLost`], [`Error::PeerClosed`]). Then
/// each of them calls [`next_generation`](Self::next_generation), and so does a new process that takes the place of
/// the one that is gone, with its rank. If that is rank 0, the new process listens at the address, so it must be on
/// the node that has that address.
///
/// A generation is a job of its own, with connections and an identity of its own: nothing that was sent in an earlier
/// one arrives in it, and a process that still thinks it is in an earlier one is refused by all. Connections,
/// semaphores and channels of the earlier one have failed with it; they are made anew over the new bootstrap.
///
/// ```
/// use std::time::Duration;
/// # use mscclpp_bootstrap::{Bootstrap, Error, Job, TcpBootstrap};
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let address = format!("127.0.0.1:{port}");
/// # let other = { let address = address.clone(); std::thread::spawn(move || -> Result<u64, Error> {
/// #     let mut job = Job::new(TcpBootstrap::builder(1, 2), &address);
/// #     drop(job.next_generation()?);
/// #     let mut job = Job::new(TcpBootstrap::builder(1, 2), &address); // as a new process would
/// #     let ranks = job.next_generation()?;
/// #     ranks.barrier()?;
/// #     Ok(ranks.generation())
/// # }) };
/// let rank = 0;
/// let builder = TcpBootstrap::builder(rank, 2).timeout(Duration::from_secs(30));
/// let mut job = Job::new(builder, &address);
/// loop {
///     let ranks = job.next_generation()?;
///     // Work, until it is done or a rank is gone.
///     match ranks.barrier() {
///         Ok(()) => break,
///         Err(Error::PeerLost { rank, .. } | Error::PeerClosed { rank }) => println!("rank {rank} is gone"),
///         Err(other) => return Err(other),
///     }
/// }
/// assert_eq!(job.generation(), 2);
/// # assert_eq!(other.join().unwrap()?, 2);
/// # Ok::<(), Error>(())
/// ```
///
/// # When a generation does not form
/// The time-out of the builder holds for each generation. If it is over, or another rank is lost meanwhile, the call
/// fails and can be repeated. All ranks must come for a generation to form: a job does not shrink.
///
/// Of two processes that come as the same rank, the second waits for the next generation, and fails with
/// [`Error::JobComplete`] when its time is up. If it is not clear which of them is the second, the attempt ends for
/// all with [`Error::DuplicateRank`].
pub struct Job {
    builder: TcpBootstrapBuilder,
    address: String,
    /// The number of the last generation that has formed.
    generation: u64,
    last: Option<Arc<ReactorHandle>>,
    process: u32,
}

impl Job {
    /// Makes a job that meets at `address`, which has the same forms as for [`TcpBootstrap::new`]. All its ranks use
    /// this type. Nothing happens yet.
    ///
    /// A launcher may give a rank that it starts again another id of the job, by which it would be refused
    /// ([`Error::OtherJob`]): then give all the same [`TcpBootstrapBuilder::job_id`], or `MSCCLPP_JOB_ID`. A
    /// [`UniqueId`](crate::UniqueId) serves one generation, so it cannot name a job of this kind.
    pub fn new(builder: TcpBootstrapBuilder, address: impl Into<String>) -> Self {
        let (address, process) = (address.into(), std::process::id());
        Self { builder, address, generation: 0, last: None, process }
    }

    /// Leaves the last generation, if this rank is in one, and joins the next. Returns when all ranks are connected.
    ///
    /// An object that still holds the bootstrap of the last generation, such as a communicator, does no harm: its
    /// calls fail.
    ///
    /// # Errors
    /// The same as [`TcpBootstrap::new`], and [`Error::Forked`] in a child of the process that made this.
    pub fn next_generation(&mut self) -> Result<TcpBootstrap> {
        self.start()?.wait()
    }

    /// Begins the [next generation](Self::next_generation), but does not wait for the others. Leaving the last generation
    /// takes as long as dropping its bootstrap.
    ///
    /// # Errors
    /// The same as [`TcpBootstrap::start`], and [`Error::Forked`] in a child of the process that made this.
    pub fn start(&mut self) -> Result<Forming> {
        let child = std::process::id();
        if child != self.process {
            return Err(Error::Forked { parent: self.process, child });
        }
        self.generation = self.generation();
        if let Some(last) = self.last.take() {
            let reason = "it has gone on to the next generation of the job".to_owned();
            last.inbox.fail(&Error::Aborted { rank: self.builder.rank(), reason });
            // Rank 0 must have stopped listening before. A rank alone has no thread that ends.
            if last.table().is_none_or(|table| table.ranks() > 1) {
                last.close();
            }
        }
        let forming = self.builder.clone().after_generation(self.generation).start(&self.address)?;
        self.last = forming.handle().cloned();
        Ok(forming)
    }

    /// Returns the last generation that has formed with this rank; 0 if there was none.
    pub fn generation(&self) -> u64 {
        let table = self.last.as_ref().and_then(|last| last.table());
        table.map_or(self.generation, |table| table.generation())
    }
}

mscclpp_os::debug_fields!(Job, |this|
    rank: this.builder.rank(), address: this.address, generation: this.generation(), ..
);
