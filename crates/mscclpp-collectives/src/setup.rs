//! How ranks set up collectives together.

use std::{sync::Arc, time::Duration};

use mscclpp::{Communicator, Gpu, Transport};

use crate::{
    Collectives, Result,
    choice::{Algorithm, NodesModel, Selector},
    rank::Options,
};

/// The usual tag of the messages by which ranks set up collectives.
const TAG: u32 = 0x636f_6c6c;

/// Sets up [`Collectives`]; begun by [`Collectives::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is set up before connect()"]
pub struct CollectivesBuilder {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) ranks: Option<Vec<usize>>,
    pub(crate) tag: u32,
    pub(crate) options: Options,
}

impl CollectivesBuilder {
    pub(crate) fn new(comm: &Communicator, gpu: &Gpu, options: Options) -> Self {
        Self { comm: comm.clone(), gpu: gpu.clone(), ranks: None, tag: TAG, options }
    }

    /// The ranks of the communicator that take part, of which this is one, in the order in which they are numbered:
    /// all of them, if not given. Groups that have ranks in common and are set up at the same time need different
    /// [tags](CollectivesBuilder::tag).
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = Some(ranks.into_iter().collect());
        self
    }

    /// The most blocks that a call has, of 1024 threads at most. If not given: 256 between two ranks, and between up to four with
    /// the usual scratch or more; else 128; and 4 on simulated devices. Where the [scratch](Self::scratch) has no room for so
    /// many, half as many, and so on. All ranks give the same.
    ///
    /// If several ranks share a device, give each its part. When these are threads of one process, they need streams of their
    /// own, and if there are more than eight streams in all, `CUDA_DEVICE_MAX_CONNECTIONS=32` in the environment: by default
    /// all streams of a process share eight queues of a device, where one rank's kernel may wait behind another's. Let these
    /// threads capture and make graphs while no call of any of them runs: a GPU has been seen to make a graph only when its
    /// kernels had ended, which waited for the rank that made the graph.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.options.max_blocks = Some(blocks);
        self
    }

    /// For how many calls that run at the same time a device has room: 2 if not given, or as many as there are ranks of a process
    /// on a device. All ranks give the same.
    ///
    /// Calls of one communicator run one after the other. Those of two, on two streams, need all their blocks on the device
    /// at once: if only one call fits, and two ranks begin with different ones, both wait for ever. So a call takes no more
    /// than its part of the multiprocessors' room. With 1, calls have all the room for themselves, and some are faster. Say more
    /// if more communicators are used at once, or other kernels need multiprocessors meanwhile. It has no meaning on
    /// simulated devices.
    pub fn calls_at_once(mut self, calls: u32) -> Self {
        self.options.calls_at_once = calls;
        self
    }

    /// Whether calls are to run beside other kernels, such as the matrix multiplications of a backward pass: `false`, if not
    /// given. Then they leave the memory of multiprocessors to the shared memory of these kernels, which otherwise wait until
    /// the call has ended: see [`Kernel::prefer_shared_memory`](mscclpp::Kernel::prefer_shared_memory). Large calls take longer
    /// with it. Between two GPUs of compute capability 9.0 over NVLink, an `all_gather`, `reduce_scatter` or `all_to_all` that
    /// sends 64 MiB or more to the other rank takes 32 multiprocessors then, unless its data goes straight into the other rank's
    /// memory: see [`Protocol::SimpleByBulk`](crate::Protocol::SimpleByBulk). All ranks give the same.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.options.overlap = overlap;
        self
    }

    /// The most device memory that it takes, in bytes: 128 MiB if not given, and 16 MiB on simulated devices. With
    /// less, large messages go in smaller chunks, and calls may have fewer blocks. All ranks give the same.
    pub fn scratch(mut self, bytes: u64) -> Self {
        self.options.scratch = Some(bytes);
        self
    }

    /// How long [`Collectives::synchronize`] waits before it gives up: for ever, if not given. Calls that take longer than ten
    /// seconds have a line in the log in either case, which names the rank that they wait for.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// The tag of its messages to other ranks while it is set up. Other messages of the program have others, below
    /// 2^31: tags from there on are those by which groups of these ranks are set up and memory is registered.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// The name of this rank's node. Ranks that give the same name reach each other's memory, and others do not. If not
    /// given, it is what makes processes one node for the library (`MSCCLPP_HOSTID`, else the boot id and the network
    /// namespace). Where devices of a node do not reach each other's memory, each rank there is a node of its own. If they
    /// are in islands that reach each other within, give each island a name.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.options.node = Some(name.into());
        self
    }

    /// Makes ranks compare their calls, for finding mistakes: kind, count, type, operation and root, and the sizes of messages
    /// between two ranks. If not given, `MSCCLPP_CHECK_CALLS` says whether they do. A rank that makes another call than the
    /// others fails with [`Error::Mismatch`](crate::Error::Mismatch), and so do they, in place of waiting for ever or getting
    /// wrong numbers. Each call takes a round trip more, and [`synchronize`](Collectives::synchronize) waits until the others
    /// have made their calls, too. Calls of graphs are compared when they are captured, and again at each replay if all ranks
    /// are on one node. All ranks give the same.
    ///
    /// On one node, it also finds two calls of these collectives that run at the same time, as replays of graphs on two streams
    /// do ([`Error::Overlap`](crate::Error::Overlap)), and says in the log if this process has more communicators on the device
    /// than [`calls_at_once`](Self::calls_at_once) gives room.
    pub fn check_calls(mut self, check: bool) -> Self {
        self.options.check_calls = Some(check);
        self
    }

    /// Sets whether calls that are captured into graphs publish the memory that they take data into, as
    /// [`Collectives::publish`] does. Without this, they do so unless `MSCCLPP_GRAPH_REGISTER` is 0. Ranks may differ.
    pub fn publish_captured(mut self, publish: bool) -> Self {
        self.options.publish_captured = Some(publish);
        self
    }

    /// Chooses how collectives are done, in place of [`Tuned`](crate::Tuned). It gives the same answers on all ranks.
    pub fn selector(mut self, selector: impl Selector + 'static) -> Self {
        self.options.selector = Arc::new(selector);
        self
    }

    /// Has the collectives that `algorithm` has a plan for done by it. Of several, the first that has one does a call. All ranks
    /// give the same, in the same order.
    pub fn algorithm(mut self, algorithm: impl Algorithm + 'static) -> Self {
        self.options.algorithms.push(Arc::new(algorithm));
        self
    }

    /// The transport between ranks on different nodes: Ethernet if not given. A rank may give an adapter, such as
    /// [`Transport::IB0`], and another rank another one; either all give adapters, or all Ethernet.
    /// [`between_nodes_by_nearest_adapter`](Self::between_nodes_by_nearest_adapter) gives each rank the nearest.
    ///
    /// Within a node, ranks reach each other's memory as ever. Between nodes, port channels move the data. The selector and
    /// [algorithms](Self::algorithm) of the program are asked for what is done within a node, or not at all; memory that is
    /// registered is not used, and there is no [`all_reduce_rows`](crate::Collectives::all_reduce_rows). It takes as much
    /// [scratch](Self::scratch) again, of which three quarters are page-locked host memory over Ethernet.
    pub fn between_nodes(mut self, transport: Transport) -> Self {
        self.options.between_nodes = Some(transport);
        self
    }

    /// Connects ranks on different nodes by RDMA adapters: each rank's device has the one that is nearest to it, as
    /// [`Context::nearest_transport`](mscclpp::Context::nearest_transport) says. All ranks give this, or an adapter.
    pub fn between_nodes_by_nearest_adapter(mut self) -> Self {
        self.options.between_nodes = None;
        self
    }

    /// The number of connections by which two ranks on different nodes move their data, as far as there is room. If not
    /// given, 4 over Ethernet between GPUs, else 1. Each has a TCP connection of its own, with its threads, or a queue
    /// pair. Several help where one does not fill the network. All ranks give the same.
    pub fn connections(mut self, connections: u32) -> Self {
        self.options.connections = Some(connections.max(1));
        self
    }

    /// Sets the model of the network between nodes, which decides the algorithm of an `all_reduce`. The default depends on the
    /// transport. The numbers of nodes and ranks in the model are not looked at. All ranks give the same.
    pub fn nodes_model(mut self, model: NodesModel) -> Self {
        self.options.nodes_model = Some(model);
        self
    }
}

impl Collectives {
    /// Sets up the collectives of all ranks of `comm`, on `gpu`, with the usual options. Every rank makes this call; it
    /// blocks until all do.
    ///
    /// # Errors
    /// The same as of [`CollectivesBuilder::connect`].
    pub fn new(comm: &Communicator, gpu: &Gpu) -> Result<Self> {
        Self::builder(comm, gpu).connect()
    }

    /// Begins to set up collectives with options, or of some ranks only.
    pub fn builder(comm: &Communicator, gpu: &Gpu) -> CollectivesBuilder {
        CollectivesBuilder::new(comm, gpu, Options::default())
    }
}
