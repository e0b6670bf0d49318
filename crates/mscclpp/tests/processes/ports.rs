//! Port channels between processes: data arrives, a proxy reports a killed peer, and a stuck job can be dumped.

use std::{
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp::{Error, prelude::*};

use crate::support::{
    LIMIT,
    children::{Children, Role, RoleExt, all_succeed, hear, say, together},
    limits, platform,
    port_ends::Call,
    port_ranks::{Caller, Ports},
    random::Random,
};

const N: usize = 3;
const HALF: u64 = 2 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("two_ranks_put_and_signal", || all_succeed("ports exchange", 2)),
        Trial::test("eight_ranks_put_and_signal", || all_succeed("ports exchange", 8)),
        Trial::test("two_ranks_on_one_core", || all_succeed("ports exchange-on-one-core", 2)),
        Trial::test("two_ranks_that_may_lock_64_kib", || all_succeed("ports exchange-under-ulimit", 2)),
        Trial::test("a_dump_says_who_is_waited_for", || all_succeed("ports dump", 2)),
    ];
    for moment in ["wait", "flush", "put"] {
        for victim in [0, N - 1] {
            let name = format!("rank_{victim}_killed_at_{moment}");
            trials.push(Trial::test(name, move || killed(moment, victim)));
        }
    }
    trials
}

pub(crate) fn child(role: &Role) {
    if role.survives(survive) {
        return;
    }
    // This is done first, as if the process had been started with these limits.
    let check: &dyn Fn(&Ports) = match role.name.as_str() {
        "exchange-on-one-core" => {
            let core = limits::run_on_one_core();
            &move |_| limits::assert_proxies_are_on(core)
        }
        "exchange-under-ulimit" => {
            limits::lock_at_most_64_kib();
            &|ports| limits::assert_pinned_memory_or_advice(&ports.gpu)
        }
        _ => &|_| (),
    };
    let comm = role.communicator().expect("a job");
    match role.name.as_str() {
        name if name.starts_with("exchange") => exchange(&comm, check),
        "dump" => dump(&comm),
        other => panic!("no role {other}"),
    }
}

/// The bytes that a rank puts in a round.
fn bytes_of(rank: usize, round: usize, len: u64) -> Vec<u8> {
    let seed = (rank as u64) << 32 | (round as u64) << 24;
    (0..len).map(|i| ((seed + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Every rank puts to the next one, with each kind of call, small and large. Calls `check` while its proxy works.
fn exchange(comm: &Communicator, check: &dyn Fn(&Ports)) {
    let (rank, n) = (comm.bootstrap().rank(), comm.bootstrap().n_ranks());
    let ports = Ports::open(comm, 2 * HALF).expect("channels");
    let caller = Caller::new(&ports.gpu);
    ports.service.start_proxy(true).expect("a start");
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    for (round, len) in [8, 4096, 4104, 5, 65_536, HALF, 64].into_iter().enumerate() {
        ports.buffer.write(0, &bytes_of(rank, round, len)).expect("writing");
        together(comm);
        let (to, range) = (ports.to(next), [HALF, 0, len]);
        let done = match round % 3 {
            0 => caller.call(to, Call::PutWithSignalAndFlush, range),
            1 => caller.call(to, Call::PutWithSignal, range) && caller.call(to, Call::Flush, range),
            _ => [Call::Put, Call::Signal, Call::Flush].iter().all(|call| caller.call(to, *call, range)),
        };
        assert!(done && caller.call(ports.to(previous), Call::Wait, range), "round {round}");
        let mut got = vec![0; len as usize];
        ports.buffer.read(HALF, &mut got).expect("reading");
        assert!(got == bytes_of(previous, round, len), "{len} bytes in round {round}");
        together(comm);
    }
    check(&ports);
    let stats = ports.service.stats();
    assert_eq!(stats.total.data + stats.total.direct_puts, 7);
    ports.service.stop_proxy().expect("a stop");
    together(comm);
}

/// Rank 0 waits for a signal, which rank 1 sends when the dump shows that wait.
fn dump(comm: &Communicator) {
    let rank = comm.bootstrap().rank();
    let ports = Ports::open(comm, HALF).expect("channels");
    let caller = Caller::new(&ports.gpu);
    ports.service.start_proxy(true).expect("a start");
    together(comm);
    if rank == 0 {
        caller.start(ports.to(1), Call::Wait, [0; 3]);
        let deadline = Instant::now() + LIMIT;
        let mut text = ports.service.dump();
        // The kernel may not have claimed its signal at the first dump.
        while !text.contains("kernels here wait for rank 1") {
            assert!(Instant::now() < deadline, "{text}");
            text = ports.service.dump();
        }
        assert!(text.contains("proxy service of") && text.contains("to rank 1 over CudaIpc"), "{text}");
    }
    together(comm);
    if rank == 1 {
        assert!(caller.call(ports.to(0), Call::Signal, [0; 3]));
    } else {
        assert!(caller.outcome());
    }
    ports.service.stop_proxy().expect("a stop");
    together(comm);
}

/// Runs in a child: continues until it notices that a rank was killed. The victim stops at its moment and is killed
/// there, or is killed in the midst of what all ranks do.
fn survive(role: &Role, moment: &str, victim: usize) -> Result<(), Error> {
    let (rank, n) = (role.rank, role.n_ranks);
    let comm = role.communicator()?;
    let ports = Ports::open(&comm, HALF)?;
    let caller = Caller::new(&ports.gpu);
    // Without a proxy nobody carries out the puts that the kernels wait for in a flush.
    if moment != "flush" {
        ports.service.start_proxy(true)?;
    }
    together(&comm);
    let (next, previous) = (ports.to((rank + 1) % n), ports.to((rank + n - 1) % n));
    let range = [0, 0, HALF];
    if moment == "put" {
        say("ready");
        let deadline = Instant::now() + LIMIT;
        while caller.call(next, Call::PutWithSignalAndFlush, range)
            && caller.call(previous, Call::Wait, range)
        {
            assert!(Instant::now() < deadline, "nobody was killed");
        }
    } else {
        // Only some of the kernels wait for signals of the victim.
        caller.start(next, if moment == "wait" { Call::Wait } else { Call::PutWithSignalAndFlush }, range);
        say("ready");
        if rank == victim {
            hear();
        }
        assert!(!caller.outcome(), "the job has ended");
    }
    let health = ports.service.health();
    let stopped = ports.service.stop_proxy();
    assert!(health.is_err() && stopped.is_err());
    health.map_err(|error| comm.explain(error))
}

fn killed(moment: &'static str, victim: usize) -> Result<(), Failed> {
    println!("{N} ranks on {}, rank {victim} killed at {moment}", platform());
    let mut children = Children::form(&format!("ports killed-{moment}-{victim}"), N);
    (0..N).for_each(|rank| children.expect(rank, "ready"));
    // The victim is killed before the others have reached their wait, at that moment, or after it.
    thread::sleep(Duration::from_millis(Random::new().of(0..=200)));
    let at = Instant::now();
    children.kill(victim);
    let survivors: Vec<usize> = (0..N).filter(|rank| *rank != victim).collect();
    children.expect_named(&survivors, victim, at)
}
