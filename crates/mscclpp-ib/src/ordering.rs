//! What is done so that a kernel which sees a token sees the data that came before it.
//!
//! An adapter's writes travel over PCIe in the order in which it made them, as far as they are not marked relaxed: a
//! later write passes no earlier one, whatever the earlier one is marked with, as long as the later one is unmarked.
//! Tokens are written through a memory region without relaxed ordering, so they stay behind their data *on the way to one
//! destination*. Two things can still go wrong with GPUs: data and token go to different places (the GPU's memory and the
//! host's), between which PCIe keeps no order; or the GPU itself does not show what arrived in the order in which it
//! arrived. The driver tells about the second, and has a call that waits until both are settled.

use mscclpp_gpu::{GpuDirect, WritesOrdering};

/// How an adapter reaches a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// A dmabuf: through the GPU's PCIe window, or memory of the GPU that is part of the system's.
    DmaBuf,
    /// The peer-memory module of the driver: through the PCIe window.
    PeerMem,
}

/// How signals come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalMode {
    /// The peer's adapter adds to the token.
    Atomics,
    /// The peer's adapter hands over a number, and a thread here stores it.
    Immediates,
}

/// What is done with the tokens that kernels of a GPU wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPlan {
    /// In the GPU's memory, beside the data.
    OnDevice,
    /// In pinned host memory. A thread makes what has arrived visible to the GPU before it stores the token.
    OnHostAfterFlush,
    /// In pinned host memory, as what has arrived is visible to all.
    OnHost,
    /// It cannot be promised, for this reason.
    Refuse(&'static str),
}

/// Where tokens go, and what is done before one is stored.
pub(crate) fn plan(direct: GpuDirect, mapping: Mapping, mode: SignalMode) -> TokenPlan {
    if !direct.rdma && mapping == Mapping::PeerMem {
        return TokenPlan::Refuse(
            "the GPU's driver says that adapters cannot reach its memory (GPUDirect RDMA)",
        );
    }
    match (mode, direct.writes_ordering) {
        // The same destination and order at the device.
        (SignalMode::Atomics, WritesOrdering::Owner | WritesOrdering::AllDevices) => TokenPlan::OnDevice,
        // Nobody is there to flush between the data and a token that the adapter writes.
        (SignalMode::Atomics, WritesOrdering::None) => TokenPlan::Refuse(
            "the GPU does not show an adapter's writes in order, so a token that the adapter writes could be seen before \
             its data; set MSCCLPP_IBV_MODE=host-no-atomic on both sides",
        ),
        // The store comes from the host, to another destination: only what all devices see at once is there already.
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

    /// All combinations of what matters.
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
                let planned = match plan(direct(rdma, ordering, flush), mapping, mode) {
                    TokenPlan::OnDevice => "device",
                    TokenPlan::OnHostAfterFlush => "flush",
                    TokenPlan::OnHost => "host",
                    TokenPlan::Refuse(_) => "refuse",
                };
                assert_eq!(planned, expected, "{mapping:?} {rdma} {mode:?} {ordering:?} {flush}");
            }
            let refused = plan(direct(false, ordering, flush), PeerMem, mode);
            assert!(matches!(refused, TokenPlan::Refuse(_)), "{refused:?}");
        }
    }
}
