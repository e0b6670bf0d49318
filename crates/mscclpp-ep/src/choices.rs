//! Counts of choices, before a dispatch.

use mscclpp::{Gpu, Kernel, KernelArgs, LaunchConfig, Module, Platform, gpu::Stream};

use crate::{
    Error, IdType, Memory, Result,
    handle::{EpChoices, MAX_RANKS},
    scratch::MOST_SHARED,
};

/// The choices of tokens, of which [`ChoiceCounter`] says how many each rank and each expert has.
#[derive(Debug, Clone)]
pub struct Choices {
    ids: Memory,
    id_type: IdType,
    tokens: usize,
    top_k: usize,
    experts: usize,
    ranks: usize,
}

impl Choices {
    /// `topk_ids` has `top_k` numbers for each of `tokens` tokens; a number that is no expert counts as none. There are
    /// `experts` experts: the first part of them belongs to rank 0, the next to rank 1, and so on, in `ranks` equal parts.
    pub fn new(
        (tokens, top_k): (usize, usize),
        topk_ids: impl Into<Memory>,
        experts: usize,
        ranks: usize,
    ) -> Self {
        Self { ids: topk_ids.into(), id_type: IdType::default(), tokens, top_k, experts, ranks }
    }

    /// The type of `topk_ids`: [`IdType::I32`] if not given.
    #[must_use]
    pub fn ids_of(mut self, id_type: IdType) -> Self {
        self.id_type = id_type;
        self
    }
}

/// A kernel that counts choices, for programs that need the counts before a dispatch, to allocate memory for what comes. A
/// dispatch counts by itself. The kernel has one block and waits for nobody, so it does not count for
/// [`calls_at_once`](crate::ExpertsBuilder::calls_at_once).
///
/// ```
/// use mscclpp::prelude::*;
/// use mscclpp_ep::{ChoiceCounter, Choices};
///
/// # fn main() -> Result<(), mscclpp_ep::Error> {
/// let gpu = Platform::Sim.gpu(0)?;
/// // Two tokens with two choices each, of four experts of two ranks.
/// let ids = gpu.allocate(16)?;
/// ids.write_params(0, &[0i32, 3, 1, -1])?;
/// let (counts, is_in_rank) = (gpu.allocate(28)?, gpu.allocate(4)?);
/// let stream = gpu.stream()?;
/// let choices = Choices::new((2, 2), &ids, 4, 2);
/// ChoiceCounter::new(&gpu)?.count(&choices, &(&counts).into(), &(&is_in_rank).into(), &stream)?;
/// stream.synchronize()?;
/// let (mut of, mut is_in) = ([0u32; 7], [0u8; 4]);
/// counts.read_params(0, &mut of)?;
/// is_in_rank.read_params(0, &mut is_in)?;
/// // Two tokens; two of them go to rank 0, one to rank 1; the choices of each expert.
/// assert_eq!(of, [2, 2, 1, 1, 1, 0, 1]);
/// assert_eq!(is_in, [1, 1, 1, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChoiceCounter {
    kernel: Kernel,
    threads: u32,
}

impl ChoiceCounter {
    /// Loads the kernel, once for a device. That may take until kernels that run are complete.
    ///
    /// # Errors
    /// [`Error::Below`] if the device cannot load it.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let kernel = Module::load_once(gpu, &mscclpp_kernels::EXPERTS)?.kernel("ep_count_choices")?;
        Ok(Self { kernel, threads: if gpu.platform() == Platform::Sim { 64 } else { 1024 } })
    }

    /// Stores 32-bit numbers in `counts`: the tokens; for each rank the tokens with a choice of one of its experts; for each
    /// expert its choices. `is_in_rank` gets a byte for each token and rank, 1 if the token has such a choice, else 0. The call
    /// does not block.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for numbers or memory that do not fit; the errors of a launch.
    pub fn count(
        &self,
        choices: &Choices,
        counts: &Memory,
        is_in_rank: &Memory,
        stream: &Stream,
    ) -> Result<()> {
        let Choices { ids, id_type, tokens, top_k, experts, ranks } = choices;
        if !(1..=MAX_RANKS).contains(ranks) || *experts == 0 || !experts.is_multiple_of(*ranks) {
            return Err(Error::InvalidArgument(format!(
                "{experts} experts of {ranks} ranks; give 1 to {MAX_RANKS} ranks, and as many experts for each"
            )));
        }
        let all = (experts + ranks) as u64;
        if all * 4 > MOST_SHARED {
            let most = MOST_SHARED / 4 - *ranks as u64;
            return Err(Error::InvalidArgument(format!(
                "{experts} experts of {ranks} ranks; give at most {most}"
            )));
        }
        // Kernels count them in 32 bits.
        if (*tokens as u64).saturating_mul(*top_k as u64) >= 1 << 31 {
            return Err(Error::InvalidArgument(format!(
                "{tokens} tokens with {top_k} choices; give fewer than 2^31 choices"
            )));
        }
        let (tokens, id_bytes) = (*tokens as u64, id_type.size());
        let param = EpChoices {
            ids: ids.at_least("topk_ids", tokens * *top_k as u64 * id_bytes, id_bytes)?,
            counts: counts.at_least("the memory for counts", 4 * (1 + all), 4)?,
            is_in_rank: is_in_rank.at_least(
                "the memory for the ranks of tokens",
                tokens * *ranks as u64,
                1,
            )?,
            tokens: tokens as u32,
            top_k: *top_k as u32,
            id_bytes: id_bytes as u32,
            n_experts: *experts as u32,
            ranks: *ranks as u32,
            local: (experts / ranks) as u32,
        };
        let config = LaunchConfig { shared_bytes: 4 * all as u32, ..LaunchConfig::linear(1, self.threads) };
        let kept = [ids, counts, is_in_rank].into_iter().filter_map(|memory| memory.buffer.clone());
        let args = kept.fold(KernelArgs::new().with(param), KernelArgs::keeping);
        // SAFETY: this is the kernel's parameter; the memory has as many bytes as it accesses, and buffers are kept.
        unsafe { self.kernel.launch(stream, config, &args) }.map_err(Error::from)
    }
}
