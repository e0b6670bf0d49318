//! Every rank is connected to every other, with a process and a device each: each gives its slice of a buffer to all,
//! through a port channel per peer. The kernel finds the channels in a variable of its own.
//!
//! There is one rank for each GPU, or two on the only one; without a GPU, one for each simulated device. Ranks of several
//! nodes are started one by one, and an argument says over which transport the nodes reach each other.

mod devices;
mod ranks;

use std::{collections::BTreeMap, error::Error, process::ExitCode, sync::Arc, time::Duration};

use mscclpp::{kernels, prelude::*};
use ranks::{BadArguments, Program, Rank};

const PROGRAM: Program = Program {
    usage: "\
usage: mesh_port_channels [ADDRESS]                              run a rank for each device, in processes of their own
       mesh_port_channels ADDRESS RANK GPU N_RANKS [TRANSPORT]   run one of them; start the others elsewhere
ADDRESS is ip:port or interface:ip:port [default: lo:127.0.0.1:15505], RANK is below N_RANKS, which is 1 to 64,
GPU is a device number. TRANSPORT is that between ranks of different nodes: Ethernet, or IB0 to IB7. Each node has as many
ranks as the others, one after the other",
    devices: |count| (0..count.clamp(2, MAX_RANKS)).map(|rank| rank % count).collect(),
    more: |n_ranks| vec![n_ranks.to_string()],
    run,
};

/// The most ranks that the kernel has room for.
const MAX_RANKS: usize = 64;
/// The bytes that a rank gives to each other rank: first so few that threads put them themselves, then more. The last
/// size is for GPUs only.
const SLICES: [u64; 3] = [1 << 10, 64 << 10, 1 << 20];
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    PROGRAM.main()
}

fn run(this: &Rank) -> Result<(), Box<dyn Error>> {
    let (n_ranks, across) = match this.more.as_slice() {
        [n] => (n, Transport::CUDA_IPC),
        [n, across] => (n, across.parse().map_err(|_| BadArguments)?),
        _ => return Err(BadArguments.into()),
    };
    let is_valid = |n: &usize| (this.rank + 1..=MAX_RANKS).contains(n);
    let n_ranks = n_ranks.parse().ok().filter(is_valid).ok_or(BadArguments)?;
    let bootstrap = Arc::new(this.bootstrap(n_ranks)?);
    let communicator = Communicator::with_context(bootstrap.clone(), Context::on(this.platform));
    let gpu = communicator.context().gpu(this.gpu)?;
    let slices = if this.platform == Platform::Sim { &SLICES[..2] } else { &SLICES[..] };
    let largest = slices.iter().max().unwrap_or(&0);
    let buffer = gpu.allocate(largest * n_ranks as u64)?;

    let service = ProxyService::new(&gpu)?;
    // ANCHOR: connect
    // The memory is registered for the ranks of this node and for those of other nodes.
    let ours = communicator.register_buffer(&buffer, Transport::CUDA_IPC | across)?;
    let node_of = |rank: usize| rank / bootstrap.n_ranks_per_node();
    let (near, far): (Vec<_>, Vec<_>) =
        (0..n_ranks).filter(|peer| *peer != this.rank).partition(|peer| node_of(*peer) == node_of(this.rank));
    let mut channels = BTreeMap::new();
    for (transport, peers) in [(Transport::CUDA_IPC, near), (across, far)] {
        let config = EndpointConfig::new(transport, Device::gpu(this.gpu));
        // This connects with all of them, in an order in which no two ranks wait for each other.
        let mesh = communicator.mesh(config).peers(peers).memory(&ours).connect()?;
        // The channels go from this side's buffer to that of each peer. If a rank has died, `explain` finds out which.
        let made = mesh.port_channels(&service, &ours).map_err(|error| communicator.explain(error))?;
        channels.extend(mesh.links().iter().map(|link| link.peer).zip(made));
    }
    // ANCHOR_END: connect
    let over = |(peer, channel): (_, &PortChannel)| {
        format!("{peer} over {}", channel.semaphore().connection().transport())
    };
    let reached: Vec<String> = channels.iter().map(over).collect();
    println!("GPU {}: Rank {} has channels to {}", this.gpu, this.rank, reached.join(", "));

    // ANCHOR: symbol
    let module = Module::load(&gpu, &kernels::MESH_PORT_CHANNELS)?;
    let mut handles: Vec<_> = channels.values().map(PortChannel::device_handle).collect();
    // The handles are in the order of the ranks. The kernel does not use its own rank's handle, so any will do there.
    if let Some(any) = handles.first().copied() {
        handles.insert(this.rank, any);
    }
    module.set_symbol("channels", &handles)?;
    // ANCHOR_END: symbol
    let (kernel, stream, failed) = (module.kernel("mesh_all_gather")?, gpu.stream()?, gpu.allocate(4)?);

    service.start_proxy(true)?;
    for bytes in slices.iter().copied() {
        for rank in 0..n_ranks {
            let value = if rank == this.rank { mark_of(rank) } else { 0 };
            buffer.fill(rank as u64 * bytes, bytes, value)?;
        }
        failed.fill(0, 4, 0)?;
        // All buffers are ready before a rank puts into one.
        bootstrap.barrier()?;
        let args =
            KernelArgs::new().with(this.rank as u32).with(n_ranks as u32).with(bytes).with(failed.ptr());
        // SAFETY: these are the kernel's arguments; the channels and what they work on are kept until it is done.
        unsafe { kernel.launch(&stream, LaunchConfig::linear(1, MAX_RANKS as u32), &args)? };
        finish(&channels, &stream, &failed)?;

        for rank in 0..n_ranks {
            let mut slice = vec![0; bytes as usize];
            buffer.read(rank as u64 * bytes, &mut slice)?;
            if slice.iter().any(|byte| *byte != mark_of(rank)) {
                return Err(
                    format!("the {bytes} bytes of rank {rank} are wrong at rank {}", this.rank).into()
                );
            }
        }
        // No rank writes into a buffer that is still being compared.
        bootstrap.barrier()?;
        if this.rank == 0 {
            println!("GPU {}: [All Gather] {n_ranks} ranks, bytes {bytes} each: all there", this.gpu);
        }
    }
    service.stop_proxy()?;
    bootstrap.barrier()?;
    if this.rank == 0 {
        println!("Succeed!");
    }
    Ok(())
}

/// The byte that fills a rank's slice.
fn mark_of(rank: usize) -> u8 {
    rank as u8 + 1
}

fn finish(
    channels: &BTreeMap<usize, PortChannel>,
    stream: &mscclpp::Stream,
    failed: &DeviceBuffer,
) -> Result<(), Box<dyn Error>> {
    // When the time is up this ends the kernel's waits, so that the device stays usable. If a call failed, the error says
    // why.
    let channels: Vec<&PortChannel> = channels.values().collect();
    stream.synchronize_or_abort(LIMIT, &channels)?;
    let mut word = [0; 4];
    failed.read(0, &mut word)?;
    match u32::from_ne_bytes(word) {
        0 => Ok(()),
        rank => Err(format!("the call that has to do with rank {} failed", rank - 1).into()),
    }
}
