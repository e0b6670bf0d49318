//! Processes with one device each: two, unless a workload asks for another number.

use crate::{
    machine::{Machine, UsedDevice},
    prelude::*,
};

/// The tag of messages that the communicator does not send itself.
const OWN_TAG: u32 = 1;

/// The choice of the ranks' devices.
#[derive(Args)]
pub(crate) struct Devices {
    /// The device number of each rank [default: the first ones; where there are fewer, ranks share them].
    #[arg(long, num_args = 1.., value_name = "GPU")]
    devices: Option<Vec<usize>>,
}

impl Devices {
    pub(crate) fn are_given(&self) -> bool {
        self.devices.is_some()
    }
}

/// One rank with its device. Most workloads have a pair of them; collectives may have more, or one.
pub(crate) struct Pair {
    pub(crate) ranks: Ranks,
    pub(crate) gpu: Gpu,
    pub(crate) devices: Vec<UsedDevice>,
}

impl Pair {
    /// Joins `count` ranks, like [`Ranks::join`]. A rank that was started by hand uses the device that it was given, or the
    /// first.
    pub(crate) fn join(
        count: usize,
        devices: &Devices,
        context: impl FnOnce(Platform) -> Context,
        joining: &Joining,
    ) -> Result<Self> {
        if let Some(ids) = devices.devices.as_ref().filter(|ids| ids.len() != count) {
            return Err(
                format!("--devices has {} numbers: give one for each of {count} ranks", ids.len()).into()
            );
        }
        let platform = Platform::detect_or_sim()?;
        // The other ranks are started before this process has touched a device.
        let ranks = Ranks::join(count, context(platform), joining)?;
        let id = match &devices.devices {
            Some(ids) => ids[ranks.rank],
            None if joining.is_by_hand() => joining.gpu.unwrap_or(0),
            None => ranks.rank % platform.device_count()?.max(1),
        };
        let gpu = platform.gpu(id)?;
        let devices = ranks.say(&UsedDevice::of(&gpu)?)?;
        Ok(Self { gpu, ranks, devices })
    }

    /// Connects this rank's device with the other's.
    pub(crate) fn connect(&self, transport: Transport) -> Result<Connection> {
        self.ranks.connect(EndpointConfig::new(transport, Device::gpu(self.gpu.id())))
    }

    /// Makes `count` semaphores, whose tokens are next to each other in memory.
    pub(crate) fn semaphores(&self, connection: &Connection, count: u32) -> Result<Vec<Semaphore>> {
        let (comm, other) = (&self.ranks.comm, self.ranks.other());
        (0..count).map(|_| Ok(comm.build_semaphore_with(connection, other, 0)?.wait()?)).collect()
    }

    /// Makes `count` semaphores, each with its tokens in other pages of memory, because the place of a token changes the time of
    /// a hop.
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

    /// Exchanges memories with the other rank: returns this rank's, as it is registered here, and the other's.
    pub(crate) fn share(&self, buffer: &DeviceBuffer, transport: Transport) -> Result<[RegisteredMemory; 2]> {
        let mine = self.ranks.comm.register_buffer(buffer, transport)?;
        let others = self.ranks.share(&mine)?;
        Ok([mine, others])
    }

    pub(crate) fn machine(&self, transport: Transport) -> Machine {
        Machine::of(&self.devices, &transport.to_string())
    }

    /// Whether the two ranks have a GPU each in one node, so that known figures of two GPUs can be compared.
    pub(crate) fn is_of_two_gpus(&self) -> bool {
        let [a, b] = &self.devices[..] else { return false };
        self.gpu.platform() == Platform::Cuda && a.is_beside(b)
    }

    /// The number of rounds in one time, by default and at most. Two processes on one GPU take turns on it, in the driver's
    /// time slices of about 2 milliseconds, so a round there takes at least two of these.
    pub(crate) fn most_rounds(&self) -> u32 {
        match self.gpu.platform() {
            Platform::Sim => 20,
            _ if self.share_devices() => 10,
            _ => 1000,
        }
    }

    fn share_devices(&self) -> bool {
        let others = |n: usize| &self.devices[n + 1..];
        self.devices.iter().enumerate().any(|(n, device)| others(n).iter().any(|other| device.is(other)))
    }
}

/// The single block of a ping-pong's kernel on each side. It compares every element of every message.
#[derive(Args)]
pub(crate) struct Block {
    /// Threads of the one block [default: 1024, 32 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

pub(crate) struct BlockOnDevice<'a> {
    pair: &'a Pair,
    threads: u32,
    mismatches: DeviceBuffer,
}

impl Block {
    pub(crate) fn on<'a>(&self, pair: &'a Pair) -> Result<BlockOnDevice<'a>> {
        let default = if pair.gpu.platform() == Platform::Sim { 32 } else { 1024 };
        let threads = self.threads.unwrap_or(default);
        Ok(BlockOnDevice { pair, threads, mismatches: pair.gpu.allocate(8)? })
    }
}

impl BlockOnDevice<'_> {
    pub(crate) fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(1, self.threads)
    }

    /// The address of the kernel's count of wrong elements, set to 0: eight bytes of device memory.
    pub(crate) fn mismatches(&self) -> Result<DevicePtr> {
        self.mismatches.fill(0, 8, 0)?;
        Ok(self.mismatches.ptr())
    }

    /// Whether neither side's kernel has found a wrong element.
    pub(crate) fn found_all_right(&self) -> Result<bool> {
        let mut wrong = [0; 8];
        self.mismatches.read(0, &mut wrong)?;
        self.pair.ranks.all(wrong == [0; 8])
    }

    /// The row of a ping-pong with messages of `bytes` bytes, without times.
    pub(crate) fn row(&self, workload: &str, bytes: u64, rounds: u32) -> Row {
        Row::new(workload, format!("1x{}", self.threads), (bytes, SizeOf::Bytes), rounds)
    }
}
