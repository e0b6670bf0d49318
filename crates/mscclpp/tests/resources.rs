//! The resources of a job stay constant: rounds of create, connect, exchange and drop end with as many descriptors,
//! threads and mappings as they began with, and as much device memory.
//!
//! Each trial counts in processes of its own: this program again, see `support::children`. Other processes may use the
//! device at the same time: they do not take memory during each of the measurements.

mod support;

use std::{
    fs,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp::prelude::*;
use mscclpp_test_support::{held, until, within};
use support::{
    LIMIT,
    children::{Children, Role, RoleExt, run_if_child, say},
    device_of, endpoint_of, platform,
};

const WARM_UP: usize = 10;
const ROUNDS: usize = 1000;
/// The longest time that dropped objects may take to disappear.
const GOING: Duration = Duration::from_secs(10);
/// The number of measurements after which device memory counts as leaked.
const MEASUREMENTS: usize = 8;
/// The most mappings that may come and go by themselves, of the allocator and of thread stacks. A leak in each round
/// would make [`ROUNDS`] of them.
const OTHER_MAPPINGS: usize = 50;

fn main() -> ExitCode {
    if let Some(code) = run_if_child(child) {
        return code;
    }
    let trials = vec![
        Trial::test("ranks_of_one_process_leave_nothing_behind", || flat("threads", 1)),
        Trial::test("ranks_of_two_processes_leave_nothing_behind", || flat("processes", 2)),
    ];
    let mut arguments = Arguments::from_args();
    // The free memory of a device depends on all processes that use it.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn flat(role: &str, n: usize) -> Result<(), Failed> {
    println!("{ROUNDS} rounds on {}", platform());
    let mut children = Children::form(role, n);
    for rank in 0..n {
        println!("rank {rank}: {}", children.next_line(rank));
    }
    (0..n).for_each(|rank| children.expect_success(rank));
    Ok(())
}

/// Returns the resources once nothing has changed for a while: a thread that has ended may be listed a moment longer.
fn settled() -> [usize; 3] {
    let mut last = (held(), Instant::now());
    until("a process in which nothing comes or goes", || {
        let now = held();
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(300)
    });
    last.0
}

fn maps() -> String {
    fs::read_to_string("/proc/self/maps").expect("procfs")
}

fn child(role: &Role) {
    let bootstrap: Arc<dyn Bootstrap> = Arc::new(role.bootstrap(LIMIT).expect("a job"));
    let gpu = platform().gpu(device_of(role.rank)).expect("a device");
    let round = || match role.name.as_str() {
        "threads" => thread::scope(|scope| {
            for bootstrap in LocalBootstrap::group(2) {
                scope.spawn(|| round(&(Arc::new(bootstrap) as Arc<dyn Bootstrap>)));
            }
        }),
        _ => round(&bootstrap),
    };
    (0..WARM_UP).for_each(|_| round());
    bootstrap.barrier().expect("all ranks");
    let (before, mappings_before) = (settled(), maps().lines().count());
    bootstrap.barrier().expect("all ranks");

    let started = Instant::now();
    let mut taken = Vec::new();
    // A leak takes memory in each measurement.
    while taken.last() != Some(&0) && taken.len() < MEASUREMENTS {
        taken.push(taken_by(&*bootstrap, &gpu, || (0..ROUNDS).for_each(|_| round())));
    }
    let took = started.elapsed();
    assert_eq!(taken.last(), Some(&0), "bytes of device memory that each {ROUNDS} rounds took: {taken:?}");

    bootstrap.barrier().expect("all ranks");
    // Less is no leak: something may have been about to end at that time.
    let no_more = |now: [usize; 3]| now.iter().zip(before).all(|(now, before)| *now <= before);
    within(GOING, || no_more(held()));
    let after = held();
    let mappings_after = maps().lines().count();
    bootstrap.barrier().expect("all ranks");
    assert!(no_more(after), "{before:?} before the rounds, {after:?} after them");
    assert!(
        mappings_after <= mappings_before + OTHER_MAPPINGS,
        "{mappings_before} mappings became {mappings_after}"
    );
    say(&format!(
        "{took:?} for {} times {ROUNDS} rounds, {after:?}, {mappings_before} to {mappings_after} mappings in all",
        taken.len()
    ));
}

/// Returns how much of the free memory of a rank's device is gone after `work`, at the rank that lost the most. Other
/// processes may have taken it.
fn taken_by(bootstrap: &dyn Bootstrap, gpu: &Gpu, work: impl FnOnce()) -> u64 {
    let free = || gpu.memory_info().expect("the device").free;
    let before = free();
    bootstrap.barrier().expect("all ranks");
    work();
    bootstrap.barrier().expect("all ranks");
    within(GOING, || free() >= before);
    let taken = before.saturating_sub(free());
    // All ranks use the same number, and so make the same decision.
    let of_all = bootstrap.all_gather(&taken.to_le_bytes()).expect("all ranks");
    of_all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().expect("a number"))).max().unwrap_or(0)
}

/// Creates, connects, exchanges and drops all objects of a rank except its bootstrap.
fn round(bootstrap: &Arc<dyn Bootstrap>) {
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let comm = Communicator::with_context(Arc::clone(bootstrap), Context::on(platform()));
    let buffer = comm.context().gpu(device_of(rank)).expect("a device").allocate(4096).expect("memory");
    let own = comm.register_buffer(&buffer, Transport::CUDA_IPC).expect("a registration");
    let connection = comm.connect(endpoint_of(rank), peer, 0).expect("sent");
    comm.send_memory(&own, peer, 0).expect("sent");
    let theirs = comm.recv_memory(peer, 0).expect("a place");
    let connection = connection.wait().expect("a connection");
    let semaphore = comm.build_semaphore(&connection).expect("sent").wait().expect("a semaphore");
    let theirs = theirs.wait().expect("a memory");
    let channel = MemoryChannel::new(&semaphore, &theirs, &own, Some(&own)).expect("a channel");
    connection.write(&theirs, 0, &own, 2048, 1024).expect("a write");
    connection.flush(LIMIT).expect("a flush");
    // Both ranks close their objects at once, in no particular order.
    bootstrap.barrier().expect("both ranks");
    if rank == 0 {
        drop((connection, comm, channel));
    } else {
        drop((semaphore, buffer, own));
    }
}
