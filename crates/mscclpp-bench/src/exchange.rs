//! Memory on both sides between which data is moved, and the memory channels over it.

use crate::{
    data::{Destination, GUARD},
    prelude::*,
};

/// The memories and channels of this side. The first bytes of its memory are sent; the peer's data arrives behind them.
pub(crate) struct Exchange<'a> {
    // The stopwatch is declared first: when it is dropped, it waits for the kernels that use the rest.
    pub(crate) stopwatch: Stopwatch<'a>,
    /// The channels, of which there is at least one.
    pub(crate) channels: Vec<MemoryChannel>,
    memory: DeviceBuffer,
    scratch: Option<DeviceBuffer>,
    /// The offset of the peer's data in this side's memory, in bytes.
    pub(crate) incoming: u64,
}

impl<'a> Exchange<'a> {
    /// Makes an exchange for messages of up to `largest` bytes, as packets of up to `packets` bytes if that is not 0, over
    /// `channels` channels that share the memory.
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

    pub(crate) fn arrival(&self) -> Arrival<'_> {
        let destination = Destination { memory: &self.memory, offset: self.incoming };
        Arrival { stopwatch: &self.stopwatch, destination }
    }

    /// Loads the data that is sent from now on, and clears the packets of earlier messages.
    ///
    /// No side sends before the other side's kernel has begun, so the other side may still be loading.
    pub(crate) fn load(&self, data: &[u8]) -> Result<()> {
        self.memory.write(0, data)?;
        if let Some(scratch) = &self.scratch {
            scratch.fill(0, scratch.len(), 0)?;
        }
        Ok(())
    }
}
