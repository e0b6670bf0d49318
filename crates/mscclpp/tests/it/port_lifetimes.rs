//! Port channels under kernels whose services are stopped, started and dropped: on GPUs and on simulated devices.

use crate::support::{
    LIMIT, on_each_pair, on_gpus,
    port_ends::{Call, PortEnd},
    random::Random,
    semaphore_pair,
};
use mscclpp::{gpu::Abort, prelude::*};
use mscclpp_test_support::{until, watched};

#[test]
fn services_start_and_stop_a_hundred_times() {
    const LEN: u64 = 64 << 10;
    on_each_pair(|context, devices| {
        let [here, there] = PortEnd::pair(context, devices, 1, [LEN; 2], 0);
        let mut random = Random::new();
        for round in 0..100 {
            let data = random.bytes(LEN as usize);
            here.source.write(0, &data).unwrap();
            watched(LIMIT, "a stop", || here.service.stop_proxy()).unwrap();
            assert!(!here.service.is_running());
            // In every other round the kernel starts before the proxy.
            if round % 2 == 0 {
                here.service.start_proxy(round % 4 == 0).unwrap();
            }
            here.start_call(Call::PutWithSignalAndFlush, 0, LEN, -1);
            here.service.start_proxy(false).unwrap();
            assert!(here.outcome() && there.call(Call::Wait, 0, 0, -1), "round {round}");
            assert!(there.arrived() == data, "what came in round {round}");
        }
        here.service.stop_proxy().unwrap();
        there.service.stop_proxy().unwrap();
    });
}

/// The source is overwritten right after the stop: all data that was put must be at the peer, flushed or not.
#[test]
fn a_stop_completes_what_is_under_way() {
    const PUTS: usize = 16;
    let len = if on_gpus() { 16 << 20 } else { 1 << 20 };
    on_each_pair(|context, devices| {
        let [here, there] = PortEnd::pair(context, devices, 1, [len; 2], 0);
        let mut random = Random::new();
        for call in [Call::Put, Call::PutWithSignal, Call::Put] {
            let data = random.bytes(len as usize);
            here.source.write(0, &data).unwrap();
            (0..PUTS).for_each(|_| here.start_call(call, 0, len, -1));
            assert!(here.outcome(), "they are pushed");
            watched(LIMIT, "a stop", || here.service.stop_proxy()).unwrap();
            here.source.fill(0, len, 0).unwrap();
            assert!(there.arrived() == data, "{call:?}: the source was still needed");
            here.service.start_proxy(true).unwrap();
        }
        for n in 0..PUTS {
            assert!(there.call(Call::Wait, 0, 0, -1), "signal {n}");
        }
        assert!(!there.call(Call::Wait, 0, 0, 100), "a signal that nobody sent");
        assert_eq!(here.service.stats().total.data, 3 * PUTS as u64);
    });
}

/// Kernels push all the time, on several connections, and do not notice stops and starts.
#[test]
fn kernels_outlast_stops_and_starts() {
    const WORDS: u32 = 1024;
    on_each_pair(|context, devices| {
        let (shape, rounds) =
            if on_gpus() { (LaunchConfig::linear(4, 128), 20) } else { (LaunchConfig::linear(2, 4), 40) };
        let per_round = u64::from(shape.grid[0] * shape.block[0]) * u64::from(WORDS);
        let bytes = [8 * per_round, 8 * per_round * u64::from(rounds)];
        let [here, there] = PortEnd::pair(context, devices, 4, bytes, 0);
        let seed = Random::new().word();
        here.service.stop_proxy().unwrap();
        here.start_flush_and_overwrite(seed, rounds, WORDS, shape);
        for n in 0..100 {
            here.service.start_proxy(n % 2 == 0).unwrap();
            watched(LIMIT, "a stop", || here.service.stop_proxy()).unwrap();
        }
        here.service.start_proxy(true).unwrap();
        here.finish();
        assert_eq!(there.overwritten(seed, per_round), 0, "words of sources that were overwritten");
    });
}

/// The error of a kernel that waits for a stopped service names the service, and not its peer.
#[test]
fn a_service_that_does_not_serve_is_named() {
    const LEN: u64 = 64;
    on_each_pair(|context, devices| {
        let [mut here, there] = PortEnd::pair(context, devices, 1, [LEN; 2], 0);
        let (channel, peer) = (here.channels[0].clone(), there.channels[0].peers());
        let of_kernels = channel.peers();
        assert_eq!((of_kernels.len(), peer.len()), (1, 1), "{of_kernels:?}, {peer:?}");
        here.service.stop_proxy().unwrap();
        assert!(here.call(Call::Put, 0, LEN, -1), "it is pushed");
        for named in [channel.peers(), here.service.peers()] {
            assert!(named[0].contains("which was stopped (call start_proxy())"), "{named:?}");
            assert_eq!(named[1..], of_kernels);
        }
        channel.check().expect("it can still be carried out");
        here.service.start_proxy(true).unwrap();
        until("the trigger is taken", || channel.peers() == of_kernels);

        let another = ProxyService::new(&context.gpu(devices[0]).unwrap()).unwrap();
        drop(std::mem::replace(&mut here.service, another));
        channel.check().expect("nothing was lost");
        assert!(!here.call(Call::PutWithSignalAndFlush, 0, LEN, -1), "nobody flushes");
        let error = channel.check().unwrap_err().to_string();
        assert!(error.contains("was dropped (keep it as long as kernels use its channels)"), "{error}");
    });
}

#[test]
fn a_service_begins_anew_on_another_device_until_it_has_semaphores() {
    on_each_pair(|context, devices| {
        let [first, second] = devices.map(|id| context.gpu(id).unwrap());
        let stopped = ProxyService::new(&first).unwrap();
        let buffer = second.allocate(64).unwrap();
        let memory = context.register_buffer(&buffer, Transport::CUDA_IPC).unwrap();
        let ids = [(); 2].map(|()| stopped.add_memory(&memory).unwrap());

        let anew = ProxyService::builder(&second).build_in_place_of(&stopped).unwrap();
        assert!(!anew.is_running());
        stopped.start_proxy(true).unwrap();
        let anew = ProxyService::builder(&second).fifo_size(8).build_in_place_of(&stopped).unwrap();
        assert!(anew.is_running(), "as the one before it");
        assert_eq!(anew.add_memory(&memory).unwrap().raw(), ids[1].raw() + 1, "the numbers go on");
        stopped.stop_proxy().unwrap();
        assert!(anew.is_running(), "it does not need the one before it");

        let [peer, semaphore] = semaphore_pair(context, devices).unwrap();
        let id = anew.add_semaphore(&semaphore).expect("its connection is on the second device");
        anew.port_channel(id, ids[0], ids[1]).expect("memories that the other service was given");
        let refused = ProxyService::builder(&first).build_in_place_of(&anew).unwrap_err();
        assert!(refused.to_string().contains("stays on its device"), "{refused}");
        drop(peer);
    });
}

/// Parts are dropped while puts are under way. Each part is in turn the first and the last, and is dropped before and
/// after every other.
#[test]
fn parts_can_be_dropped_in_any_order() {
    const PUTS: usize = 8;
    let len = if on_gpus() { 4 << 20 } else { 256 << 10 };
    on_each_pair(|context, devices| {
        let data = Random::new().bytes(len as usize);
        for (turn, backwards) in (0..5).flat_map(|turn| [(turn, false), (turn, true)]) {
            let [here, there] = PortEnd::pair(context, devices, 1, [len; 2], 0);
            // These calls make the service that stops later use its connection, too.
            assert!(there.call(Call::PutWithSignalAndFlush, 0, len, -1));
            assert!(here.call(Call::Wait, 0, 0, -1));
            here.source.write(0, &data).unwrap();
            (0..PUTS).for_each(|_| here.start_call(Call::PutWithSignal, 0, len, -1));
            assert!(here.outcome(), "they are pushed");
            let mut parts = here.into_parts();
            parts.rotate_left(turn);
            if backwards {
                parts.reverse();
            }
            watched(LIMIT, "dropping the parts of an end", || parts.into_iter().for_each(drop));
            let connection = there.channels[0].semaphore().connection();
            until("the end of the connection, which something keeps", || connection.check().is_err());
            for n in 0..PUTS {
                assert!(there.call(Call::Wait, 0, 0, -1), "signal {n}");
            }
            assert!(there.arrived() == data, "what was put before the end");
            there.service.stop_proxy().expect("a peer that closed is no failure");
        }
    });
}
