//! Four ranks on two nodes. Nodes have names of their own, and simulated devices with the same identities.

use std::{ffi::c_int, process::Command, ptr, time::Instant};

use libtest_mimic::{Failed, Trial};
use mscclpp_test_support::{
    Child,
    child::{self, say, this_program},
    namespaces::Namespaces,
    until,
};

use crate::{
    job::{id, start_by},
    support::nccl::{
        CollConfig, Handle, INVALID_USAGE, Numbers, REMOTE_ERROR, Rank, SUCCESS, Stream, Team, WaitSignal,
        nccl,
    },
};

const F32: c_int = 7;
const RANKS: usize = 4;

pub(crate) fn trials() -> Vec<Trial> {
    let possible = Namespaces::switched(2).map(drop);
    if let Err(why) = &possible {
        eprintln!("NOT TESTED: communicators between network namespaces: {why}");
    }
    let trial = |name: &'static str, role: &'static str, wires: fn() -> Wires, ended: Option<End>| {
        let run = move || -> Result<(), Failed> {
            let wires = wires();
            let mut children = start_by(RANKS, role, |rank| wires.command(rank));
            if let Some(end) = ended {
                children.iter().for_each(|child| child.expect("ready"));
                end(&mut children, &wires);
            }
            children.iter_mut().for_each(Child::expect_success);
            Ok(())
        };
        Trial::test(name, run)
    };
    let over_wires = |trial: Trial| trial.with_ignored_flag(possible.is_err());
    let adapters = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some());
    let by_adapters = |trial: Trial| trial.with_ignored_flag(!adapters);
    let by_name = || Wires::Names("MSCCLPP_HOSTID");
    let by_nccls_name = || Wires::Names("NCCL_HOSTID");
    let wires = || Wires::Of(Namespaces::switched(2).expect("namespaces, as before"));
    let kill: End = |children, _| children.drain(..2).for_each(|mut child| child.kill());
    let cut: End = |children, wires| {
        let Wires::Of(net) = wires else { panic!("no wires") };
        net.ip(0, &["link", "set", "wire", "down"]);
        // The processes are ended behind the interface: the other node hears nothing of it.
        children.drain(..2).for_each(drop);
    };
    vec![
        trial("ranks_of_two_nodes_make_all_calls", "all_calls", by_name, None),
        trial("communicators_of_two_nodes_are_split", "splits", by_nccls_name, None),
        trial("a_node_whose_ranks_are_killed_is_named", "lost", by_name, Some(kill)),
        by_adapters(trial("ranks_make_all_calls_by_adapters", "all_calls", || Wires::Adapters, None)),
        by_adapters(trial("communicators_are_split_by_adapters", "splits", || Wires::Adapters, None)),
        by_adapters(trial(
            "a_node_that_is_killed_is_named_by_adapters",
            "lost",
            || Wires::Adapters,
            Some(kill),
        )),
        trial("nodes_without_adapters_are_an_error", "no_adapters", || Wires::Adapters, None)
            .with_ignored_flag(adapters),
        over_wires(trial("ranks_of_two_namespaces_make_all_calls", "all_calls", wires, None)),
        over_wires(trial("communicators_of_two_namespaces_are_split", "splits", wires, None)),
        over_wires(trial("a_node_whose_interface_goes_down_is_named", "lost", wires, Some(cut))),
    ]
}

/// Ends the node of ranks 0 and 1, and takes the children that are not to succeed.
type End = fn(&mut Vec<Child>, &Wires);

/// The wires between the nodes, or the lack of them.
enum Wires {
    /// The nodes are this machine, by names in this variable.
    Names(&'static str),
    /// The nodes are this machine, by names, and are connected by its RDMA adapters.
    Adapters,
    Of(Namespaces),
}

impl Wires {
    fn command(&self, rank: usize) -> Command {
        let node = rank / 2;
        let by_name = |variable| {
            let mut command = this_program();
            command.env(variable, format!("node {node}"));
            command
        };
        match self {
            Self::Names(variable) => by_name(*variable),
            Self::Adapters => {
                let mut command = by_name("MSCCLPP_HOSTID");
                command.env("MSCCLPP_NCCL_NETWORK", "ib");
                command
            }
            Self::Of(net) => {
                let mut command = net.command(node, this_program().get_program());
                // A namespace is another node by itself where neither is set.
                command.env_remove("MSCCLPP_HOSTID").env_remove("NCCL_HOSTID");
                command
            }
        }
    }
}

/// Plays a role of this module, and returns whether it is one.
pub(crate) fn run(role: &str, rank: usize) -> bool {
    match role {
        "all_calls" => all_calls(join(rank)),
        "splits" => splits(join(rank)),
        "lost" => is_lost(&join(rank)),
        "no_adapters" => {
            let (nccl, id, mut comm) = (nccl(), id(rank), ptr::null_mut());
            nccl.set_device(rank % 2);
            // SAFETY: the function writes a handle to a place for one.
            let refused =
                unsafe { (nccl.ncclCommInitRank)(&raw mut comm, RANKS as c_int, id, rank as c_int) };
            assert_ne!(refused, SUCCESS);
            let said = nccl.last_error(ptr::null_mut());
            assert!(
                said.contains("MSCCLPP_NCCL_NETWORK=ib: no provider of this context serves IB"),
                "{said}"
            );
        }
        _ => return false,
    }
    true
}

fn join(rank: usize) -> Rank {
    Rank::join_on(rank % 2, rank, RANKS, id(rank))
}

fn all_calls(rank: Rank) {
    let (nccl, comm, stream, r) = (nccl(), rank.comm, rank.stream.0, rank.rank);
    rank.assert_works();
    // Each rank has 16 numbers, of which number i is 100 r + i.
    let number = |rank: usize, i: usize| (100 * rank + i) as f32;
    let own: Vec<f32> = (0..16).map(|i| number(r, i)).collect();
    let sum = |i: usize| (0..RANKS).map(|rank| number(rank, i)).sum::<f32>();
    let (from, to) = (Numbers::new(&own), Numbers::new(&[0f32; 64]));
    let (p, q) = (from.ptr(), to.ptr());
    let gives = |code: c_int, expected: Vec<f32>| {
        nccl.ok(code);
        rank.stream.synchronize();
        assert_eq!(to.read()[..expected.len()], expected);
        to.write(&[0f32; 64]);
    };
    let of_all =
        |n: usize| -> Vec<f32> { (0..RANKS).flat_map(|rank| (0..n).map(move |i| number(rank, i))).collect() };
    let at = |root: usize, expected: Vec<f32>| if r == root { expected } else { vec![0f32; 64] };
    // SAFETY: the memory has the sizes that the calls name, and lives until the stream is synchronised.
    unsafe {
        gives((nccl.ncclAllReduce)(p, q, 16, F32, 0, comm, stream), (0..16).map(sum).collect());
        gives((nccl.ncclReduce)(p, q, 16, F32, 0, 3, comm, stream), at(3, (0..16).map(sum).collect()));
        gives((nccl.ncclReduceScatter)(p, q, 4, F32, 0, comm, stream), (4 * r..4 * r + 4).map(sum).collect());
        gives((nccl.ncclAllGather)(p, q, 16, F32, comm, stream), of_all(16));
        gives(
            (nccl.ncclAlltoAll)(p, q, 4, F32, comm, stream),
            (0..16).map(|i| number(i / 4, 4 * r + i % 4)).collect(),
        );
        let of = |root: usize, i: usize| number(root, i);
        gives((nccl.ncclBroadcast)(p, q, 16, F32, 1, comm, stream), (0..16).map(|i| of(1, i)).collect());
        gives((nccl.ncclGather)(p, q, 16, F32, 2, comm, stream), at(2, of_all(16)));
        gives(
            (nccl.ncclScatter)(p, q, 4, F32, 0, comm, stream),
            (4 * r..4 * r + 4).map(|i| of(0, i)).collect(),
        );
        // A group sends to all ranks, on both nodes, and has a collective.
        nccl.ok((nccl.ncclGroupStart)());
        for peer in 0..RANKS {
            nccl.ok((nccl.ncclSend)(from.at(4 * peer), 4, F32, peer as c_int, comm, stream));
            nccl.ok((nccl.ncclRecv)(to.at(4 * peer), 4, F32, peer as c_int, comm, stream));
        }
        nccl.ok((nccl.ncclAllReduce)(p, to.at(16), 16, F32, 0, comm, stream));
        let expected = (0..16).map(|i| number(i / 4, 4 * r + i % 4)).chain((0..16).map(sum));
        gives((nccl.ncclGroupEnd)(), expected.collect());
        // Outside of a group, messages go from one node to the other.
        if r < 2 {
            nccl.ok((nccl.ncclSend)(p, 16, F32, 2 + r as c_int, comm, stream));
        } else {
            let sent = (nccl.ncclRecv)(q, 16, F32, r as c_int - 2, comm, stream);
            gives(sent, (0..16).map(|i| of(r - 2, i)).collect());
        }

        // A captured call is replayed.
        let mut graph = ptr::null_mut();
        nccl.ok((nccl.mscclppSimStreamBeginCapture)(stream));
        nccl.ok((nccl.ncclAllReduce)(p, q, 16, F32, 0, comm, stream));
        nccl.ok((nccl.mscclppSimStreamEndCapture)(stream, &raw mut graph));
        for _ in 0..3 {
            gives((nccl.mscclppSimGraphLaunch)(graph, stream), (0..16).map(sum).collect());
        }
        nccl.ok((nccl.mscclppSimGraphDestroy)(graph));

        // The memory within the node is given back for a while.
        let mut suspendable = 0;
        nccl.ok((nccl.ncclCommMemStats)(comm, 0, &raw mut suspendable));
        assert!(suspendable > 1 << 20, "{suspendable}");
        nccl.ok((nccl.ncclCommSuspend)(comm, 1));
        nccl.ok((nccl.ncclCommResume)(comm));

        // The blocks of a call can be bounded, but no protocol chosen.
        let config = CollConfig { max_ctas: 1, ..CollConfig::INITIAL };
        let bounded = (nccl.ncclAllReduceConfig)(p, q, 16, F32, 0, comm, stream, &raw const config);
        gives(bounded, (0..16).map(sum).collect());
        let config = CollConfig { alg_selection: c"ll16".as_ptr(), ..CollConfig::INITIAL };
        let refused = (nccl.ncclAllReduceConfig)(p, q, 16, F32, 0, comm, stream, &raw const config);
        nccl.fails(refused, INVALID_USAGE, "algSelection is ll16");

        // A window has no effect, and there are no signals.
        let (mut window, mut place) = (ptr::null_mut(), ptr::null_mut());
        nccl.ok((nccl.ncclCommWindowRegister)(comm, q, 256, &raw mut window, 1));
        let refused = (nccl.ncclGetLsaDevicePointer)(window, 0, 0, &raw mut place);
        nccl.fails(refused, INVALID_USAGE, "several nodes");
        nccl.ok((nccl.ncclGetPeerDevicePointer)(window, 0, r as c_int, &raw mut place));
        assert_eq!(place, q);
        nccl.ok((nccl.ncclGetPeerDevicePointer)(window, 0, 3 - r as c_int, &raw mut place));
        assert!(place.is_null(), "another node's memory is not reached");
        let mut wait = WaitSignal(1, 0, 0, 0);
        nccl.fails(
            (nccl.ncclWaitSignal)(1, &raw mut wait, comm, stream),
            INVALID_USAGE,
            "signals in a communicator of several nodes",
        );
        nccl.ok((nccl.ncclCommWindowDeregister)(comm, window));

        let (own, node) = (r as c_int % 2, r as c_int / 2);
        let (lsa, rail) = ((nccl.ncclTeamLsa)(comm), (nccl.ncclTeamRail)(comm));
        assert_eq!((lsa, rail), (Team(2, own, 1), Team(2, node, 2)));
        assert_eq!((nccl.ncclTeamRankToWorld)(comm, rail, 1), 2 + own);
        assert_eq!((nccl.ncclTeamRankToLsa)(comm, lsa, 1), 1);
        assert_eq!((nccl.ncclTeamRankToLsa)(comm, rail, 1 - node), -1);
    }
    rank.destroy();
}

/// Splits into the ranks of each node, and into one rank of each node.
fn splits(rank: Rank) {
    let (nccl, r) = (nccl(), rank.rank);
    let split = |color: usize, number: usize| {
        let mut comm: Handle = ptr::null_mut();
        // SAFETY: the function writes a handle to a place for one.
        nccl.ok(unsafe {
            (nccl.ncclCommSplit)(rank.comm, color as c_int, r as c_int, &raw mut comm, ptr::null_mut())
        });
        Rank { rank: number, ranks: 2, comm, stream: Stream::new() }
    };
    let (within, across) = (split(r / 2, r % 2), split(r % 2, r / 2));
    // SAFETY: the handles are those of live communicators.
    unsafe {
        assert_eq!((nccl.ncclTeamLsa)(within.comm), Team(2, r as c_int % 2, 1));
        assert_eq!((nccl.ncclTeamLsa)(across.comm), Team(1, 0, 1));
        assert_eq!((nccl.ncclTeamRail)(across.comm), Team(2, r as c_int / 2, 1));
    }
    rank.destroy();
    across.assert_works();
    within.assert_works();
    across.destroy();
    within.destroy();
}

/// The node of ranks 0 and 1 is lost while the others wait for it.
fn is_lost(rank: &Rank) {
    let nccl = nccl();
    rank.assert_works();
    let numbers = Numbers::new(&[1f32; 64]);
    if rank.rank < 2 {
        say("ready");
        child::await_end();
        return;
    }
    rank.all_reduce(&numbers);
    say("ready");
    let begun = Instant::now();
    // SAFETY: the handle is that of a live stream.
    let code = unsafe { (nccl.mscclppSimStreamSynchronize)(rank.stream.0) };
    assert_ne!(code, SUCCESS);
    until("the error", || nccl.state(rank.comm) == REMOTE_ERROR);
    // 5 seconds are promised; the limit is longer, as the machine may be busy.
    assert!(begun.elapsed().as_secs() < 50, "{:?}", begun.elapsed());
    let said = nccl.last_error(rank.comm);
    assert!(said.contains("rank 0") || said.contains("rank 1"), "{said}");
    // The node that is left goes on alone.
    let (mut lost, mut left) = ([0, 1], ptr::null_mut());
    // SAFETY: the handle is that of a live communicator; two numbers are read, and a handle is written to a place for one.
    unsafe {
        nccl.ok((nccl.ncclCommShrink)(rank.comm, lost.as_mut_ptr(), 2, &raw mut left, ptr::null_mut(), 1));
        nccl.ok((nccl.ncclCommAbort)(rank.comm));
    }
    let left = Rank { rank: rank.rank - 2, ranks: 2, comm: left, stream: Stream::new() };
    left.assert_works();
    left.destroy();
}
