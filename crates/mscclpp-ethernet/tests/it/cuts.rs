//! Tests of a TCP connection that a third party ends between two living processes: both notice soon, even a process that only
//! waits, on the host or in a kernel.

use std::{
    env, fmt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    End, Words, context,
    cutter::{Cut, Cutter},
    end_with, mix,
};
use mscclpp_conformance::hosts::semaphores;
use mscclpp_conformance::{pair::received, semaphore_waits, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, Error, HostToDeviceSemaphore, HostToHostSemaphore,
    Transport,
};
use mscclpp_ethernet::{Ethernet, EthernetBuilder, Family};
use mscclpp_net::links::header::HEADER;
use mscclpp_test_support::{LIMIT, until};

/// The time within which a loss must be known, and the factor by which a busy node may take longer.
const NOTICE: Duration = Duration::from_secs(5);
const PATIENCE: u32 = 10;
/// The words of a write that the queue's owner sends, and of one that it hands over.
const FEW: usize = 100;
const MANY: usize = 6000;
/// The bytes that follow the handshake of the data connection: two writes, each with a signal, and a flush.
const FRAMES: [usize; 5] = [HEADER + 8 * FEW, HEADER, HEADER + 8 * MANY, HEADER, HEADER];
/// The number of pairs of processes that are cut at a time. They sleep for most of it.
const AT_ONCE: usize = 40;

/// The time that a link whose connection broke is given to end for a reason of its own.
const GRACE: Duration = Duration::from_millis(100);

fn loopback() -> EthernetBuilder {
    Ethernet::builder().interface("lo").family(Family::V4).grace(GRACE)
}

/// The port in an endpoint with one address, and the bytes of the endpoint with the port replaced.
fn moved(endpoint: &Endpoint, port: Option<u16>) -> (u16, Vec<u8>) {
    let mut bytes = endpoint.serialize().expect("an endpoint");
    let at = bytes.windows(6).position(|window| window == [1, 4, 127, 0, 0, 1]).expect("one address") - 2;
    let old = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    bytes[at..at + 2].copy_from_slice(&port.unwrap_or(old).to_le_bytes());
    (old, bytes)
}

/// Connects `a` to `b` through a proxy that makes the cut.
fn connect(a: &End, b: &Endpoint, cut: Option<Cut>) -> (Cutter, Connection) {
    let cutter = Cutter::to(moved(b, None).0, cut);
    let peer = Endpoint::deserialize(&moved(b, Some(cutter.port)).1).expect("an endpoint");
    let connection = a.context.connect(&a.endpoint, &peer).expect("connecting");
    (cutter, connection)
}

/// Sends all frames. The caller finds errors at the connection.
fn send(a: &End, b: &Words, ab: &Connection, semaphore: &HostToHostSemaphore) -> Result<(), Error> {
    let (source, there) = (Words::new(a, MANY), b.at_peer());
    (0..MANY).for_each(|i| source.set(i, mix(i as u64)));
    for count in [FEW, MANY] {
        ab.write(&there, 0, &source.memory, 0, 8 * count as u64)?;
        semaphore.signal()?;
    }
    ab.flush(LIMIT)
}

/// The time until both sides knew of a cut.
fn play(cut: Cut) -> Duration {
    let (a, b) = (end_with(loopback()), end_with(loopback()));
    let (cutter, ab) = connect(&a, &b.endpoint, Some(cut));
    let ba = b.connect(&a.endpoint);
    let (at_a, at_b) = semaphores(&ab, &ba);
    let target = Words::new(&b, MANY);
    cutter.arm();
    let began = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            for count in [FEW, MANY] {
                at_b.wait(-1)?;
                let wrong = (0..count).find(|i| target.at(*i) != mix(*i as u64));
                assert_eq!(wrong, None, "a signal came before its data: {cut:?}");
            }
            at_b.wait(-1)
        });
        let sending = scope.spawn(|| send(&a, &target, &ab, &at_a));
        while ab.check().is_ok() || ba.check().is_ok() || !waiting.is_finished() {
            let known = format!("{:?} and {:?}, waiting {}", ab.check(), ba.check(), !waiting.is_finished());
            if began.elapsed() > PATIENCE * NOTICE {
                // The waiting thread must end before the panic.
                at_b.semaphore().abort("the test gives up");
                panic!("not known to both after {:?}: {cut:?}: {known}", began.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let after = began.elapsed();
        for connection in [&ab, &ba] {
            let error = connection.check().expect_err("it has failed");
            assert!(matches!(error, Error::PeerLost { .. }), "{cut:?}: {error}");
        }
        waiting.join().expect("no panic").expect_err("it waited for more than was sent");
        let _ = sending.join().expect("no panic");
        after
    })
}

/// The numbers of bytes that the two sides send before the first frame.
fn handshake() -> [usize; 2] {
    let (a, b) = (end_with(loopback()), end_with(loopback()));
    let (cutter, ab) = connect(&a, &b.endpoint, None);
    let ba = b.connect(&a.endpoint);
    let (at_a, _at_b) = semaphores(&ab, &ba);
    let target = Words::new(&b, MANY);
    send(&a, &target, &ab, &at_a).expect("nothing is cut");
    let [sent, answered] = cutter.passed();
    ab.check().expect("nothing is cut");
    // One flush was answered.
    [sent - FRAMES.iter().sum::<usize>(), answered - HEADER]
}

struct Times(Vec<Duration>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        write!(
            f,
            "{} cuts, known after {:?} (median) to {:?}",
            sorted.len(),
            sorted[sorted.len() / 2],
            sorted[sorted.len() - 1]
        )
    }
}

/// Plays the cuts, some of them at a time.
fn play_all(cuts: &[Cut]) {
    let mut times = Vec::new();
    for cuts in cuts.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let playing: Vec<_> = cuts.iter().map(|cut| scope.spawn(|| play(*cut))).collect();
            times.extend(playing.into_iter().map(|playing| playing.join().expect("no panic")));
        });
    }
    println!("{}", Times(times));
}

/// Whether a cut resets the connection, and whether the dialling and the listening side notice it.
const MANNERS: [(bool, bool, bool); 6] = [
    (false, true, true),
    (false, false, true),
    (false, true, false),
    (true, true, true),
    (true, false, true),
    (true, true, false),
];

/// A cut that is made `after` bytes behind the handshake.
fn cut(
    connection: usize,
    handshake: [usize; 2],
    after: usize,
    (reset, dialler, listener): (bool, bool, bool),
) -> Cut {
    Cut { connection, after: [handshake[0] + after, handshake[1]], reset, dialler, listener, flips: false }
}

#[test]
fn a_cut_at_each_boundary_and_inside_frames_is_known_to_both() {
    let handshake = handshake();
    // The last boundary is the end of everything that is sent.
    let boundaries = (0..=FRAMES.len()).map(|count| FRAMES[..count].iter().sum::<usize>());
    let inside = [1, HEADER - 1, HEADER, FRAMES[0] - 1];
    let places: Vec<_> = boundaries.chain(inside).collect();
    let mut cuts: Vec<_> = MANNERS
        .iter()
        .flat_map(|manner| places.iter().map(|after| cut(1, handshake, *after, *manner)))
        .collect();
    // The link is cut too. The dialling side must notice that, because the listening side receives nothing on it anyway.
    cuts.extend(
        MANNERS.iter().filter(|(_, dialler, _)| *dialler).map(|manner| cut(0, handshake, 0, *manner)),
    );
    play_all(&cuts);
}

#[test]
#[ignore = "takes minutes: run it by hand after a change of how connections end"]
fn a_thousand_cuts_are_known_to_both() {
    let (handshake, all) = (handshake(), FRAMES.iter().sum::<usize>());
    let cuts: Vec<_> = (1..=1000u64)
        .map(|seed| {
            let number = mix(seed) as usize;
            // Headers are short, so half of the cuts are made near one.
            let near = FRAMES[..number % 6].iter().sum::<usize>() + (number >> 8) % HEADER;
            let anywhere = (number >> 8) % (all + 1);
            let after = if number >> 40 & 1 == 0 { near.min(all) } else { anywhere };
            cut(1, handshake, after, MANNERS[(number >> 44) % MANNERS.len()])
        })
        .collect();
    play_all(&cuts);
}

/// The kernel runs on a simulated device.
#[test]
fn a_cut_ends_the_wait_of_a_kernel() {
    let handshake = handshake();
    let cpu = end_with(loopback());
    let device: Context = context(loopback());
    let config = EndpointConfig::new(Transport::ETHERNET, Device::gpu(1));
    let endpoint = device.create_endpoint(config).expect("an endpoint");
    let (cutter, to) = connect(&cpu, &endpoint, Some(cut(1, handshake, HEADER / 2, MANNERS[1])));
    let back = device.connect(&endpoint, &received(&cpu.endpoint)).expect("connecting");
    let (at_cpu, at_device) = build(&to, &back);
    let at_cpu = HostToHostSemaphore::new(&at_cpu).expect("the CPU's side");
    let at_device = HostToDeviceSemaphore::new(&at_device).expect("the device's side");
    cutter.arm();
    at_cpu.signal().expect("a signal, half of which arrives");
    // The bound on polls only ends the test, minutes later, if nothing else ends the wait.
    assert_eq!(semaphore_waits(at_device.semaphore(), 1 << 32, 1), 0, "half a signal is none");
    let error = at_device.semaphore().check().expect_err("its wait was ended");
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
}

#[test]
fn a_queue_that_is_dropped_is_no_failure() {
    const QUEUES: usize = 20;
    let (a, b) = (end_with(loopback()), end_with(loopback()));
    let (ab, ba) = (a.connect(&b.endpoint), b.connect(&a.endpoint));
    let (source, target) = (Words::new(&a, MANY), Words::new(&b, QUEUES * MANY));
    source.set(MANY - 1, 1);
    let there = target.at_peer();
    // Each queue has a place of its own, because writes of different queues may land in any order.
    for queue in 0..QUEUES {
        let at = (queue * 8 * MANY) as u64;
        let mut queue = ab.open_queue().expect("a queue");
        let route = queue.route(&there, &source.memory).expect("a route");
        queue.write(route, at, 0, 8 * MANY as u64).expect("a write");
        drop(queue);
    }
    ab.write(&there, 0, &source.memory, 0, 8).expect("a write");
    thread::sleep(2 * GRACE);
    ab.flush(LIMIT).expect("a flush");
    ab.check().expect("nothing broke");
    ba.check().expect("nothing broke");
    let last_words = (1..=QUEUES).map(|queues| queues * MANY - 1);
    until("all writes have landed", || last_words.clone().all(|last| target.at(last) == 1));
}

/// Changes one bit of the first write's data on its way. Returns the result of the flush, and whether the data changed.
fn change_a_bit(checksums: EthernetBuilder) -> (Result<(), Error>, bool) {
    let handshake = handshake();
    let (a, b) = (end_with(checksums.grace(LIMIT)), end_with(loopback()));
    let change = Cut { flips: true, ..cut(1, handshake, HEADER + 7, MANNERS[0]) };
    let (cutter, ab) = connect(&a, &b.endpoint, Some(change));
    let ba = b.connect(&a.endpoint);
    cutter.arm();
    let (source, target) = (Words::new(&a, FEW), Words::new(&b, FEW));
    ab.write(&target.at_peer(), 0, &source.memory, 0, 8 * FEW as u64).expect("a write");
    let result = ab.flush(LIMIT);
    mscclpp_test_support::until("the end of the way back", || ba.check().is_err() == result.is_err());
    (result, (0..FEW).any(|i| target.at(i) != 0))
}

#[test]
fn a_changed_bit_is_found_by_checksums_alone() {
    let (result, _) = change_a_bit(loopback().checksums(true));
    let error = result.expect_err("the checksum is wrong");
    assert!(error.to_string().contains("checksum") || format!("{error:?}").contains("checksum"), "{error:?}");
    let (result, changed) = change_a_bit(loopback().checksums(false));
    result.expect("nobody looks");
    assert!(changed, "the bit was not changed");
    // The environment decides if the program sets nothing.
    for (value, succeeds) in [("1", true), ("0", false)] {
        let mut command = Command::new(env::current_exe().expect("a path"));
        command.args(["--exact", "cuts::the_environment_turns_checksums_on", "--ignored"]);
        let output = command.env("MSCCLPP_ETHERNET_CHECKSUMS", value).output().expect("a process");
        assert_eq!(output.status.success(), succeeds, "{value}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
#[ignore = "a part of the test above, which runs it with a variable set"]
fn the_environment_turns_checksums_on() {
    if env::var_os("MSCCLPP_ETHERNET_CHECKSUMS").is_some() {
        change_a_bit(loopback()).0.expect_err("the checksum is wrong");
    }
}
