//! How ranks set up collectives together.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use mscclpp::{
    Communicator, Device, DevicePtr, EndpointConfig, Gpu, MemoryChannel, Platform, Transport,
    gpu::{KernelArgument, Owner},
};

use parking_lot::Mutex;

use crate::{
    Algorithm, Collectives, Error, Result, Selector, Tuned,
    calls::{CollectivesState, Counters, Engine, Mapped},
    communicators::Counted,
    group::Group,
    handle::CollectiveHandle,
    kernels::Kernels,
    nodes::NodesModel,
    pending::Pending,
    ports::Ports,
    register::Registrations,
    scratch::Layout,
    select::{Devices, Interconnect, LEAST_THREADS},
};

/// How much device memory a communicator takes, if nothing else is said.
pub(crate) const SCRATCH: u64 = 128 << 20;
/// The usual most blocks of a call, between two ranks and between more, for whose blocks there is less scratch.
const MAX_BLOCKS_OF_TWO: u32 = 256;
const MAX_BLOCKS: u32 = 128;
/// How many threads of the kernels a multiprocessor holds: they have up to 64 registers each.
const THREADS_OF_A_MULTIPROCESSOR: u32 = 1024;
/// How many communicators' calls fit on a device, if nothing else is said.
const CALLS_AT_ONCE: u32 = 2;
/// Simulated threads are slow, so calls have few of them.
const MAX_BLOCKS_ON_SIM: u32 = 4;
const SCRATCH_ON_SIM: u64 = 16 << 20;
/// The tag of its messages, if nothing else is said.
const TAG: u32 = 0x636f_6c6c;

/// Sets up [`Collectives`]; begun by [`Collectives::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is set up before connect()"]
pub struct CollectivesBuilder {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) ranks: Option<Vec<usize>>,
    pub(crate) max_blocks: Option<u32>,
    pub(crate) calls_at_once: u32,
    pub(crate) overlap: bool,
    pub(crate) scratch: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tag: u32,
    pub(crate) check_calls: bool,
    pub(crate) ports: Option<Transport>,
    /// None: the adapter that is nearest.
    pub(crate) between_nodes: Option<Transport>,
    pub(crate) connections: Option<u32>,
    pub(crate) node: Option<String>,
    /// Whether these are the ranks of one node, of those of several.
    pub(crate) among_nodes: bool,
    pub(crate) nodes_model: Option<NodesModel>,
    pub(crate) selector: Arc<dyn Selector>,
    pub(crate) algorithms: Vec<Arc<dyn Algorithm>>,
}

impl CollectivesBuilder {
    pub(crate) fn new(comm: &Communicator, gpu: &Gpu) -> Self {
        Self {
            comm: comm.clone(),
            gpu: gpu.clone(),
            ranks: None,
            max_blocks: None,
            calls_at_once: CALLS_AT_ONCE,
            overlap: false,
            scratch: None,
            timeout: None,
            tag: TAG,
            check_calls: false,
            ports: None,
            between_nodes: Some(Transport::ETHERNET),
            connections: None,
            node: None,
            among_nodes: false,
            nodes_model: None,
            selector: Arc::new(Tuned),
            algorithms: Vec::new(),
        }
    }

    /// The ranks of the communicator that take part, of which this is one, in the order in which they are numbered:
    /// all of them, if not given. Groups that have ranks in common and are set up at the same time need different
    /// [tags](CollectivesBuilder::tag).
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = Some(ranks.into_iter().collect());
        self
    }

    /// The most blocks that a call has, of 1024 threads at most: 256 between two ranks if not given, 128 between more, and 4 on
    /// simulated devices. All ranks give the same.
    ///
    /// If several ranks share a device, give each its part. When these are threads of one process, let them capture
    /// and make graphs while no call of any of them runs: a GPU has been seen to make a graph only when its kernels
    /// had ended, which waited for the rank that made the graph.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.max_blocks = Some(blocks);
        self
    }

    /// For how many calls that run at the same time a device has room: 2 if not given. All ranks give the same.
    ///
    /// Calls of one communicator run one after the other. Those of two, on two streams, need all their blocks on the device
    /// at once: what does not fit waits for ever, when another rank begins with the other call. So a call takes no more
    /// than its part of the multiprocessors' room. With 1, calls have all the room for themselves, and some are faster. Say more
    /// if more communicators are used at once, or other kernels need multiprocessors meanwhile. It has no meaning on
    /// simulated devices.
    pub fn calls_at_once(mut self, calls: u32) -> Self {
        self.calls_at_once = calls;
        self
    }

    /// Whether calls are to run beside other kernels, such as the matrix multiplications of a backward pass: `false`, if not
    /// given. Then they leave the memory of multiprocessors to the shared memory of these kernels, which otherwise wait until
    /// the call has ended: see [`Kernel::prefer_shared_memory`](mscclpp::Kernel::prefer_shared_memory). Large calls take longer
    /// with it.
    pub fn overlap(mut self, overlap: bool) -> Self {
        self.overlap = overlap;
        self
    }

    /// The most device memory that it takes, in bytes: 128 MiB if not given, and 16 MiB on simulated devices. With
    /// less, large messages go in smaller chunks. All ranks give the same.
    pub fn scratch(mut self, bytes: u64) -> Self {
        self.scratch = Some(bytes);
        self
    }

    /// How long [`Collectives::synchronize`] waits before it gives up: for ever, if not given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The tag of its messages to other ranks while it is set up. Other messages of the program have others, below
    /// 2^31: tags from there on are those by which groups of these ranks are set up and memory is registered.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Makes everything go through port channels over `transport`: a proxy on the host moves the data, and no rank reaches the
    /// others' memory. All ranks give a transport, or none.
    ///
    /// Without it, this is so over Ethernet where a device does not reach the memory of another (some machines with PCIe); a
    /// line in the log says it. It is correct and slow: each rank sends all that it gives to all that take it. The selector is
    /// not asked, memory that is registered is not used, and there are neither [`check_calls`](Self::check_calls) nor
    /// [`all_reduce_rows`](Collectives::all_reduce_rows).
    pub fn by_ports(mut self, transport: Transport) -> Self {
        self.ports = Some(transport);
        self
    }

    /// What this rank's node is called. Ranks that give the same reach each other's memory, and others do not. If not
    /// given, it is what makes processes one host for the library (`MSCCLPP_HOSTID`, else the boot id and the network
    /// namespace). A machine whose devices are in two islands that do not reach each other is two nodes here.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }

    /// Makes ranks compare their calls before they make them, for finding mistakes: kind, count, type, operation and
    /// root. A rank that makes another call than the others fails with [`Error::Mismatch`], and so do they, in place
    /// of waiting for ever or getting wrong numbers. Each call takes a round trip more. Messages between two ranks
    /// are not compared. All ranks give the same.
    ///
    /// It also finds two calls of these collectives that run at the same time, as replays of graphs on two streams do
    /// ([`Error::Overlap`]), and says in the log if this process has more communicators on the device than
    /// [`calls_at_once`](Self::calls_at_once) gives room.
    pub fn check_calls(mut self, check: bool) -> Self {
        self.check_calls = check;
        self
    }

    /// Chooses how collectives are done, in place of [`Tuned`]. It gives the same answers on all ranks.
    pub fn selector(self, selector: impl Selector + 'static) -> Self {
        self.shared_selector(Arc::new(selector))
    }

    /// Has the collectives that `algorithm` has a plan for done by it. Of several, the first that has one does a call. All ranks
    /// give the same, in the same order.
    pub fn algorithm(mut self, algorithm: impl Algorithm + 'static) -> Self {
        self.algorithms.push(Arc::new(algorithm));
        self
    }

    pub(crate) fn shared_algorithms(mut self, algorithms: Vec<Arc<dyn Algorithm>>) -> Self {
        self.algorithms = algorithms;
        self
    }

    pub(crate) fn shared_selector(mut self, selector: Arc<dyn Selector>) -> Self {
        self.selector = selector;
        self
    }

    /// Begins to set them up and returns at once, so that one thread can set up several ranks, each of a device of its own. A
    /// thread does what [`connect`](Self::connect) does.
    ///
    /// ```no_run
    /// # use mscclpp::{Communicator, Gpu};
    /// # use mscclpp_collectives::{Collectives, Pending, Result};
    /// fn of_this_process(ranks: &[(Communicator, Gpu)]) -> Result<Vec<Collectives>> {
    ///     let pending = ranks.iter().map(|(comm, gpu)| Collectives::builder(comm, gpu).start());
    ///     let pending = pending.collect::<Result<Vec<_>>>()?;
    ///     pending.into_iter().map(Pending::wait).collect()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Below`] if the process can have no more threads. All others come from [`Pending::wait`].
    pub fn start(self) -> Result<Pending> {
        Pending::start(self.comm.clone(), self)
    }

    /// Sets them up, together with the other ranks, which make the same call. Blocks until all are there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for ranks that do not exist or are named twice, without this one among them, or more
    /// than [`MAX_RANKS`](crate::MAX_RANKS) on one node or [`MAX_RANKS_OF_NODES`](crate::MAX_RANKS_OF_NODES) on
    /// several; for no blocks or too little scratch. [`Error::Differ`] if ranks ask for different things, or run
    /// different builds of this library. [`Error::Below`] if devices do not reach each other's memory and Ethernet is
    /// not to be had either, or a rank is lost meanwhile. If one rank fails, the others wait for it until it leaves or
    /// aborts.
    pub fn connect(self) -> Result<Collectives> {
        let (comm, gpu, tag) = (&self.comm, &self.gpu, self.tag);
        let group = Group::new(comm, self.ranks.clone(), tag)?.meet()?;
        let ranks = group.ranks.len();
        let topology = self.topology(&group)?;
        let most = topology.as_ref().map_or(ranks, |topology| topology.locals().len());
        let on_node = gpu.platform() == Platform::Sim;
        let max_blocks = self.max_blocks.unwrap_or(match most {
            _ if on_node => MAX_BLOCKS_ON_SIM,
            ..=2 => MAX_BLOCKS_OF_TWO,
            _ => MAX_BLOCKS,
        });
        if max_blocks == 0 || max_blocks > 1 << 16 {
            return Err(Error::InvalidArgument(format!("max_blocks({max_blocks}); give 1 to 65536")));
        }
        let calls_at_once = self.calls_at_once;
        if !(1..=32).contains(&calls_at_once) {
            return Err(Error::InvalidArgument(format!("calls_at_once({calls_at_once}); give 1 to 32")));
        }
        let scratch = self.scratch.unwrap_or(if on_node { SCRATCH_ON_SIM } else { SCRATCH });
        group.agree(&[
            ("numbers of ranks", ranks as u64),
            // The usual number depends on how many ranks a node has.
            ("max_blocks", if topology.is_some() { self.max_blocks.unwrap_or(0) } else { max_blocks }.into()),
            ("calls_at_once", calls_at_once.into()),
            ("scratch", scratch),
            ("platforms (1 is simulated)", on_node.into()),
            ("check_calls", self.check_calls.into()),
            ("numbers of algorithms", self.algorithms.len() as u64),
            ("by_ports (1 is given)", self.ports.is_some().into()),
        ])?;

        let (counted, communicators) = Counted::on(gpu);
        if self.check_calls && communicators > calls_at_once && !on_node {
            tracing::warn!(
                target: "mscclpp::conn", rank = group.ranks[group.rank], communicators, calls_at_once,
                "{gpu} has room for the calls of {calls_at_once} of {communicators} communicators at the same time: more of them on \
                 different streams may wait for each other for ever; order them, or set up all with calls_at_once({communicators})"
            );
        }
        let counters = Counters::new(gpu, ranks, max_blocks)?;
        let mut kept: Vec<Owner> = (&counters.buffer).owner().into_iter().collect();
        let engine = if let Some(topology) = topology {
            let nodes = self.connect_nodes(&group, topology, scratch, &counters)?;
            kept.extend(nodes.owners());
            Engine::Nodes(Box::new(nodes))
        } else {
            self.reach_one_node(&group, (max_blocks, scratch), &counters, &mut kept)?
        };
        Ok(Collectives::of(CollectivesState {
            comm: comm.clone(),
            gpu: gpu.clone(),
            group,
            max_blocks,
            requested_max_blocks: self.max_blocks,
            calls_at_once,
            overlap: self.overlap,
            scratch_bytes: scratch,
            counters,
            check_calls: self.check_calls,
            owner: Arc::new(kept),
            engine,
            selector: self.selector,
            algorithms: self.algorithms,
            timeout: self.timeout,
            aborted: OnceLock::new(),
            splits: Mutex::default(),
            node: self.node,
            registrations: Registrations::default(),
            counted,
            order: Mutex::default(),
        }))
    }

    /// As the devices of one node reach each other.
    fn reach_one_node(
        &self,
        group: &Group,
        (max_blocks, scratch): (u32, u64),
        counters: &Counters,
        kept: &mut Vec<Owner>,
    ) -> Result<Engine> {
        let (comm, gpu, tag, ranks) = (&self.comm, &self.gpu, self.tag, group.ranks.len());
        Ok(match self.transport_of_ports(group)? {
            Some(_) if self.check_calls => {
                return Err(Error::InvalidArgument(
                    "check_calls(true) by port channels; it needs devices that reach each other's memory"
                        .into(),
                ));
            }
            Some(transport) => {
                let ports = Ports::connect(comm, gpu, group, (transport, tag), scratch)?;
                kept.push(ports.owner());
                Engine::Ports(Box::new(ports))
            }
            None => {
                let layout = Layout::new(ranks, max_blocks, scratch)?;
                let mapped = Mapped::connect(self, group, layout, counters)?;
                kept.extend(mapped.owners());
                Engine::Memory(Box::new(mapped))
            }
        })
    }

    /// The transport of port channels, if all is to go through these.
    fn transport_of_ports(&self, group: &Group) -> Result<Option<Transport>> {
        if self.ports.is_some() || group.ranks.len() == 1 {
            return Ok(self.ports.filter(|_| group.ranks.len() > 1));
        }
        let unreached = group.unreached(&self.gpu)?;
        let all_reach = group.all(unreached.is_none())?;
        let all_have_ethernet = group.all(self.comm.context().transports().has(Transport::ETHERNET))?;
        // Without Ethernet, connecting says what is the matter.
        if all_reach || !all_have_ethernet {
            return Ok(None);
        }
        let rank = group.ranks[group.rank];
        tracing::warn!(
            target: "mscclpp::conn", rank, unreached = unreached.map(|r| group.ranks[r]),
            "devices do not reach each other's memory: collectives go through port channels over Ethernet, which is slower"
        );
        Ok(Some(Transport::ETHERNET))
    }
}

impl Mapped {
    /// Gives every rank the scratch of every other.
    fn connect(
        asked: &CollectivesBuilder,
        group: &Group,
        layout: Layout,
        counters: &Counters,
    ) -> Result<Self> {
        let CollectivesBuilder { comm, gpu, tag, calls_at_once, overlap, .. } = asked;
        // Before anybody waits on the device: to load a kernel may take until those that run are complete.
        let kernels = Kernels::on(gpu, group.ranks.len(), *overlap)?;
        // Fresh memory is zero.
        let memory = gpu.allocate(layout.total)?;
        let mismatch = gpu.allocate_pinned_words(4)?;
        let registered = comm.register_buffer(&memory, Transport::CUDA_IPC)?;
        let peers: Vec<usize> = group.others().map(|r| group.ranks[r]).collect();
        let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
        let mesh = comm.mesh(config).peers(peers).tag(*tag).memory(&registered).connect()?;
        let channels = mesh.links().iter().map(|link| {
            let (semaphore, theirs) = (&link.semaphores[0], &link.memories[0]);
            MemoryChannel::new(semaphore, theirs, &registered, Some(&registered))
        });
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let lines = channels.iter().all(|channel| channel.check_lines().is_ok());
        // Everybody's scratch is mapped before anybody writes.
        let lines = group.all(lines)?;

        let mut handle = CollectiveHandle {
            epochs: counters.epochs(),
            max_blocks: layout.max_blocks,
            among_nodes: asked.among_nodes.into(),
            mismatch: mismatch.ptr(),
            parts: layout.parts,
            ..CollectiveHandle::of(group.rank, group.ranks.len())
        };
        handle.scratch[group.rank] = memory.ptr();
        for (r, channel) in group.others().zip(&channels) {
            let theirs = channel.device_handle();
            handle.scratch[r] = DevicePtr::from_ptr(theirs.dst);
            handle.status[r] = DevicePtr::from_ptr(theirs.status);
        }
        let mut max_blocks = layout.max_blocks;
        let (devices, max_threads) = if gpu.platform() == Platform::Sim {
            // Blocks of a call wait for others of it, so all of them run at once.
            let resident = kernels.messages.max_resident_blocks(1, 0)?;
            max_blocks = max_blocks.min(u32::try_from(resident).unwrap_or(u32::MAX));
            (Devices::Sim, u32::MAX)
        } else {
            // Packets of 128 bytes arrive whole over NVLink, and over nothing else.
            let interconnect = if lines { Interconnect::NvLink } else { Interconnect::Other };
            let (capability, multiprocessors) = group.least_device(gpu)?;
            let threads = multiprocessors * THREADS_OF_A_MULTIPROCESSOR / calls_at_once;
            (Devices::Gpus { capability, interconnect }, threads.max(LEAST_THREADS))
        };
        Ok(Self {
            layout,
            kernels,
            handle,
            memory,
            mismatch,
            channels,
            ll128: lines,
            devices,
            max_blocks,
            max_threads,
        })
    }

    /// Returns what launches keep.
    fn owners(&self) -> Vec<Owner> {
        let channels = self.channels.iter().filter_map(|channel| KernelArgument::owner(&channel));
        channels.chain((&self.memory).owner()).chain((&self.mismatch).owner()).collect()
    }
}
