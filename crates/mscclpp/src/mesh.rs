use mscclpp_core::{BaseMemoryChannel, Connection, MemoryChannel, RegisteredMemory, Semaphore};
use mscclpp_proxy::{PortChannel, ProxyService};

use crate::{Communicator, LocalEnd, PendingMesh, Result, pending_mesh::Link};

/// Makes the objects that a rank shares with each of several others, in one call: a connection, semaphores over it, and
/// the memories that both give each other. [`Communicator::mesh`] begins it.
///
/// Each of the named ranks makes the same call: with this rank among its peers, the same tag, as many memories and as many
/// semaphores. [`MeshBuilder::connect`] waits; ranks may come to it at different times, and name their peers in any order.
/// [`MeshBuilder::start`] does not wait.
#[must_use = "nothing is sent before connect() or start()"]
pub struct MeshBuilder<'a> {
    comm: &'a Communicator,
    local: LocalEnd,
    peers: Option<Vec<usize>>,
    tag: u32,
    memories: Vec<RegisteredMemory>,
    semaphores: usize,
}

impl<'a> MeshBuilder<'a> {
    pub(crate) fn new(comm: &'a Communicator, local: LocalEnd) -> Self {
        Self { comm, local, peers: None, tag: 0, memories: Vec::new(), semaphores: 1 }
    }

    /// Sets the ranks to connect with, each named once; this rank may be among them. The default is all other ranks.
    pub fn peers(mut self, peers: impl IntoIterator<Item = usize>) -> Self {
        self.peers = Some(peers.into_iter().collect());
        self
    }

    /// Sets the tag of all exchanges. The default is 0.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Gives every peer `memory`, and takes one memory of every peer. Several calls exchange several memories, in the
    /// same order on both sides. Each must be kept as long as a peer uses it.
    pub fn memory(mut self, memory: &RegisteredMemory) -> Self {
        self.memories.push(memory.clone());
        self
    }

    /// Sets how many semaphores are made for each peer. The default is 1. Channels that are used by different blocks of a
    /// kernel need one each.
    pub fn semaphores(mut self, per_peer: usize) -> Self {
        self.semaphores = per_peer;
        self
    }

    /// Sends this rank's parts to all peers, and then waits for theirs, so that ranks never wait for each other in a
    /// circle.
    ///
    /// It returns when this rank has all its objects. A peer may still be about to open what this rank sent, and fails if
    /// that is gone. So a rank that may end, or drop the mesh, before its peers have used theirs calls
    /// [`Bootstrap::barrier`](crate::Bootstrap::barrier) first.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start) and of [`PendingMesh::wait`].
    pub fn connect(self) -> Result<Mesh> {
        self.start()?.wait()
    }

    /// Sends this rank's endpoints and memories to all peers, and waits for nothing: so one thread can bring up several
    /// ranks. See [`PendingMesh`].
    ///
    /// # Errors
    /// [`Error::Bootstrap`](crate::Error::Bootstrap) for a peer that does not exist or is named twice, and
    /// [`Error::Core`](crate::Error::Core) for an endpoint that cannot be opened, before anything is sent. After that, those
    /// of [`Communicator::connect`].
    pub fn start(self) -> Result<PendingMesh> {
        let Self { comm, local, peers, tag, memories, semaphores } = self;
        let (rank, n_ranks) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let peers = peers.unwrap_or_else(|| (0..n_ranks).filter(|peer| *peer != rank).collect());
        // All arguments are checked before anything is sent: a rank that gave up halfway would leave its peers waiting.
        comm.check_peers(&peers).map_err(mscclpp_bootstrap::Error::InvalidArgument)?;
        let endpoint = |_: &usize| local.clone().open(comm.context());
        let endpoints = peers.iter().map(endpoint).collect::<Result<Vec<_>>>()?;
        let link = |(&peer, endpoint)| -> Result<Link> {
            let connection = comm.connect(endpoint, peer, tag)?;
            memories.iter().try_for_each(|memory| comm.send_memory(memory, peer, tag))?;
            let memories = memories.iter().map(|_| comm.recv_memory(peer, tag)).collect::<Result<_>>()?;
            Ok(Link { peer, connection, memories, semaphores: None })
        };
        let links = peers.iter().zip(endpoints).map(link).collect::<Result<_>>()?;
        Ok(PendingMesh { comm: comm.clone(), tag, semaphores, links })
    }
}

/// The connections, memories and semaphores that a rank shares with several others.
///
/// Channels made of a mesh are in the order of its links.
#[derive(Debug, Clone)]
pub struct Mesh {
    pub(crate) links: Vec<MeshLink>,
}

/// The connection, memories and semaphores that a rank shares with one other.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MeshLink {
    /// The other rank.
    pub peer: usize,
    /// The connection with it.
    pub connection: Connection,
    /// The memories that the peer gave with [`MeshBuilder::memory`], in its order.
    pub memories: Vec<RegisteredMemory>,
    /// The semaphores over the connection, as many as [`MeshBuilder::semaphores`] says.
    pub semaphores: Vec<Semaphore>,
}

impl Mesh {
    /// Returns one link for each peer, in the order in which the peers were named, or ascending if they were not.
    #[must_use]
    pub fn links(&self) -> &[MeshLink] {
        &self.links
    }

    /// Returns the link with `peer`, if it was named.
    #[must_use]
    pub fn link(&self, peer: usize) -> Option<&MeshLink> {
        self.links.iter().find(|link| link.peer == peer)
    }

    /// Makes a channel without memories to each peer, over the first semaphore of each link.
    ///
    /// # Errors
    /// [`Error::Core`](crate::Error::Core): those of [`BaseMemoryChannel::new`], and for a mesh without semaphores.
    pub fn base_memory_channels(&self) -> Result<Vec<BaseMemoryChannel>> {
        self.links.iter().map(|link| Ok(BaseMemoryChannel::new(link.semaphore()?)?)).collect()
    }

    /// Makes a memory channel to each peer, over the first semaphore of each link: from `src` to the first memory that
    /// the peer gave, and with `packet_buffer` for packets that come from it.
    ///
    /// # Errors
    /// [`Error::Core`](crate::Error::Core): those of [`MemoryChannel::new`], and for a mesh without memories or semaphores.
    pub fn memory_channels(
        &self,
        src: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<Vec<MemoryChannel>> {
        let channel =
            |link: &MeshLink| Ok(MemoryChannel::new(link.semaphore()?, link.memory()?, src, packet_buffer)?);
        self.links.iter().map(channel).collect()
    }

    /// Makes a port channel of `service` to each peer, over the first semaphore of each link: from `src` to the first
    /// memory that the peer gave. Adds the peers' memories and semaphores to `service`, and `src` once.
    ///
    /// # Errors
    /// [`Error::Proxy`](crate::Error::Proxy): those of [`ProxyService::add_semaphore`], [`ProxyService::add_memory`] and
    /// [`ProxyService::port_channel`]; [`Error::Core`](crate::Error::Core) for a mesh without memories or semaphores.
    pub fn port_channels(&self, service: &ProxyService, src: &RegisteredMemory) -> Result<Vec<PortChannel>> {
        let src = service.add_memory(src)?;
        let channel = |link: &MeshLink| {
            let semaphore = service.add_semaphore(link.semaphore()?)?;
            Ok(service.port_channel(semaphore, service.add_memory(link.memory()?)?, src)?)
        };
        self.links.iter().map(channel).collect()
    }
}

impl MeshLink {
    fn semaphore(&self) -> Result<&Semaphore> {
        self.semaphores.first().ok_or_else(|| self.lacks("semaphore", "semaphores(1)"))
    }

    fn memory(&self) -> Result<&RegisteredMemory> {
        self.memories.first().ok_or_else(|| self.lacks("memory", "memory(&registered)"))
    }

    fn lacks(&self, what: &str, remedy: &str) -> crate::Error {
        let peer = self.peer;
        mscclpp_core::Error::InvalidArgument(format!(
            "the link with rank {peer} has no {what} to make a channel of; call {remedy} before connect(), on both sides"
        ))
        .into()
    }
}
