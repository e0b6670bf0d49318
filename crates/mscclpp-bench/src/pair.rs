//! Two processes, one per device.

use mscclpp::{SemaphoreStub, prelude::*};

use crate::{Result, ranks::Ranks};

/// Of messages that are not the communicator's.
const OWN_TAG: u32 = 1;

/// One rank of two, with its device.
pub(crate) struct Pair {
    pub(crate) ranks: Ranks,
    pub(crate) gpu: Gpu,
    /// Of both ranks.
    pub(crate) gpus: [Gpu; 2],
}

impl Pair {
    /// As [`Ranks::join`]. `devices` are the device numbers of the ranks, by default the first two, or the one that there
    /// is.
    pub(crate) fn join(
        devices: Option<[usize; 2]>,
        context: impl FnOnce(Platform) -> Context,
        peer: bool,
    ) -> Result<Self> {
        let platform = Platform::detect_or_host()?;
        // The other rank is started before this process has touched a device.
        let ranks = Ranks::join(context(platform), peer)?;
        let [first, second] = match devices {
            Some(ids) => ids,
            None => [0, 1 % platform.device_count()?.max(1)],
        };
        let gpus = [platform.gpu(first)?, platform.gpu(second)?];
        Ok(Self { gpu: gpus[ranks.rank].clone(), ranks, gpus })
    }

    /// Connects this rank's device with the other's.
    pub(crate) fn connect(&self, transport: Transport) -> Result<Connection> {
        let config = EndpointConfig::new(transport, Device::gpu(self.gpu.id()));
        Ok(self.ranks.comm.connect(config, self.ranks.other(), 0)?.wait()?)
    }

    /// So many semaphores, their tokens one behind the other in memory.
    pub(crate) fn semaphores(&self, connection: &Connection, count: u32) -> Result<Vec<Semaphore>> {
        let (comm, other) = (&self.ranks.comm, self.ranks.other());
        (0..count).map(|_| Ok(comm.build_semaphore_with(connection, other, 0)?.wait()?)).collect()
    }

    /// So many semaphores, each with its tokens in other pages of memory: where a token is decides a tenth of a hop's time
    /// or more.
    pub(crate) fn scattered_semaphores(&self, connection: &Connection, count: u32) -> Result<Vec<Semaphore>> {
        let (bootstrap, other) = (self.ranks.comm.bootstrap(), self.ranks.other());
        let semaphore = |_| {
            let stub = SemaphoreStub::in_new_page(connection)?;
            bootstrap.send(&stub.serialize()?, other, OWN_TAG)?;
            let theirs = SemaphoreStub::deserialize(&bootstrap.recv(other, OWN_TAG)?)?;
            Ok(Semaphore::new(&stub, &theirs)?)
        };
        (0..count).map(semaphore).collect()
    }

    /// Both ranks give a memory to each other: this one's as registered here, and the other's.
    pub(crate) fn share(&self, buffer: &DeviceBuffer, transport: Transport) -> Result<[RegisteredMemory; 2]> {
        let mine = self.ranks.comm.register_buffer(buffer, transport)?;
        let others = self.ranks.share(&mine)?;
        Ok([mine, others])
    }

    /// Whether the ranks have a GPU each, so that figures of two GPUs say something here.
    pub(crate) fn is_of_two_gpus(&self) -> bool {
        let [a, b] = &self.gpus;
        a.platform() == Platform::Cuda && a.properties().uuid != b.properties().uuid
    }

    /// How many rounds one time is of, by default and at most. Two processes on one GPU take turns on it, by the driver's
    /// slices of some 2 ms, so there a round takes two of these at least.
    pub(crate) fn most_rounds(&self) -> u32 {
        match self.gpu.platform() {
            Platform::Host => 20,
            _ if self.is_of_two_gpus() => 1000,
            _ => 10,
        }
    }
}
