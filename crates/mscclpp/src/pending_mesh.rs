//! A mesh that is being made, so that one thread can bring up several ranks.

use std::time::Instant;

use mscclpp_core::{Connection, RegisteredMemory, Semaphore};
use mscclpp_os::waiting::{Backoff, LongWait};

use crate::{Communicator, Mesh, MeshLink, Pending, Result};

/// A [`Mesh`] for which parts of other ranks have still to come. [`MeshBuilder::start`](crate::MeshBuilder::start) makes it.
///
/// No thread works in the background: a rank's semaphores are sent when its connection is made, by [`poll`](Self::poll)
/// or [`wait`](Self::wait). So a thread that brings up several ranks must not wait for one of them alone:
/// [`join`](Self::join) goes on with each in turn.
///
/// ```
/// # #[cfg(feature = "cuda-ipc")]
/// # fn main() -> Result<(), mscclpp::Error> {
/// use std::sync::Arc;
/// use mscclpp::{PendingMesh, prelude::*};
///
/// // Four ranks on four devices, in one thread.
/// let ranks: Vec<Communicator> = LocalBootstrap::group(4)
///     .into_iter()
///     .map(|bootstrap| Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim)))
///     .collect();
/// let started = ranks.iter().enumerate().map(|(rank, comm)| {
///     comm.mesh(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(rank))).start()
/// });
/// let meshes = PendingMesh::join(started.collect::<Result<Vec<_>, _>>()?)?;
/// assert!(meshes.iter().all(|mesh| mesh.links().len() == 3));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cuda-ipc"))]
/// # fn main() {}
/// ```
#[must_use = "what the peers sent is only received by poll(), wait() or join()"]
pub struct PendingMesh {
    pub(crate) comm: Communicator,
    pub(crate) tag: u32,
    pub(crate) semaphores: usize,
    pub(crate) links: Vec<Link>,
}

/// The link with one peer.
pub(crate) struct Link {
    pub(crate) peer: usize,
    pub(crate) connection: Pending<Connection>,
    pub(crate) memories: Vec<Pending<RegisteredMemory>>,
    /// The semaphores, whose halves are sent when the connection is made.
    pub(crate) semaphores: Option<Vec<Pending<Semaphore>>>,
}

impl PendingMesh {
    /// Does all steps that are possible now, and returns whether everything is there. Waits for no other rank. To
    /// connect, and to map memory that came, can take some seconds.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn poll(&mut self) -> Result<bool> {
        // All links advance, also when one is incomplete: other ranks wait for what is sent here.
        let mut complete = true;
        for link in &mut self.links {
            complete &= link.advance(&self.comm, self.semaphores)?;
        }
        Ok(complete)
    }

    /// Waits for the parts of all peers, and returns the mesh.
    ///
    /// # Errors
    /// The errors of [`Communicator::build_semaphore`] and [`Pending::wait`]. The other ranks then wait for this one
    /// until it leaves or aborts.
    pub fn wait(mut self) -> Result<Mesh> {
        for link in &mut self.links {
            link.connection.wait()?;
            // The halves of all semaphores are sent before a semaphore of a peer is waited for.
            link.advance(&self.comm, self.semaphores)?;
        }
        self.finish()
    }

    /// Waits for several ranks of this process at once, in one thread, and returns their meshes in the same order.
    ///
    /// A wait of more than ten seconds is logged, as that of [`Pending::wait`] is.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait), for the first rank that has one.
    pub fn join(meshes: impl IntoIterator<Item = Self>) -> Result<Vec<Mesh>> {
        let mut meshes: Vec<Self> = meshes.into_iter().collect();
        let Some(first) = meshes.first() else { return Ok(Vec::new()) };
        let mut long = LongWait::begin(first.comm.context().waits_are_logged_after());
        let mut backoff = Backoff::default();
        loop {
            let mut awaited = None;
            for mesh in &mut meshes {
                if !mesh.poll()? {
                    awaited.get_or_insert(&*mesh);
                }
            }
            let Some(awaited) = awaited else { break };
            let rank = awaited.comm.bootstrap().rank();
            long.log(Instant::now(), Some(rank), || awaited.awaited());
            backoff.wait();
        }
        meshes.into_iter().map(Self::finish).collect()
    }

    /// Returns the ranks that are waited for, as text for the log.
    fn awaited(&self) -> String {
        let missing: Vec<String> =
            self.links.iter().filter(|link| !link.is_complete()).map(|link| link.peer.to_string()).collect();
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        format!("{ranks} {}: mesh, tag {}", missing.join(", "), self.tag)
    }

    /// Waits for what has not come yet, and makes the mesh. All parts of this rank must have been sent.
    fn finish(self) -> Result<Mesh> {
        let links = self.links.into_iter().map(|link| {
            Ok(MeshLink {
                peer: link.peer,
                connection: link.connection.wait()?,
                memories: link.memories.iter().map(Pending::wait).collect::<Result<_>>()?,
                semaphores: link.semaphores.iter().flatten().map(Pending::wait).collect::<Result<_>>()?,
            })
        });
        Ok(Mesh { links: links.collect::<Result<_>>()? })
    }
}

impl Link {
    /// Sends the semaphores once the connection is made. Returns whether everything is there.
    fn advance(&mut self, comm: &Communicator, semaphores: usize) -> Result<bool> {
        let Some(connection) = self.connection.poll()? else { return Ok(false) };
        if self.semaphores.is_none() {
            let sent = (0..semaphores).map(|_| comm.build_semaphore(&connection));
            self.semaphores = Some(sent.collect::<Result<_>>()?);
        }
        for memory in &self.memories {
            memory.poll()?;
        }
        for semaphore in self.semaphores.iter().flatten() {
            semaphore.poll()?;
        }
        Ok(self.is_complete())
    }

    fn is_complete(&self) -> bool {
        let semaphores = self.semaphores.as_ref();
        self.memories.iter().all(Pending::is_complete)
            && semaphores.is_some_and(|semaphores| semaphores.iter().all(Pending::is_complete))
    }
}

mscclpp_os::debug_fields!(PendingMesh, |this|
    tag: this.tag, peers: this.links.iter().map(|link| link.peer).collect::<Vec<usize>>(), ..
);
