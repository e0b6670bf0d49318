//! Queues of every size: operations that do not fit wait, and none is lost, reordered or an error.

use mscclpp_core::{EndpointConfig, Error, HostToDeviceSemaphore, SendQueue};

use crate::{
    Cases, Setup,
    pair::{End, PATIENCE, Pair, assert_error, assert_same, device, eventually, noise},
    semaphores::build,
};

pub(crate) const CASES: Cases = cases!["queues":
    any_queue_size_will_do,
    a_connection_waits_for_room,
    what_waits_has_a_limit,
    what_waits_is_sent_when_the_queue_is_dropped,
    several_routes_share_a_queue,
];

/// The sizes that are tried: the smallest, one that is reached often, and the transport's own.
const SIZES: [Option<u32>; 3] = [Some(1), Some(64), None];

/// Connects two ends whose queues hold `size` operations.
fn connect(setup: &dyn Setup, size: Option<u32>) -> Pair {
    let open = |side: usize| {
        let mut end = End::open(setup, side);
        if let Some(size) = size {
            let config =
                EndpointConfig::new(setup.transport(), device(setup, side)).max_write_queue_size(size);
            end.endpoint = end.context.create_endpoint(config).expect("an endpoint");
        }
        end
    };
    let pair = Pair::of(open(0), open(1));
    assert_eq!(pair.ab.max_write_queue_size(), size);
    pair
}

/// Calls `add` as soon as the queue has room for one operation.
fn when_there_is_room(queue: &mut SendQueue, mut add: impl FnMut(&mut SendQueue)) {
    let has_room = eventually(PATIENCE, || {
        queue.has_room_for(1) || {
            queue.progress().expect("progress");
            queue.has_room_for(1)
        }
    });
    assert!(has_room, "there is no room any more");
    add(queue);
}

fn flush(queue: &mut SendQueue) {
    let ticket = queue.request_flush().expect("a ticket");
    let reached = eventually(PATIENCE, || queue.progress().expect("progress") >= ticket);
    assert!(reached, "a flush does not end, {} operations wait", queue.waiting());
    assert_eq!(queue.waiting(), 0);
}

/// Does thousands of small writes, each to a place of its own, because of two writes to one place either might stay.
fn any_queue_size_will_do(setup: &dyn Setup) {
    const WRITES: u64 = 3000;
    const PIECE: u64 = 16;
    for size in SIZES {
        let pair = connect(setup, size);
        let data = noise((WRITES * PIECE) as usize);
        let (source, target) = (pair.a.share_bytes(&data), pair.b.share(WRITES * PIECE));
        let mut queue = pair.ab.open_queue().expect("a queue");
        let route = queue.route(&target.at_peer, &source.memory).expect("a route");
        for n in 0..WRITES {
            when_there_is_room(&mut queue, |queue| {
                queue.write(route, n * PIECE, n * PIECE, PIECE).expect("write");
            });
            // This happens now and then, so that batches have all lengths.
            if n % 37 == 0 {
                queue.submit().expect("submitting");
            }
        }
        flush(&mut queue);
        assert_same(&target.bytes(), &data, &format!("{WRITES} writes, size {size:?}"));
    }
}

fn a_connection_waits_for_room(setup: &dyn Setup) {
    for size in SIZES {
        let pair = connect(setup, size);
        let (semaphore, _) = build(&pair.ab, &pair.ba);
        let semaphore = HostToDeviceSemaphore::new(&semaphore).expect("a semaphore");
        let data = noise(64 << 10);
        let (source, target) = (pair.a.share_bytes(&data), pair.b.share(64 << 10));
        for n in 0..64 {
            pair.ab.write(&target.at_peer, n << 10, &source.memory, n << 10, 1 << 10).expect("write");
            semaphore.signal().expect("a signal");
        }
        pair.ab.flush(PATIENCE).expect("flush");
        assert_same(&target.bytes(), &data, &format!("size {size:?}"));
    }
}

/// Submits nothing: the queue refuses operations beyond its limit, and goes on afterwards.
fn what_waits_has_a_limit(setup: &dyn Setup) {
    let pair = connect(setup, None);
    let (source, target) = (pair.a.share_bytes(&[7; 64]), pair.b.share(64));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer, &source.memory).expect("a route");
    for n in 0..SendQueue::MAX_WAITING {
        assert_eq!(queue.waiting(), n);
        queue.write(route, 0, 0, 64).expect("write");
    }
    assert!(!queue.has_room_for(1));
    assert_error!(queue.write(route, 0, 0, 64), Error::QueueFull { .. });
    pair.ab.check().expect("that is no failure");
    flush(&mut queue);
    queue.write(route, 0, 0, 64).expect("there is room again");
    flush(&mut queue);
    assert_eq!(target.bytes(), [7; 64]);
}

fn what_waits_is_sent_when_the_queue_is_dropped(setup: &dyn Setup) {
    // A queue with one place hands the operations over one by one, within 5 seconds.
    const WRITES: u64 = 100;
    for size in SIZES {
        let pair = connect(setup, size);
        let data = noise(8 * WRITES as usize);
        let (source, target) = (pair.a.share_bytes(&data), pair.b.share(8 * WRITES));
        let mut queue = pair.ab.open_queue().expect("a queue");
        let route = queue.route(&target.at_peer, &source.memory).expect("a route");
        for n in 0..WRITES {
            queue.write(route, 8 * n, 8 * n, 8).expect("write");
        }
        drop(queue);
        pair.ab.check().expect("the connection is alive");
        assert!(eventually(PATIENCE, || target.bytes() == data), "size {size:?}: some of it does not arrive");
    }
}

/// Checks that each route leads to its own memory, and that a queue refuses a number of another queue.
fn several_routes_share_a_queue(setup: &dyn Setup) {
    let pair = connect(setup, None);
    let mut queue = pair.ab.open_queue().expect("a queue");
    let shared: Vec<_> = (1..=20u8).map(|n| (pair.a.share_bytes(&[n; 256]), pair.b.share(256))).collect();
    let routes: Vec<_> = shared
        .iter()
        .map(|(source, target)| queue.route(&target.at_peer, &source.memory).expect("a route"))
        .collect();
    for route in routes.iter().rev() {
        queue.write(*route, 0, 0, 256).expect("write");
    }
    flush(&mut queue);
    for (n, (_, target)) in (1..).zip(&shared) {
        assert_eq!(target.bytes(), [n; 256]);
    }
    let mut other = pair.ab.open_queue().expect("another queue");
    assert_error!(other.write(routes[0], 0, 0, 1), Error::InvalidArgument(_));
}
