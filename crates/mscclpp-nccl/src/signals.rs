//! `ncclPutSignal`, `ncclSignal` and `ncclWaitSignal`: one rank writes into a peer's window and signals it, on streams. The
//! kernels, and what they rely on, are in `cuda/kernels/signals.cu`.

use std::{collections::HashMap, ffi::c_int, sync::Arc};

use mscclpp::{
    Communicator, DeviceBuffer, DevicePtr, Event, Gpu, Kernel, KernelArgs, LaunchConfig, Module, Stream,
    engine::{CallOrder, Group, Scratch},
    gpu::KernelParam,
};
use parking_lot::Mutex;

use crate::failure::Failure;

/// The numbers of contexts and of signals that each pair of ranks has.
const CONTEXTS: usize = 8;
const SIGNALS: usize = 64;

/// The number of waits that a launch takes.
const WAITS: usize = 32;

/// The tag of the messages by which the ranks set this up.
const TAG: u32 = 0x7369_676e;

/// The signals of a communicator: counters that all ranks have mapped, as `signals.cu` describes them.
pub(crate) struct Signals {
    gpu: Gpu,
    rank: usize,
    /// The counters of signals that have come: those that rank `r` sends to this one are part `r`.
    come: Scratch,
    /// The counters of signals that this rank has sent and has waited for, by peers, and one word of zeros behind them.
    counted: DeviceBuffer,
    send: Kernel,
    wait: Kernel,
    /// The order of what has the same peer and context.
    orders: Mutex<HashMap<(usize, usize), Arc<CallOrder>>>,
    /// Events behind what may not be complete.
    under_way: Mutex<Vec<Event>>,
}

/// A signal of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) peer: usize,
    context: usize,
    number: usize,
}

impl Signal {
    /// The signal that C code names.
    ///
    /// # Errors
    /// [`Code::INVALID_ARGUMENT`](crate::abi::Code::INVALID_ARGUMENT) if there is none.
    pub(crate) fn of(peer: usize, number: c_int, context: c_int) -> Result<Self, Failure> {
        let checked = |name: &str, number: c_int, most: usize| {
            let wrong = || Failure::argument(format!("`{name}` is {number}; 0 to {} are there", most - 1));
            usize::try_from(number).ok().filter(|number| *number < most).ok_or_else(wrong)
        };
        Ok(Self {
            peer,
            context: checked("ctx", context, CONTEXTS)?,
            number: checked("sigIdx", number, SIGNALS)?,
        })
    }

    /// Where the counter of this signal is among those of all pairs with rank `rank`, in bytes.
    fn offset(&self, rank: usize) -> u64 {
        8 * ((rank * CONTEXTS + self.context) * SIGNALS + self.number) as u64
    }
}

/// Memory that is written before a signal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put {
    pub(crate) to: DevicePtr,
    pub(crate) from: DevicePtr,
    pub(crate) bytes: u64,
}

/// `SignalWait` of the kernel.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
struct SignalWait {
    waited: DevicePtr,
    come: DevicePtr,
    status: DevicePtr,
    count: u64,
}

/// `SignalWaits` of the kernel.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
struct SignalWaits {
    waits: [SignalWait; WAITS],
}

impl Signals {
    /// Sets the signals of all ranks up. All of them call this, and it blocks until they do.
    pub(crate) fn connect(comm: &Communicator, gpu: &Gpu) -> Result<Self, Failure> {
        let module = Module::load_once(gpu, &mscclpp_kernels::SIGNALS)?;
        let group = Group::meet(comm, "signals", mscclpp_kernels::FINGERPRINT, None, TAG)?;
        let bytes = 8 * (group.ranks().len() * CONTEXTS * SIGNALS) as u64;
        let counted = gpu.allocate(2 * bytes + 64)?;
        Ok(Self {
            gpu: gpu.clone(),
            rank: group.rank(),
            come: Scratch::connect(&group, gpu, bytes)?,
            counted,
            send: module.kernel("send_signal")?,
            wait: module.kernel("wait_signals")?,
            orders: Mutex::default(),
            under_way: Mutex::default(),
        })
    }

    /// The bytes of device memory that it takes.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.come.memory().len() + self.counted.len()
    }

    /// The counters that only this rank uses, of signals that it has waited for if `waited`, else of those that it has sent.
    fn counted(&self, signal: Signal, waited: bool) -> DevicePtr {
        let part = if waited { self.come.memory().len() } else { 0 };
        self.counted.ptr().add(part + signal.offset(signal.peer))
    }

    fn args(&self) -> KernelArgs {
        KernelArgs::new().with_owner(self.come.owner().clone()).keeping_each([&self.counted])
    }

    /// Writes memory of a peer, if `put` says what, and then signals it.
    ///
    /// # Safety
    /// The device reaches the memory of `put`, which lives until the stream has come so far.
    pub(crate) unsafe fn send(
        &self,
        put: Option<Put>,
        signal: Signal,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let come = self.come.at()[signal.peer].add(signal.offset(self.rank));
        let args = self.args().with(self.counted(signal, false)).with(come);
        let order = Arc::clone(self.orders.lock().entry((signal.peer, signal.context)).or_default());
        order.put(stream, || -> mscclpp::Result<()> {
            if let Some(Put { to, from, bytes }) = put.filter(|put| put.bytes > 0) {
                // SAFETY: the caller's promise.
                unsafe { stream.copy(to, from, bytes)? };
            }
            // SAFETY: these are the kernel's parameters, and both counters are kept until it is complete.
            unsafe { self.send.launch(stream, LaunchConfig::linear(1, 1), &args)? };
            Ok(())
        })?;
        self.note(stream)
    }

    /// Waits in a stream until so many signals have come as each pair says.
    pub(crate) fn wait(&self, waits: &[(Signal, u64)], stream: &Stream) -> Result<(), Failure> {
        let zeros = self.counted.ptr().add(2 * self.come.memory().len());
        let status = |peer: usize| {
            // A wait for signals of this rank itself is ended together with those for others.
            let own = self.come.statuses().iter().find(|status| **status != DevicePtr::NULL);
            let status = Some(self.come.statuses()[peer]).filter(|status| *status != DevicePtr::NULL);
            status.or(own.copied()).unwrap_or(zeros)
        };
        let wait = |(signal, count): &(Signal, u64)| SignalWait {
            waited: self.counted(*signal, true),
            come: self.come.at()[self.rank].add(signal.offset(signal.peer)),
            status: status(signal.peer),
            count: *count,
        };
        for some in waits.chunks(WAITS) {
            let mut waits = [wait(&some[0]); WAITS];
            for (place, it) in waits.iter_mut().zip(some) {
                *place = wait(it);
            }
            let args = self.args().with(SignalWaits { waits });
            let config = LaunchConfig::linear(1, some.len() as u32);
            // SAFETY: these are the kernel's parameters, with a wait for each thread; the counters are kept until it is complete.
            unsafe { self.wait.launch(stream, config, &args)? };
        }
        self.note(stream)
    }

    /// Notes that something was put into a stream.
    fn note(&self, stream: &Stream) -> Result<(), Failure> {
        // An event that is captured in a graph marks nothing.
        if stream.is_capturing()? {
            return Ok(());
        }
        let event = self.gpu.event(false)?;
        stream.record(&event)?;
        let mut under_way = self.under_way.lock();
        under_way.retain(|event| !event.query().unwrap_or(true));
        under_way.push(event);
        Ok(())
    }

    /// Whether all that was put into streams is complete, but for graphs.
    pub(crate) fn is_idle(&self) -> bool {
        let mut under_way = self.under_way.lock();
        under_way.retain(|event| !event.query().unwrap_or(true));
        under_way.is_empty()
    }

    /// The part by which waits are ended, and which says why they were.
    pub(crate) fn waits(&self) -> &Scratch {
        &self.come
    }
}
