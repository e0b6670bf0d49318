//! A transport from outside this project, `ci/consumers/own-transport`, passes the suite that all transports pass,
//! without a change in the core. Its variants map more or less of peers' memory, have tokens in each kind of memory,
//! have queues that hold four requests, or have their other end in another process.

mod hostile;
mod waits;

use std::process::ExitCode;

use consumer_own_transport::knobs::{Reach, TestPost};
use libtest_mimic::Trial;
use mscclpp_conformance::{Devices, Setup, run, semaphore_waits};
use mscclpp_core::{
    Context, ContextBuilder, Device, EndpointConfig, Error, HostToDeviceSemaphore, Semaphore, SemaphoreStub,
    Transport, provider::TokenMemory,
};
use mscclpp_gpu::Platform;
use mscclpp_test_support::start_waiting;

/// One of the providers that the suite runs over.
#[derive(Clone)]
struct Variant {
    name: &'static str,
    post: TestPost,
    reach: Reach,
    /// Whether the cases with a second process run over it too.
    in_processes: bool,
}

fn all() -> Vec<Variant> {
    let setup = |name, reach, in_processes, alter: fn(TestPost) -> TestPost| Variant {
        name,
        post: alter(TestPost::open(reach).expect("a hub")),
        reach,
        in_processes,
    };
    vec![
        setup("Nothing", Reach::Nothing, true, |post| post),
        setup("Stores", Reach::Stores, false, |post| post),
        setup("Atomics", Reach::Atomics, true, |post| post),
        setup("PinnedTokens", Reach::Nothing, false, |post| post.with_tokens(TokenMemory::PinnedHost)),
        setup("MappedPinnedTokens", Reach::Atomics, false, |post| post.with_tokens(TokenMemory::PinnedHost)),
        setup("OwnTokens", Reach::Nothing, false, |post| post.with_tokens(TokenMemory::Own)),
        setup("MappedOwnTokens", Reach::Stores, false, |post| post.with_tokens(TokenMemory::Own)),
        setup("FullAtFour", Reach::Nothing, true, |post| post.limited_to(4)),
    ]
}

impl Setup for Variant {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(self.post.clone())
    }

    fn transport(&self) -> Transport {
        TestPost::TRANSPORT
    }

    fn devices(&self) -> Devices {
        Devices::SIMULATED
    }

    fn maps_peer_memory(&self) -> bool {
        self.reach != Reach::Nothing
    }

    fn connects_processes(&self) -> bool {
        self.in_processes
    }
}

fn main() -> ExitCode {
    let more: [(&str, fn()); 8] = [
        ("transports_of_a_family_pair_with_each_other", transports_of_a_family_pair_with_each_other),
        (
            "a_queue_that_cannot_hand_over_fails_its_connection",
            a_queue_that_cannot_hand_over_fails_its_connection,
        ),
        (
            "a_signaller_waits_until_the_signals_of_hosts_have_landed",
            a_signaller_waits_until_the_signals_of_hosts_have_landed,
        ),
        (
            "who_signals_next_waits_for_the_signals_of_a_dropped_queue",
            who_signals_next_waits_for_the_signals_of_a_dropped_queue,
        ),
        (
            "nobody_waits_for_a_dropped_queue_of_a_connection_that_fails",
            nobody_waits_for_a_dropped_queue_of_a_connection_that_fails,
        ),
        ("hostile::malformed_inputs_are_errors", hostile::malformed_inputs_are_errors),
        ("hostile::what_is_certainly_wrong_is_refused", hostile::what_is_certainly_wrong_is_refused),
        (
            "waits::a_long_flush_names_the_peer_the_transport_and_its_limit",
            waits::a_long_flush_names_the_peer_the_transport_and_its_limit,
        ),
    ];
    let more = more.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    run(all().into_iter().map(|setup| (setup.name.to_owned(), setup)), more)
}

/// A connection of an endpoint with itself, and a semaphore over it.
struct Loop {
    post: TestPost,
    here: Semaphore,
    there: Semaphore,
}

impl Loop {
    fn new() -> Self {
        Self::over(TestPost::open(Reach::Nothing).expect("a hub"))
    }

    fn over(post: TestPost) -> Self {
        let context = Context::builder().provider(post.clone()).platform(Platform::Sim).build();
        let config = EndpointConfig::new(TestPost::TRANSPORT, Device::gpu(0));
        let end = context.create_endpoint(config).expect("an endpoint");
        let connection = context.connect(&end, &end).expect("a connection");
        let stubs = [0, 1].map(|_| SemaphoreStub::new(&connection).expect("a stub"));
        let [here, there] =
            [[0, 1], [1, 0]].map(|[a, b]| Semaphore::new(&stubs[a], &stubs[b]).expect("a semaphore"));
        Self { post, here, there }
    }

    /// Signals through a queue that is then dropped; `held` says whether the signal stays on its way.
    fn signal_once(&self, held: bool) {
        let mut queue = self.here.connection().open_queue().expect("a queue");
        let signaller = queue.attach(self.here.signaller().expect("nobody has it")).expect("a signaller");
        self.post.hold(held);
        queue.signal(signaller).expect("a signal");
    }
}

/// Holds back the signals of the dropped queue, longer than its drop waits for them.
fn who_signals_next_waits_for_the_signals_of_a_dropped_queue() {
    let this = Loop::new();
    let Loop { post, here, there } = &this;
    let host = HostToDeviceSemaphore::new(here).expect("a semaphore that hosts signal");
    let next: [&(dyn Fn() + Sync); 2] = [&|| host.signal().expect("a signal"), &|| this.signal_once(false)];
    for signal in next {
        this.signal_once(true);
        std::thread::scope(|scope| {
            let signalling = start_waiting(scope, signal);
            let is_early = signalling.is_finished();
            post.hold(false);
            signalling.join().expect("it does not panic");
            assert!(!is_early, "the signal before was not at the peer yet");
        });
        assert_eq!(semaphore_waits(there, 1 << 24, 2), 2, "both signals arrive");
        assert_eq!(semaphore_waits(there, 1, 1), 0, "two are two");
    }
}

fn nobody_waits_for_a_dropped_queue_of_a_connection_that_fails() {
    let this = Loop::new();
    this.signal_once(true);
    std::thread::scope(|scope| {
        let asking = start_waiting(scope, || this.here.signaller().map(drop));
        this.here.connection().fail(Error::Aborted { reason: "enough".to_owned() });
        let error = asking.join().expect("it does not panic").expect_err("it has failed");
        assert_eq!(error.to_string(), "aborted: enough");
    });
    // Closing the connection does not block either, although its queues are held.
    let post = this.post.clone();
    drop(this);
    post.hold(false);
}

/// Without this wait, signals of the signaller's queue would overtake those of hosts, and the peer would count too
/// few.
fn a_signaller_waits_until_the_signals_of_hosts_have_landed() {
    let Loop { post, here, there } = Loop::new();
    let host = HostToDeviceSemaphore::new(&here).expect("a semaphore that hosts signal");
    post.hold(true);
    host.signal().expect("a signal that is on its way");
    std::thread::scope(|scope| {
        let asking = start_waiting(scope, || here.signaller());
        let is_early = asking.is_finished();
        post.hold(false);
        asking.join().expect("it does not panic").expect("a signaller");
        assert!(!is_early, "the signal was not at the peer yet");
    });
    assert_eq!(semaphore_waits(&there, 1, 1), 1, "the signal has landed");
}

/// The signals that the queue cannot hand over are counted and never come, so the connection must not go on.
fn a_queue_that_cannot_hand_over_fails_its_connection() {
    let Loop { post, here: semaphore, there: _there } =
        Loop::over(TestPost::open(Reach::Nothing).expect("a hub").limited_to(1));
    let connection = semaphore.connection().clone();
    post.hold(true);
    let mut queue = connection.open_queue().expect("a queue");
    let signaller = queue.attach(semaphore.signaller().expect("the only one")).expect("a signaller");
    for _ in 0..3 {
        queue.signal(signaller).expect("a signal");
    }
    assert_eq!(queue.submit().expect("one is taken"), 2);
    connection.check().expect("a full queue is no failure");
    drop(queue);
    let error = connection.check().expect_err("two signals are lost").to_string();
    assert!(error.contains("did not finish within 5s"), "{error}");
    assert!(semaphore.check().is_err(), "its waits have ended");
    post.hold(false);
}

/// Connects two transports of one family, as with InfiniBand devices: one end is on the first, the other on the
/// second. Errors have their names.
fn transports_of_a_family_pair_with_each_other() {
    use mscclpp_core::{Endpoint, RegisteredMemory};
    let context = Context::builder()
        .provider(TestPost::open(Reach::Nothing).expect("a hub"))
        .platform(Platform::Sim)
        .build();
    let open = |transport, gpu| {
        context.create_endpoint(EndpointConfig::new(transport, Device::gpu(gpu))).expect("an endpoint")
    };
    let travel =
        |end: &Endpoint| Endpoint::deserialize(&end.serialize().expect("bytes")).expect("an endpoint");
    let ends = [open(TestPost::TRANSPORT, 0), open(TestPost::SECOND, 1)];
    let connections =
        [0, 1].map(|n: usize| context.connect(&ends[n], &travel(&ends[1 - n])).expect("they pair"));
    assert_eq!(
        (connections[0].transport().to_string(), connections[0].remote_transport()),
        ("Post".to_owned(), TestPost::SECOND)
    );
    let buffers = [0, 1].map(|n| context.gpu(n).expect("a device").allocate(64).expect("memory"));
    buffers[0].write(0, &[5; 64]).expect("filling");
    let ours = context.register_buffer(&buffers[0], TestPost::TRANSPORT).expect("a registration");
    // The peer's memory is reached by the peer's transport.
    let theirs = context.register_buffer(&buffers[1], TestPost::SECOND).expect("a registration");
    let theirs = RegisteredMemory::deserialize(&theirs.serialize().expect("bytes")).expect("a memory");
    connections[0].write(&theirs, 0, &ours, 0, 64).expect("a write");
    connections[0].flush(std::time::Duration::from_secs(30)).expect("a flush");
    let mut got = [0; 64];
    buffers[1].read(0, &mut got).expect("reading");
    assert_eq!(got, [5; 64]);
    let stubs = [0, 1].map(|n| SemaphoreStub::new(&connections[n]).expect("a stub"));
    Semaphore::new(&stubs[0], &stubs[1]).expect("a semaphore");
    let error = connections[0].write(&theirs, 0, &theirs, 0, 64).expect_err("no memory of this side");
    assert!(error.to_string().contains("the source"), "{error}");
    let error = connections[1].write(&ours, 0, &ours, 0, 64).expect_err("not registered for that transport");
    assert!(error.to_string().contains("Post2"), "{error}");
}
