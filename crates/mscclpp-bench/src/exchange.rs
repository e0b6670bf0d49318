//! Memory on both sides between which data is moved, and the memory channels over it.

use mscclpp::prelude::*;

use crate::{
    Result,
    data::{Destination, GUARD},
    measuring::Arrival,
    pair::Pair,
    stopwatch::Stopwatch,
};

/// The first bytes of this side's memory are sent; the peer's data is to arrive behind them.
pub(crate) struct Exchange<'a> {
    // Declared first: when it is dropped, it waits for the kernels that use the rest.
    pub(crate) stopwatch: Stopwatch<'a>,
    channels: Vec<MemoryChannel>,
    memory: DeviceBuffer,
    /// Where packets arrive.
    scratch: Option<DeviceBuffer>,
    incoming: u64,
}

impl<'a> Exchange<'a> {
    /// For messages of up to `largest` bytes, as packets of up to `packets` bytes if that is not 0, over so many
    /// channels that have this in common.
    pub(crate) fn new(pair: &'a Pair, largest: u64, packets: u64, channels: u32) -> Result<Self> {
        const PAGE: u64 = 4096;
        let incoming = largest.next_multiple_of(PAGE) + PAGE;
        let memory = pair.gpu.allocate(incoming + largest + GUARD)?;
        let scratch = (packets != 0).then(|| pair.gpu.allocate(packets)).transpose()?;

        let transport = Transport::CUDA_IPC;
        let connection = pair.connect(transport)?;
        let [mine, others] = pair.share(&memory, transport)?;
        let scratches = scratch.as_ref().map(|scratch| pair.share(scratch, transport)).transpose()?;
        let semaphores = pair.semaphores(&connection, channels)?;
        let channels = semaphores
            .iter()
            .map(|semaphore| match &scratches {
                Some([here, there]) => MemoryChannel::new(semaphore, there, &mine, Some(here)),
                None => MemoryChannel::new(semaphore, &others, &mine, None),
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { stopwatch: Stopwatch::new(pair, semaphores)?, channels, memory, scratch, incoming })
    }

    /// Not empty.
    pub(crate) fn channels(&self) -> &[MemoryChannel] {
        &self.channels
    }

    /// Where the peer's data goes, in bytes from the start of this side's memory.
    pub(crate) fn incoming(&self) -> u64 {
        self.incoming
    }

    pub(crate) fn arrival(&self) -> Arrival<'_> {
        let destination = Destination { memory: &self.memory, offset: self.incoming };
        Arrival { stopwatch: &self.stopwatch, destination }
    }

    /// What is sent from now on. Packets of earlier messages are gone.
    ///
    /// Nobody sends before the other side's kernel has begun, so that this can be done while the other is still at it.
    pub(crate) fn load(&self, data: &[u8]) -> Result<()> {
        self.memory.write(0, data)?;
        if let Some(scratch) = &self.scratch {
            scratch.fill(0, scratch.len(), 0)?;
        }
        Ok(())
    }
}
