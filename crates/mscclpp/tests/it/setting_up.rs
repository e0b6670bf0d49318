//! The steps before a kernel: addresses of memory that was received, and channels made from connections.

use crate::support::{
    device_of, endpoint_of,
    kernels::{Outcome, Side},
    ranks,
};
use mscclpp::{
    Error,
    channels::{DeviceToDeviceSemaphore, HostToDeviceSemaphore, HostToHostSemaphore},
    prelude::*,
};

fn peer_of(comm: &Communicator) -> usize {
    1 - comm.bootstrap().rank()
}

#[test]
fn a_received_memory_has_an_address_at_once() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let kept = gpu.allocate(64).unwrap();
        let exchange = |transports: TransportFlags| {
            let own = comm.register_buffer(&kept, transports).unwrap();
            comm.send_memory(&own, peer, 0).unwrap();
            (comm.recv_memory(peer, 0).unwrap().wait().unwrap(), own)
        };
        let (unconnected, _own) = exchange(Transport::CUDA_IPC.into());
        assert!(unconnected.data().is_some(), "also before there is a connection");
        let connection = comm.connect(endpoint_of(rank), peer, 0).unwrap().wait().unwrap();
        let (received, own) = exchange(Transport::CUDA_IPC | Transport::ETHERNET);
        let ptr = received.data();
        assert!(ptr.is_some() && ptr == connection.peer_ptr(&received).unwrap());
        assert_eq!(received.data(), ptr, "it stays where it is");
        // In one process the address is the owner's own.
        comm.bootstrap().send(&own.data().unwrap().0.to_le_bytes(), peer, 9).unwrap();
        let theirs = comm.bootstrap().recv(peer, 9).unwrap();
        assert_eq!(theirs, ptr.unwrap().0.to_le_bytes());
        for nowhere in [Transport::ETHERNET.into(), TransportFlags::NONE] {
            let (received, _own) = exchange(nowhere);
            assert_eq!(received.data(), None, "registered for {nowhere}");
            comm.bootstrap().barrier().unwrap();
        }
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn one_call_makes_a_channel_of_a_connection() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let connection = comm.connect(endpoint_of(rank), peer, 3).unwrap().wait().unwrap();
        let semaphore = Semaphore::from_connection(&comm, &connection).unwrap();
        assert_eq!(semaphore.connection().label(), format!("rank {peer}"));
        let base = BaseMemoryChannel::from_connection(&comm, &connection).unwrap();
        let between_devices = DeviceToDeviceSemaphore::from_connection(&comm, &connection).unwrap();
        assert!(!base.semaphore().is(between_devices.semaphore()), "each has a semaphore of its own");
        let by_host = HostToDeviceSemaphore::from_connection(&comm, &connection).unwrap();
        by_host.signal().unwrap();

        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let own = comm.register_buffer(&gpu.allocate(64).unwrap(), Transport::CUDA_IPC).unwrap();
        comm.send_memory(&own, peer, 3).unwrap();
        let theirs = comm.recv_memory(peer, 3).unwrap().wait().unwrap();
        let channel = MemoryChannel::from_connection(&comm, &connection, &theirs, &own, Some(&own)).unwrap();
        assert_eq!(channel.dst().data(), theirs.data());

        let service = ProxyService::new(&gpu).unwrap();
        let port = service.build_port_channel(&comm, &connection, &theirs, &own).unwrap();
        let (handle, by_name) = (port.device_handle(), [&theirs, &own].map(RegisteredMemory::size));
        assert_eq!((handle.dst.raw(), handle.src.raw(), [handle.dst_size, handle.src_size]), (0, 1, by_name));
        assert!(!port.semaphore().is(&semaphore), "it has a semaphore of its own");
        // Swapped memories are found after the exchange, at both sides.
        let error = service.build_port_channel(&comm, &connection, &own, &theirs).unwrap_err();
        assert!(matches!(error, Error::Core(_) | Error::Proxy(_)), "{error}");
        assert_eq!(service.next_memory_id(1).unwrap().raw(), 4, "two of each call");

        // The two ranks may make different objects, because only a semaphore is exchanged.
        let mut side = Side::new(&gpu).unwrap();
        comm.bootstrap().barrier().unwrap();
        for channel in [&base, channel.base()] {
            side.signal(channel, 1);
            assert_eq!(side.wait_once(channel, -1), Outcome::Signalled);
        }

        // The wrong end is found after the exchange, at both sides, and the next exchange works.
        let error = HostToHostSemaphore::from_connection(&comm, &connection).unwrap_err();
        assert!(error.to_string().contains("is on a GPU"), "{error}");
        let cpu = EndpointConfig::new(Transport::ETHERNET, Device::CPU);
        let cpus = comm.connect(cpu, peer, 4).unwrap().wait().unwrap();
        let between_nodes = HostToHostSemaphore::from_connection(&comm, &cpus).unwrap();
        between_nodes.signal().unwrap();
        between_nodes.wait(1 << 30).unwrap();

        let other = Communicator::with_context(comm.bootstrap().clone(), comm.context().clone());
        let error = BaseMemoryChannel::from_connection(&other, &connection).unwrap_err();
        assert!(matches!(error, Error::ForeignConnection { .. }), "{error}");
        comm.bootstrap().barrier().unwrap();
    });
}

/// Two ranks set everything up while each captures a stream, in the thread that captures or in another. The capture then
/// has only the work that was captured, and all objects work.
#[test]
fn everything_can_be_set_up_while_a_stream_captures() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), peer_of(&comm));
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let (stream, word) = (gpu.stream().unwrap(), gpu.allocate(8).unwrap());
        let set_up = || {
            let connection = comm.connect(endpoint_of(rank), peer, 5).unwrap().wait().unwrap();
            let buffer = gpu.allocate(64).unwrap();
            let own = comm.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
            comm.send_memory(&own, peer, 5).unwrap();
            let theirs = comm.recv_memory(peer, 5).unwrap().wait().unwrap();
            let channel =
                MemoryChannel::from_connection(&comm, &connection, &theirs, &own, Some(&own)).unwrap();
            let service = ProxyService::new(&gpu).unwrap();
            let port = service.build_port_channel(&comm, &connection, &theirs, &own).unwrap();
            service.start_proxy(true).unwrap();
            let mut side = Side::new(&gpu).unwrap();
            side.signal(channel.base(), 1);
            assert_eq!(side.wait_once(channel.base(), -1), Outcome::Signalled);
            buffer.write(0, &[rank as u8 + 1; 8]).unwrap();
            connection.write(&theirs, 32, &own, 0, 8).unwrap();
            connection.flush(crate::support::LIMIT).unwrap();
            comm.bootstrap().barrier().unwrap();
            let mut got = [0; 8];
            buffer.read(32, &mut got).unwrap();
            assert_eq!(got, [peer as u8 + 1; 8]);
            service.stop_proxy().unwrap();
            drop(port);
        };
        for in_another_thread in [false, true] {
            stream.begin_capture().unwrap();
            // SAFETY: here and below, the word outlives the work, which is waited for.
            unsafe { stream.fill(word.ptr(), 8, 3).unwrap() };
            match in_another_thread {
                true => std::thread::scope(|scope| scope.spawn(set_up).join().expect("the other thread")),
                false => set_up(),
            }
            let graph = stream.end_capture().unwrap();
            word.fill(0, 8, 0).unwrap();
            // SAFETY: the same as above.
            unsafe { graph.launch(&stream).unwrap() };
            stream.synchronize_timeout(crate::support::LIMIT).unwrap();
            let mut filled = [0; 8];
            word.read(0, &mut filled).unwrap();
            assert_eq!(filled, [3; 8], "in another thread: {in_another_thread}");
            comm.bootstrap().barrier().unwrap();
        }
    });
}
