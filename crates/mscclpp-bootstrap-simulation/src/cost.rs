//! The costs of a job: connections, frames, bytes, and the hops that follow each other.

use std::net::SocketAddr;
use std::time::Duration;

use crate::program::Step;
use crate::starting::{PORT, plan_of, starter};
use crate::world::{Event, Network, Traffic, World};
use mscclpp_bootstrap::protocol::handshake::JobKey;

const RANKS: usize = 64;
/// The time that each way between two nodes takes. Nothing else takes time.
const LATENCY: Duration = Duration::from_millis(1);
/// The number of bytes that each rank contributes to `all_gather`.
const PIECE: usize = 256;

/// The cost of a part of a job's life.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// The ways between nodes that follow each other, from when the last rank begins until the last has ended.
    hops: u128,
    rank_0: Traffic,
    /// The traffic of the rank that writes the most bytes apart from rank 0.
    most_of_others: Traffic,
}

/// Returns the costs of initialisation, an all_gather and a barrier, and the most connections at one time, of rank 0 and
/// of another rank.
fn costs() -> ([Cost; 3], [usize; 2]) {
    let network = Network {
        least_latency: LATENCY,
        most_latency: LATENCY,
        buffer: usize::MAX,
        busy: Duration::ZERO,
        cuts_writes: false,
    };
    let mut world = World::new(1, network, RANKS);
    let root = SocketAddr::new(world.nodes[0].ip, PORT);
    // The pause is longer than a call takes, because each of its hops waits for the one before.
    let pause = LATENCY * 1000;
    for rank in 0..RANKS {
        let plan = plan_of(rank, RANKS, JobKey::of_unique_id([9; 32]), true, world.instant());
        world.schedule(Duration::ZERO, Event::Start(rank, starter(plan, root, vec![root])));
        let program = &mut world.nodes[rank].program;
        (program.rank, program.n, program.piece) = (rank, RANKS, Some(PIECE));
        let pause = || Step::Sleep(pause);
        program.steps = [pause(), Step::AllGather, pause(), Step::Barrier, pause()].into();
    }
    let (mut begun, mut before) = (Duration::ZERO, vec![Traffic::default(); RANKS]);
    let costs = [0, 1, 2].map(|part| {
        world.run(begun + pause / 2, u64::MAX);
        let ends = world.nodes.iter().map(|node| node.program.ends[part]);
        let end = ends.max().unwrap();
        let hops = (end - begun).as_nanos() / LATENCY.as_nanos();
        let written = world
            .written
            .iter()
            .zip(&before)
            .map(|(now, then)| Traffic { frames: now.frames - then.frames, bytes: now.bytes - then.bytes });
        let written: Vec<Traffic> = written.collect();
        let most_of_others = *written[1..].iter().max_by_key(|written| written.bytes).unwrap();
        before.clone_from(&world.written);
        // The next call of each rank begins after its own pause.
        begun = end + pause;
        Cost { hops, rank_0: written[0], most_of_others }
    });
    let (of_rank_0, of_others) = world.most_wires.split_at(1);
    (costs, [of_rank_0[0], *of_others.iter().max().unwrap()])
}

#[test]
fn a_job_costs_what_its_tree_says() {
    let all = costs();
    let ([initialise, all_gather, barrier], [of_rank_0, of_others]) = &all;
    assert_eq!(*of_rank_0, 63);
    assert_eq!(*of_others, 4, "its edges, and for a while the connection to rank 0");
    // A tree of 64 ranks has six levels below the root, and each call goes up and down.
    assert_eq!((all_gather.hops, barrier.hops), (12, 12));
    assert_eq!((barrier.rank_0.frames, barrier.most_of_others.frames), (2, 3));
    let pieces = (RANKS * (PIECE + 12)) as u64;
    assert!((2 * pieces..2 * pieces + 200).contains(&all_gather.rank_0.bytes), "{all_gather:?}");
    // Rank 0 writes the table twice, and for each rank a handshake and where its parent is.
    let tables = 2 * 64 * 15;
    assert!((tables..tables + 64 * 160).contains(&initialise.rank_0.bytes), "{initialise:?}");
    assert!(initialise.hops >= 12, "{initialise:?}");
    assert_eq!(costs(), all);
}
