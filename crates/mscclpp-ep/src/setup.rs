//! How ranks set up experts together.

use std::time::Duration;

use mscclpp::{Communicator, Gpu, KernelSource, Platform};

use crate::{
    Experts, NumberType, Quantisation, Result,
    handle::{TOKENS_AT_ONCE, TOKENS_AT_ONCE_OF_SIM},
    payload::Payload,
    scratch::{Layout, Settings},
};

/// The usual tag of the messages by which ranks set up experts.
const TAG: u32 = 0x6578_7074;

/// Sets up [`Experts`]; begun by [`Experts::builder`]. All ranks give the same.
#[derive(Debug, Clone)]
#[must_use = "nothing is set up before connect()"]
pub struct ExpertsBuilder {
    pub(crate) comm: Communicator,
    pub(crate) gpu: Gpu,
    pub(crate) ranks: Option<Vec<usize>>,
    pub(crate) tag: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) settings: Settings,
    /// One source with other kernels in place of all of the library's.
    pub(crate) kernels: Option<KernelSource<'static>>,
}

impl ExpertsBuilder {
    pub(crate) fn new(comm: &Communicator, gpu: &Gpu) -> Self {
        let settings = Settings {
            experts: 0,
            top_k: 1,
            capacity: 0,
            payload: Payload::default(),
            map: None,
            micro_batches: 1,
            exact: false,
            // Packets of a whole line have not been tried on GPUs of AMD.
            packets_up_to: match gpu.platform() {
                Platform::Cuda => TOKENS_AT_ONCE,
                Platform::Sim => TOKENS_AT_ONCE_OF_SIM,
                _ => 0,
            },
            patience: 0,
            max_blocks: None,
            calls_at_once: 2,
        };
        Self {
            comm: comm.clone(),
            gpu: gpu.clone(),
            ranks: None,
            tag: TAG,
            timeout: None,
            settings,
            kernels: None,
        }
    }

    /// The number of experts of all ranks. Expert e is of rank e * ranks / experts, rounded down, so that each rank has an equal
    /// part in order, unless [`expert_map`](Self::expert_map) says otherwise. The shared memory of a block has room for 1877
    /// experts and ranks together, and for fewer if a map gives one rank many of them.
    pub fn experts(mut self, experts: usize) -> Self {
        self.settings.experts = experts as u64;
        self
    }

    /// The rank of each expert, in the order of the group. A rank numbers its experts from 0 on, in the order of their numbers.
    pub fn expert_map(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.settings.map = Some(ranks.into_iter().collect());
        self
    }

    /// K, the number of choices of a token: 1 if not given, 64 at most.
    pub fn top_k(mut self, choices: usize) -> Self {
        self.settings.top_k = choices as u64;
        self
    }

    /// H, the number of numbers of a token: a multiple of 4.
    pub fn hidden(mut self, numbers: usize) -> Self {
        self.settings.payload.hidden = numbers as u64;
        self
    }

    /// The type of the numbers of tokens, and of the rows that combine sums: [`NumberType::Bf16`] if not given.
    pub fn number_type(mut self, number_type: NumberType) -> Self {
        self.settings.payload.number_type = number_type;
        self
    }

    /// Has tokens become numbers of one byte on their way. If not given, they travel as they are.
    pub fn quantise(mut self, quantisation: Quantisation) -> Self {
        self.settings.payload.quantisation = Some(quantisation);
        self
    }

    /// Has dispatch take rows of so many bytes, of whatever content, in place of H numbers: a multiple of 4. Combine sums rows of
    /// H numbers in any case.
    pub fn row_bytes(mut self, bytes: usize) -> Self {
        self.settings.payload.row_bytes = Some(bytes as u64);
        self
    }

    /// Has one more tensor travel, such as the scales of quantised tokens: rows of so many bytes, of whatever content, a multiple
    /// of 4. Up to four tensors travel, of which quantised tokens are two.
    pub fn also(mut self, row_bytes: usize) -> Self {
        self.settings.payload.others.push(row_bytes as u64);
        self
    }

    /// C, the most tokens of a rank in a call. A capacity of up to 128 has kernels of its own, which take less time for few
    /// tokens.
    pub fn capacity(mut self, tokens: usize) -> Self {
        self.settings.capacity = tokens as u64;
        self
    }

    /// How many micro-batches have memory of their own, 1 or 2: 1 if not given.
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.settings.micro_batches = micro_batches as u64;
        self
    }

    /// Has memory for [`Combine::exact`](crate::Combine::exact), K x C rows more: `false` if not given.
    pub fn exact(mut self, exact: bool) -> Self {
        self.settings.exact = exact;
        self
    }

    /// The most blocks that a call has, of 1024 threads: give it if other kernels run beside the calls, since each block takes
    /// a multiprocessor for itself. If not given, a call has up to 128 blocks of 512 threads, on all multiprocessors, which is
    /// faster alone. With a capacity of up to 128, calls have up to twice as many blocks as are given, or 128, of 256 threads. On
    /// simulated devices, blocks have 64 threads, and there are 2 if not given.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.settings.max_blocks = Some(blocks.max(1).into());
        self
    }

    /// For how many calls that run at the same time a device has room, of collectives and experts together: 2 if not given, or
    /// as many as there are ranks of a process on a device. See [`DeviceRoom`](mscclpp::engine::DeviceRoom).
    pub fn calls_at_once(mut self, calls: u32) -> Self {
        self.settings.calls_at_once = calls;
        self
    }

    /// The ranks of the communicator that take part, of which this is one, in the order in which they are numbered: all, if not
    /// given.
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = Some(ranks.into_iter().collect());
        self
    }

    /// The tag of the messages of the set-up, below 2^31. Experts that are set up at the same time have different ones.
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// Has calls go on without ranks that are lost, see [`Error::Lost`](crate::Error::Lost). If not given, the loss of a rank
    /// ends the experts of all.
    ///
    /// A rank counts as lost when the job says that it is, or when a call has waited for it for `patience`. The job names the
    /// first rank that is lost, and no other, so a second one is found by `patience` alone. No rank that lives may be late by as
    /// much.
    pub fn survive_loss(mut self, patience: Duration) -> Self {
        self.settings.patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX).max(1);
        self
    }

    /// How long [`Experts::synchronize`] waits before it gives up: for ever, if not given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Other kernels in place of the library's, for tests.
    #[doc(hidden)]
    pub fn kernels(mut self, source: KernelSource<'static>) -> Self {
        self.kernels = Some(source);
        self
    }

    /// The device memory that each rank takes for `ranks` ranks, in bytes, without the tables of routings, and without the words
    /// for counts: 4 bytes for each expert, block of a call, and micro-batch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for settings that cannot be.
    pub fn scratch_bytes(&self, ranks: usize) -> Result<u64> {
        self.settings.check(ranks)?;
        Ok(Layout::new(&self.settings, 0, ranks).scratch_bytes)
    }

    /// The device memory of the tables of one routing, in bytes, on the rank where they are largest. Each
    /// [`Routed`](crate::Routed) that lives has its own, and up to 16 that nobody uses are kept for the next ones.
    ///
    /// # Errors
    /// Those of [`Self::scratch_bytes`].
    pub fn table_bytes(&self, ranks: usize) -> Result<u64> {
        self.settings.check(ranks)?;
        let of = |rank| Layout::new(&self.settings, rank, ranks).table_bytes;
        Ok((0..ranks).map(of).max().unwrap_or(0))
    }

    /// Sets the experts up. All ranks make this call. Blocks until all do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for settings that cannot be;
    /// [`Differ`](mscclpp::Error::Differ), with both values, if ranks give different ones; the errors of
    /// [`Scratch::connect`](mscclpp::engine::Scratch::connect).
    pub fn connect(self) -> Result<Experts> {
        Experts::connect(self)
    }
}

impl Experts {
    /// Begins to set up the experts of all ranks of `comm`, on `gpu`.
    pub fn builder(comm: &Communicator, gpu: &Gpu) -> ExpertsBuilder {
        ExpertsBuilder::new(comm, gpu)
    }
}
