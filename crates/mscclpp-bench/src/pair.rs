//! Two processes, one per device.

use mscclpp::prelude::*;

use crate::{
    Result,
    machine::UsedDevice,
    ranks::{Joining, Ranks},
};

/// Of messages that are not the communicator's.
const OWN_TAG: u32 = 1;

/// One rank of two, with its device.
pub(crate) struct Pair {
    pub(crate) ranks: Ranks,
    pub(crate) gpu: Gpu,
    /// Of both ranks.
    pub(crate) devices: [UsedDevice; 2],
}

impl Pair {
    /// As [`Ranks::join`]. `devices` are the device numbers of the ranks, by default the first two, or the one that there
    /// is. A rank that was started by itself has the device that it was told, or else the first.
    pub(crate) fn join(
        devices: Option<[usize; 2]>,
        context: impl FnOnce(Platform) -> Context,
        joining: &Joining,
    ) -> Result<Self> {
        let platform = Platform::detect_or_host()?;
        // The other rank is started before this process has touched a device.
        let ranks = Ranks::join(context(platform), joining)?;
        let ids = match devices {
            Some(ids) => ids,
            None if joining.is_by_hand() => [joining.gpu().unwrap_or(0); 2],
            None => [0, 1 % platform.device_count()?.max(1)],
        };
        let gpu = platform.gpu(ids[ranks.rank])?;
        let devices = ranks.both_devices(&UsedDevice::of(&gpu)?)?;
        Ok(Self { gpu, ranks, devices })
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

    /// Whether the ranks have a GPU each in one host, so that figures of two GPUs say something here.
    pub(crate) fn is_of_two_gpus(&self) -> bool {
        let [a, b] = &self.devices;
        self.gpu.platform() == Platform::Cuda && a.is_beside(b)
    }

    /// How many rounds one time is of, by default and at most. Two processes on one GPU take turns on it, by the driver's
    /// slices of some 2 ms, so there a round takes two of these at least.
    pub(crate) fn most_rounds(&self) -> u32 {
        match self.gpu.platform() {
            Platform::Host => 20,
            _ if self.devices[0].is(&self.devices[1]) => 10,
            _ => 1000,
        }
    }
}
