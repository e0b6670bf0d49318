//! How ranks set up collectives together.

use std::{sync::Arc, time::Duration};

use mscclpp::{
    Communicator, Device, DevicePtr, EndpointConfig, Gpu, MemoryChannel, Platform, Transport,
    gpu::{KernelArgument, Owner},
};

use parking_lot::Mutex;

use crate::{
    Collectives, Error, Result, Selector, Tuned,
    calls::{Counters, Inner},
    handle::{CollectiveHandle, MAX_RANKS},
    kernels::Kernels,
    pending::Pending,
    register::Registrations,
    scratch::Layout,
    select::{Devices, LEAST_THREADS, Link},
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
const MAX_BLOCKS_ON_HOST: u32 = 4;
const SCRATCH_ON_HOST: u64 = 16 << 20;
/// The tag of its messages, if nothing else is said.
const TAG: u32 = 0x636f_6c6c;

/// Sets up [`Collectives`]; begun by [`Collectives::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is set up before connect()"]
pub struct CollectivesBuilder {
    comm: Communicator,
    gpu: Gpu,
    ranks: Option<Vec<usize>>,
    max_blocks: Option<u32>,
    calls_at_once: u32,
    scratch: Option<u64>,
    timeout: Option<Duration>,
    tag: u32,
    check_calls: bool,
    selector: Arc<dyn Selector>,
}

impl CollectivesBuilder {
    pub(crate) fn new(comm: &Communicator, gpu: &Gpu) -> Self {
        let selector = Arc::new(Tuned);
        Self {
            comm: comm.clone(),
            gpu: gpu.clone(),
            ranks: None,
            max_blocks: None,
            calls_at_once: CALLS_AT_ONCE,
            scratch: None,
            timeout: None,
            tag: TAG,
            check_calls: false,
            selector,
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
    /// If several ranks share a device, give each its part.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.max_blocks = Some(blocks);
        self
    }

    /// For how many calls that run at the same time a device has room: 2 if not given. All ranks give the same.
    ///
    /// Calls of one communicator run one after the other. Those of two, on two streams, need all their blocks on the device
    /// at once: what does not fit waits for ever, when another rank begins with the other call. So a call takes no more
    /// than its part of the multiprocessors' room. With 1, calls of 1 to 16 MiB are 1 to 8 % faster between two H200. Say more
    /// if more communicators are used at once, or other kernels need multiprocessors meanwhile. It has no meaning on
    /// simulated devices.
    pub fn calls_at_once(mut self, calls: u32) -> Self {
        self.calls_at_once = calls;
        self
    }

    /// The most device memory that it takes, in bytes: 128 MiB if not given, and 16 MiB on simulated devices. With
    /// less, large messages go in smaller pieces. All ranks give the same.
    pub fn scratch(mut self, bytes: u64) -> Self {
        self.scratch = Some(bytes);
        self
    }

    /// How long [`Collectives::synchronize`] waits before it gives up: for ever, if not given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The tag of its messages to other ranks while it is set up. Other messages of the program have others.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Makes ranks compare their calls before they make them, for finding mistakes: kind, count, type, operation and
    /// root. A rank that makes another call than the others fails with [`Error::Mismatch`], and so do they, in place
    /// of waiting for ever or getting wrong numbers. Each call takes a round trip more. Messages between two ranks
    /// are not compared. All ranks give the same.
    pub fn check_calls(mut self, check: bool) -> Self {
        self.check_calls = check;
        self
    }

    /// Chooses how collectives are done, in place of [`Tuned`]. It gives the same answers on all ranks.
    pub fn selector(self, selector: impl Selector + 'static) -> Self {
        self.shared_selector(Arc::new(selector))
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
    /// [`Error::InvalidArgument`] for ranks that do not exist or are named twice, without this one among them, or
    /// more than [`MAX_RANKS`]; for no blocks or too little scratch. [`Error::Differ`] if ranks ask for different
    /// things. [`Error::Below`] if devices do not reach each other's memory, or a rank is lost meanwhile. If one rank
    /// fails, the others wait for it until it leaves or aborts.
    pub fn connect(self) -> Result<Collectives> {
        let (comm, gpu, tag) = (&self.comm, &self.gpu, self.tag);
        let group = Group::new(comm, self.ranks, tag)?;
        let ranks = group.ranks.len();
        let on_host = gpu.platform() == Platform::Host;
        let slots = self.max_blocks.unwrap_or(match ranks {
            _ if on_host => MAX_BLOCKS_ON_HOST,
            ..=2 => MAX_BLOCKS_OF_TWO,
            _ => MAX_BLOCKS,
        });
        if slots == 0 || slots > 1 << 16 {
            return Err(Error::InvalidArgument(format!("max_blocks({slots}); give 1 to 65536")));
        }
        let calls_at_once = self.calls_at_once;
        if calls_at_once == 0 || calls_at_once > 32 {
            return Err(Error::InvalidArgument(format!("calls_at_once({calls_at_once}); give 1 to 32")));
        }
        let scratch = self.scratch.unwrap_or(if on_host { SCRATCH_ON_HOST } else { SCRATCH });
        let layout = Layout::new(ranks, slots, scratch)?;
        group.agree(&[
            ("numbers of ranks", ranks as u64),
            ("max_blocks", slots.into()),
            ("calls_at_once", calls_at_once.into()),
            ("scratch", scratch),
            ("platforms (1 is simulated)", on_host.into()),
            ("check_calls", self.check_calls.into()),
        ])?;

        // Before anybody waits on the device: to load a kernel may take until those that run are complete.
        let kernels = Kernels::on(gpu, ranks)?;
        // Fresh memory is zero.
        let memory = gpu.allocate(layout.total)?;
        let counters = Counters::new(gpu, &layout)?;
        let mismatch = gpu.allocate_pinned_words(4)?;
        let registered = comm.register_buffer(&memory, Transport::CUDA_IPC)?;
        let peers: Vec<usize> = group.others().map(|r| group.ranks[r]).collect();
        let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
        let mesh = comm.mesh(config).peers(peers).tag(tag).memory(&registered).connect()?;
        let channels = mesh.links().iter().map(|link| {
            let (semaphore, theirs) = (&link.semaphores[0], &link.memories[0]);
            MemoryChannel::new(semaphore, theirs, &registered, Some(&registered))
        });
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let lines = channels.iter().all(|channel| channel.check_lines().is_ok());
        // Everybody's scratch is mapped before anybody writes.
        let lines = group.all(lines)?;

        let mut handle = CollectiveHandle {
            scratch: [DevicePtr::NULL; MAX_RANKS],
            status: [DevicePtr::NULL; MAX_RANKS],
            epochs: counters.buffer.ptr(),
            rank: u32::try_from(group.rank).unwrap_or_default(),
            ranks: u32::try_from(ranks).unwrap_or_default(),
            slots,
            reserved: 0,
            mismatch: mismatch.ptr(),
            parts: layout.parts,
        };
        handle.scratch[group.rank] = memory.ptr();
        for (r, channel) in group.others().zip(&channels) {
            let theirs = channel.device_handle();
            handle.scratch[r] = DevicePtr::from_ptr(theirs.dst);
            handle.status[r] = DevicePtr::from_ptr(theirs.status);
        }
        let mut kept: Vec<Owner> =
            channels.iter().filter_map(|channel| KernelArgument::owner(&channel)).collect();
        kept.extend(
            [(&memory).owner(), (&counters.buffer).owner(), (&mismatch).owner()].into_iter().flatten(),
        );
        let owner: Owner = Arc::new(kept);
        let (devices, max_threads) = if on_host {
            (Devices::Host, u32::MAX)
        } else {
            // Lines arrive whole over NVLink, and over nothing else.
            let link = if lines { Link::NvLink } else { Link::Other };
            let (capability, multiprocessors) = group.least_device(gpu)?;
            let threads = multiprocessors * THREADS_OF_A_MULTIPROCESSOR / calls_at_once;
            (Devices::Gpus { capability, link }, threads.max(LEAST_THREADS))
        };
        Ok(Collectives::of(Inner {
            comm: comm.clone(),
            gpu: gpu.clone(),
            group,
            layout,
            kernels,
            handle,
            counters,
            memory,
            mismatch,
            check_calls: self.check_calls,
            channels,
            owner,
            lines,
            devices,
            max_threads,
            selector: self.selector,
            timeout: self.timeout,
            tag,
            registrations: Registrations::default(),
            order: Mutex::default(),
        }))
    }
}

/// The ranks that take part, and this one's number among them.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    comm: Communicator,
    pub(crate) ranks: Vec<usize>,
    pub(crate) rank: usize,
    tag: u32,
}

impl Group {
    fn new(comm: &Communicator, ranks: Option<Vec<usize>>, tag: u32) -> Result<Self> {
        let (own, all) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let ranks = ranks.unwrap_or_else(|| (0..all).collect());
        let refused = |why: String| Err(Error::InvalidArgument(why));
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= all) {
            return refused(format!("there is no rank {unknown} in a job of {all}"));
        }
        if let Some(twice) = ranks.iter().enumerate().find(|(i, rank)| ranks[..*i].contains(rank)) {
            return refused(format!("rank {} is named twice in {ranks:?}", twice.1));
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == own) else {
            return refused(format!("rank {own} is not among the ranks {ranks:?} that it gives"));
        };
        if ranks.len() > MAX_RANKS {
            return refused(format!("{} ranks; {MAX_RANKS} are the most on one host", ranks.len()));
        }
        Ok(Self { comm: comm.clone(), ranks, rank, tag })
    }

    /// The numbers of the others in the group.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks.len());
        (0..ranks).filter(move |r| *r != rank)
    }

    /// What every rank gives, in the order of the group. Blocks.
    pub(crate) fn all_gather(&self, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let bootstrap = self.comm.bootstrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for r in self.others() {
            bootstrap.send(&bytes, self.ranks[r], self.tag)?;
        }
        let mut all = vec![words.to_vec(); self.ranks.len()];
        for r in self.others() {
            let bytes = bootstrap.recv(self.ranks[r], self.tag)?;
            all[r] = bytes.chunks(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
        }
        Ok(all)
    }

    /// The lowest compute capability of the ranks' devices, if all have one, and the fewest multiprocessors.
    fn least_device(&self, gpu: &Gpu) -> Result<(Option<(u32, u32)>, u32)> {
        let properties = gpu.properties();
        let (major, minor) = properties.compute_capability.unwrap_or_default();
        let all =
            self.all_gather(&[u64::from(major) << 32 | u64::from(minor), properties.multiprocessors.into()])?;
        let least = |i: usize| all.iter().map(|words| words.get(i).copied().unwrap_or(0)).min().unwrap_or(0);
        let (capability, multiprocessors) = (least(0), least(1));
        let capability = (capability != 0).then_some(((capability >> 32) as u32, capability as u32));
        Ok((capability, multiprocessors as u32))
    }

    /// That all ranks give the same.
    fn agree(&self, values: &[(&'static str, u64)]) -> Result<()> {
        let ours: Vec<u64> = values.iter().map(|(_, value)| *value).collect();
        for (r, theirs) in self.all_gather(&ours)?.into_iter().enumerate() {
            for (i, (what, ours)) in values.iter().enumerate() {
                let theirs = theirs.get(i);
                if theirs != Some(ours) {
                    return Err(Error::Differ {
                        rank: self.ranks[self.rank],
                        other: self.ranks[r],
                        what,
                        ours: ours.to_string(),
                        theirs: theirs.map_or_else(|| "none".to_owned(), ToString::to_string),
                    });
                }
            }
        }
        Ok(())
    }

    /// What this rank has, if all ranks have it; else why this one has not, or that another has not. Nobody returns
    /// before all have called.
    pub(crate) fn all_have<T>(&self, what: &str, own: Result<T>) -> Result<T> {
        let all = self.all_gather(&[own.is_ok().into()])?;
        let own = own?;
        match all.iter().position(|words| words != &[1]) {
            None => Ok(own),
            Some(r) => Err(Error::InvalidArgument(format!(
                "{what}: rank {} could not, and has an error that says why",
                self.ranks[r]
            ))),
        }
    }

    /// Whether it holds for all ranks. Nobody returns before all have called.
    fn all(&self, holds: bool) -> Result<bool> {
        Ok(self.all_gather(&[holds.into()])?.iter().all(|words| words == &[1]))
    }
}
