//! Two hosts, as far as one machine can have two: network namespaces, a link between them, and what can happen to it.
//!
//! The other process is this program again, started in the other namespace. Needs root and `ip`; ignored elsewhere.

mod support;

use std::{
    path::Path,
    process::{Command, ExitCode},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_core::{Connection, Endpoint, Error, RegisteredMemory};
use mscclpp_ethernet::{Ethernet, Family};
use support::{
    End, LIMIT, Words, await_that,
    children::{Child, hear, hex, run_if_child, say, unhex},
    mix,
    relay::{Nuisance, Relay},
};

const WORDS: usize = 100_000;
/// How soon a loss must be known, and what a busy machine may add to it.
const NOTICE: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(25);

fn main() -> ExitCode {
    if let Some(code) = run_if_child(child) {
        return code;
    }
    let possible = Hosts::new().map(drop);
    let trial = |name: &str, test: fn() -> Result<(), Failed>| match &possible {
        Ok(()) => Trial::test(name, test),
        Err(why) => Trial::test(format!("{name} ({why})"), test).with_ignored_flag(true),
    };
    let trials = vec![
        trial("hosts_with_different_addresses_reach_each_other", different_addresses),
        trial("the_interface_is_chosen_by_name", interface_by_name),
        trial("both_families_work", both_families),
        trial("a_slow_wire_that_loses_packets_is_a_way", slow_and_lossy),
        trial("a_link_taken_down_is_a_loss", || breaks(&["link", "set", "wire", "down"])),
        trial("a_host_that_drops_everything_is_lost", || breaks(&["route", "add", "blackhole", "10.77.0.1"])),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Two namespaces with a pair of interfaces between them, both called `wire`; and one interface each, called `other`, that
/// leads nowhere. Gone when dropped.
struct Hosts {
    names: [String; 2],
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("needs ip: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("needs network namespaces: ip {}: {said}", arguments.join(" ")))
        }
    }
}

impl Hosts {
    /// With a wire between them.
    fn new() -> Result<Self, String> {
        let hosts = Self::bare()?;
        let [a, b] = &hosts.names;
        ip(&["link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b])?;
        hosts.set_up()
    }

    /// Each with a wire to an interface of this process's own namespace.
    fn apart() -> Result<Self, String> {
        let hosts = Self::bare()?;
        for (name, port) in hosts.names.iter().zip(hosts.ports()) {
            ip(&["link", "add", "wire", "netns", name, "type", "veth", "peer", "name", &port])?;
            ip(&["link", "set", &port, "up"])?;
        }
        hosts.set_up()
    }

    /// The interfaces at this end of [`Hosts::apart`].
    fn ports(&self) -> [String; 2] {
        self.names.each_ref().map(|name| name.replacen('c', "p", 1).replace('-', ""))
    }

    fn bare() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| format!("msc{}-{number}{side}", std::process::id()));
        let hosts = Self { names };
        for name in &hosts.names {
            ip(&["netns", "add", name])?;
        }
        Ok(hosts)
    }

    fn set_up(self) -> Result<Self, String> {
        for (side, name) in self.names.iter().enumerate() {
            let within = |arguments: &[&str]| ip(&[&["-n", name.as_str()], arguments].concat());
            within(&["link", "add", "other", "type", "veth", "peer", "name", "nowhere"])?;
            for (interface, net) in [("wire", 77), ("other", 78 + side)] {
                let (v4, v6) =
                    (format!("10.{net}.0.{}/24", side + 1), format!("fd00:{net}::{}/64", side + 1));
                within(&["addr", "add", &v4, "dev", interface])?;
                within(&["addr", "add", &v6, "dev", interface, "nodad"])?;
            }
            for interface in ["lo", "wire", "other", "nowhere"] {
                within(&["link", "set", interface, "up"])?;
            }
        }
        Ok(self)
    }

    fn ip(&self, side: usize, arguments: &[&str]) {
        ip(&[&["-n", self.names[side].as_str()], arguments].concat()).expect("a change of the network");
    }

    fn start(&self, side: usize, role: &str, environment: &[(&str, &str)]) -> Child {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program).envs(environment.iter().copied());
        Child::start_by(command, role)
    }

    /// A process on each host.
    fn start_both(&self, roles: [&str; 2], environment: &[(&str, &str)]) -> [Child; 2] {
        [0, 1].map(|side| self.start(side, roles[side], environment))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The wire goes with either end. Sockets that have not ended yet may keep the namespaces for a while.
        let wires = self.names.iter().map(|name| ip(&["-n", name.as_str(), "link", "del", "wire"]));
        wires.for_each(drop);
        // There is none where they are not allowed.
        let there = self.names.iter().filter(|name| Path::new("/run/netns").join(name).exists());
        for name in there {
            if let Err(error) = ip(&["netns", "del", name]) {
                eprintln!("{error}");
            }
        }
    }
}

/// Hands on what the children say to each other: each an endpoint, then a memory.
fn introduce(children: &mut [Child; 2]) -> [String; 2] {
    let endpoints = [children[0].next_line(), children[1].next_line()];
    children[0].tell(&endpoints[1]);
    children[1].tell(&endpoints[0]);
    endpoints
}

fn child(role: &str) {
    let mut parts = role.split(' ');
    let ethernet = match parts.clone().nth(1) {
        Some("v6") => Ethernet::builder().family(Family::V6),
        Some(interface) => Ethernet::builder().interface(interface),
        None => Ethernet::builder(),
    };
    let end = End::with(ethernet);
    say(&hex(&end.endpoint.serialize().expect("an endpoint")));
    let peer = Endpoint::deserialize(&unhex(&hear())).expect("an endpoint");
    let result = end.context.connect(&end.endpoint, &peer);
    match parts.next() {
        Some("exchange") => exchange(&end, &result.expect("a connection")),
        Some("watch") => watch(&end, &result.expect("a connection")),
        Some("fail") => {
            let error = result.map(|_| ()).expect_err("nobody can be reached there");
            say(&error.to_string());
            hear();
        }
        other => panic!("no role {other:?}"),
    }
}

/// The peer's memory, by way of the parent.
fn swap(own: &Words) -> RegisteredMemory {
    say(&hex(&own.memory.serialize().expect("a memory")));
    RegisteredMemory::deserialize(&unhex(&hear())).expect("a memory")
}

fn exchange(end: &End, connection: &Connection) {
    let (source, target) = (Words::new(&end.context, WORDS), Words::new(&end.context, WORDS));
    let there = swap(&target);
    (0..WORDS).for_each(|i| source.set(i, mix(i as u64)));
    for _ in 0..3 {
        connection.write(&there, 0, &source.memory, 0, 8 * WORDS as u64).expect("a write");
        connection.flush(LIMIT).expect("a flush");
    }
    say("flushed");
    hear();
    assert_eq!((0..WORDS).find(|i| target.at(*i) != mix(*i as u64)), None);
    say("right");
    hear();
}

/// Writes now and then until the connection fails.
fn watch(end: &End, connection: &Connection) {
    let (source, target) = (Words::new(&end.context, 100), Words::new(&end.context, 100));
    let there = swap(&target);
    connection.write(&there, 0, &source.memory, 0, 800).expect("a write");
    connection.flush(LIMIT).expect("a flush");
    say("connected");
    hear();
    let began = Instant::now();
    await_that("the loss", || connection.check().is_err());
    assert!(began.elapsed() < NOTICE + SLACK, "noticed after {:?}", began.elapsed());
    let error = connection.check().expect_err("it failed");
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    connection.flush(LIMIT).expect_err("a flush to nobody");
    say("lost");
    hear();
}

/// Runs two children that exchange data; what their endpoints are.
fn run_exchange(children: &mut [Child; 2]) -> [String; 2] {
    let endpoints = introduce(children);
    introduce(children);
    for step in ["flushed", "right"] {
        children.iter().for_each(|child| child.expect(step));
        children.iter_mut().for_each(|child| child.tell("go"));
    }
    children.iter_mut().for_each(Child::expect_success);
    endpoints
}

/// Whether an endpoint offers that address.
fn offers(endpoint: &str, address: &str) -> bool {
    let octets = match address.parse::<std::net::IpAddr>().expect("an address") {
        std::net::IpAddr::V4(ip) => [&[4][..], &ip.octets()].concat(),
        std::net::IpAddr::V6(ip) => [&[6][..], &ip.octets()].concat(),
    };
    unhex(endpoint).windows(octets.len()).any(|window| window == octets)
}

fn different_addresses() -> Result<(), Failed> {
    let hosts = Hosts::new()?;
    // Both offer an address that leads nowhere, too.
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange", "exchange"], &[]));
    assert!(offers(&a, "10.77.0.1") && offers(&a, "10.78.0.1") && offers(&a, "fd00:77::1"));
    Ok(())
}

fn interface_by_name() -> Result<(), Failed> {
    let hosts = Hosts::new()?;
    let by_variable = [("MSCCLPP_SOCKET_IFNAME", "wire"), ("MSCCLPP_SOCKET_FAMILY", "AF_INET")];
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange", "exchange"], &by_variable));
    assert!(offers(&a, "10.77.0.1") && !offers(&a, "10.78.0.1") && !offers(&a, "fd00:77::1"));
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange wire", "exchange wire"], &[]));
    assert!(offers(&a, "10.77.0.1") && !offers(&a, "10.78.0.1") && offers(&a, "fd00:77::1"));
    // That of the interface which leads nowhere is no way, and the error names what was tried.
    let mut children = hosts.start_both(["fail other", "fail other"], &[]);
    introduce(&mut children);
    let said = children[0].next_line();
    assert!(said.contains("10.79.0.2") && said.contains("fd00:79::2"), "{said}");
    Ok(())
}

fn both_families() -> Result<(), Failed> {
    let hosts = Hosts::new()?;
    let [a, _] = run_exchange(&mut hosts.start_both(["exchange v6", "exchange v6"], &[]));
    assert!(!offers(&a, "10.77.0.1") && offers(&a, "fd00:77::1"));
    let family = [("MSCCLPP_SOCKET_FAMILY", "AF_INET6")];
    run_exchange(&mut hosts.start_both(["exchange", "exchange"], &family));
    Ok(())
}

fn slow_and_lossy() -> Result<(), Failed> {
    let hosts = Hosts::apart()?;
    let [a, b] = hosts.ports();
    let nuisance = Nuisance { delay: Duration::from_millis(2), loses_one_in: 25 };
    let relay = Relay::between(&a, &b, nuisance).map_err(|e| format!("a relay: {e}"))?;
    run_exchange(&mut hosts.start_both(["exchange", "exchange"], &[]));
    assert_ne!(relay.lost(), 0, "too little was sent for any of it to be lost");
    Ok(())
}

fn breaks(how: &[&str]) -> Result<(), Failed> {
    let hosts = Hosts::new()?;
    let mut children =
        hosts.start_both(["watch wire", "watch wire"], &[("MSCCLPP_SOCKET_FAMILY", "AF_INET")]);
    introduce(&mut children);
    introduce(&mut children);
    children.iter().for_each(|child| child.expect("connected"));
    hosts.ip(1, how);
    children.iter_mut().for_each(|child| child.tell("go"));
    children.iter().for_each(|child| child.expect("lost"));
    children.iter_mut().for_each(|child| child.tell("go"));
    children.iter_mut().for_each(Child::expect_success);
    Ok(())
}
