//! The ring of the example `ring_all_gather`, written correctly and incorrectly: each mistake ends in a message that says
//! what is wrong and what to do. Ranks are threads of this process, on GPUs or on simulated devices.

use std::{thread, time::Duration};

use crate::support::{LIMIT, device_of, endpoint_of, platform, ranks};
use mscclpp::{ErrorKind, MeshLink, errors::BootstrapError, gpu::Probe, prelude::*};
use mscclpp_test_support::{reserve_port, until};

const KERNEL: KernelSource<'static> =
    KernelSource::new("ring_all_gather.cu", include_str!("../../examples/ring_all_gather.cu"));
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

    /// The text of a time-out that names the previous rank.
    fn waits_for_the_previous_rank(&self) -> String {
        format!(
            "work on a stream of {}, whose kernels wait for rank {}, did not finish within 200ms; check on each \
             of them whether the kernel that signals was launched, and whether it ended without a signal",
            self.buffer.gpu(),
            previous(self.rank)
        )
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

/// Whether the error of a time-out contains the text. It may not do so yet if the kernel has not reached its wait.
fn is_told(stream: &Stream, text: &str) -> bool {
    stream.synchronize_timeout(SHORT).unwrap_err().to_string().contains(text)
}

/// Rank 0 does not launch. Each time-out names the rank whose signal the kernel waits for, and so does an error after
/// giving up.
#[test]
fn a_ring_without_one_kernel_names_the_previous_rank_alone() {
    ranks(RANKS, |comm| {
        let ring = Ring::new(comm);
        if ring.rank > 0 {
            ring.launch(SLICE);
        }
        // When the kernel of the previous rank has reached its last wait and this rank's kernel waits, it has reached its
        // own last wait.
        for turn in 1..RANKS {
            if turn == ring.rank {
                let text = ring.waits_for_the_previous_rank();
                until("the kernel waits", || is_told(&ring.stream, &text));
            }
            ring.comm.bootstrap().barrier().unwrap();
        }
        // The last rank gives up first: a kernel whose wait was given up continues, and signals the kernel of the next
        // rank.
        for turn in (1..RANKS).rev() {
            if turn == ring.rank {
                let error = ring.stream.synchronize_or_abort(SHORT, &ring.channels).unwrap_err();
                assert_eq!(error.to_string(), ring.waits_for_the_previous_rank());
                assert!(ring.stream.query().unwrap(), "it has waited for the kernel");
            }
            ring.comm.bootstrap().barrier().unwrap();
        }
    });
}

/// Each rank has channels to all others and waits for the previous rank, and nobody signals. All channels are given up at
/// once.
#[test]
fn a_deadlocked_ring_names_the_one_rank_that_is_waited_for() {
    const WAIT: KernelSource<'static> = KernelSource::new(
        "wait.cu",
        "#include <mscclpp/memory_channel_device.hpp>\n\
         extern \"C\" __global__ void wait(mscclpp::BaseMemoryChannelDeviceHandle from, int64_t spins) { from.wait(spins); }",
    );
    ranks(RANKS, |comm| {
        let rank = comm.bootstrap().rank();
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let mesh = comm.mesh(endpoint_of(rank)).semaphores(2).connect().unwrap();
        let (kernel, stream) =
            (Module::load(&gpu, &WAIT).unwrap().kernel("wait").unwrap(), gpu.stream().unwrap());
        comm.bootstrap().barrier().unwrap();
        let told = |semaphore: usize, spins: i64| {
            let channel = |link: &MeshLink| BaseMemoryChannel::new(&link.semaphores[semaphore]).unwrap();
            let channels: Vec<_> = mesh.links().iter().map(channel).collect();
            // The argument keeps the other channels, too, as programs do that pass handles in memory.
            let from = channel(mesh.link(previous(rank)).unwrap()).device_handle();
            let args = KernelArgs::new().with(from).with(spins).keeping_each(&channels);
            // SAFETY: these are the kernel's parameters.
            unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
            let claimed = DevicePtr::from_ptr(from.semaphore.expected_inbound_token);
            // SAFETY: it is a word of the semaphore, which lives.
            let has_claimed = || unsafe { Probe::new(&gpu).read(&[claimed]).unwrap() == [1] };
            if spins < 0 {
                until("the kernel waits", has_claimed);
            }
            stream.synchronize_or_abort(SHORT, &channels).unwrap_err().to_string()
        };
        let text = |whom: &str| {
            format!(
                "work on a stream of {gpu}, whose kernels {whom}, did not finish within 200ms; check on each \
             of them whether the kernel that signals was launched, and whether it ended without a signal"
            )
        };
        assert_eq!(told(0, -1), text(&format!("wait for rank {}", previous(rank))));
        // A bounded wait claims no token, so the host cannot tell which rank it waits for.
        let others: Vec<_> = (0..RANKS).filter(|r| *r != rank).map(|r| format!("rank {r}")).collect();
        assert_eq!(told(1, i64::MAX), text(&format!("may wait for {}", others.join(", "))));
        comm.bootstrap().barrier().unwrap();
    });
}

/// Each rank signals all others and waits for all, through a slice of channels. Rank 0 launches when the others'
/// time-outs name it.
#[test]
fn a_slice_of_channels_is_an_argument_and_names_whom_it_waits_for() {
    const ALL: KernelSource<'static> = KernelSource::new(
        "all.cu",
        "#include <mscclpp/memory_channel_device.hpp>\n\
         extern \"C\" __global__ void all(mscclpp::BaseMemoryChannelDeviceHandle* channels, int count) {\n\
           for (int i = 0; i < count; ++i) channels[i].signal();\n\
           for (int i = 0; i < count; ++i) channels[i].wait();\n\
         }",
    );
    ranks(RANKS, |comm| {
        let rank = comm.bootstrap().rank();
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let mesh = comm.mesh(endpoint_of(rank)).connect().unwrap();
        let (kernel, stream) =
            (Module::load(&gpu, &ALL).unwrap().kernel("all").unwrap(), gpu.stream().unwrap());
        let launch = || {
            let channels = mesh.base_memory_channels().unwrap();
            let args = KernelArgs::new().with_array(&gpu, &channels).with(channels.len() as i32);
            // SAFETY: these are the kernel's parameters.
            unsafe { kernel.launch(&stream, LaunchConfig::linear(1, 1), &args).unwrap() };
        };
        comm.bootstrap().barrier().unwrap();
        if rank > 0 {
            launch();
            // At first the kernel waits for all ranks that have not launched yet.
            let text = "whose kernels wait for rank 0, did not finish";
            until("the kernel waits for rank 0 alone", || is_told(&stream, text));
        }
        comm.bootstrap().barrier().unwrap();
        if rank == 0 {
            launch();
        }
        stream.synchronize_or_abort(LIMIT, &mesh.base_memory_channels().unwrap()).unwrap();
        comm.bootstrap().barrier().unwrap();
    });
}

/// Each rank waits for the next one, which has not made its call with this rank yet.
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
        // The rank does what the message said.
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

/// Numbers of memories and semaphores are types of their own, so a program can only mix up which memory belongs to which
/// side.
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

/// Simulated devices check every range. GPUs check none of a memory channel; `port_kernels` has the checks of a proxy.
#[test]
fn a_slice_outside_the_buffer_is_named() {
    if platform() != Platform::Sim {
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
