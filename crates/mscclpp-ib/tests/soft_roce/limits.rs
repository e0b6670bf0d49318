//! Tests of the limits of all objects, and that nothing is left behind.

use std::process::Command;

use mscclpp_core::{Context, Device, EndpointConfig, IbConfig, IbMode, Transport};
use mscclpp_gpu::{DevicePtr, Platform};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::{LIMIT, child, until};

use crate::{
    Case,
    ends::{self, Words},
};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("many_connections_of_one_device", many_connections_of_one_device),
    ("nothing_is_left_after_many_rounds", nothing_is_left_after_many_rounds),
    ("too_little_locked_memory_is_said", too_little_locked_memory_is_said),
    ("a_gid_index_out_of_range_names_the_valid_ones", a_gid_index_out_of_range_names_the_valid_ones),
];

/// The role of the process that may lock little memory.
pub(crate) const TOO_LITTLE: &str = "too-little-memory";

/// Runs a shell command.
pub(crate) fn run(command: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", command]).output().expect("a shell");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn many_connections_of_one_device(mode: IbMode) {
    const CONNECTIONS: usize = 256;
    // The descriptors are those of both ends, which are in one process here.
    let files = rustix::process::Rlimit { current: Some(8192), maximum: Some(8192) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).expect("more descriptors");
    let (a, b) = (ends::end(Transport::IB0, mode), ends::end(Transport::IB1, mode));
    let (source, target) = (Words::new(&a, CONNECTIONS), Words::new(&b, CONNECTIONS));
    source.fill(5);
    let theirs = target.at_peer();
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| a.connect(&b.endpoint)).collect();
    for (i, connection) in connections.iter().enumerate() {
        connection.write(&theirs, 8 * i as u64, &source.memory, 0, 8).expect("a write");
    }
    for connection in &connections {
        connection.flush(LIMIT).expect("a flush");
    }
    assert_eq!(target.all_hold(5), Ok(()));
}

/// Returns how many objects of each kind the kernel has for this process.
fn objects() -> Vec<String> {
    let kinds = ["qp", "cq", "mr", "pd", "ctx"];
    kinds.map(|kind| format!("{kind} {}", run(&format!("rdma resource show {kind}")).lines().count())).into()
}

fn nothing_is_left_after_many_rounds(mode: IbMode) {
    const ROUNDS: u64 = 200;
    let before = objects();
    for round in 1..=ROUNDS {
        let pair = ends::pair(mode);
        let (source, target) = (Words::new(&pair.a, 64), Words::new(&pair.b, 64));
        source.fill(round);
        pair.ab.write(&target.at_peer(), 0, &source.memory, 0, source.memory.size()).expect("a write");
        pair.ab.flush(LIMIT).expect("a flush");
        assert_eq!(target.all_hold(round), Ok(()));
    }
    // Queues finish their requests shortly after they are dropped.
    until("everything is given back", || objects() == before);
}

fn too_little_locked_memory_is_said(_: IbMode) {
    // The role's arguments follow the program that lowers the limit.
    let child = child::as_child(&[TOO_LITTLE]);
    let mut limited = Command::new("memlock");
    limited.arg("64").arg(child.get_program()).args(child.get_args());
    for (name, value) in child.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    let output = limited.output().expect("a second process");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

fn context(mode: IbMode) -> Context {
    Context::builder().provider(InfiniBand::builder().mode(mode).build()).platform(Platform::Sim).build()
}

/// Registers too much memory, in a process that may lock 64 KiB.
pub(crate) fn register_too_much() {
    let context = context(IbMode::Host);
    let memory = vec![0_u64; 1 << 20];
    let (ptr, len) = (DevicePtr::from_ptr(memory.as_ptr()), size_of_val(&*memory) as u64);
    // SAFETY: nobody else has the memory, no peer ever learns of it, and it outlives the registration.
    let error =
        unsafe { context.register_memory(ptr, len, Transport::IB0) }.expect_err("more than may be locked");
    let error = error.to_string();
    assert!(error.contains("ulimit -l") && error.contains("8388608 bytes"), "{error}");
}

fn a_gid_index_out_of_range_names_the_valid_ones(mode: IbMode) {
    let config = EndpointConfig::new(Transport::IB0, Device::CPU).ib(IbConfig::new().gid_index(200));
    let error = context(mode).create_endpoint(config).expect_err("there is none").to_string();
    assert!(error.contains("200") && error.contains("1: ::ffff:10.77.0.1 (RoCE v2)"), "{error}");
}
