//! Ranks that connect with many others in one call. Ranks are threads of this process.

use std::{sync::Mutex, time::Instant};

use crate::support::{
    LIMIT, device_of, endpoint_of,
    kernels::{Outcome, Side},
    platform, ranks,
};
use mscclpp::{Error, ErrorKind, prelude::*};
use mscclpp_test_support::watched;

#[test]
fn a_ring_whose_ranks_all_name_the_next_one_first_connects() {
    let n = 5;
    watched(2 * LIMIT, "connecting a ring", || {
        ranks(n, |comm| {
            let rank = comm.bootstrap().rank();
            let neighbours = [(rank + 1) % n, (rank + n - 1) % n];
            let connections = comm.connect_all(endpoint_of(rank), neighbours, 3).unwrap();
            for (connection, peer) in connections.iter().zip(neighbours) {
                assert_eq!(comm.remote_rank_of(connection).unwrap(), peer);
                assert_eq!(comm.tag_of(connection).unwrap(), 3);
                assert_eq!(connection.label(), format!("rank {peer}"));
            }
            comm.bootstrap().barrier().unwrap();
        });
    });
}

/// The book's tutorial about rings shows these excerpts.
#[test]
fn a_ring_is_made_by_calls_before_waits_and_by_one_call() {
    fn ring(comm: &Communicator) -> mscclpp::Result<()> {
        let (rank, n_ranks) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
        let (next, previous) = ((rank + 1) % n_ranks, (rank + n_ranks - 1) % n_ranks);
        let config = endpoint_of(rank);
        let buffer = comm.context().gpu(device_of(rank))?.allocate(4096)?;
        let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC)?;
        // ANCHOR: ring_in_order
        let to_next = comm.connect(config.clone(), next, 0)?;
        let from_previous = comm.connect(config.clone(), previous, 0)?;
        let (to_next, from_previous) = (to_next.wait()?, from_previous.wait()?);
        // ANCHOR_END: ring_in_order
        assert_eq!([&to_next, &from_previous].map(|it| comm.remote_rank_of(it).unwrap()), [next, previous]);
        // ANCHOR: ring_at_once
        // Connections only.
        let connections = comm.connect_all(config.clone(), [next, previous], 0)?;

        // Or connections, semaphores and memories: all that channels need.
        let mesh = comm.mesh(config).peers([next, previous]).memory(&ours).connect()?;
        let channels = mesh.memory_channels(&ours, None)?; // to the next rank, and to the previous one
        // ANCHOR_END: ring_at_once
        assert_eq!((connections.len(), channels.len()), (2, 2));
        comm.bootstrap().barrier()?;
        Ok(())
    }
    watched(2 * LIMIT, "making a ring", || ranks(3, |comm| ring(&comm).unwrap()));
}

/// Each of two tests has some 8,400 descriptors, and a process may have few more.
static HAS_MANY_DESCRIPTORS: Mutex<()> = Mutex::new(());

#[test]
fn all_of_64_ranks_connect_with_all() {
    let _alone = HAS_MANY_DESCRIPTORS.lock();
    let started = Instant::now();
    watched(2 * LIMIT, "connecting 64 ranks with each other", || {
        ranks(64, |comm| {
            let rank = comm.bootstrap().rank();
            // Each rank begins with a different peer.
            let peers = (1..64).map(|distance| (rank + distance) % 64);
            let connections = comm.connect_all(endpoint_of(rank), peers, 0).unwrap();
            assert_eq!(connections.len(), 63);
            comm.bootstrap().barrier().unwrap();
        });
    });
    println!("64 ranks connected with each other in {:.1?}", started.elapsed());
}

#[test]
fn a_mesh_of_64_ranks_has_channels_between_all() {
    let _alone = HAS_MANY_DESCRIPTORS.lock();
    let started = Instant::now();
    watched(2 * LIMIT, "making a mesh of 64 ranks", || {
        ranks(64, |comm| {
            let rank = comm.bootstrap().rank();
            let buffer = comm.context().gpu(device_of(rank)).unwrap().allocate(4096).unwrap();
            let ours = comm.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
            let mesh = comm.mesh(endpoint_of(rank)).memory(&ours).connect().unwrap();
            assert_eq!(mesh.memory_channels(&ours, None).unwrap().len(), 63);
            comm.bootstrap().barrier().unwrap();
        });
    });
    println!("64 ranks made a mesh of memory channels in {:.1?}", started.elapsed());
}

#[test]
fn a_mesh_has_for_each_peer_what_was_asked_for_and_its_channels_work() {
    ranks(3, |comm| {
        let rank = comm.bootstrap().rank();
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        // The size of a memory tells whose it is.
        let memory = |kind: usize| {
            let size = 4096 * (1 + kind) as u64 + 64 * rank as u64;
            comm.register_buffer(&gpu.allocate(size).unwrap(), Transport::CUDA_IPC).unwrap()
        };
        let (first, second) = (memory(0), memory(1));
        // The peers include the rank itself, and each rank has an order of its own.
        let peers: Vec<usize> = (0..3).map(|i| (i + rank) % 3).collect();
        let builder = comm.mesh(endpoint_of(rank)).peers(peers.clone()).tag(9).semaphores(2);
        let mesh = builder.memory(&first).memory(&second).connect().unwrap();
        assert_eq!(mesh.links().iter().map(|link| link.peer).collect::<Vec<_>>(), peers);
        for link in mesh.links() {
            assert_eq!(comm.remote_rank_of(&link.connection).unwrap(), link.peer);
            assert_eq!(comm.tag_of(&link.connection).unwrap(), 9);
            assert_eq!(link.semaphores.len(), 2);
            let sizes: Vec<u64> = link.memories.iter().map(RegisteredMemory::size).collect();
            assert_eq!(sizes, [4096 + 64 * link.peer as u64, 8192 + 64 * link.peer as u64]);
        }
        assert_eq!(mesh.link(1).unwrap().peer, 1);
        assert!(mesh.link(3).is_none());

        assert_eq!(mesh.memory_channels(&first, Some(&second)).unwrap().len(), 3);
        let service = ProxyService::new(&gpu).unwrap();
        assert_eq!(mesh.port_channels(&service, &first).unwrap().len(), 3);
        assert_eq!(service.next_memory_id(1).unwrap().to_string(), "4", "its own once, and one of each peer");

        let channels = mesh.base_memory_channels().unwrap();
        let mut side = Side::new(&gpu).unwrap();
        channels.iter().for_each(|channel| side.signal(channel, 1));
        side.finish();
        comm.bootstrap().barrier().unwrap();
        for channel in &channels {
            assert_eq!(side.poll_once(channel), Outcome::Signalled);
        }
        comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn what_is_wrong_is_found_before_anything_is_sent() {
    ranks(2, |comm| {
        let (rank, peer) = (comm.bootstrap().rank(), 1 - comm.bootstrap().rank());
        let no_device = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(1000));
        let errors = [
            comm.connect_all(endpoint_of(rank), [peer, 2], 0).unwrap_err(),
            comm.connect_all(endpoint_of(rank), [peer, rank, peer], 0).unwrap_err(),
            comm.connect_all(no_device, [peer], 0).unwrap_err(),
            comm.mesh(endpoint_of(rank)).peers([peer, 7]).connect().unwrap_err(),
        ];
        let parts = ["no rank 2 in a job of 2", "is named twice", "1000", "no rank 7 in a job of 2"];
        for (error, part) in errors.iter().zip(parts) {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage);
            assert!(error.to_string().contains(part), "{error}");
        }
        // Nothing was sent, so the next exchange is the first.
        let mesh = comm.mesh(endpoint_of(rank)).semaphores(0).connect().unwrap();
        let error = mesh.base_memory_channels().unwrap_err();
        assert!(error.to_string().contains("has no semaphore to make a channel of"), "{error}");
        let gpu = comm.context().gpu(device_of(rank)).unwrap();
        let ours = comm.register_buffer(&gpu.allocate(64).unwrap(), Transport::CUDA_IPC).unwrap();
        let mesh = comm.mesh(endpoint_of(rank)).connect().unwrap();
        let error = mesh.memory_channels(&ours, None).unwrap_err();
        assert!(matches!(error, Error::Core(_)) && error.to_string().contains("has no memory"), "{error}");
        comm.bootstrap().barrier().unwrap();
        // No peers is no mistake: a job of one rank has none.
        assert!(comm.connect_all(endpoint_of(rank), [], 0).unwrap().is_empty());
        assert!(platform().device_count().is_ok());
    });
}
