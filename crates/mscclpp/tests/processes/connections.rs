//! Jobs whose ranks are processes: that they work, and what happens when one is killed.

#[path = "../../examples/ping_pong/mod.rs"]
#[allow(dead_code, reason = "the examples use all of it")]
mod ping_pong;

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp::{Error, prelude::*};
use ping_pong::Player;

use crate::support::{
    LIMIT,
    children::{Children, Role, RoleExt, all_succeed, hear, say, this_program, together},
    connect_all, device_of, endpoint_of,
    ends::{End, Kind, PacketRounds, Promise, Seeds},
    kernels::{Outcome, Rounds, Side},
    platform,
    random::Random,
};

const N: usize = 3;
/// The transfers during which a rank is killed.
const TRANSFERS: [&str; 6] = ["unpack", "put", "get", "ll8", "ll16", "ll128"];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for n in [1, 2, 3] {
        trials.push(Trial::test(format!("{n}_ranks_connect_and_signal"), move || {
            all_succeed("connections signal", n)
        }));
    }
    // On GPUs, where a start takes seconds, it runs only a few times.
    let times = if platform() == Platform::Sim { 50 } else { 5 };
    trials.push(Trial::test(format!("8_ranks_connect_and_signal_{times}_times"), move || {
        (0..times).try_for_each(|_| all_succeed("connections signal", 8))
    }));
    trials.push(Trial::test("ping_pong_across_processes", || all_succeed("connections ping-pong", 2)));
    trials.push(Trial::test("a_signal_carries_data_across_processes", || all_succeed("connections data", 2)));
    trials.push(Trial::test("a_received_memory_has_an_address_across_processes", || {
        all_succeed("connections address", 2)
    }));
    for n in [3, 8] {
        let name = format!("memory_channels_between_all_of_{n}_processes");
        trials.push(Trial::test(name, move || all_succeed("connections transfer", n)));
    }
    let two_gpus = platform() == Platform::Cuda && platform().device_count().is_ok_and(|count| count >= 2);
    let name =
        if two_gpus { "one_visible_gpu_per_rank" } else { "one_visible_gpu_per_rank (needs two CUDA GPUs)" };
    trials.push(Trial::test(name, one_visible_gpu_per_rank).with_ignored_flag(!two_gpus));
    let namespaces =
        in_pid_namespace("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let name = match namespaces {
        true => "ranks_in_pid_namespaces_of_their_own",
        false => "ranks_in_pid_namespaces_of_their_own (unshare --pid is not allowed)",
    };
    trials.push(Trial::test(name, ranks_in_pid_namespaces).with_ignored_flag(!namespaces));
    let moments = ["init", "connect", "connect-sent", "semaphore", "semaphore-sent", "barrier", "kernel"];
    for moment in moments.into_iter().chain(TRANSFERS) {
        for victim in [0, N - 1] {
            let name = format!("rank_{victim}_killed_at_{}", moment.replace('-', "_"));
            trials.push(Trial::test(name, move || killed(moment, victim)));
        }
    }
    trials
}

/// Both ranks call their device number 0, and it is a different GPU.
fn one_visible_gpu_per_rank() -> Result<(), Failed> {
    let mut children = Children::start_as("connections data", 2, |rank| {
        let mut command = this_program();
        command.env("CUDA_VISIBLE_DEVICES", rank.to_string());
        command
    });
    children.go();
    (0..2).for_each(|rank| children.expect_success(rank));
    Ok(())
}

/// The ranks run as in two containers: each is process 1, and neither knows the other's number.
fn ranks_in_pid_namespaces() -> Result<(), Failed> {
    let mut children =
        Children::start_as("connections data", 2, |_| in_pid_namespace(this_program().get_program()));
    children.go();
    (0..2).for_each(|rank| children.expect_success(rank));
    Ok(())
}

fn in_pid_namespace(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(program);
    command
}

pub(crate) fn child(role: &Role) {
    if role.survives(survive) {
        return;
    }
    let comm = role.communicator().expect("a job");
    match role.name.as_str() {
        "signal" => signal(&comm),
        "ping-pong" => play(&comm),
        "data" => data(&comm),
        "transfer" => transfer(&comm),
        "address" => address(&comm),
        other => panic!("no role {other}"),
    }
}

fn side_of(comm: &Communicator) -> Side {
    let device = device_of(comm.bootstrap().rank());
    Side::new(&comm.context().gpu(device).expect("a device")).expect("kernels")
}

fn channels_of(comm: &Communicator) -> Vec<BaseMemoryChannel> {
    let semaphores = connect_all(comm).expect("connections with everyone");
    semaphores.iter().map(|semaphore| BaseMemoryChannel::new(semaphore).expect("a channel")).collect()
}

fn signal(comm: &Communicator) {
    let channels = channels_of(comm);
    let mut side = side_of(comm);
    together(comm);
    channels.iter().for_each(|channel| side.signal(channel, 2));
    for channel in &channels {
        assert_eq!(side.wait_once(channel, -1), Outcome::Signalled);
        assert_eq!(side.wait_once(channel, -1), Outcome::Signalled);
        assert_eq!(side.poll_once(channel), Outcome::NotSignalled);
        channel.semaphore().check().expect("no complaint");
    }
    together(comm);
}

/// The address of a received memory reaches the other process's memory, before there is a connection to it and with one.
fn address(comm: &Communicator) {
    const LEN: u64 = 4096;
    let rank = comm.bootstrap().rank();
    let peer = 1 - rank;
    let gpu = comm.context().gpu(device_of(rank)).expect("a device");
    let bytes = |rank: usize| vec![rank as u8 + 1; LEN as usize];
    let (buffer, copy) = (gpu.allocate(LEN).expect("memory"), gpu.allocate(LEN).expect("memory"));
    buffer.write(0, &bytes(rank)).expect("filling");
    let own = comm.register_buffer(&buffer, Transport::CUDA_IPC).expect("a registration");
    // Without a connection, memory is mapped for the current device.
    gpu.make_current().expect("a device");
    let mut connections = Vec::new();
    for _ in 0..2 {
        comm.send_memory(&own, peer, 0).expect("sending");
        let theirs = comm.recv_memory(peer, 0).expect("a rank").wait().expect("its memory");
        let ptr = theirs.data().expect("an address");
        let stream = gpu.stream().expect("a stream");
        copy.fill(0, LEN, 0).expect("clearing");
        // SAFETY: `theirs` keeps the mapping of its bytes for this device, and `copy` is as long.
        unsafe { stream.copy(copy.ptr(), ptr, LEN) }.expect("a copy");
        stream.synchronize_timeout(LIMIT).expect("the copy ends");
        let mut got = bytes(rank);
        copy.read(0, &mut got).expect("reading");
        assert_eq!(got, bytes(peer));
        let pending = comm.connect(endpoint_of(rank), peer, 0).expect("a rank");
        connections.push(pending.wait().expect("a connection"));
    }
    together(comm);
}

fn play(comm: &Communicator) {
    let rank = comm.bootstrap().rank();
    let channel = &channels_of(comm)[1 - rank];
    let role = if rank == 0 { ping_pong::Role::Spinning } else { ping_pong::Role::Plain };
    let player =
        Player::new(role, &comm.context().gpu(device_of(rank)).expect("a device")).expect("a kernel");
    together(comm);
    player.launch(channel).expect("a launch");
    let ms = player.finish(channel).expect("an end");
    assert!(rank == 0 || ms > 1.0, "{ms} ms a round");
    together(comm);
}

fn data(comm: &Communicator) {
    let (rank, words) = (comm.bootstrap().rank(), 5000);
    let channel = &channels_of(comm)[1 - rank];
    let mut side = side_of(comm);
    let buffer = comm.context().gpu(device_of(rank)).expect("a device").allocate(8 * words).expect("memory");
    let own = comm.register_buffer(&buffer, Transport::CUDA_IPC).expect("a registration");
    comm.send_memory(&own, 1 - rank, 1).expect("sent");
    let theirs = comm.recv_memory(1 - rank, 1).expect("a place").wait().expect("a memory");
    let there = channel.semaphore().connection().peer_ptr(&theirs).expect("a mapping").expect("an address");
    together(comm);
    for seed in 0..3 {
        let what = Rounds { words, rounds: 100, seed, relaxed: false };
        // The roles change with each seed.
        if (rank as u64 + seed).is_multiple_of(2) {
            side.start_writing(channel, there, what);
        } else {
            side.start_checking(channel, buffer.ptr(), what);
        }
        assert_eq!(side.mismatches(), 0);
    }
    together(comm);
}

/// The bytes of a transfer in each direction.
const BYTES: u64 = 100_000;

fn seeds(rank: usize, peer: usize) -> Seeds {
    let seed = |from: usize, to: usize| ((N * from + to + 1) as u64) << 40;
    Seeds { mine: seed(rank, peer), peers: seed(peer, rank) }
}

fn transfer(comm: &Communicator) {
    let rank = comm.bootstrap().rank();
    let semaphores = connect_all(comm).expect("connections with everyone");
    let others = semaphores.iter().enumerate().filter(|(peer, _)| *peer != rank);
    let ends = End::with_each(comm, others, 2 * BYTES, 8 * BYTES).expect("memory channels");
    together(comm);
    let shape = LaunchConfig::linear(1, 128);
    for (peer, end) in &ends {
        let seeds = seeds(rank, *peer);
        for _ in 0..10 {
            end.start_put_round(BYTES / 16, seeds, -1, shape);
        }
        for kind in Kind::between(std::slice::from_ref(end)) {
            // The last kind's packets are taken before these puts overwrite them.
            end.start_put_round(1000, seeds, -1, shape);
            let first_flag = 1000 * kind as u32;
            let what = PacketRounds { kind, bytes: BYTES / 3, rounds: 20, first_flag, seeds };
            end.start_packet_rounds(what, -1, shape);
        }
    }
    for (peer, end) in &ends {
        assert_eq!(end.mismatches(), 0, "between {rank} and {peer}");
        end.copies.semaphore().check().expect("no complaint");
    }
    together(comm);
}

/// Runs in a child: continues until it notices that a rank was killed. The victim stops at its moment and is killed
/// there.
fn survive(role: &Role, moment: &str, victim: usize) -> Result<(), Error> {
    let rank = role.rank;
    let here = |now: &str| {
        if now == moment {
            say("ready");
            if rank == victim {
                hear();
            }
        }
    };
    // The victim of that moment never joins, so the time-out ends the call.
    let bootstrap = role.bootstrap(if moment == "init" { Duration::from_secs(8) } else { LIMIT })?;
    let comm = Communicator::with_context(std::sync::Arc::new(bootstrap), Context::on(platform()));
    let others = || (0..role.n_ranks).filter(|peer| *peer != rank);

    here("connect");
    let pending: Vec<_> =
        others().map(|peer| comm.connect(endpoint_of(rank), peer, 0)).collect::<Result<_, _>>()?;
    if moment == "connect-sent" {
        // All have sent their endpoints, and the victim never receives its peers'.
        comm.bootstrap().barrier()?;
        say("ready");
        hear();
    }
    let connections: Vec<_> = pending.iter().map(Pending::wait).collect::<Result<_, _>>()?;

    here("semaphore");
    let pending: Vec<_> =
        connections.iter().map(|connection| comm.build_semaphore(connection)).collect::<Result<_, _>>()?;
    if moment == "semaphore-sent" {
        comm.bootstrap().barrier()?;
        say("ready");
        hear();
    }
    let semaphores: Vec<_> = pending.iter().map(Pending::wait).collect::<Result<_, _>>()?;

    let others = others().zip(&semaphores);
    let transfers = TRANSFERS.contains(&moment);
    let ends = match transfers {
        true => End::with_each(&comm, others.clone(), 2 * BYTES, BYTES)?,
        false => Vec::new(),
    };
    here("barrier");
    comm.bootstrap().barrier()?;
    if transfers {
        return interrupted(&comm, moment, rank == victim, &ends);
    }

    // The kernel of each rank waits for the next rank, which is not always the victim.
    let (_, next) =
        others.clone().find(|(peer, _)| *peer == (rank + 1) % role.n_ranks).expect("another rank");
    let channel = BaseMemoryChannel::new(next)?;
    let mut side = side_of(&comm);
    side.start_wait(&channel, -1);
    here("kernel");
    assert_eq!(side.outcome(), Outcome::NotSignalled);
    channel.semaphore().check().map_err(|error| comm.explain(error))
}

/// Runs in a child: moves data with all others until one of them is killed, or waits for packets that never come.
fn interrupted(
    comm: &Communicator,
    moment: &str,
    is_victim: bool,
    ends: &[(usize, End)],
) -> Result<(), Error> {
    let rank = comm.bootstrap().rank();
    let shape = LaunchConfig::linear(1, 64);
    let start = |end: &End, seeds, n: u32| match moment {
        "unpack" => end.start_unpack(Kind::LL16, [0, 0], BYTES / 4, 1, -1, shape),
        "put" => end.start_put_round(BYTES / 8, seeds, -1, shape),
        "get" => {
            end.start_copy(true, [0, 0], BYTES, Promise::default(), shape);
            // The kernel waits for the peer.
            end.start_put_round(1, seeds, -1, shape);
        }
        _ => {
            let kind = match moment {
                "ll8" => Kind::LL8,
                "ll128" if end.packets.check_lines().is_ok() => Kind::LL128,
                _ => Kind::LL16,
            };
            let what = PacketRounds { kind, bytes: BYTES / 5, rounds: 2, first_flag: 1 + 2 * n, seeds };
            end.start_packet_rounds(what, -1, shape);
        }
    };
    say("ready");
    let deadline = Instant::now() + LIMIT;
    // Whether the kernels of an end gave up. The victim is killed during this loop.
    let mut gave_up = false;
    let mut numbers = 0..;
    while !gave_up {
        assert!(Instant::now() < deadline, "nobody was killed");
        for n in numbers.by_ref().take(if moment == "unpack" { 1 } else { 50 }) {
            ends.iter().for_each(|(peer, end)| start(end, seeds(rank, *peer), n));
        }
        if is_victim && moment == "unpack" {
            hear();
        }
        gave_up = ends.iter().fold(false, |gave_up, (_, end)| end.failed() != 0 || gave_up);
    }
    let checked = ends.iter().find_map(|(_, end)| end.copies.semaphore().check().err());
    checked.map_or(Ok(()), |error| Err(comm.explain(error)))
}

fn killed(moment: &'static str, victim: usize) -> Result<(), Failed> {
    println!("{N} ranks on {}, rank {victim} killed at {moment}", platform());
    let mut children = Children::start(&format!("connections killed-{moment}-{victim}"), N);
    let survivors: Vec<usize> = (0..N).filter(|rank| *rank != victim).collect();
    if moment == "init" {
        // The victim never joins.
        survivors.iter().for_each(|rank| children.tell(*rank, "go"));
    } else {
        children.go();
        (0..N).for_each(|rank| children.expect(rank, "ready"));
    }
    // The victim is killed before the others have reached their wait, at that moment, or after it.
    thread::sleep(Duration::from_millis(Random::new().of(0..=200)));
    let at = Instant::now();
    children.kill(victim);
    if moment.ends_with("-sent") {
        survivors.iter().for_each(|rank| children.tell(*rank, "go"));
    }
    children.expect_named(&survivors, victim, at)
}
