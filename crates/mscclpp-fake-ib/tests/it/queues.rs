//! Tests of queues: places, receives, completions, events.

use std::{ptr, thread, time::Duration};

use mscclpp_verbs_sys as sys;

use crate::rig::{End, Request, Shape, pair};
use mscclpp_fake_ib::{Config, Fake, Live};

#[test]
fn data_tokens_and_immediates_arrive_through_the_thread() {
    let fake = Fake::new(Config::new(2));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    for round in 1..=100 {
        a.fill(0..1000, round);
        assert_eq!(b.receive(1), 0);
        let chain = [
            Request::write(&a, &b, 0..1000),
            Request::write_imm(&a, &b, 0..0, 5),
            Request::add(&a, &b, 3).signalled(),
        ];
        assert_eq!(a.post(&chain), (0, 3));
        let sent = a.completions(1)[0];
        assert_eq!(
            (sent.status, sent.opcode, sent.qp_num),
            (sys::IBV_WC_SUCCESS, sys::IBV_WC_FETCH_ADD, a.number())
        );
        let received = b.completions(1)[0];
        assert_eq!((received.opcode, received.byte_len), (sys::IBV_WC_RECV_RDMA_WITH_IMM, 0));
        assert_eq!(received.wc_flags & sys::IBV_WC_WITH_IMM, sys::IBV_WC_WITH_IMM);
        assert!(b.holds(0..1000, round));
    }
    assert_eq!(b.token[0].load(std::sync::atomic::Ordering::Relaxed), 300);
    let counters = fake.counters();
    assert_eq!((counters.posts, counters.requests), (100, 300));
    assert_eq!(
        (counters.send_completions, counters.receive_completions, counters.rnr_retries),
        (100, 100, 0)
    );
}

#[test]
fn places_are_free_again_when_a_later_completion_is_polled() {
    let fake = Fake::new(Config::new(2).reproducible(1));
    let (a, b) = pair(&fake, Shape { send_places: 4, ..Shape::on(0) }, Shape::on(1));
    let silent = Request::write(&a, &b, 0..1);
    assert_eq!(a.post(&[silent, silent, silent, silent.signalled(), silent]), (libc::ENOMEM, 4));
    fake.settle();
    assert_eq!(a.post(&[silent]), (libc::ENOMEM, 0), "carried out, but not polled");
    assert_eq!(a.completions(1).len(), 1);
    assert_eq!(a.post(&[silent, silent, silent]), (0, 3));
    fake.settle();
    assert_eq!(a.poll().len(), 0);
    assert_eq!(a.post(&[silent, silent]), (libc::ENOMEM, 1), "without a completion no place is free");
}

#[test]
fn an_immediate_without_a_receive_is_tried_again_and_counted() {
    let fake = Fake::new(Config::new(2));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    assert_eq!(a.post(&[Request::write_imm(&a, &b, 0..0, 1).signalled()]).0, 0);
    while fake.counters().rnr_retries < 10 {
        thread::yield_now();
    }
    assert_eq!(b.receive(1), 0);
    assert_eq!(b.completions(1)[0].status, sys::IBV_WC_SUCCESS);
    assert_eq!(a.completions(1)[0].status, sys::IBV_WC_SUCCESS);
}

#[test]
fn an_immediate_without_a_receive_fails_after_the_retries() {
    let fake = Fake::new(Config::new(2).reproducible(2));
    let (a, b) = pair(&fake, Shape { rnr_retry: 3, ..Shape::on(0) }, Shape::on(1));
    assert_eq!(a.post(&[Request::write_imm(&a, &b, 0..0, 1)]).0, 0);
    assert_eq!(a.completions(1)[0].status, sys::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(fake.counters().rnr_retries, 4);
}

#[test]
fn receives_have_places_too() {
    let fake = Fake::new(Config::new(2).reproducible(3));
    let (a, b) = pair(&fake, Shape::on(0), Shape { receive_places: 2, ..Shape::on(1) });
    assert_eq!(b.receive(3), libc::ENOMEM);
    assert_eq!(a.post(&[Request::write_imm(&a, &b, 0..0, 1)]).0, 0);
    fake.settle();
    assert_eq!(b.receive(1), libc::ENOMEM, "taken, but not polled");
    b.completions(1);
    assert_eq!(b.receive(1), 0);
}

#[test]
fn a_completion_queue_that_is_overrun_is_misuse_and_an_event() {
    let fake = Fake::new(Config::new(2).reproducible(4));
    let (a, b) = pair(&fake, Shape { cq_entries: 2, ..Shape::on(0) }, Shape::on(1));
    assert_eq!(a.post(&[Request::write(&a, &b, 0..1).signalled(); 4]).0, 0);
    fake.settle();
    assert_eq!(fake.counters().overruns, 2);
    let mut event = sys::ibv_async_event::default();
    // SAFETY: the context is open, and there is an event.
    unsafe {
        assert_eq!((a.verbs.get_async_event)(a.context, &raw mut event), 0);
        assert_eq!((event.event_type, event.element.cq), (sys::IBV_EVENT_CQ_ERR, a.cq));
        (a.verbs.ack_async_event)(&raw mut event);
    }
    assert!(fake.take_misuse().iter().any(|what| what.contains("overrun")));
}

/// Returns whether there is an event, or one comes within this many milliseconds.
fn notified(end: &End, milliseconds: i32) -> bool {
    // SAFETY: the channel lives.
    let mut poll = libc::pollfd { fd: unsafe { (*end.channel).fd }, events: libc::POLLIN, revents: 0 };
    // SAFETY: the list has one entry.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

fn arm(end: &End) {
    // SAFETY: the queue lives.
    assert_eq!(unsafe { end.verbs.req_notify_cq(end.cq, false) }, 0);
}

fn take_event(end: &End) {
    assert!(notified(end, 60_000), "no event came");
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: there is an event; it is acknowledged once.
    unsafe {
        assert_eq!((end.verbs.get_cq_event)(end.channel, &raw mut cq, &raw mut context), 0);
        assert_eq!(cq, end.cq);
        (end.verbs.ack_cq_events)(cq, 1);
    }
}

#[test]
fn a_channel_wakes_once_for_each_arming() {
    let fake = Fake::new(Config::new(2));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    let send = || assert_eq!(a.post(&[Request::write(&a, &b, 0..1).signalled()]).0, 0);
    send();
    assert!(!notified(&a, 100), "not armed");
    arm(&a);
    assert!(!notified(&a, 100), "what was there before makes no event");
    send();
    send();
    take_event(&a);
    assert!(!notified(&a, 100), "one event for each arming");
    a.completions(3);
}

#[test]
fn inline_data_is_read_when_posted_and_other_data_when_carried_out() {
    let fake = Fake::new(Config::new(2).reproducible(5));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    a.fill(0..2, 1);
    let inline = Request::write(&a, &b, 0..1).flags(sys::IBV_SEND_INLINE);
    assert_eq!(a.post(&[inline, Request::write(&a, &b, 1..2).signalled()]).0, 0);
    a.fill(0..2, 2);
    fake.settle();
    assert!(b.holds(0..1, 1) && b.holds(1..2, 2));
    let long = Request::write(&a, &b, 0..9).flags(sys::IBV_SEND_INLINE);
    assert_eq!(a.post(&[long]), (libc::EINVAL, 0), "72 bytes, 64 were negotiated");
}

#[test]
fn nothing_is_left_after_many_connections() {
    let fake = Fake::new(Config::new(2));
    for _ in 0..50 {
        let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
        assert_eq!(a.post(&[Request::write(&a, &b, 0..8).signalled()]).0, 0);
        a.completions(1);
        let live = fake.live();
        assert_eq!((live.contexts, live.queue_pairs, live.regions), (2, 2, 4));
    }
    assert_eq!(fake.live(), Live::default());
    // The pause lets the thread that carries out requests go to sleep. The test passes if it ends at all.
    thread::sleep(Duration::from_millis(1));
}

/// Posts a receive of this many bytes into the data, at word 16.
fn receive_into(end: &End, bytes: u32) {
    // SAFETY: the end's objects live.
    unsafe {
        let mut place =
            sys::ibv_sge { addr: end.data[16..].as_ptr() as u64, length: bytes, lkey: (*end.data_mr).lkey };
        let mut wr = sys::ibv_recv_wr { wr_id: 9, sg_list: &raw mut place, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        assert_eq!(end.verbs.post_recv(end.qp, &raw mut wr, &raw mut bad), 0);
    }
}

fn send(from: &End, to: &End) -> Request {
    let mut request = Request::write(from, to, 0..4).signalled();
    request.wr.opcode = sys::IBV_WR_SEND;
    request
}

#[test]
fn a_send_goes_to_the_memory_of_a_receive() {
    let fake = Fake::new(Config::new(2));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    a.fill(0..4, 7);
    receive_into(&b, 64);
    assert_eq!(a.post(&[send(&a, &b)]).0, 0);
    let received = b.completions(1)[0];
    assert_eq!(
        (received.wr_id, received.opcode, received.byte_len, received.wc_flags),
        (9, sys::IBV_WC_RECV, 32, 0)
    );
    assert!(b.holds(16..20, 7) && b.holds(20..24, 0) && b.holds(0..4, 0));
    assert_eq!(a.completions(1)[0].opcode, sys::IBV_WC_SEND);
}

#[test]
fn a_receive_that_is_too_short_fails_both_sides() {
    let fake = Fake::new(Config::new(2).reproducible(6));
    let (a, b) = pair(&fake, Shape::on(0), Shape::on(1));
    receive_into(&b, 31);
    assert_eq!(a.post(&[send(&a, &b)]).0, 0);
    assert_eq!(b.completions(1)[0].status, sys::IBV_WC_LOC_LEN_ERR);
    assert_eq!(a.completions(1)[0].status, sys::IBV_WC_REM_INV_REQ_ERR);
}
