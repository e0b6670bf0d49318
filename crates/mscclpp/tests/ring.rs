//! The ring of the example `ring_all_gather`, as it should be, and written wrong: each mistake ends in a message that says
//! what is wrong and what to do. Ranks are threads of this process, on GPUs or on simulated devices.

mod support;

use std::{thread, time::Duration};

use mscclpp::{ErrorKind, errors::BootstrapError, prelude::*};
use mscclpp_test_support::reserve_port;
use support::{LIMIT, device_of, endpoint_of, platform, ranks};

const KERNEL: KernelSource<'static> =
    KernelSource::new("ring_all_gather.cu", include_str!("../examples/ring_all_gather.cu"));
const RANKS: usize = 4;
const SLICE: u64 = 1000;
const SHORT: Duration = Duration::from_millis(200);

/// A rank of the ring, ready to launch.
struct Ring {
    comm: Communicator,
    rank: usize,
    buffer: DeviceBuffer,
    ours: RegisteredMemory,
    channels: Vec<MemoryChannel>,
    kernel: Kernel,
    stream: Stream,
}

impl Ring {
    fn new(comm: Communicator) -> Self {
        let rank = comm.bootstrap().rank();
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let buffer = gpu.allocate(RANKS as u64 * SLICE).unwrap();
        buffer.fill(rank as u64 * SLICE, SLICE, rank as u8 + 1).unwrap();
        let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
        let neighbours = [next(rank), previous(rank)];
        let mesh = comm.mesh(endpoint_of(rank)).peers(neighbours).memory(&ours).connect().unwrap();
        let channels = mesh.memory_channels(&ours, None).unwrap();
        let kernel = Module::load(&gpu, &KERNEL).unwrap().kernel("ring_all_gather").unwrap();
        let stream = gpu.stream().unwrap();
        comm.bootstrap().barrier().unwrap();
        Self { comm, rank, buffer, ours, channels, kernel, stream }
    }

    fn launch(&self, slice: u64) {
        let args = KernelArgs::new().with(&self.channels[0]).with(self.channels[1].base());
        let args = args.with(self.rank as i32).with(RANKS as i32).with(slice);
        // SAFETY: these are the kernel's parameters.
        unsafe { self.kernel.launch(&self.stream, LaunchConfig::linear(2, 32), &args).unwrap() };
    }
}

fn next(rank: usize) -> usize {
    (rank + 1) % RANKS
}

fn previous(rank: usize) -> usize {
    (rank + RANKS - 1) % RANKS
}

#[test]
fn everybody_has_all_slices() {
    ranks(RANKS, |comm| {
        let ring = Ring::new(comm);
        ring.launch(SLICE);
        ring.stream.synchronize_or_abort(LIMIT, &ring.channels).unwrap();
        let mut all = vec![0; RANKS * SLICE as usize];
        ring.buffer.read(0, &mut all).unwrap();
        for (owner, slice) in all.chunks(SLICE as usize).enumerate() {
            assert!(slice.iter().all(|byte| *byte == owner as u8 + 1), "slice {owner} at rank {}", ring.rank);
        }
        ring.comm.bootstrap().barrier().unwrap();
    });
}

/// Rank 0 does not launch. A time-out names those whom the kernels can wait for, then one that gives up.
#[test]
fn a_rank_without_its_kernel_is_among_those_that_the_time_out_names() {
    ranks(RANKS, |comm| {
        let ring = Ring::new(comm);
        if ring.rank > 0 {
            ring.launch(SLICE);
            let error = ring.stream.synchronize_timeout(SHORT).unwrap_err().to_string();
            let (next, previous) = (next(ring.rank), previous(ring.rank));
            let named = format!("can wait for rank {next}, rank {previous}, did not finish within 200ms");
            assert!(error.contains(&named) && error.contains("see whether these have launched"), "{error}");
        }
        ring.comm.bootstrap().barrier().unwrap();
        if ring.rank > 0 {
            let error = ring.stream.synchronize_or_abort(SHORT, &ring.channels).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("where kernels wait for rank ") && text.contains("see whether"), "{text}");
            assert!(ring.stream.query().unwrap(), "it has waited for the kernel");
        }
        ring.comm.bootstrap().barrier().unwrap();
    });
}

/// Each waits for the next one, which has not come to its call with this one yet.
#[test]
fn a_ring_of_waits_is_told_how_to_avoid_it() {
    ranks(RANKS, |comm| {
        let rank = comm.bootstrap().rank();
        let to_next = comm.connect(endpoint_of(rank), next(rank), 0).unwrap();
        let error = to_next.wait_timeout(SHORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = error.to_string();
        let named = format!("rank {} has not sent what connect needs", next(rank));
        assert!(text.contains(&named) && text.contains("before the first wait, as connect_all()"), "{text}");
        comm.bootstrap().barrier().unwrap();
        // What was said to do.
        let from_previous = comm.connect(endpoint_of(rank), previous(rank), 0).unwrap();
        to_next.wait().unwrap();
        from_previous.wait().unwrap();
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_rank_that_is_started_twice_is_told_to_everybody() {
    let address = format!("127.0.0.1:{}", reserve_port());
    let start = |rank: usize| {
        let values = [("RANK", rank.to_string()), ("N_RANKS", "4".to_owned()), ("ADDRESS", address.clone())];
        let lookup = move |name: &str| {
            let short = name.strip_prefix("MSCCLPP_")?;
            values.iter().find(|(known, _)| *known == short).map(|(_, value)| value.into())
        };
        let rendezvous = Rendezvous::from_lookup(lookup).unwrap();
        thread::spawn(move || rendezvous.connect(LIMIT).map(drop))
    };
    for rank in [0, 1, 2, 2].map(start) {
        let error = rank.join().unwrap().unwrap_err();
        assert!(matches!(error, BootstrapError::DuplicateRank { rank: 2, .. }), "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}

/// Numbers of memories and semaphores are types of their own: what can be mixed up is which memory is whose.
#[test]
fn memories_that_are_swapped_are_told_apart() {
    const SWAPPED: &str =
        "is a peer's memory; it must be registered here (are source and destination swapped?)";
    ranks(RANKS, |comm| {
        let ring = Ring::new(comm);
        let theirs = ring.channels[0].dst().clone();
        let semaphore = ring.channels[0].semaphore();
        let error = MemoryChannel::new(semaphore, &ring.ours, &theirs, None).unwrap_err().to_string();
        assert!(error.contains(SWAPPED), "{error}");
        let service = ProxyService::new(ring.buffer.gpu()).unwrap();
        let id = service.add_semaphore(semaphore).unwrap();
        let (ours, theirs) = (service.add_memory(&ring.ours).unwrap(), service.add_memory(&theirs).unwrap());
        let error = service.port_channel(id, ours, theirs).unwrap_err().to_string();
        assert!(error.contains(SWAPPED), "{error}");
        ring.comm.bootstrap().barrier().unwrap();
    });
}

/// Simulated devices know every range. GPUs check none of a memory channel: see `port_kernels` for those of a proxy.
#[test]
fn a_slice_outside_the_buffer_is_named() {
    if platform() != Platform::Host {
        println!("kernels on GPUs do not check their ranges");
        return;
    }
    ranks(RANKS, |comm| {
        let ring = Ring::new(comm);
        ring.launch(1 << 40);
        let error = ring.stream.synchronize_or_abort(LIMIT, &ring.channels).unwrap_err().to_string();
        let named =
            ["kernel ring_all_gather failed", "block [", "thread [", "which is not memory of a device"];
        assert!(named.iter().all(|part| error.contains(part)), "{error}");
        ring.comm.bootstrap().barrier().unwrap();
    });
}
