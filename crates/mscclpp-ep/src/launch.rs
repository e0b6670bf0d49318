//! Calls become launches.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mscclpp::{
    Kernel, KernelArgs, LaunchConfig, Platform,
    gpu::{KernelParam, Stream},
};

use crate::{
    Error, Experts, Memory, Result,
    experts::Engine,
    handle::{MANY_TOKENS, MANY_TOKENS_OF_SIM, SHARED_TOKENS, SHARED_TOKENS_OF_SIM, SHARING_BLOCKS},
    kernels::Special,
    tables::{Tables, keeping_if_captured},
};

/// The part of a call that a launch does: `EpHalves`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Halves {
    Sends = 1,
    Receives = 2,
    Both = 3,
}

/// A direction of calls: `EpDirection`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    Dispatch,
    Combine,
}

/// A call whose arguments are ready, but for its halves.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    direction: Direction,
    micro_batch: usize,
    /// The call that it is, if that may have a kernel of its own.
    pub(crate) special: Option<Special>,
    args: KernelArgs,
    tables: Arc<Tables>,
}

/// The second half of a call that has sent: it waits for what the other ranks send, and takes it to its place.
///
/// No other call of that micro-batch can be made before, and none at all if this is dropped, or [`receive`](Self::receive) fails.
/// The memory that the call was given must live until this half is complete.
#[derive(Debug)]
#[must_use = "the call is not complete before receive()"]
pub struct Receive {
    engine: Arc<Engine>,
    launch: Launch,
}

impl Receive {
    /// Puts the second half into a stream, which may be another one than that of the first. Does not block.
    ///
    /// # Errors
    /// The errors of a launch: then the micro-batch takes no more calls.
    pub fn receive(self, stream: &Stream) -> Result<()> {
        let Self { engine, launch } = self;
        let (micro_batch, direction) = (launch.micro_batch, launch.direction);
        engine.launch(launch, Halves::Receives, stream)?;
        engine.receives_next(micro_batch, direction).store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Engine {
    /// The fewest tokens for which [`Special::ByRow`] is.
    pub(crate) fn many_tokens(&self) -> u32 {
        if self.gpu.platform() == Platform::Sim { MANY_TOKENS_OF_SIM } else { MANY_TOKENS }
    }

    /// The fewest tokens for which [`Special::RankShared`] is, if calls have enough blocks: few blocks take longer with it.
    pub(crate) fn shared_tokens(&self) -> u32 {
        match (self.gpu.platform(), self.config.grid[0] >= SHARING_BLOCKS) {
            (Platform::Sim, _) => SHARED_TOKENS_OF_SIM,
            (_, true) => SHARED_TOKENS,
            (_, false) => u32::MAX,
        }
    }

    fn receives_next(&self, micro_batch: usize, direction: Direction) -> &AtomicBool {
        &self.receives_next[micro_batch][direction as usize]
    }

    fn shared_bytes_of(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Dispatch => self.shared_bytes,
            Direction::Combine => 0,
        }
    }

    fn launch(&self, launch: Launch, halves: Halves, stream: &Stream) -> Result<()> {
        let any = match launch.direction {
            Direction::Dispatch => &self.kernels.dispatch,
            Direction::Combine => &self.kernels.combine,
        };
        let is_whole = matches!(halves, Halves::Both);
        let special = match launch.special {
            Some(Special::ByRow | Special::TokenByRow) if !is_whole => None,
            special => special,
        };
        let own = self.kernels.special.iter().find(|(of, _)| Some(*of) == special);
        let kernel = own.map_or(any, |(_, kernel)| kernel);
        self.launch_by(kernel, Launch { args: launch.args.with(halves as u32), ..launch }, stream)
    }

    fn launch_by(&self, kernel: &Kernel, launch: Launch, stream: &Stream) -> Result<()> {
        let config = LaunchConfig { shared_bytes: self.shared_bytes_of(launch.direction), ..self.config };
        let args = keeping_if_captured(launch.args, &launch.tables, stream)?;
        self.order.put(stream, || {
            // SAFETY: these are the kernel's parameters; all its blocks fit on the device beside other calls; buffers are kept by
            // the arguments, and for other memory the caller of `Memory::from_raw` answers.
            unsafe { kernel.launch(stream, config, &args) }.map_err(Error::from)
        })
    }
}

impl Experts {
    /// Checks that no call of the micro-batch has sent and not received.
    pub(crate) fn check_received(&self, micro_batch: usize) -> Result<()> {
        let next = &self.engine.receives_next[micro_batch];
        if !next.iter().any(|next| next.load(Ordering::Relaxed)) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "a call of micro-batch {micro_batch} before the last one has received: put its second half into a stream first"
        )))
    }

    /// Puts a call by a kernel of the program into a stream.
    pub(crate) fn put_by(&self, kernel: &Kernel, launch: Launch, stream: &Stream) -> Result<()> {
        let engine = &*self.engine;
        let (threads, blocks) = (engine.kernels.threads, u64::from(self.handle.max_blocks));
        let shared_bytes = engine.shared_bytes_of(launch.direction);
        let fit = kernel.max_resident_blocks(threads, shared_bytes)? / u64::from(engine.room.calls_at_once());
        if fit < blocks {
            return Err(Error::InvalidArgument(format!(
                "kernel {} has room for {fit} blocks of {threads} threads beside other calls, and calls of these experts have \
                 {blocks}: give it __launch_bounds__(1024), or the set-up a smaller max_blocks()",
                kernel.name(),
            )));
        }
        engine.launch_by(kernel, launch, stream)
    }

    pub(crate) fn put(&self, launch: Launch, stream: &Stream) -> Result<()> {
        self.engine.launch(launch, Halves::Both, stream)
    }

    pub(crate) fn put_send(&self, launch: Launch, stream: &Stream) -> Result<Receive> {
        self.engine.launch(launch.clone(), Halves::Sends, stream)?;
        self.engine.receives_next(launch.micro_batch, launch.direction).store(true, Ordering::Relaxed);
        Ok(Receive { engine: self.engine.clone(), launch })
    }

    pub(crate) fn args<'a>(
        &self,
        own: KernelArgs,
        memories: impl IntoIterator<Item = &'a Memory>,
    ) -> KernelArgs {
        let buffers = memories.into_iter().filter_map(|memory| memory.buffer.as_ref());
        own.with_owner(self.engine.owner.clone()).keeping_each(buffers)
    }

    pub(crate) fn launch_of<'a>(
        &self,
        direction: Direction,
        micro_batch: usize,
        own: KernelArgs,
        call: impl KernelParam,
        tables: &Arc<Tables>,
        memories: impl IntoIterator<Item = &'a Memory>,
    ) -> Launch {
        let args = self.args(own, memories).keeping_each([&tables.buffer]).with(self.handle).with(call);
        Launch { direction, micro_batch, special: None, args, tables: tables.clone() }
    }
}
