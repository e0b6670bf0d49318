//! One thread that brings up several ranks, as a language binding does for all devices of a process.

use std::{sync::Arc, thread};

use crate::support::{LIMIT, device_of, platform, turn};
use mscclpp::{Error, PendingMesh, bootstrap::Env, prelude::*};
use mscclpp_test_support::watched;

const RANKS: usize = 4;

/// Forms a job over TCP with this thread alone, and returns its ranks.
fn job() -> Vec<Communicator> {
    let id = TcpBootstrap::create_unique_id_in(&Env::default()).unwrap();
    let start = |rank| TcpBootstrap::builder(rank, RANKS).env(Env::default()).timeout(2 * LIMIT).start(id);
    let forming: Vec<_> = (0..RANKS).map(|rank| start(rank).unwrap()).collect();
    let communicator = |bootstrap| Communicator::with_context(Arc::new(bootstrap), Context::on(platform()));
    forming.into_iter().map(|rank| communicator(rank.wait().unwrap())).collect()
}

fn endpoint(transport: Transport, rank: usize) -> EndpointConfig {
    EndpointConfig::new(transport, Device::gpu(device_of(rank)))
}

#[test]
fn meshes_of_all_ranks_are_made() {
    let _turn = turn();
    for transport in [Transport::CUDA_IPC, Transport::ETHERNET] {
        watched(2 * LIMIT, "making meshes in one thread", || {
            let ranks = job();
            let start = |(rank, comm): (usize, &Communicator)| {
                let buffer = comm.context().gpu(device_of(rank))?.allocate(1000 + rank as u64)?;
                let ours = comm.register_buffer(&buffer, transport)?;
                let mesh = comm.mesh(endpoint(transport, rank)).memory(&ours).semaphores(2).tag(3).start()?;
                Ok((buffer, mesh))
            };
            let started = ranks.iter().enumerate().map(start).collect::<Result<Vec<_>, Error>>().unwrap();
            let (_buffers, meshes): (Vec<_>, Vec<_>) = started.into_iter().unzip();
            for (rank, mesh) in PendingMesh::join(meshes).unwrap().iter().enumerate() {
                assert_eq!(mesh.links().len(), RANKS - 1);
                for link in mesh.links() {
                    assert_ne!(link.peer, rank);
                    assert_eq!(link.semaphores.len(), 2);
                    assert_eq!(link.memories[0].size(), 1000 + link.peer as u64, "{transport}");
                }
            }
        });
    }
}

#[test]
fn what_has_not_come_is_none_and_what_has_is_kept() {
    let _turn = turn();
    watched(2 * LIMIT, "connecting in one thread", || {
        let ranks = job();
        let transport = Transport::CUDA_IPC;
        let ours = ranks[0].connect(endpoint(transport, 0), 1, 0).unwrap();
        assert!(ours.poll().unwrap().is_none() && !ours.is_complete());
        let mut mesh = ranks[2].mesh(endpoint(transport, 2)).peers([3]).start().unwrap();
        assert!(!mesh.poll().unwrap());

        let theirs = ranks[1].connect(endpoint(transport, 1), 0, 0).unwrap();
        let (ours, theirs) = (ours.wait().unwrap(), theirs.wait().unwrap());
        assert_eq!((ours.label(), theirs.label()), ("rank 1".to_owned(), "rank 0".to_owned()));

        let other = thread::scope(|scope| {
            let other = scope.spawn(|| ranks[3].mesh(endpoint(transport, 3)).peers([2]).connect());
            let mesh = mesh.wait().unwrap();
            assert_eq!(mesh.links()[0].peer, 3);
            other.join().unwrap()
        });
        assert_eq!(other.unwrap().links()[0].peer, 2);
    });
}

#[test]
fn a_rank_that_is_gone_ends_the_polls_of_the_others() {
    let _turn = turn();
    watched(2 * LIMIT, "polling for a rank that left", || {
        let mut ranks = job();
        drop(ranks.pop());
        let start = |rank: usize| ranks[rank].mesh(endpoint(Transport::CUDA_IPC, rank)).start();
        let error =
            (0..RANKS - 1).map(start).collect::<Result<Vec<_>, _>>().and_then(PendingMesh::join).unwrap_err();
        assert!(error.to_string().contains("rank 3"), "{error}");
    });
}
