//! The rules by which a kernel that sees a token also sees the data that came before it.
//!
//! An adapter's writes travel over PCIe in the order in which it made them, unless they are marked relaxed. An unmarked
//! write overtakes no earlier write, marked or not. Tokens are written through a memory region without relaxed
//! ordering, so they stay behind their data *on the way to one destination*. With GPUs, two things can still go wrong.
//! Data and token may go to different places (the GPU's memory and the host's), between which PCIe keeps no order. Or
//! the GPU itself may not show writes in the order in which they arrived. The driver reports the second, and has a call
//! that waits until both are settled.

use mscclpp_gpu::{GpuDirect, WritesOrdering};

/// How an adapter reaches a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// A dmabuf maps it: through the GPU's PCIe window, or as GPU memory that is part of the system's memory.
    DmaBuf,
    /// The driver's peer-memory module maps it, through the PCIe window.
    PeerMem,
}

/// The way in which signals arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalMode {
    /// The peer's adapter adds to the token.
    Atomics,
    /// The peer's adapter delivers a number, and a thread here stores it.
    Immediates,
}

/// Chooses how signals travel over a connection, both ways: by atomics if both ends can use them. One end asks for an
/// atomic, the other carries it out. Each end knows both facts, so the ends decide alike.
pub(crate) fn mode(atomics_here: bool, atomics_there: bool) -> SignalMode {
    if atomics_here && atomics_there { SignalMode::Atomics } else { SignalMode::Immediates }
}

/// The guarantees that a GPU and its adapter give about writes to the GPU's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    pub(crate) direct: GpuDirect,
    pub(crate) mapping: Mapping,
}

/// The place of the tokens for which kernels of a GPU wait, and what is done before one is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPlan {
    /// The tokens are in the GPU's memory, beside the data.
    OnDevice,
    /// The tokens are in pinned host memory. Before a thread stores one, it makes everything that has arrived visible
    /// to the GPU.
    OnHostAfterFlush,
    /// The tokens are in pinned host memory, because everything that has arrived is visible to all devices.
    OnHost,
    /// The order cannot be promised, for this reason.
    Refuse(&'static str),
}

/// Decides where tokens go, and what is done before one is stored.
pub(crate) fn plan(Promise { direct, mapping }: Promise, mode: SignalMode) -> TokenPlan {
    if !direct.rdma && mapping == Mapping::PeerMem {
        return TokenPlan::Refuse(
            "the GPU's driver says that adapters cannot reach its memory (GPUDirect RDMA)",
        );
    }
    match (mode, direct.writes_ordering) {
        // Data and token go to the same destination, and the GPU shows them in order.
        (SignalMode::Atomics, WritesOrdering::Owner | WritesOrdering::AllDevices) => TokenPlan::OnDevice,
        // The adapter writes the token itself, so no thread can flush between the data and the token.
        (SignalMode::Atomics, WritesOrdering::None) => TokenPlan::Refuse(
            "the GPU does not show an adapter's writes in order, so a token that the adapter writes could be seen before \
             its data; set MSCCLPP_IBV_MODE=host-no-atomic on both sides",
        ),
        // The host stores the token in another memory, so the data must be visible to all devices before that.
        (SignalMode::Immediates, WritesOrdering::AllDevices) => TokenPlan::OnHost,
        (SignalMode::Immediates, _) if direct.host_flush => TokenPlan::OnHostAfterFlush,
        (SignalMode::Immediates, _) => TokenPlan::Refuse(
            "the GPU shows an adapter's writes to the host's order only after a flush, and its driver has none \
             (cuFlushGPUDirectRDMAWrites); set MSCCLPP_IBV_MODE=host on both sides, if both adapters have atomics",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(rdma: bool, writes_ordering: WritesOrdering, host_flush: bool) -> GpuDirect {
        let mut direct = GpuDirect::default();
        (direct.rdma, direct.writes_ordering, direct.host_flush) = (rdma, writes_ordering, host_flush);
        direct
    }

    #[test]
    fn both_ends_decide_alike_how_signals_travel() {
        for (here, there, decided) in [
            (true, true, SignalMode::Atomics),
            (true, false, SignalMode::Immediates),
            (false, true, SignalMode::Immediates),
            (false, false, SignalMode::Immediates),
        ] {
            assert_eq!([mode(here, there), mode(there, here)], [decided; 2], "{here} {there}");
        }
    }

    /// Checks all combinations of the inputs.
    #[test]
    fn every_combination_is_decided() {
        use Mapping::{DmaBuf, PeerMem};
        use SignalMode::{Atomics, Immediates};
        use WritesOrdering::{AllDevices, None, Owner};
        let table = [
            (Atomics, None, false, "refuse"),
            (Atomics, None, true, "refuse"),
            (Atomics, Owner, false, "device"),
            (Atomics, Owner, true, "device"),
            (Atomics, AllDevices, false, "device"),
            (Atomics, AllDevices, true, "device"),
            (Immediates, None, false, "refuse"),
            (Immediates, None, true, "flush"),
            (Immediates, Owner, false, "refuse"),
            (Immediates, Owner, true, "flush"),
            (Immediates, AllDevices, false, "host"),
            (Immediates, AllDevices, true, "host"),
        ];
        for (mode, ordering, flush, expected) in table {
            for (mapping, rdma) in [(DmaBuf, true), (DmaBuf, false), (PeerMem, true)] {
                let planned = match plan(Promise { direct: direct(rdma, ordering, flush), mapping }, mode) {
                    TokenPlan::OnDevice => "device",
                    TokenPlan::OnHostAfterFlush => "flush",
                    TokenPlan::OnHost => "host",
                    TokenPlan::Refuse(_) => "refuse",
                };
                assert_eq!(planned, expected, "{mapping:?} {rdma} {mode:?} {ordering:?} {flush}");
            }
            let promise = Promise { direct: direct(false, ordering, flush), mapping: PeerMem };
            let refused = plan(promise, mode);
            assert!(matches!(refused, TokenPlan::Refuse(_)), "{refused:?}");
        }
    }
}
