//! The state of a rank's collectives.

use std::{
    cell::Cell,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use mscclpp::{
    Communicator, DeviceBuffer, Event, Gpu, Kernel, KernelArgs, LaunchConfig, Platform, Stream,
    engine::{CallOrder, DeviceRoom, Group},
    gpu::{KernelArgument, Owner},
};
use parking_lot::Mutex;

use crate::{DataType, Error, Kind, Request, Result, choice::Selector, env};

use super::{counters::Counters, options::Options, registrations::Registrations, registry::Registry};

/// The usual most blocks of a call between up to [`FEW_RANKS`] ranks, and between more, for whose blocks there is less scratch.
const MAX_BLOCKS_OF_FEW: u32 = 256;
const MAX_BLOCKS: u32 = 128;
const FEW_RANKS: usize = 4;
/// Simulated threads are slow, so calls have few of them.
const MAX_BLOCKS_ON_SIM: u32 = 4;
/// The usual size of the scratch.
pub(crate) const SCRATCH: u64 = 128 << 20;
const SCRATCH_ON_SIM: u64 = 16 << 20;

/// The state of a rank's collectives, whatever engine carries them out.
pub(crate) struct RankState {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) group: Group,
    pub(crate) options: Options,
    /// The most blocks of a call.
    pub(crate) max_blocks: u32,
    pub(crate) scratch_bytes: u64,
    pub(crate) counters: Counters,
    pub(crate) registrations: Registrations,
    pub(crate) registry: Arc<Registry>,
    /// The reason for which [`Collectives::abort`](crate::Collectives::abort) was called.
    pub(crate) aborted: OnceLock<String>,
    /// Whether its memory is given back for a while.
    pub(crate) suspended: AtomicBool,
    /// The number of splits so far. Held while ranks say in which part they are.
    pub(crate) splits: Mutex<u64>,
    pub(crate) order: Arc<CallOrder>,
    pub(crate) room: DeviceRoom,
}

/// The stream that a call is put into, the buffers that its launches keep, and the selector that chooses how it is done.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) buffers: &'a [&'a DeviceBuffer],
    pub(crate) selector: &'a dyn Selector,
    /// The event that the first kernel records when it has begun.
    pub(crate) begun: Option<&'a Cell<Option<Event>>>,
}

impl RankState {
    /// Agrees with the other ranks on what they need alike. `on_node` is the number of ranks on this rank's node, if they are on
    /// several. Blocks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options that cannot be; [`Error::Below`] if ranks ask for different things.
    pub(crate) fn new(
        comm: &Communicator,
        gpu: &Gpu,
        group: Group,
        options: Options,
        on_node: Option<usize>,
    ) -> Result<Self> {
        let ranks = group.ranks().len();
        let is_sim = gpu.platform() == Platform::Sim;
        let scratch_bytes = options.scratch.unwrap_or(if is_sim { SCRATCH_ON_SIM } else { SCRATCH });
        let max_blocks = options.max_blocks.unwrap_or(match on_node.unwrap_or(ranks) {
            _ if is_sim => MAX_BLOCKS_ON_SIM,
            ..=2 => MAX_BLOCKS_OF_FEW,
            ..=FEW_RANKS if scratch_bytes >= SCRATCH => MAX_BLOCKS_OF_FEW,
            _ => MAX_BLOCKS,
        });
        group.agree(&[
            ("numbers of ranks", ranks as u64),
            // The usual number depends on how many ranks a node has.
            ("max_blocks", on_node.map_or(max_blocks, |_| options.max_blocks.unwrap_or(0)).into()),
            ("calls_at_once", options.calls_at_once.into()),
            ("overlap", options.overlap.into()),
            ("scratch", scratch_bytes),
            ("platforms (1 is simulated)", is_sim.into()),
            ("check_calls", options.checks().into()),
            ("numbers of algorithms", options.algorithms.len() as u64),
        ])?;
        // After the agreement, ranks that give the same fail alike.
        if max_blocks == 0 || max_blocks > 1 << 16 {
            return Err(Error::InvalidArgument(format!("max_blocks({max_blocks}); give 1 to 65536")));
        }
        let room = DeviceRoom::new(&group, gpu, options.calls_at_once)?;
        let (communicators, calls_at_once) = (room.engines(), room.calls_at_once());
        if options.checks() && communicators > calls_at_once && !is_sim {
            tracing::warn!(
                target: "mscclpp::conn", rank = group.ranks()[group.rank()], communicators, calls_at_once,
                "{gpu} has room for the calls of {calls_at_once} of {communicators} communicators at the same time: more of them on \
                 different streams may wait for each other for ever; order them, or set up all with calls_at_once({communicators})"
            );
        }
        let counters = Counters::new(gpu, ranks, max_blocks)?;
        let registry = Registry::new(
            comm.context(),
            gpu,
            &counters.buffer,
            counters.reach,
            options.publish_captured.map_or_else(env::graph_register, Ok)?,
        );
        Ok(Self {
            comm: comm.clone(),
            gpu: gpu.clone(),
            counters,
            group,
            options,
            max_blocks,
            scratch_bytes,
            registrations: Registrations::default(),
            registry: Arc::new(registry),
            aborted: OnceLock::new(),
            suspended: AtomicBool::new(false),
            splits: Mutex::default(),
            order: Arc::default(),
            room,
        })
    }

    /// This rank's number among those that take part.
    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn n_ranks(&self) -> usize {
        self.group.ranks().len()
    }

    /// A barrier as a collective of `kind`, of a word from each rank.
    pub(crate) fn barrier(&self, kind: Kind<'static>) -> Request<'static> {
        let words = self.counters.barrier();
        Request { kind, send: words, recv: words.add(8), count: 1, data_type: DataType::U64 }
    }

    /// The most threads of a block that moves messages.
    pub(crate) fn threads(&self) -> u32 {
        if self.gpu.platform() == Platform::Sim { 32 } else { 512 }
    }

    /// Returns the counters' memory, for launches to keep.
    pub(crate) fn owner(&self) -> Option<Owner> {
        (&self.counters.buffer).owner()
    }
}

impl Call<'_> {
    /// Returns empty arguments that keep `owner` and the buffers of the call.
    pub(crate) fn keeping(&self, owner: &Owner) -> KernelArgs {
        KernelArgs::new().with_owner(owner.clone()).keeping_each(self.buffers.iter().copied())
    }

    /// Launches a kernel in the stream of the call.
    ///
    /// # Safety
    /// The same as of [`Kernel::launch`].
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        args: &KernelArgs,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let launched = unsafe {
            match self.begun.and_then(Cell::take) {
                Some(event) => kernel.launch_recording(self.stream, config, args, &event),
                None => kernel.launch(self.stream, config, args),
            }
        };
        Ok(launched?)
    }
}
