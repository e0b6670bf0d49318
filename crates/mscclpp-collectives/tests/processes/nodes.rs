//! Collectives whose ranks are processes on several nodes, two on each: of this machine with other names, and network
//! namespaces with real packets between them. A node vanishes: all its processes are killed, or its interface is taken down.
//! Devices without access to each other's memory are nodes, too, also in one process.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp::{Platform, Transport};
use mscclpp_collectives::{DeviceSlice, Error, ReduceOp};
use mscclpp_test_support::{
    Child, Lateness, Random,
    child::{say, this_program},
    job::{Children, Role},
    namespaces::Namespaces,
    trial_if,
};

use crate::support::{builder, communicator_of, device_of, platform, ranks, slice, three_sums};

/// Ranks of a node.
const ON_EACH: usize = 2;
/// How soon every rank names a node that has vanished.
const PROMISED: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    let possible = Namespaces::switched(2).map(drop);
    if let Err(why) = &possible {
        eprintln!("NOT TESTED: collectives between network namespaces: {why}");
    }
    let wired = |name, test| trial_if(name, &possible, test);
    let apart = Trial::test("ranks_without_peer_access_are_nodes_of_their_own", || {
        let mut program = this_program();
        program.env("MSCCLPP_SIM_PEER_ACCESS", "none");
        Child::start_by(program, &["nodes apart", "0", "1"]).expect_success();
        Ok(())
    });
    vec![
        apart.with_ignored_flag(platform() != Platform::Sim),
        Trial::test("ranks_of_two_nodes_reduce", || reduce(2, &Wires::None)),
        Trial::test("a_node_whose_ranks_are_killed_is_named_by_all_others", || {
            vanish(&Wires::None, |children, _| (2..4).for_each(|rank| children.kill(rank)))
        }),
        wired("two_nodes_with_a_wire_reduce", || reduce(2, &Wires::Of(Namespaces::switched(2)?))),
        wired("four_nodes_with_a_switch_reduce", || reduce(4, &Wires::Of(Namespaces::switched(4)?))),
        wired("a_node_whose_interface_is_taken_down_is_named_by_all_others", || {
            vanish(&Wires::Of(Namespaces::switched(2)?), |_, wires| {
                if let Wires::Of(net) = wires {
                    net.ip(1, &["link", "set", "wire", "down"]);
                }
            })
        }),
    ]
}

/// The network between the nodes.
enum Wires {
    /// They are this machine, by other names.
    None,
    Of(Namespaces),
}

impl Wires {
    fn command(&self, rank: usize) -> Command {
        let node = rank / ON_EACH;
        let mut command = match self {
            Self::None => this_program(),
            Self::Of(net) => net.command(node, this_program().get_program()),
        };
        // A namespace does not make it another node by itself where this is set.
        command.env("MSCCLPP_HOSTID", format!("node {node}"));
        command
    }
}

fn reduce(nodes: usize, wires: &Wires) -> Result<(), Failed> {
    let ranks = ON_EACH * nodes;
    let mut children = Children::start_as("nodes reduce", ranks, |rank| wires.command(rank));
    children.go();
    (0..ranks).for_each(|rank| children.expect_success(rank));
    Ok(())
}

fn vanish(wires: &Wires, how: impl FnOnce(&mut Children, &Wires)) -> Result<(), Failed> {
    let ranks = 2 * ON_EACH;
    let mut children = Children::start_as("nodes vanish", ranks, |rank| wires.command(rank));
    children.go();
    (0..ranks).for_each(|rank| children.expect(rank, "ready"));
    thread::sleep(Duration::from_millis(Random::new().of(0..=300)));
    let lateness = Lateness::watch();
    how(&mut children, wires);
    // The tool that takes an interface down may itself take seconds on a busy machine.
    let at = Instant::now();
    let said: Vec<_> = (0..ON_EACH).map(|rank| (children.next_line(rank), at.elapsed())).collect();
    let allowed = lateness.allows(PROMISED);
    for (rank, (said, after)) in said.iter().enumerate() {
        println!("rank {rank} after {after:?}, at most {allowed:?}: {said}");
        let named = (ON_EACH..ranks).any(|gone| said.contains(&format!("rank {gone}")));
        if !said.starts_with("error ") || !named {
            return Err(format!("rank {rank} does not name a rank of the other node: {said}").into());
        }
        if *after > allowed {
            return Err(format!("rank {rank} took {after:?}, more than {allowed:?}").into());
        }
    }
    Ok(())
}

pub(crate) fn child(role: &Role) {
    match &*role.name {
        "apart" => reduce_without_peer_access(),
        "vanish" => {
            replay(role, u64::MAX).expect_err("a job without one of its nodes");
        }
        _ => replay(role, 15).expect("collectives"),
    }
}

fn reduce_without_peer_access() {
    ranks(3, |comm, gpu| {
        let collectives = builder(comm, gpu).connect().expect("collectives");
        assert_eq!(collectives.n_nodes(), 3);
        let stream = gpu.stream().expect("a stream");
        let numbers = slice(gpu, &[1u32 << (8 * collectives.rank()); 5000]);
        collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream).expect("a call");
        collectives.synchronize(&stream).expect("its end");
        assert_eq!(numbers.read().expect("numbers"), [0x1_0101; 5000]);
        // Two ranks of a group do not reach each other either.
        let color = (collectives.rank() != 1).then_some(4);
        let group = collectives.split(color, 0).expect("a group");
        assert_eq!(group.map(|group| group.n_nodes()), color.map(|_| 2));
        comm.bootstrap().barrier().expect("all ranks");
    });
}

/// Replays a graph, with fresh numbers, until it fails or has been done so many times.
fn replay(role: &Role, rounds: u64) -> Result<(), Error> {
    let comm = communicator_of(role)?;
    let gpu = comm.context().gpu(device_of(role.rank))?;
    let collectives = builder(&comm, &gpu).between_nodes(Transport::ETHERNET).scratch(4 << 20).connect()?;
    let n = collectives.n_ranks() as u64;
    assert_eq!(collectives.n_nodes() as u64, n / ON_EACH as u64);
    let stream = gpu.stream()?;
    let numbers = DeviceSlice::<u64>::new(&gpu.allocate(160_000)?)?;
    let graph = three_sums(&collectives, &numbers, &stream)?;
    if rounds == u64::MAX {
        say("ready");
    }
    for round in 0..rounds {
        // A slow node slows the others, and breaks nothing.
        if rounds < u64::MAX && round % 5 == 4 && role.rank >= ON_EACH {
            thread::sleep(Duration::from_millis(200));
        }
        numbers.write(&vec![round % 1000 * (1 + role.rank as u64); numbers.len()])?;
        // SAFETY: the graph keeps what it uses.
        unsafe { graph.launch(&stream)? };
        if let Err(error) = collectives.synchronize(&stream) {
            // Before anything is dropped: what was lost is waited for then.
            say(&format!("error {error}"));
            return Err(error);
        }
        let sum = round % 1000 * (n * (n + 1) / 2) * n * n;
        assert!(numbers.read()?.iter().all(|number| *number == sum), "round {round}");
    }
    comm.bootstrap().barrier()?;
    Ok(())
}
