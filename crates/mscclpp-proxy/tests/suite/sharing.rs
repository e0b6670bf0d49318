//! Sharing: objects made from one semaphore share its tokens, and its signals over the link have a single sender.

use mscclpp_core::{Error as CoreError, HostToDeviceSemaphore};
use mscclpp_proxy::{ProxyService, Result};

use super::{Case, Pair, Setup, Side};

pub(super) const CASES: &[Case] = &[
    ("numbers_of_one_semaphore_share_its_tokens", numbers_of_one_semaphore_share_its_tokens),
    ("a_host_signals_when_no_service_does", a_host_signals_when_no_service_does),
];

const LEN: u64 = 256;

/// Lets channels of both numbers signal and wait, in both directions, with the proxy alone and with direct puts too.
fn numbers_of_one_semaphore_share_its_tokens(setup: &Setup) {
    for direct_put_max in [0, ProxyService::DEFAULT_DIRECT_PUT_MAX] {
        let pair = Pair::new(setup, LEN, 1, |builder| builder.direct_put_max(direct_put_max));
        for side in &pair.sides {
            assert_eq!(side.service.add_semaphore(&side.semaphores[0]).expect("another number").raw(), 1);
            side.service.start_proxy(true).expect("a start");
        }
        let [a, b] = &pair.sides;
        for (from, to) in [(a, b), (b, a)] {
            for round in 0..20 {
                // The number that was added later is used first.
                assert!(from.thread_on(1).put_with_signal(0, 0, LEN), "round {round}");
                assert!(from.thread_on(0).put_with_signal(0, 0, LEN));
                assert!(from.thread_on(1).signal() && from.thread_on(0).signal());
                for id in [1, 1, 0, 1] {
                    assert!(to.thread_on(id).wait(), "round {round}: a signal was lost");
                }
            }
            assert!(from.thread_on(0).flush());
            assert!(!to.thread_on(0).poll() && !to.thread_on(1).poll(), "a signal was taken twice");
        }
        pair.sides.iter().for_each(|side| side.service.stop_proxy().expect("a stop"));
    }
}

fn a_host_signals_when_no_service_does(setup: &Setup) {
    let pair = Pair::running(setup, LEN);
    let Pair { sides: [a, b] } = pair;
    let host = HostToDeviceSemaphore::new(&a.semaphores[0]).expect("it can be made, and waited on");
    assert!(a.thread().put_with_signal(0, 0, LEN) && b.thread().wait());
    let error = host.signal().expect_err("the proxy signals");
    assert!(matches!(error, CoreError::InvalidArgument(_)), "{error}");
    let Side { service, semaphores, gpu, .. } = a;
    service.stop_proxy().expect("a stop");
    drop(service);
    host.signal().expect("nobody else signals");
    assert!(b.thread().wait(), "the host's signal was lost");
    // Another service goes on from the count at which the host stopped.
    let again = || -> Result<ProxyService> {
        let service = ProxyService::new(&gpu)?;
        service.add_semaphore(&semaphores[0])?;
        Ok(service)
    };
    let _service = again().expect("the semaphore is free");
    assert!(host.signal().is_err() && !b.thread().poll());
    b.service.stop_proxy().expect("a stop");
}
