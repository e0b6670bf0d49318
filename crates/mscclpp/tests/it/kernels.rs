//! Semaphores used by kernels, between two endpoints of one process: the same test vectors on GPUs and on simulated
//! devices, on one device and on two.

#[path = "../../examples/ping_pong/mod.rs"]
#[allow(dead_code, reason = "the examples use all of it")]
mod ping_pong;

use std::sync::mpsc;

use crate::support::{
    LIMIT, channel_pair,
    kernels::{Outcome, Rounds, Side},
    on_each_pair, platform,
    random::Random,
    turn,
};
use mscclpp::{
    Error,
    errors::CoreError,
    gpu::{Abort, Probe},
    prelude::*,
};
use mscclpp_test_support::until;

fn sides(context: &Context, devices: [usize; 2]) -> ([BaseMemoryChannel; 2], [Side; 2]) {
    println!("devices {devices:?} of {}", context.platform().unwrap());
    let side = |id| Side::new(&context.gpu(id).unwrap()).unwrap();
    (channel_pair(context, devices).unwrap(), [side(devices[0]), side(devices[1])])
}

#[test]
fn each_signal_is_taken_once() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        assert_eq!(a.poll_once(&here), Outcome::NotSignalled);
        b.signal(&there, 3);
        b.finish();
        assert_eq!(a.poll_once(&here), Outcome::Signalled);
        assert_eq!(a.wait_once(&here, -1), Outcome::Signalled);
        assert_eq!(a.wait_once(&here, 1000), Outcome::Signalled);
        assert_eq!(a.poll_once(&here), Outcome::NotSignalled);
        assert_eq!(b.poll_once(&there), Outcome::NotSignalled, "signals go one way");
    });
}

#[test]
fn a_wait_that_timed_out_has_consumed_nothing_and_can_be_repeated() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        for _ in 0..3 {
            assert_eq!(a.wait_once(&here, 500), Outcome::NotSignalled);
            let said = here.semaphore().check();
            assert!(matches!(said, Err(CoreError::DeviceWaitTimedOut { .. })), "{said:?}");
            here.semaphore().check().expect("it says so once");
        }
        b.signal(&there, 1);
        b.finish();
        assert_eq!(a.wait_once(&here, 500), Outcome::Signalled);
        assert_eq!(a.poll_once(&here), Outcome::NotSignalled);
        here.semaphore().check().unwrap();
    });
}

#[test]
fn an_abort_frees_a_waiting_kernel_for_ever() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        a.start_wait(&here, -1);
        let probe = Probe::new(a.stream.gpu());
        let claimed = DevicePtr::from_ptr(here.device_handle().semaphore.expected_inbound_token);
        // SAFETY: this is a word of the channel, in memory of that device.
        until("the kernel waits for a signal", || unsafe { probe.read(&[claimed]) }.unwrap() == [1]);
        here.semaphore().abort("the test says so");
        assert_eq!(a.outcome(), Outcome::NotSignalled);
        // The error proves that the wait ended by the abort, and not by itself.
        let said = Abort::check(&here).expect_err("a wait ended with the abort").to_string();
        assert!(said.contains("the test says so"), "{said}");
        for _ in 0..2 {
            assert_eq!(a.wait_once(&here, -1), Outcome::NotSignalled);
            let said = here.semaphore().check().unwrap_err().to_string();
            assert!(said.contains("the test says so"), "{said}");
        }
        there.semaphore().check().expect("the peer is not told");
        // The abort does not affect another semaphore of the device.
        let ([here, there], _) = sides(context, devices);
        b.signal(&there, 1);
        assert_eq!(a.wait_once(&here, -1), Outcome::Signalled);
    });
}

#[test]
fn semaphores_come_and_go_while_a_kernel_waits() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        a.start_wait(&here, -1);
        let (tell, told) = mpsc::channel();
        let other = std::thread::spawn(move || {
            // This context has made nothing yet, so that everything is made now.
            let made = channel_pair(&Context::on(platform()), devices).unwrap();
            tell.send("made").unwrap();
            drop(made);
            tell.send("dropped").unwrap();
        });
        let progress: Vec<_> = (0..2).map(|_| told.recv_timeout(LIMIT)).collect();
        // Whatever waits for the kernel's end can go on now.
        b.signal(&there, 1);
        assert_eq!(a.outcome(), Outcome::Signalled);
        other.join().unwrap();
        assert_eq!(progress, [Ok("made"), Ok("dropped")]);
    });
}

#[test]
fn no_signal_is_lost_or_taken_twice_under_contention() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        // All blocks of both sides fit on a device at once.
        let (blocks, per_thread) = (3, 5);
        a.start_contended(&here, blocks, per_thread);
        b.start_contended(&there, blocks, per_thread);
        let each_way = u64::from(blocks) * 32 * u64::from(per_thread.unsigned_abs());
        assert_eq!((a.taken(), b.taken()), ([each_way; 3], [each_way; 3]));
        assert_eq!((a.poll_once(&here), b.poll_once(&there)), (Outcome::NotSignalled, Outcome::NotSignalled));
    });
}

#[test]
fn a_signal_carries_the_data_written_before_it() {
    on_each_pair(|context, devices| {
        let ([here, there], [mut a, mut b]) = sides(context, devices);
        // Simulated devices are slow, and would find the data race that this kernel has on purpose.
        let on_gpus = context.platform().unwrap() != Platform::Sim;
        let rounds = if on_gpus { 20_000 } else { 200 };
        for words in [1, 7, 4096] {
            println!("{words} words");
            let seed = Random::new().word();
            let buffer = context.gpu(devices[1]).unwrap().allocate(8 * words).unwrap();
            let memory = context.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
            let as_seen_by_a =
                here.semaphore().connection().peer_ptr(&memory).unwrap().expect("mapped memory");
            let mut play = |relaxed, seed| {
                let what = Rounds { words, rounds, seed, relaxed };
                b.start_checking(&there, buffer.ptr(), what);
                a.start_writing(&here, as_seen_by_a, what);
                a.mismatches() + b.mismatches()
            };
            assert_eq!(play(false, seed), 0, "{words} words");
            if on_gpus {
                // The weakened variant promises nothing about data, so the test only asserts that it ends.
                let wrong = play(true, !seed);
                println!(
                    "the relaxed pair: {wrong} of {} words came late",
                    words * u64::from(rounds.unsigned_abs())
                );
            }
        }
    });
}

#[test]
fn connection_writes_arrive_before_the_update_behind_them() {
    on_each_pair(|context, devices| {
        let ([here, _there], _) = sides(context, devices);
        let connection = here.semaphore().connection();
        let buffer = |id: usize| context.gpu(id).unwrap().allocate(1 << 16).unwrap();
        let (from, to) = (buffer(devices[0]), buffer(devices[1]));
        let register = |buffer: &DeviceBuffer| context.register_buffer(buffer, Transport::CUDA_IPC).unwrap();
        let (src, dst) = (register(&from), register(&to));
        let data: Vec<u8> = (0..1 << 15).map(|i: u32| (i * 7 % 251) as u8).collect();
        from.write(0, &data).unwrap();
        let mut flag = 0;
        connection.write(&dst, 8, &src, 3, 30_001).unwrap();
        connection.update_and_sync(&dst, 0, &mut flag, 0xfeed).unwrap();
        connection.flush(LIMIT).unwrap();
        let mut back = vec![0; 30_010];
        to.read(0, &mut back).unwrap();
        assert_eq!((flag, &back[..8]), (0xfeed, &0xfeed_u64.to_ne_bytes()[..]));
        assert_eq!(back[8..30_009], data[3..30_004]);
        assert_eq!(back[30_009], 0, "nothing past the end");
        let past = connection.write(&dst, 60_000, &src, 0, 10_000);
        assert!(matches!(past, Err(CoreError::OutOfBounds { .. })), "{past:?}");
    });
}

#[test]
fn the_ping_pong_of_the_tutorial() {
    use ping_pong::{Player, Role};
    let _turn = turn();
    let context = Context::on(platform());
    let devices = [0, 1 % platform().device_count().unwrap()];
    let channels = channel_pair(&context, devices).unwrap();
    let player = |role, id| Player::new(role, &context.gpu(id).unwrap()).unwrap();
    let players = [player(Role::Spinning, devices[0]), player(Role::Plain, devices[1])];
    players[0].launch(&channels[0]).unwrap();
    players[1].launch(&channels[1]).unwrap();
    let ms = [players[0].finish(&channels[0]).unwrap(), players[1].finish(&channels[1]).unwrap()];
    assert!(ms[1] > 1.0, "{ms:?} ms per round");
}

#[test]
fn bad_use_is_an_error_at_the_call() {
    let context = Context::on(platform());
    let count = platform().device_count().unwrap();
    let none =
        context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(count))).unwrap_err();
    assert!(none.to_string().contains(&format!("device {count}")), "{none}");
    let error = Error::from(none);
    assert_eq!(error.kind(), mscclpp::ErrorKind::InvalidUsage);
    let unserved = context.create_endpoint(Transport::custom(7)).unwrap_err();
    assert!(unserved.to_string().contains("Custom7"), "{unserved}");
}
