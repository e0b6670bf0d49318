//! Tests of requests that are refused, and of failures.

use std::time::Duration;

use mscclpp_test_support::until;
use mscclpp_verbs_sys as sys;

use crate::rig::{End, Request, STRICT, Shape, pair};
use mscclpp_fake_ib::{Config, Fake, VENDOR_ERROR};

/// Posts a write and more behind it, and returns the status of all completions.
fn statuses(a: &End, request: Request, b: &End) -> Vec<sys::ibv_wc_status> {
    let behind = Request::write(a, b, 0..1);
    assert_eq!(a.post(&[request, behind, behind.signalled()]).0, 0);
    a.completions(3).iter().map(|wc| wc.status).collect()
}

fn next_event(end: &End) -> sys::ibv_event_type {
    let mut event = sys::ibv_async_event::default();
    // SAFETY: the context is open. The call blocks until there is an event, which is acknowledged once.
    unsafe {
        assert_eq!((end.verbs.get_async_event)(end.context, &raw mut event), 0);
        (end.verbs.ack_async_event)(&raw mut event);
    }
    event.event_type
}

fn state(end: &End) -> sys::ibv_qp_state {
    let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
    // SAFETY: the queue pair lives.
    assert_eq!(unsafe { (end.verbs.query_qp)(end.qp, &raw mut attr, 0, &raw mut init) }, 0);
    attr.qp_state
}

const FLUSHED: sys::ibv_wc_status = sys::IBV_WC_WR_FLUSH_ERR;

#[test]
fn every_status_can_be_injected_and_flushes_what_is_behind() {
    for status in 1..=sys::IBV_WC_TM_RNDV_INCOMPLETE {
        let fake = Fake::new(Config::new(2).reproducible(u64::from(status)));
        let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
        a.fill(0..3, 1);
        fake.fail_completion(0, 2, status);
        let chain = [0, 1, 2].map(|id| Request::write(&a, &b, id..id + 1).id(id as u64));
        assert_eq!(a.post(&chain).0, 0);
        let done = a.completions(2);
        assert_eq!((done[0].wr_id, done[0].status, done[0].vendor_err), (1, status, VENDOR_ERROR));
        assert_eq!((done[1].wr_id, done[1].status), (2, FLUSHED));
        assert_ne!(done[0].opcode, sys::IBV_WC_RDMA_WRITE, "a failed completion has no opcode");
        assert_eq!(state(&a), sys::IBV_QPS_ERR);
        assert!(b.holds(0..1, 1) && b.holds(1..3, 0), "the failed one had no effect");
        // A request that is posted now is taken and flushed.
        assert_eq!(a.post(&chain[..1]).0, 0);
        assert_eq!(a.completions(1)[0].status, FLUSHED);
    }
}

#[test]
fn wrong_keys_ranges_and_rights_are_refused() {
    type Wrong = fn(&mut Request);
    let cases: [(&str, sys::ibv_wc_status, Wrong); 5] = [
        ("there is no key", sys::IBV_WC_REM_ACCESS_ERR, |r| r.wr.wr.rdma.rkey = 1),
        ("not within", sys::IBV_WC_REM_ACCESS_ERR, |r| {
            // SAFETY: the request is a write.
            unsafe { r.wr.wr.rdma.remote_addr += 8192 - 4 };
        }),
        ("local memory: there is no key", sys::IBV_WC_LOC_PROT_ERR, |r| r.piece.lkey = 1),
        ("local memory: ", sys::IBV_WC_LOC_PROT_ERR, |r| r.piece.addr -= 1),
        ("not within", sys::IBV_WC_REM_ACCESS_ERR, |r| {
            // SAFETY: the request is a write.
            unsafe { r.wr.wr.rdma.remote_addr -= 1 };
        }),
    ];
    for (why, status, wrong) in cases {
        let fake = Fake::new(Config::new(2).reproducible(1));
        let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
        let mut request = Request::write(&a, &b, 0..1);
        wrong(&mut request);
        assert_eq!(statuses(&a, request, &b), [status, FLUSHED, FLUSHED], "{why}");
        assert!(
            fake.refusals().iter().any(|refusal| refusal.contains(why)),
            "{why} in {:?}",
            fake.refusals()
        );
        if status == sys::IBV_WC_REM_ACCESS_ERR {
            assert_eq!(next_event(&b), sys::IBV_EVENT_QP_ACCESS_ERR);
            assert_eq!(state(&b), sys::IBV_QPS_ERR, "the peer's queue pair fails as well");
        }
    }
}

#[test]
fn a_region_without_the_right_and_one_that_is_gone_are_refused() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let readable = Shape { data: sys::IBV_ACCESS_LOCAL_WRITE, ..Shape::on(1) };
    let (a, b) = pair(&fake, Shape::on(0), readable);
    assert_eq!(statuses(&a, Request::write(&a, &b, 0..1), &b)[0], sys::IBV_WC_REM_ACCESS_ERR);
    next_event(&b);

    let (a, mut b) = pair(&fake, Shape::on(0), Shape::on(1));
    let request = Request::write(&a, &b, 0..1);
    // SAFETY: the region is replaced by one that the end's drop deregisters.
    unsafe {
        assert_eq!((b.verbs.dereg_mr)(b.data_mr), 0);
        let address = b.data.as_ptr().cast_mut().cast();
        b.data_mr = (b.verbs.reg_mr)(b.pd, address, 64, STRICT as i32);
    }
    assert_eq!(statuses(&a, request, &b)[0], sys::IBV_WC_REM_ACCESS_ERR);
    next_event(&b);
}

#[test]
fn a_device_without_atomics_refuses_them_on_either_side() {
    let mut config = Config::new(2).reproducible(1);
    config.devices[1].atomics = false;
    let fake = Fake::new(config);
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    assert_eq!(b.post(&[Request::add(&b, &a, 1)]), (libc::EINVAL, 0));
    assert_eq!(statuses(&a, Request::add(&a, &b, 1), &b)[0], sys::IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(next_event(&b), sys::IBV_EVENT_QP_REQ_ERR);
}

#[test]
fn an_atomic_must_be_aligned() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let mut request = Request::add(&a, &b, 1);
    // SAFETY: the request is an atomic.
    unsafe { request.wr.wr.atomic.remote_addr += 4 };
    assert_eq!(statuses(&a, request, &b)[0], sys::IBV_WC_REM_INV_REQ_ERR);
    next_event(&b);
}

#[test]
fn a_peer_that_is_gone_or_numbered_otherwise_is_not_reached() {
    type Change = fn(&End);
    let cases: [(&str, Change); 2] = [
        ("failed", |b| {
            let attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
            assert_eq!(b.modify(attr, sys::IBV_QP_STATE), 0);
        }),
        ("reset", |b| {
            let attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RESET, ..Default::default() };
            assert_eq!(b.modify(attr, sys::IBV_QP_STATE), 0);
        }),
    ];
    for (case, change) in cases {
        let fake = Fake::new(Config { patience: Duration::from_millis(20), ..Config::new(2) });
        let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
        change(&b);
        assert_eq!(statuses(&a, Request::write(&a, &b, 0..1), &b)[0], sys::IBV_WC_RETRY_EXC_ERR, "{case}");
        assert!(fake.counters().transport_retries > 1);
    }
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = (End::new(&fake, Shape::on(0)), End::new(&fake, Shape::on(1)));
    for (from, to) in [(&a, &b), (&b, &a)] {
        for (mut attr, mask) in from.changes(to) {
            attr.sq_psn = 8;
            assert_eq!(from.modify(attr, mask), 0);
        }
    }
    assert_eq!(statuses(&a, Request::write(&a, &b, 0..1), &b)[0], sys::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_port_that_goes_down_says_so_and_traffic_goes_on_when_it_is_back() {
    let fake = Fake::new(Config { patience: Duration::from_secs(20), ..Config::new(2) });
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    fake.set_port(1, 1, false);
    assert_eq!(next_event(&b), sys::IBV_EVENT_PORT_ERR);
    let mut attr = sys::ibv_port_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { b.verbs.query_port(b.context, 1, &raw mut attr) }, 0);
    assert_eq!(attr.state, sys::IBV_PORT_DOWN);
    assert_eq!(a.post(&[Request::write(&a, &b, 0..1).signalled()]).0, 0);
    // The adapter has tried more than once.
    until("tries to reach the peer", || fake.counters().transport_retries > 1);
    assert!(a.poll().is_empty());
    fake.set_port(1, 1, true);
    assert_eq!(next_event(&b), sys::IBV_EVENT_PORT_ACTIVE);
    assert_eq!(a.completions(1)[0].status, sys::IBV_WC_SUCCESS);
}

#[test]
fn a_device_or_queue_pair_that_fails_says_so() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    assert_eq!(b.receive(2), 0);
    fake.fail_queue_pair(b.number());
    assert_eq!(next_event(&b), sys::IBV_EVENT_QP_FATAL);
    assert_eq!(b.completions(2).iter().map(|wc| wc.status).collect::<Vec<_>>(), [FLUSHED, FLUSHED]);
    fake.fail_device(0);
    assert_eq!(next_event(&a), sys::IBV_EVENT_DEVICE_FATAL);
    assert_eq!(state(&a), sys::IBV_QPS_ERR);
}

#[test]
fn posting_fails_in_the_middle_of_a_chain_and_goes_on_there() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    fake.fail_call(0, mscclpp_fake_ib::Call::PostSend, 3, libc::ENOMEM);
    let chain: Vec<_> = (0..5).map(|id| Request::write(&a, &b, 0..1).id(id).signalled()).collect();
    assert_eq!(a.post(&chain), (libc::ENOMEM, 2));
    assert_eq!(a.post(&chain[2..]), (0, 3));
    assert_eq!(a.completions(5).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!((fake.counters().posts, fake.counters().requests), (2, 5));
}
