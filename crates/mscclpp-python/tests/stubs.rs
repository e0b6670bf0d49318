//! Tests that the stubs (`python/mscclpp/_mscclpp.pyi`) are those of the extension, with the additions below, which
//! its macros cannot express.
//!
//! `MSCCLPP_WRITE_STUBS=1 cargo test -p mscclpp-python --test stubs -- --ignored` writes them. `test_types.py` runs it for the
//! extension that is installed, `MSCCLPP_EXTENSION`; without that, the extension is built.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pyo3_introspection::{introspect_cdylib, module_stub_files};
use serde_json::Value;

const STUBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mscclpp/_mscclpp.pyi");

const QUOTES: &str = "\"\"\"";

/// Imports that are added to those of `PyO3`.
const IMPORTS: &str = "\
import builtins
import collections.abc
import typing
import typing_extensions
from types import ModuleType
from typing import Self, overload

from ._errors import BaseError as BaseError
from ._errors import CudaError as CudaError
from ._errors import CuError as CuError
from ._errors import Error as Error
from ._errors import IbError as IbError
from ._errors import SysError as SysError

# What the Python layer adds.
cpp_numa: ModuleType
cpp_npkit: Any

def is_nvls_supported() -> bool: ...
def is_bulk_supported() -> bool: ...
def connect_nvls_collective(communicator: Any, all_ranks: Any, buffer_size: int) -> Any: ...

";

/// Methods that are added to classes: older names from the Python layer, and methods that the interpreter adds.
const ADDED: [(&str, &str); 3] = [
    (
        "Communicator",
        "    def connect_on_setup(self, remote_rank: int, tag: int, local_config: Any) -> SharedFuture_Connection: ...
    def send_memory_on_setup(self, /, memory: RegisteredMemory, remote_rank: int, tag: int = 0) -> None: ...
    def recv_memory_on_setup(self, /, remote_rank: int, tag: int = 0) -> SharedFuture_RegisteredMemory: ...
    def setup(self) -> None: ...
",
    ),
    (
        "EndpointConfig",
        "    ib_device_index: int
    ib_port: int
    ib_gid_index: int
    ib_mode: IbMode
    ib_max_cq_size: int
    ib_max_cq_poll_num: int
    ib_max_send_wr: int
    ib_max_recv_wr: int
    ib_max_wr_per_send: int
",
    ),
    (
        "Transport",
        "    def __rand__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __ror__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __rxor__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
",
    ),
];

const OF_SEMAPHORE: &[&str] = &[
    "(cls, semaphore: Semaphore) -> Self",
    "(cls, communicator: Communicator, connection: Connection) -> Self",
];

/// Methods that take their arguments in several forms: class, name, and each of the forms.
const OVERLOADS: [(&str, &str, &[&str]); 7] = [
    (
        "Bootstrap",
        "send",
        &[
            "(self, data: int | Buffer, size: int, peer: int, tag: int) -> None",
            "(self, data: Buffer, peer: int, tag: int) -> None",
        ],
    ),
    (
        "Bootstrap",
        "recv",
        &[
            "(self, data: int | Buffer, size: int, peer: int, tag: int, *, timeout_sec: float | None = None) -> None",
            "(self, data: Buffer, peer: int, tag: int, *, timeout_sec: float | None = None) -> None",
            "(self, peer: int, tag: int, *, timeout_sec: float | None = None) -> bytes",
        ],
    ),
    ("Host2DeviceSemaphore", "__new__", OF_SEMAPHORE),
    ("Host2HostSemaphore", "__new__", OF_SEMAPHORE),
    ("MemoryDevice2DeviceSemaphore", "__new__", OF_SEMAPHORE),
    (
        "BaseMemoryChannel",
        "__new__",
        &[
            "(cls) -> Self",
            "(cls, semaphore: Semaphore | MemoryDevice2DeviceSemaphore) -> Self",
            "(cls, communicator: Communicator, connection: Connection) -> Self",
        ],
    ),
    (
        "MemoryChannel",
        "__new__",
        &[
            "(cls) -> Self",
            "(cls, semaphore: Semaphore | MemoryDevice2DeviceSemaphore, dst: RegisteredMemory, src: RegisteredMemory, packet_buffer: int | RegisteredMemory | None = ...) -> Self",
            "(cls, communicator: Communicator, connection: Connection, dst: RegisteredMemory, src: RegisteredMemory, packet_buffer: int | RegisteredMemory | None = ...) -> Self",
        ],
    ),
];

/// Operators of transports and their sets. PyO3 says that they return `object`, because they answer `NotImplemented`
/// to other operands.
const OPERATORS: [&str; 9] =
    ["__and__", "__iand__", "__rand__", "__or__", "__ior__", "__ror__", "__xor__", "__ixor__", "__rxor__"];

#[test]
#[ignore = "builds the extension; test_types.py runs it"]
fn the_stubs_are_those_of_the_extension() {
    let library = env::var_os("MSCCLPP_EXTENSION").map_or_else(build, PathBuf::from);
    let module = introspect_cdylib(library, "_mscclpp").expect("the extension, not stripped");
    let stubs = module_stub_files(&module).remove(Path::new("__init__.pyi")).unwrap();
    let mut stubs = completed(&stubs);
    for class in module.classes.iter().filter(|class| !class.name.starts_with('_')) {
        writeln!(stubs, "Cpp{0} = {0}", class.name).unwrap();
    }
    if env::var_os("MSCCLPP_WRITE_STUBS").is_some() {
        fs::write(STUBS, &stubs).unwrap();
    }
    let there = fs::read_to_string(STUBS).unwrap();
    let differs = stubs.lines().zip(there.lines()).find(|(new, old)| new != old);
    assert!(
        stubs == there,
        "{STUBS} differs, first in {differs:?}; write it as tests/stubs.rs says, and commit it"
    );
}

/// Builds the extension. Cargo does not build it for the test, as no test links it.
fn build() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", env!("CARGO_PKG_NAME"), "--message-format", "json-render-diagnostics"]);
    let built = cargo.stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let messages = built.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let artifacts = messages.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let mut artifacts = artifacts.filter(|message| message["target"]["name"] == "_mscclpp");
    artifacts.find_map(|artifact| artifact["filenames"][0].as_str().map(PathBuf::from)).unwrap()
}

/// Adds the items above to the stubs that PyO3 makes.
fn completed(stubs: &str) -> String {
    let (mut completed, mut class) = (String::new(), "");
    for line in stubs.lines() {
        if let Some(rest) = line.strip_prefix("class ") {
            class = rest.split([':', '(']).next().unwrap();
            if completed.lines().all(|line| !line.starts_with("class ")) {
                let decorator = completed.rfind('@').unwrap();
                completed.insert_str(decorator, IMPORTS);
            }
        }
        let method = line.strip_prefix("    def ").and_then(|rest| rest.split('(').next());
        let ways = OVERLOADS.iter().find(|(of, name, _)| (*of, Some(*name)) == (class, method));
        if let Some((_, name, ways)) = ways {
            let (last, others) = ways.split_last().unwrap();
            for way in others {
                write!(completed, "    @overload\n    def {name}{way}: ...\n").unwrap();
            }
            let end = if line.ends_with("...") { ": ..." } else { ":" };
            write!(completed, "    @overload\n    def {name}{last}{end}\n").unwrap();
        } else if line == "    __members__: Final[dict]" {
            writeln!(completed, "    __members__: Final[dict[str, {class}]]").unwrap();
        } else if OPERATORS.iter().any(|operator| method == Some(*operator)) {
            let line = line.replace("other: object", "other: TransportFlags | Transport");
            writeln!(completed, "{}", line.replace("-> None", "-> Self")).unwrap();
        } else if !line.starts_with("def __getattr__") {
            writeln!(completed, "{}", line.replace("-> dict:", "-> dict[str, Any]:")).unwrap();
        }
        let handle = format!("{class}DeviceHandle");
        if method == Some("device_handle") && line.contains(&handle) {
            let at = completed.rfind("    def device_handle").unwrap();
            completed.insert_str(at, &format!("    DeviceHandle = {handle}\n"));
        }
        let added = ADDED.iter().find(|(of, _)| *of == class && method == Some("__repr__"));
        completed += added.map_or("", |(_, added)| added);
    }
    with_short_docs(&completed)
}

/// Writes docstrings of one line as PEP 257 has them: on one line, with their quotes.
fn with_short_docs(stubs: &str) -> String {
    let (mut short, mut lines) = (String::new(), stubs.lines());
    while let Some(line) = lines.next() {
        if line.trim() != QUOTES {
            writeln!(short, "{line}").unwrap();
            continue;
        }
        let text: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != QUOTES).collect();
        match text[..] {
            [text] => writeln!(short, "{line}{}{QUOTES}", text.trim()).unwrap(),
            _ => writeln!(short, "{line}\n{}\n{line}", text.join("\n")).unwrap(),
        }
    }
    short
}
