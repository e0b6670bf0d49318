//! Tests that a completion channel with endless events leaves the transport's thread time for everything else.

use std::{
    cell::Cell,
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use mscclpp_core::{Device, EndpointConfig, IbConfig, IbMode, Transport};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::{LIMIT, within};
use mscclpp_verbs_sys::{self as sys, Verbs};

use crate::{
    ends::{self, End, Pair},
    world::World,
};
use mscclpp_fake_ib::Config;

/// The simulated adapters' own functions.
static REAL: OnceLock<Verbs> = OnceLock::new();
/// The completion queue and the number of the first event.
static FIRST: Mutex<Option<(usize, usize)>> = Mutex::new(None);
/// Whether that event is repeated endlessly.
static IS_ENDLESS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the last event of this thread was a repeated one, of which the adapter knows nothing.
    static IS_REPEATED: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    number: *mut *mut c_void,
) -> c_int {
    let real = REAL.get().expect("it was set").get_cq_event;
    // SAFETY: the caller promises the same.
    let result = unsafe { real(channel, cq, number) };
    let mut first = FIRST.lock().expect("nothing panics with it");
    if result == 0 {
        // SAFETY: both were written by the call.
        first.get_or_insert_with(|| unsafe { (cq.read().addr(), number.read().addr()) });
        return 0;
    }
    let Some((of, its)) = first.filter(|_| IS_ENDLESS.load(Ordering::Acquire)) else { return result };
    IS_REPEATED.set(true);
    // SAFETY: the channel's descriptor is an event descriptor and becomes readable by this write. The other pointers
    // are the caller's, and the queue lives until the test has set `IS_ENDLESS` to false.
    unsafe {
        libc::write((*channel).fd, (&raw const ONE).cast(), size_of::<u64>());
        *cq = ptr::with_exposed_provenance_mut(of);
        *number = ptr::without_provenance_mut(its);
    }
    0
}

static ONE: u64 = 1;

unsafe extern "C" fn ack_cq_events(cq: *mut sys::ibv_cq, count: c_uint) {
    if !IS_REPEATED.replace(false) {
        let real = REAL.get().expect("it was set").ack_cq_events;
        // SAFETY: the caller promises the same.
        unsafe { real(cq, count) };
    }
}

/// Ends the endless events, even if the test fails, so that the thread that takes them can be stopped.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        IS_ENDLESS.store(false, Ordering::Release);
    }
}

/// Returns whether a token with that value is among the first words of the semaphore's memory. No thread waits for
/// it, so the transport's thread must store it.
fn has_token(semaphore: &mscclpp_core::Semaphore, value: u64) -> bool {
    let base = semaphore.local_memory().data().expect("memory of this process");
    (0..512).any(|word| {
        let word = ptr::with_exposed_provenance_mut::<u64>(base.0 as usize + 8 * word);
        // SAFETY: tokens of CPUs are in 64 KiB of host memory that the semaphore keeps, all atomics.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire) == value
    })
}

#[test]
fn one_connection_without_a_pause_delays_no_other_and_no_command() {
    /// The number of signals, many more than there are receives.
    const SIGNALS: u64 = 1000;
    let world = World::new(Config::new(3));
    let mut table = world.fake.table();
    REAL.get_or_init(|| world.fake.table());
    (table.get_cq_event, table.ack_cq_events) = (get_cq_event, ack_cq_events);
    // SAFETY: the simulated adapters do what libibverbs does with real ones; events may come without a cause.
    let endless = unsafe { InfiniBand::builder().verbs(Box::leak(Box::new(table))) };
    let mode = IbMode::HostNoAtomic;
    let here = || world.end(Transport::IB0, mode, IbConfig::new());
    let busy = Pair::of(here(), ends::end_over(endless.mode(mode).build(), Transport::IB1, IbConfig::new()));
    let (there, _back) = busy.semaphores();
    there.signal().expect("a signal");
    assert!(within(LIMIT, || FIRST.lock().is_ok_and(|first| first.is_some())), "no event has come");
    let queue_pairs = world.fake.live().queue_pairs;

    let _until_the_end = Endless;
    IS_ENDLESS.store(true, Ordering::Release);
    there.signal().expect("a signal");
    // One connection uses the same adapter and its channel, the other an adapter that is opened now.
    for transport in [Transport::IB1, Transport::IB2] {
        let context = busy.b.context.clone();
        let quiet = Pair::of(here(), End::open(context, EndpointConfig::new(transport, Device::CPU)));
        let (from, to) = quiet.semaphores();
        (0..SIGNALS).for_each(|_| from.signal().expect("a signal, for which there is a receive"));
        assert!(within(LIMIT, || has_token(to.semaphore(), SIGNALS)), "{transport}: signals do not arrive");
        drop((quiet, from, to));
        let is_closed = within(LIMIT, || world.fake.live().queue_pairs == queue_pairs);
        assert!(is_closed, "{transport}: the ends of a queue stay:\n{}", world.fake.describe());
    }
}
