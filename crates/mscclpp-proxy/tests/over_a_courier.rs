//! The suite over a transport of somebody else's: one that neither maps memory nor stores completions, as a network, so
//! that everything goes through the proxy and completions are in pinned memory; and ones that map more and more. And what
//! one connection has to do with another that is held up.

#[path = "../../mscclpp-core/tests/courier/mod.rs"]
mod courier;
mod suite;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use courier::{Courier, Reach};
use libtest_mimic::{Arguments, Trial};
use mscclpp_core::Context;
use suite::{
    Pair, Setup, Side,
    kernels::Thread,
    pair::{fill, mismatches, mix, until},
};

fn main() {
    let mut trials = Vec::new();
    for reach in [Reach::Nothing, Reach::Stores, Reach::Atomics] {
        trials.extend(suite::trials(&format!("{reach:?}::"), &setup_of(&Courier::new(reach), reach)));
        trials.push(Trial::test(format!("{reach:?}::flushes_wait_for_their_own_connection"), move || {
            flushes_wait_for_their_own_connection(reach);
            Ok(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn setup_of(courier: &Courier, reach: Reach) -> Setup {
    let courier = courier.clone();
    Setup {
        builder: Arc::new(move || Context::builder().provider(courier.clone())),
        transport: Courier::TRANSPORT,
        reach: [reach != Reach::Nothing, reach == Reach::Atomics],
    }
}

/// One service with two connections. While the transport of one carries nothing out, flushes on the other return; the
/// flush on the first returns when its transport goes on.
fn flushes_wait_for_their_own_connection(reach: Reach) {
    const LEN: u64 = 64 << 10;
    const WORDS: usize = (LEN / 8) as usize;
    let (held, free) = (Courier::new(reach), Courier::new(reach));
    let pair = Pair::running(&setup_of(&free, reach), LEN);
    let Pair { sides: [a, there] } = Pair::new(&setup_of(&held, reach), LEN, 1, |builder| builder);
    let Side { service, own, theirs, semaphores, buffer, kernels, .. } = a;
    // It gives back what it has of the semaphore.
    drop(service);
    let service = &pair.sides[0].service;
    let id = service.add_semaphore(&semaphores[0]).unwrap();
    let [dst, src] = [&theirs, &own].map(|memory| service.add_memory(memory).unwrap());
    let channel = service.port_channel(id, dst, src).unwrap();
    let noise: Vec<u8> = (0..LEN).map(|i| mix(5, i) as u8).collect();
    buffer.write(0, &noise).unwrap();

    held.hold(true);
    let returned = AtomicBool::new(false);
    let (from, to) = (pair.sides[0].thread(), there.thread());
    thread::scope(|scope| {
        let _guard = pair.guard();
        scope.spawn(|| {
            assert!(Thread::of(&kernels, &channel).put_with_signal_and_flush(0, 0, LEN));
            returned.store(true, Ordering::Release);
        });
        until("the flush that is held up", || service.stats().total.syncs == 1);
        let flushes = scope.spawn(|| {
            for round in 0..100 {
                fill(&pair.sides[0].words()[..WORDS], |i| mix(round, i));
                assert!(from.put(0, 0, LEN) && from.flush());
                assert_eq!(mismatches(&pair.sides[1].words()[..WORDS], |i| mix(round, i)), 0);
            }
        });
        until("flushing the other connection", || flushes.is_finished());
        flushes.join().unwrap();
        assert!(!returned.load(Ordering::Acquire) && !to.poll(), "nothing was carried out");
        held.hold(false);
    });
    assert!(to.wait());
    assert!(there.bytes()[..LEN as usize] == noise);
    service.stop_proxy().unwrap();
}
