//! Of `signal_ping_pong.cu`. Safety: see the module above.

use mscclpp::{
    BaseMemoryChannelHandle, DevicePtr,
    host::{HostBlock, HostKernel},
};

pub(crate) const SIGNAL_PING_PONG: &[HostKernel] = &[
    HostKernel { name: "signal_ping_pong", run: signal_ping_pong },
    HostKernel { name: "relaxed_ping_pong", run: relaxed_ping_pong },
    // On the CPU nothing is gained by leaving out what makes a wait safe.
    HostKernel { name: "bare_ping_pong", run: signal_ping_pong },
    HostKernel { name: "bare_relaxed_ping_pong", run: relaxed_ping_pong },
];

unsafe fn signal_ping_pong(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    unsafe { take_turns(block, |channel| channel.signal(), |channel| channel.wait(-1)) }
}

unsafe fn relaxed_ping_pong(block: &HostBlock<'_>) {
    // SAFETY: see the module above.
    unsafe { take_turns(block, |channel| channel.relaxed_signal(), |channel| channel.relaxed_wait(-1)) }
}

unsafe fn take_turns(
    block: &HostBlock<'_>,
    signal: impl Fn(&BaseMemoryChannelHandle),
    wait: impl Fn(&BaseMemoryChannelHandle) -> bool,
) {
    // SAFETY: see the module above.
    let (channel, iters, first, failed) = unsafe {
        (
            block.arg::<BaseMemoryChannelHandle>(0),
            block.arg::<i32>(1),
            block.arg::<i32>(2) != 0,
            block.arg::<DevicePtr>(3),
        )
    };
    for round in 0..iters {
        if first {
            signal(&channel);
        }
        if !wait(&channel) {
            // SAFETY: see the module above: four bytes of device memory that only this kernel writes.
            unsafe { failed.as_mut_ptr::<u32>().write(round.unsigned_abs() + 1) };
            return;
        }
        if !first {
            signal(&channel);
        }
    }
}
