//! The device handles are laid out in Rust as a C++ compiler lays them out from the headers.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs,
    mem::{align_of, offset_of, size_of},
    path::PathBuf,
    process::Command,
};

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_core::{
    BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle, LL8Packet, LL16Packet, LL128Packet,
    MemoryChannelHandle, Packet,
};

/// A number of the layout: what it is, the C++ expression for it, and what Rust says.
struct Fact {
    name: &'static str,
    expression: String,
    rust: usize,
}

fn fact(name: &'static str, expression: impl Into<String>, rust: usize) -> Fact {
    Fact { name, expression: expression.into(), rust }
}

fn sizes<T>(cpp: &str) -> [Fact; 2] {
    [
        fact("size", format!("sizeof(mscclpp::{cpp})"), size_of::<T>()),
        fact("alignment", format!("alignof(mscclpp::{cpp})"), align_of::<T>()),
    ]
}

fn offset(cpp: &str, member: &'static str, rust: usize) -> Fact {
    fact(member, format!("__builtin_offsetof(mscclpp::{cpp}, {member})"), rust)
}

fn facts() -> Vec<Fact> {
    semaphore_facts()
        .into_iter()
        .chain(memory_channel_facts())
        .chain(packet_facts::<LL8Packet>("LL8Packet"))
        .chain(packet_facts::<LL16Packet>("LL16Packet"))
        .chain(packet_facts::<LL128Packet>("LL128Packet"))
        .collect()
}

fn semaphore_facts() -> Vec<Fact> {
    type Semaphore = DeviceToDeviceSemaphoreHandle;
    let cpp = "MemoryDevice2DeviceSemaphoreDeviceHandle";
    let mut facts = Vec::from(sizes::<Semaphore>(cpp));
    facts.extend([
        offset(cpp, "inboundToken", offset_of!(Semaphore, inbound_token)),
        offset(cpp, "expectedInboundToken", offset_of!(Semaphore, expected_inbound_token)),
        offset(cpp, "remoteInboundToken", offset_of!(Semaphore, remote_inbound_token)),
        offset(cpp, "outboundLock", offset_of!(Semaphore, outbound_lock)),
        offset(cpp, "status", offset_of!(Semaphore, status)),
    ]);
    facts
}

fn memory_channel_facts() -> Vec<Fact> {
    type Base = BaseMemoryChannelHandle;
    type Channel = MemoryChannelHandle;
    let (base, channel) = ("BaseMemoryChannelDeviceHandle", "MemoryChannelDeviceHandle");
    let mut facts: Vec<Fact> = sizes::<Base>(base).into_iter().chain(sizes::<Channel>(channel)).collect();
    facts.extend([
        offset(base, "semaphore_", offset_of!(Base, semaphore)),
        offset(channel, "semaphore_", offset_of!(Channel, base) + offset_of!(Base, semaphore)),
        offset(channel, "dst_", offset_of!(Channel, dst)),
        offset(channel, "src_", offset_of!(Channel, src)),
        offset(channel, "packetBuffer_", offset_of!(Channel, packet_buffer)),
        offset(channel, "flags_", offset_of!(Channel, flags)),
        offset(channel, "reserved_", offset_of!(Channel, reserved)),
        fact("lines", "mscclpp::MemoryChannelLines", Channel::LINES_ARRIVE_WHOLE as usize),
    ]);
    facts
}

/// Where the data of a packet is, its own unit test says.
fn packet_facts<P: Packet>(cpp: &str) -> [Fact; 3] {
    [
        fact("size", format!("sizeof(mscclpp::{cpp})"), P::SIZE as usize),
        fact("alignment", format!("alignof(mscclpp::{cpp})"), P::SIZE as usize),
        fact("payload", format!("mscclpp::{cpp}::PayloadBytes"), P::PAYLOAD as usize),
    ]
}

/// A program that prints each fact's number on a line of its own.
fn program(facts: &[Fact]) -> String {
    let mut text =
        String::from("#include <cstdio>\n#include \"mscclpp/memory_channel_device.hpp\"\nint main() {\n");
    for fact in facts {
        let _ = writeln!(
            text,
            "  std::printf(\"%zu\\n\", static_cast<decltype(sizeof(0))>({}));",
            fact.expression
        );
    }
    text + "}\n"
}

/// `CXX`, or what a C++ compiler is usually called; none if none of them runs.
fn compiler() -> Option<OsString> {
    env::var_os("CXX")
        .into_iter()
        .chain(["c++", "g++", "clang++"].map(OsString::from))
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// A directory of this test's own, removed when it is done.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let path = env::temp_dir().join(format!("mscclpp-layout-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn compare(compiler: &OsString) -> Result<(), Failed> {
    let scratch = Scratch::new()?;
    for (name, text) in mscclpp_kernels::HEADERS {
        let path = scratch.0.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&scratch.0))?;
        fs::write(path, text)?;
    }
    let facts = facts();
    let (source, binary) = (scratch.0.join("layout.cpp"), scratch.0.join("layout"));
    fs::write(&source, program(&facts))?;
    let compiled = Command::new(compiler)
        // Handles derive from each other, and every compiler there is knows the offsets in such a struct.
        .args(["-std=c++17", "-Wall", "-Werror", "-Wno-invalid-offsetof", "-I"])
        .args([&scratch.0, &source])
        .arg("-o")
        .arg(&binary)
        .output()?;
    if !compiled.status.success() {
        return Err(
            format!("the headers do not compile:\n{}", String::from_utf8_lossy(&compiled.stderr)).into()
        );
    }
    let printed = String::from_utf8(Command::new(&binary).output()?.stdout)?;
    let numbers = printed.lines().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    assert_eq!(numbers.len(), facts.len(), "one number for each fact");
    for (fact, cpp) in facts.iter().zip(numbers) {
        assert_eq!(fact.rust, cpp, "{} of {}: Rust says the left, C++ the right", fact.name, fact.expression);
    }
    Ok(())
}

fn main() {
    let arguments = Arguments::from_args();
    let name = "handles_are_laid_out_as_in_the_headers";
    let trial = match compiler() {
        Some(compiler) => Trial::test(name, move || compare(&compiler)),
        None => Trial::test(name, || Err("there is no C++ compiler; set CXX".into()))
            .with_kind("no C++ compiler")
            .with_ignored_flag(true),
    };
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
