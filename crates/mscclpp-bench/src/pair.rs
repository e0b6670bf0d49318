//! Two processes, one per device: this one is rank 0, and starts itself again as rank 1.

use std::{
    env,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp::{TcpBootstrap, prelude::*};

use crate::Result;

const INIT: Duration = Duration::from_secs(60);
/// How long the other rank may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);

/// Tokens are handed out one behind the other, 512 bytes apart; a page has 4 KiB.
const TOKENS_OF_A_PAGE: u32 = 8;

/// One rank of two.
pub(crate) struct Pair {
    pub(crate) comm: Communicator,
    pub(crate) rank: usize,
    pub(crate) gpu: Gpu,
    /// Of both ranks.
    pub(crate) gpus: [Gpu; 2],
    _other: Option<Other>,
}

impl Pair {
    /// Starts the other rank, with this process's arguments, or joins as that rank, and connects both.
    ///
    /// `devices` are the device numbers of the ranks, by default the first two, or the one that there is.
    pub(crate) fn join(devices: Option<[usize; 2]>, peer: bool) -> Result<Self> {
        let platform = Platform::detect_or_host()?;
        let rank = usize::from(peer);
        // Started before this process has touched a device.
        let (id, other) = if peer { (read_id()?, None) } else { start_other(platform)? };
        let [first, second] = match devices {
            Some(ids) => ids,
            None => [0, 1 % platform.device_count()?.max(1)],
        };
        let gpus = [platform.gpu(first)?, platform.gpu(second)?];
        let bootstrap = TcpBootstrap::new(rank, 2, id, INIT)?;
        let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(platform));
        Ok(Self { comm, rank, gpu: gpus[rank].clone(), gpus, _other: other })
    }

    /// Connects this rank's device with the other's.
    pub(crate) fn connect(&self, transport: Transport) -> Result<Connection> {
        let config = EndpointConfig::new(transport, Device::gpu(self.gpu.id()));
        Ok(self.comm.connect(config, self.other(), 0)?.wait()?)
    }

    /// So many semaphores, their tokens one behind the other in memory.
    pub(crate) fn semaphores(&self, connection: &Connection, count: u32) -> Result<Vec<Semaphore>> {
        (0..count).map(|_| Ok(self.comm.build_semaphore(connection, self.other(), 0)?.wait()?)).collect()
    }

    /// So many semaphores, each with its tokens in other pages of memory: where a token is decides up to 0.15 us of a
    /// hop.
    pub(crate) fn scattered_semaphores(&self, connection: &Connection, count: u32) -> Result<Vec<Semaphore>> {
        let all = self.semaphores(connection, count * TOKENS_OF_A_PAGE)?;
        Ok(all.into_iter().step_by(TOKENS_OF_A_PAGE as usize).collect())
    }

    /// Both ranks give a memory to each other: this one's as registered here, and the other's.
    pub(crate) fn share(&self, buffer: &DeviceBuffer, transport: Transport) -> Result<[RegisteredMemory; 2]> {
        let mine = self.comm.register_buffer(buffer, transport)?;
        self.comm.send_memory(&mine, self.other(), 0)?;
        let others = self.comm.recv_memory(self.other(), 0)?.wait()?;
        Ok([mine, others])
    }

    /// The other rank's number, for this one's.
    pub(crate) fn swap(&self, number: u64) -> Result<u64> {
        let all = self.comm.bootstrap().all_gather(&number.to_le_bytes())?;
        let others =
            all.get(self.other()).and_then(|bytes| Some(u64::from_le_bytes(bytes[..].try_into().ok()?)));
        Ok(others.ok_or("the other rank sent something else than a number")?)
    }

    /// Whether the ranks have a GPU each, so that figures of two GPUs say something here.
    pub(crate) fn is_of_two_gpus(&self) -> bool {
        let [a, b] = &self.gpus;
        a.platform() == Platform::Cuda && a.properties().uuid != b.properties().uuid
    }

    fn other(&self) -> usize {
        1 - self.rank
    }

    /// Whether both ranks say yes. Waits for both.
    pub(crate) fn both(&self, yes: bool) -> Result<bool> {
        let answers = self.comm.bootstrap().all_gather(&[u8::from(yes)])?;
        Ok(answers.iter().all(|answer| answer == &[1]))
    }
}

/// The process of rank 1; waited for when dropped.
struct Other(Child);

fn start_other(platform: Platform) -> Result<(UniqueId, Option<Other>)> {
    let id = TcpBootstrap::create_unique_id()?;
    let process = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .arg("--peer")
        .env("MSCCLPP_PLATFORM", platform.to_string())
        .stdin(Stdio::piped())
        .spawn()?;
    let mut other = Other(process);
    // Not on the command line: the id contains the job's key.
    if let Some(mut input) = other.0.stdin.take() {
        input.write_all(id.to_hex().as_bytes())?;
    }
    Ok((id, Some(other)))
}

fn read_id() -> Result<UniqueId> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text.parse()?)
}

impl Drop for Other {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // It does not end; nothing is left that could be done if this fails too.
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
