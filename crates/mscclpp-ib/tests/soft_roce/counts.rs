//! Tests of how often a queue calls its adapter, and how many completions it takes. An emulator makes calls slower,
//! but not more frequent.

use std::{
    ffi::c_int,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_core::{Context, Device, EndpointConfig, IbMode, SendQueue, Transport};
use mscclpp_gpu::Platform;
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::until;
use mscclpp_verbs_sys::{Verbs, ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_send_wr, ibv_wc};

use crate::{
    Case,
    ends::{End, Pair, Words},
};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("a_put_with_a_signal_is_one_call", a_put_with_a_signal_is_one_call),
    ("many_puts_and_a_flush_take_few_completions", many_puts_and_a_flush_take_few_completions),
];

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// The functions of soft RoCE, the same for all its devices.
static REAL: OnceLock<(PostSend, PollCq)> = OnceLock::new();
static POSTS: AtomicU64 = AtomicU64::new(0);
static COMPLETIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the real library, with contexts that count their calls.
fn counting() -> &'static Verbs {
    let real = Verbs::load().expect("libibverbs");
    Box::leak(Box::new(Verbs { open_device, ..real.clone() }))
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let real = Verbs::load().expect("libibverbs");
    // SAFETY: the caller's device.
    let context = unsafe { (real.open_device)(device) };
    // SAFETY: an opened context is valid, and nobody else has it yet.
    if let Some(context) = unsafe { context.as_mut() } {
        let ops = &mut context.ops;
        let _ = REAL.set((ops.post_send.expect("post_send"), ops.poll_cq.expect("poll_cq")));
        ops.post_send = Some(post_send);
        ops.poll_cq = Some(poll_cq);
    }
    context
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    POSTS.fetch_add(1, Ordering::Relaxed);
    let (real, _) = REAL.get().expect("set when the context was opened");
    // SAFETY: the caller's arguments.
    unsafe { real(qp, wr, bad_wr) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    let (_, real) = REAL.get().expect("set when the context was opened");
    // SAFETY: the caller's arguments.
    let taken = unsafe { real(cq, entries, wc) };
    COMPLETIONS.fetch_add(taken.max(0) as u64, Ordering::Relaxed);
    taken
}

/// Opens a pair whose first end counts.
fn pair(mode: IbMode) -> Pair {
    // SAFETY: the functions are the library's own, with counters in front of them.
    let provider = unsafe { InfiniBand::builder().mode(mode).verbs(counting()) }.build();
    let context = Context::builder().provider(provider).platform(Platform::Sim).build();
    let endpoint = context.create_endpoint(EndpointConfig::new(Transport::IB0, Device::CPU));
    let a = End { context, endpoint: endpoint.expect("an endpoint"), transport: Transport::IB0 };
    Pair::of(a, End::open(Transport::IB1, mode))
}

/// Returns the calls and completions since the last time.
fn counted() -> (u64, u64) {
    (POSTS.swap(0, Ordering::Relaxed), COMPLETIONS.swap(0, Ordering::Relaxed))
}

fn flush(queue: &mut SendQueue) {
    let ticket = queue.request_flush().expect("a flush");
    until("the flush", || queue.progress().expect("progress") >= ticket);
}

fn a_put_with_a_signal_is_one_call(mode: IbMode) {
    let pair = pair(mode);
    let (there, back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, 16), Words::new(&pair.b, 16));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    let signaller = there.semaphore().signaller().expect("a signaller");
    let signaller = queue.attach(signaller).expect("attaching");
    for round in 1..=8 {
        source.fill(round);
        counted();
        queue.write(route, 0, 0, source.memory.size()).expect("a write");
        queue.signal(signaller).expect("a signal");
        assert_eq!(queue.submit().expect("handing over"), 0, "there is room");
        let (posts, _) = counted();
        assert_eq!(posts, 1, "calls of ibv_post_send in round {round}");
        back.wait(1_000_000_000).expect("a signal");
        assert_eq!(target.all_hold(round), Ok(()));
        // After a flush the source may be changed.
        flush(&mut queue);
    }
}

fn many_puts_and_a_flush_take_few_completions(mode: IbMode) {
    const PUTS: u64 = 64;
    let pair = pair(mode);
    let (source, target) = (Words::new(&pair.a, 16), Words::new(&pair.b, 16));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    source.fill(7);
    counted();
    for _ in 0..PUTS {
        queue.write(route, 0, 0, source.memory.size()).expect("a write");
        queue.submit().expect("handing over");
    }
    flush(&mut queue);
    let (posts, completions) = counted();
    assert_eq!(target.all_hold(7), Ok(()));
    assert!((1..=4).contains(&completions), "{completions} completions of {PUTS} puts and a flush");
    assert!(posts <= PUTS + 1, "{posts} calls of ibv_post_send for {PUTS} puts and a flush");
}
