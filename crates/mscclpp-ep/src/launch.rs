//! Calls become launches.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mscclpp::{
    DeviceBuffer, Kernel, KernelArgs, LaunchConfig, Module,
    gpu::{KernelParam, Stream},
};

use crate::{Error, Experts, Memory, NumberType, Result, experts::Engine};

/// The kernels of a direction: of whole calls, and of each of their halves.
#[derive(Debug)]
pub(crate) struct Halves {
    both: Kernel,
    send: Kernel,
    receive: Kernel,
}

impl Halves {
    fn of(module: &Module, name: &str) -> Result<Self> {
        let kernel = |half: &str| module.kernel(&format!("{name}{half}"));
        Ok(Self { both: kernel("")?, send: kernel("_send")?, receive: kernel("_receive")? })
    }

    pub(crate) fn each(&self) -> [&Kernel; 3] {
        [&self.both, &self.send, &self.receive]
    }
}

/// The kernels of experts whose numbers have one type.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) dispatch: Halves,
    pub(crate) combine: Halves,
    pub(crate) release: Kernel,
    pub(crate) lose: Kernel,
}

impl Kernels {
    pub(crate) fn of(module: &Module, number_type: NumberType) -> Result<Self> {
        Ok(Self {
            dispatch: Halves::of(module, "ep_dispatch")?,
            combine: Halves::of(module, number_type.kernel())?,
            release: module.kernel("ep_release")?,
            lose: module.kernel("ep_lose")?,
        })
    }
}

/// A direction of calls: `EpDirection`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    Dispatch,
    Combine,
}

/// A call whose arguments are ready.
#[derive(Debug)]
pub(crate) struct Launch {
    direction: Direction,
    micro_batch: usize,
    args: KernelArgs,
}

/// The second half of a call that has sent: it waits for what the other ranks send, and takes it to its place.
///
/// No other call of that micro-batch can be made before. What the call was given must live until this half is complete.
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
    /// The errors of a launch.
    pub fn receive(self, stream: &Stream) -> Result<()> {
        let Self { engine, launch } = self;
        let kernel = &engine.halves(launch.direction).receive;
        engine.launch(kernel, &launch, stream)?;
        engine.receives_next(&launch).store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Engine {
    fn halves(&self, direction: Direction) -> &Halves {
        match direction {
            Direction::Dispatch => &self.kernels.dispatch,
            Direction::Combine => &self.kernels.combine,
        }
    }

    fn receives_next(&self, launch: &Launch) -> &AtomicBool {
        &self.receives_next[launch.micro_batch][launch.direction as usize]
    }

    fn shared_bytes_of(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Dispatch => self.shared_bytes,
            Direction::Combine => 0,
        }
    }

    fn launch(&self, kernel: &Kernel, launch: &Launch, stream: &Stream) -> Result<()> {
        let config = LaunchConfig { shared_bytes: self.shared_bytes_of(launch.direction), ..self.config };
        self.order.put(stream, || {
            // SAFETY: these are the kernel's parameters; all its blocks fit on the device beside other calls; buffers are kept by
            // the arguments, and for other memory the caller of `Memory::from_raw` answers.
            unsafe { kernel.launch(stream, config, &launch.args) }.map_err(Error::from)
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
    pub(crate) fn put_by(&self, kernel: &Kernel, launch: &Launch, stream: &Stream) -> Result<()> {
        let engine = &*self.engine;
        let shared_bytes = engine.shared_bytes_of(launch.direction);
        let fit = kernel.max_resident_blocks(engine.threads, shared_bytes)? / u64::from(engine.calls_at_once);
        let blocks = self.handle.max_blocks;
        if fit < blocks.into() {
            return Err(Error::InvalidArgument(format!(
                "kernel {} has room for {fit} blocks of {} threads beside other calls, and the experts are set up for {blocks}: give \
                 it __launch_bounds__({}), or the set-up max_blocks({fit})",
                kernel.name(),
                engine.threads,
                engine.threads
            )));
        }
        engine.launch(kernel, launch, stream)
    }

    pub(crate) fn put(&self, launch: &Launch, stream: &Stream) -> Result<()> {
        self.engine.launch(&self.engine.halves(launch.direction).both, launch, stream)
    }

    pub(crate) fn put_send(&self, launch: Launch, stream: &Stream) -> Result<Receive> {
        self.engine.launch(&self.engine.halves(launch.direction).send, &launch, stream)?;
        self.engine.receives_next(&launch).store(true, Ordering::Relaxed);
        Ok(Receive { engine: self.engine.clone(), launch })
    }

    pub(crate) fn args<'a>(
        &self,
        own: KernelArgs,
        tables: &Arc<DeviceBuffer>,
        memories: impl IntoIterator<Item = &'a Memory>,
    ) -> KernelArgs {
        let buffers = memories.into_iter().filter_map(|memory| memory.buffer.as_ref());
        // The pool sees by the reference that the tables are in use.
        own.with_owner(self.engine.owner.clone()).keeping(tables.clone()).keeping_each(buffers)
    }

    pub(crate) fn launch_of<'a>(
        &self,
        direction: Direction,
        micro_batch: usize,
        own: KernelArgs,
        call: impl KernelParam,
        tables: &Arc<DeviceBuffer>,
        memories: impl IntoIterator<Item = &'a Memory>,
    ) -> Launch {
        let args = self.args(own, tables, memories).with(self.handle).with(call);
        Launch { direction, micro_batch, args }
    }
}
