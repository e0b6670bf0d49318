//! A proxy of your own, whose triggers mean "send this range to all peers". Kernels push one trigger where port channels
//! would take one per peer.
//!
//! Three or more ranks, each a process, share the devices of the node; simulated ones if there is no GPU.

mod devices;
mod ranks;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use mscclpp::{
    channels::{HostToDeviceSemaphoreHandle, SendQueue, SignallerId},
    errors::ProxyError,
    kernels,
    prelude::*,
    provider::RouteId,
    proxy::{FifoPosition, Progress, Proxy, ProxyHandler, ProxyHandlerResult, ProxyTrigger},
};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: custom_proxy [ADDRESS]                    run all ranks, each in a process of its own
       custom_proxy ADDRESS RANK GPU N_RANKS     run one of them; start the others in other terminals
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is below N_RANKS, which is 1 to 32,
GPU is a device number",
    devices: |count| (0..count.clamp(3, 8)).map(|rank| rank % count).collect(),
    more: |n_ranks| vec![n_ranks.to_string()],
    run,
};

const MAX_RANKS: usize = 32;
/// The bytes that a rank sends in a round.
const SLICE: u64 = 64 << 10;
const ROUNDS: u8 = 10;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    PROGRAM.main()
}

// ANCHOR: handler
/// All objects that the proxy's thread needs: it looks nothing up and locks nothing when a trigger comes.
struct Broadcaster {
    peers: Vec<Peer>,
}

struct Peer {
    semaphore: Semaphore,
    queue: SendQueue,
    /// The route from this side's buffer to the peer's, in `queue`.
    route: RouteId,
    signaller: SignallerId,
}

impl ProxyHandler for Broadcaster {
    /// Sends the range of a trigger, whose first word is an offset and whose second is a number of bytes.
    fn handle(
        &mut self,
        trigger: ProxyTrigger,
        _position: FifoPosition,
    ) -> Result<ProxyHandlerResult, ProxyError> {
        let (offset, bytes) = (trigger.fst, trigger.snd);
        if self.peers.iter().any(|peer| !peer.queue.has_room_for(2)) {
            // A queue is full: the same trigger comes again.
            return Ok(ProxyHandlerResult::Retry);
        }
        for peer in &mut self.peers {
            // Neither call blocks. The peer sees the data before the signal.
            peer.queue.write(peer.route, offset, offset, bytes)?;
            peer.queue.signal(peer.signaller)?;
        }
        Ok(ProxyHandlerResult::Continue)
    }

    /// Hands over the transfers that the triggers so far have requested.
    fn progress(&mut self) -> Result<Progress, ProxyError> {
        let mut waiting = 0;
        for peer in &mut self.peers {
            peer.queue.progress()?;
            waiting += peer.queue.waiting();
        }
        Ok(if waiting == 0 { Progress::Idle } else { Progress::Busy })
    }

    /// Aborts the semaphores, since kernels wait for data that nobody sends any more.
    fn failed(&mut self, error: &ProxyError) {
        for peer in &self.peers {
            peer.semaphore.abort(&format!("the proxy has failed: {}", mscclpp::Report(error)));
        }
    }
}
// ANCHOR_END: handler

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    let n_ranks: usize = match this.more.as_slice() {
        [n] => n.parse().ok().filter(|n| (this.rank + 1..=MAX_RANKS).contains(n)).ok_or(BadArguments)?,
        _ => return Err(BadArguments.into()),
    };
    let bootstrap = Arc::new(this.bootstrap(n_ranks)?);
    let communicator = Communicator::with_context(bootstrap.clone(), Context::on(this.platform));
    let gpu = communicator.context().gpu(this.gpu)?;
    let buffer = gpu.allocate(SLICE * n_ranks as u64)?;
    println!("GPU {}: Connecting to {} others ...", this.gpu, n_ranks - 1);
    let peers = connect_all(&communicator, this.gpu, &buffer).map_err(|error| communicator.explain(error))?;

    let semaphores: Vec<Semaphore> = peers.iter().map(|peer| peer.semaphore.clone()).collect();
    let handles = gpu.allocate((MAX_RANKS * size_of::<HostToDeviceSemaphoreHandle>()) as u64)?;
    let waits =
        semaphores.iter().map(HostToDeviceSemaphoreHandle::of).collect::<mscclpp::Result<Vec<_>, _>>()?;
    handles.write_params(0, &waits)?;
    let kernel = Module::load(&gpu, &kernels::CUSTOM_PROXY)?.kernel("broadcast_and_gather")?;
    let (stream, failed) = (gpu.stream()?, gpu.allocate(4)?);

    // ANCHOR: proxy
    let proxy = Proxy::new(&gpu, Broadcaster { peers })?;
    proxy.start(true)?;
    let fifo = proxy.fifo().device_handle(); // goes to the kernel
    // ANCHOR_END: proxy
    let mine = this.rank as u64 * SLICE;
    let args = KernelArgs::new()
        .with(fifo)
        .with(handles.ptr())
        .with(semaphores.len() as u32)
        .with(mine)
        .with(SLICE)
        .with(failed.ptr());
    for round in 0..ROUNDS {
        buffer.fill(mine, SLICE, mark_of(this.rank, round))?;
        failed.fill(0, 4, 0)?;
        // SAFETY: these are the kernel's arguments; the proxy and what they point to are kept until it is done.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, MAX_RANKS as u32), &args)? };
        // When the time is up this ends the kernel's waits, so that the device stays usable. If a wait failed, the error
        // says why.
        let waited = stream.synchronize_or_abort(LIMIT, &semaphores);
        // If the proxy has failed, its error is the cause.
        proxy.health()?;
        waited?;
        let mut word = [0; 4];
        failed.read(0, &mut word)?;
        if word != [0; 4] {
            return Err("a call of the kernel failed".into());
        }
        for rank in 0..n_ranks {
            let mut slice = vec![0; SLICE as usize];
            buffer.read(rank as u64 * SLICE, &mut slice)?;
            if slice.iter().any(|byte| *byte != mark_of(rank, round)) {
                return Err(
                    format!("round {round}: what rank {rank} sent is wrong at rank {}", this.rank).into()
                );
            }
        }
        // No rank sends into a buffer that is still being compared, and all have received the data, so it may be changed.
        bootstrap.barrier()?;
    }
    proxy.stop()?;
    if this.rank == 0 {
        println!("GPU {}: {ROUNDS} rounds, {SLICE} bytes to {} ranks by one trigger", this.gpu, n_ranks - 1);
    }
    bootstrap.barrier()?;
    if this.rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}

/// The byte that fills a rank's slice in a round.
fn mark_of(rank: usize, round: u8) -> u8 {
    (rank as u8 + 1).wrapping_mul(7).wrapping_add(round)
}

fn connect_all(communicator: &Communicator, gpu: usize, buffer: &DeviceBuffer) -> mscclpp::Result<Vec<Peer>> {
    let ours = communicator.register_buffer(buffer, Transport::CUDA_IPC)?;
    let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu));
    let mesh = communicator.mesh(config).memory(&ours).connect()?;
    let mut peers = Vec::new();
    for link in mesh.links() {
        let (semaphore, theirs) = (link.semaphores[0].clone(), &link.memories[0]);
        // ANCHOR: queue
        let mut queue = link.connection.open_queue()?;
        let route = queue.route(theirs, &ours)?;
        let signaller = queue.attach(semaphore.signaller()?)?;
        peers.push(Peer { semaphore, queue, route, signaller });
        // ANCHOR_END: queue
    }
    Ok(peers)
}
