//! Tests of faults between two nodes, of a cable or a firewall, with nothing under way and in the middle of writes. The
//! connection concerned fails, others do not, and nothing is written to a wrong place.
//!
//! The nodes are network namespaces, and their processes are this program, started again. This needs root and `ip`; the
//! tests are ignored elsewhere. The firewall is a relay between the nodes that drops packets, and also `nft`, if it is
//! installed.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{Connection, Endpoint, Error, RegisteredMemory};
use mscclpp_ethernet::Ethernet;
use mscclpp_test_support::{
    Child, LIMIT,
    child::{hear, say},
    hex,
    namespaces::Namespaces,
    trial_if, unhex, until,
};

use crate::support::{
    self, End, Words, mix,
    relay::{Nuisance, Relay, Swallow},
};

const IPV4: [(&str, &str); 1] = [("MSCCLPP_SOCKET_FAMILY", "AF_INET")];
/// The time within which a loss must be known.
const NOTICE: Duration = Duration::from_secs(5);
/// The number of words of the target memory, and of those at its beginning for small writes. Large writes use the rest.
const WORDS: usize = 1 << 20;
const FEW: usize = 1000;

pub(crate) fn trials() -> Vec<Trial> {
    let hosts = Namespaces::new();
    let walled = hosts.as_ref().map_err(String::clone).and_then(|hosts| nft(hosts, "add table inet wall"));
    let there = hosts.map(drop);
    vec![
        trial_if("a_link_taken_down_is_a_loss", &there, || idle(&["link", "set", "wire", "down"])),
        trial_if("a_host_that_drops_everything_is_lost", &there, || {
            idle(&["route", "add", "blackhole", "10.77.0.1"])
        }),
        trial_if("a_link_taken_down_in_the_middle_of_writes_is_a_loss", &there, link_taken_down),
        trial_if("writes_outlast_a_link_that_is_down_for_a_moment", &there, link_down_for_a_moment),
        trial_if("a_firewall_at_connect_is_an_error", &there, || {
            on_the_wire(Swallow::Port, firewall_at_connect)
        }),
        trial_if("a_firewall_in_the_middle_of_writes_is_a_loss", &there, || {
            on_the_wire(Swallow::Port, firewall_in_the_middle)
        }),
        trial_if("a_firewall_that_swallows_data_alone_makes_a_loss", &there, || {
            on_the_wire(Swallow::DataOf, firewall_in_the_middle)
        }),
        trial_if("nft_at_connect_is_an_error", &walled, || by_nft(firewall_at_connect)),
        trial_if("nft_in_the_middle_of_writes_is_a_loss", &walled, || by_nft(firewall_in_the_middle)),
    ]
}

pub(crate) fn play(role: &str) {
    let (what, interface) = role.split_once(' ').map_or((role, None), |(what, rest)| (what, Some(rest)));
    let ethernet = Ethernet::builder();
    let end = support::end_with(match interface {
        Some(interface) => ethernet.interface(interface),
        None => ethernet,
    });
    say(&hex(&end.endpoint.serialize().expect("an endpoint")));
    let connection = connect(&end);
    match what {
        "watch" => watch(&end, &connection.expect("a connection")),
        "flood" => flood(&end, connection),
        "spoke" => spoke(&end, &connection.expect("a connection")),
        other => panic!("no role {other}"),
    }
}

/// Connects to the endpoint that the parent names.
fn connect(end: &End) -> Result<Connection, Error> {
    let peer = Endpoint::deserialize(&unhex(&hear())).expect("an endpoint");
    end.context.connect(&end.endpoint, &peer)
}

fn say_memory(words: &Words) {
    say(&hex(&words.memory.serialize().expect("a memory")));
}

fn hear_memory() -> RegisteredMemory {
    RegisteredMemory::deserialize(&unhex(&hear())).expect("a memory")
}

/// Waits for the connection to fail.
fn watch(end: &End, connection: &Connection) {
    let (source, target) = (Words::new(end, 100), Words::new(end, 100));
    say_memory(&target);
    let there = hear_memory();
    connection.write(&there, 0, &source.memory, 0, 800).expect("a write");
    connection.flush(LIMIT).expect("a flush");
    // Bytes under way are repeated, and would show a node that loses only its own packets that the other lives.
    until("acknowledgements", nothing_is_under_way);
    say("connected");
    hear();
    let began = Instant::now();
    until("the loss", || connection.check().is_err());
    let after = began.elapsed();
    assert!(after < 10 * NOTICE, "noticed after {after:?}");
    let error = connection.check().expect_err("it failed");
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    connection.flush(LIMIT).expect_err("a flush to nobody");
    say("lost");
    hear();
}

/// Whether everything that this node's sockets have sent is acknowledged.
fn nothing_is_under_way() -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().all(|path| {
        let sockets = std::fs::read_to_string(path).unwrap_or_default();
        // The fifth column has the bytes in both queues, first those that are not yet sent or acknowledged.
        sockets
            .lines()
            .skip(1)
            .all(|socket| socket.split_whitespace().nth(4).is_some_and(|q| q.starts_with("00000000:")))
    })
}

fn idle(how: &[&str]) -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    let mut children = hosts.start_both(["watch wire", "watch wire"], &IPV4);
    // The children exchange endpoints, and then memories.
    for _ in 0..2 {
        let said = children.each_ref().map(Child::next_line);
        children[0].tell(&said[1]);
        children[1].tell(&said[0]);
    }
    children.iter().for_each(|child| child.expect("connected"));
    hosts.ip(1, how);
    children.iter_mut().for_each(|child| child.tell("go"));
    children.iter().for_each(|child| child.expect("lost"));
    children.iter_mut().for_each(|child| child.tell("go"));
    children.iter_mut().for_each(Child::expect_success);
    Ok(())
}

/// The value of a word in a round. Round 0 is that of the large writes.
fn word(round: u64, index: usize) -> u64 {
    mix(round << 32 | index as u64)
}

/// Makes large writes over a first connection for as long as that works, and small ones over a second, which must not be
/// disturbed, until the parent says to stop.
fn flood(end: &End, first: Result<Connection, Error>) {
    let second = connect(end).expect("a connection");
    let [there, elsewhere] = [hear_memory(), hear_memory()];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let large = scope.spawn(|| {
            let result = first.and_then(|first| write_large(end, &first, &there, &stop));
            say(&result.map_or_else(|error| error.to_string(), |()| "unbroken".to_owned()));
        });
        let small = scope.spawn(|| write_small(end, &second, &elsewhere, &stop));
        assert_eq!(hear(), "stop");
        stop.store(true, Ordering::Relaxed);
        large.join().expect("large writes");
        say(&small.join().expect("small writes").to_string());
    });
    hear();
}

fn write_large(
    end: &End,
    connection: &Connection,
    there: &RegisteredMemory,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let source = Words::new(end, WORDS);
    (0..WORDS).for_each(|i| source.set(i, word(0, i)));
    let (offset, len) = (8 * FEW as u64, 8 * (WORDS - FEW) as u64);
    let once = || {
        connection.write(there, offset, &source.memory, offset, len)?;
        connection.flush(LIMIT)
    };
    let until_stopped = || {
        once()?;
        say("flowing");
        while !stop.load(Ordering::Relaxed) {
            once()?;
        }
        Ok(())
    };
    let result = until_stopped();
    if let Err(error) = &result {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        connection.check().expect_err("it has failed");
        once().expect_err("a write to nobody");
    }
    result
}

/// Makes small writes until `stop` is set, and returns the number of the last round.
fn write_small(end: &End, connection: &Connection, there: &RegisteredMemory, stop: &AtomicBool) -> u64 {
    let source = Words::new(end, FEW);
    let mut round = 0;
    let mut once = || {
        round += 1;
        (0..FEW).for_each(|i| source.set(i, word(round, i)));
        connection.write(there, 0, &source.memory, 0, 8 * FEW as u64).expect("a write");
        connection.flush(LIMIT).expect("a flush");
    };
    while !stop.load(Ordering::Relaxed) {
        once();
        // Flushes without a pause would take the processors from the other tests.
        thread::sleep(Duration::from_millis(5));
    }
    (0..10).for_each(|_| once());
    connection.check().expect("nothing happened to it");
    round
}

/// Lets peers write to its memory, and checks at the end that the memory has the right values.
fn spoke(end: &End, back: &Connection) {
    let target = Words::new(end, WORDS);
    say_memory(&target);
    let told = hear();
    if told == "lost" {
        // A thread that waits here for that peer notices the loss.
        until("the loss of the way back", || back.check().is_err());
    } else {
        back.check().expect("nothing happened to it");
    }
    let wrong = match told.parse() {
        Ok(round) => (0..FEW).find(|i| target.at(*i) != word(round, *i)),
        Err(_) => {
            // The data that arrived is in its place.
            let may_lack = told != "unbroken";
            (FEW..WORDS).find(|i| target.at(*i) != word(0, *i) && !(may_lack && target.at(*i) == 0))
        }
    };
    assert_eq!(wrong, None, "a word is not what it should be, {told}");
    say("right");
    hear();
}

/// Starts the process that writes ("flood"), the one on the other node to which it makes large writes, and one `beside`
/// them, whose connection must not be disturbed. `at_connect` gets the second one's port before anybody connects.
fn start(hosts: &Namespaces, beside: (usize, &str), at_connect: impl FnOnce(u16)) -> [Child; 3] {
    let mut children =
        [(0, "flood wire"), (1, "spoke wire"), beside].map(|(side, role)| hosts.start(side, role, &IPV4));
    let endpoints = children.each_ref().map(Child::next_line);
    at_connect(port_of(&endpoints[1]));
    for (to, of) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
        children[to].tell(&endpoints[of]);
    }
    for of in [1, 2] {
        let memory = children[of].next_line();
        children[0].tell(&memory);
    }
    children
}

/// The port in an endpoint on node 1, which stands before its only address.
fn port_of(endpoint: &str) -> u16 {
    let bytes = unhex(endpoint);
    let at = bytes.windows(6).position(|window| window == [1, 4, 10, 77, 0, 2]).expect("one address");
    u16::from_le_bytes([bytes[at - 2], bytes[at - 1]])
}

/// Ends the processes, once the first has reported the result of its large writes. `told` is that result.
fn finish(mut children: [Child; 3], told: &str) {
    let rounds = children[0].next_line();
    children[1].tell(told);
    children[2].tell(&rounds);
    children[1..].iter().for_each(|child| child.expect("right"));
    children.iter_mut().for_each(|child| child.tell("go"));
    children.iter_mut().for_each(Child::expect_success);
}

/// Checks that the large writes end with an error that names the peer's address.
fn expect_error(mut children: [Child; 3], port: u16, told: &str) -> Result<(), Failed> {
    let said = children[0].next_line();
    children[0].tell("stop");
    finish(children, told);
    match said.contains(&format!("10.77.0.2:{port}")) {
        true => Ok(()),
        false => Err(format!("the error does not say where the peer was: {said}").into()),
    }
}

fn link_taken_down() -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    let mut port = 0;
    let children = start(&hosts, (0, "spoke"), |listening| port = listening);
    children[0].expect("flowing");
    hosts.ip(1, &["link", "set", "wire", "down"]);
    expect_error(children, port, "lost")
}

/// A time that is shorter than what makes a loss.
const MOMENT: Duration = Duration::from_millis(700);
/// The longest break that counts: a longer one shows only that the node was busy.
const TOLERATED: Duration = Duration::from_secs(2);

fn link_down_for_a_moment() -> Result<(), Failed> {
    for _ in 0..10 {
        let hosts = Namespaces::new()?;
        let mut children = start(&hosts, (0, "spoke"), |_| {});
        children[0].expect("flowing");
        let began = Instant::now();
        hosts.ip(1, &["link", "set", "wire", "down"]);
        thread::sleep(MOMENT);
        hosts.ip(1, &["link", "set", "wire", "up"]);
        if began.elapsed() < TOLERATED {
            children[0].tell("stop");
            children[0].expect("unbroken");
            finish(children, "unbroken");
            return Ok(());
        }
    }
    Err("this machine is too busy to have a link down for a moment only".into())
}

/// Drops, from now on and silently, all packets to a port of node 1.
type Wall<'a> = &'a dyn Fn(u16);

fn firewall_at_connect(hosts: &Namespaces, wall: Wall<'_>) -> Result<(), Failed> {
    let mut port = 0;
    let children = start(hosts, (1, "spoke wire"), |listening| {
        port = listening;
        wall(port);
    });
    expect_error(children, port, "not reached")
}

fn firewall_in_the_middle(hosts: &Namespaces, wall: Wall<'_>) -> Result<(), Failed> {
    let mut port = 0;
    let children = start(hosts, (1, "spoke wire"), |listening| port = listening);
    children[0].expect("flowing");
    wall(port);
    expect_error(children, port, "lost")
}

type Test = fn(&Namespaces, Wall<'_>) -> Result<(), Failed>;

/// Runs a test with a firewall between the nodes.
fn on_the_wire(what: fn(u16) -> Swallow, test: Test) -> Result<(), Failed> {
    let hosts = Namespaces::apart()?;
    let [a, b] = hosts.ports();
    let relay = Relay::between(&a, &b, Nuisance::NONE).map_err(|e| format!("a relay: {e}"))?;
    test(&hosts, &|port| relay.swallow(what(port)))
}

/// Runs a test with the system's own firewall on node 1.
fn by_nft(test: Test) -> Result<(), Failed> {
    let hosts = Namespaces::new()?;
    nft(&hosts, "add table inet wall")?;
    nft(&hosts, "add chain inet wall input { type filter hook input priority 0; }")?;
    test(&hosts, &|port| {
        nft(&hosts, &format!("add rule inet wall input tcp dport {port} drop")).expect("a rule");
    })
}

fn nft(hosts: &Namespaces, command: &str) -> Result<(), String> {
    hosts.run(1, &["nft", command]).map_err(|e| format!("needs nft: {e}"))
}
