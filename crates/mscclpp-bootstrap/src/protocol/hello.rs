//! The contents of the handshake: who wants what, and why it is refused.

use std::fmt;

use crate::digest::digest;
use crate::protocol::frame;
use crate::protocol::table::Place;
use mscclpp_net::key::Nonce;
use mscclpp_net::wire::{MAX_TEXT, Malformed, Reader};
use mscclpp_net::{wire_enum, wire_struct};

/// The version of everything that follows the handshake.
///
/// - 2: a rank that joins at an address names the job of its launcher, and may be told that it is another.
/// - 3: the initiator names its process. From here on a hello may have more at its end, which is ignored.
/// - 4: the table comes from the parent in the tree, and rank 0 says where that listens. A rank says in which
///   generation of the job it was last, and the table has the one that forms.
/// - 5: rank 0 may be in another process than the one that made the id, which tells the others where it listens.
pub const PROTOCOL_VERSION: u32 = 5;

pub type JobId = [u8; 16];

/// A job that meets at an address, as its launcher names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchedJob {
    pub name: String,
    /// The id, which is computed from the name.
    pub id: JobId,
}

impl LaunchedJob {
    pub fn new(name: String) -> Self {
        Self { id: digest(&[b"mscclpp-bootstrap launched job\0", name.as_bytes()]), name }
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The connection joins the job at rank 0.
    Join,
    /// The connection is the edge between a rank and its parent.
    Tree,
    /// The connection carries messages between two peers.
    Peer,
}

wire_enum!(Purpose or "a connection is for no known purpose" { 1 => Join, 2 => Tree, 3 => Peer });

/// The process of a rank as it describes itself, for messages. Nothing of it is certain before its proof.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Process {
    pid: u32,
    /// The name of the host as it came. Only the [`printable`] part of it is shown.
    host: String,
}

wire_struct!(Process { pid, host });

impl Process {
    pub fn own() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: printable(&host), pid: std::process::id() }
    }

    /// Makes a process with this name and number.
    pub fn named(host: &str, pid: u32) -> Self {
        Self { host: printable(host), pid }
    }

    /// Returns the origin of this process at an address.
    pub fn at(&self, address: impl fmt::Display) -> Origin {
        Origin { address: address.to_string(), process: self.clone() }
    }
}

/// The origin of a rank, for messages.
#[derive(Debug, Clone)]
pub struct Origin {
    pub address: String,
    pub process: Process,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.process)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &*printable(&self.host)) {
            (0, _) => f.write_str("an unknown process"),
            (pid, "") => write!(f, "process {pid}"),
            (pid, host) => write!(f, "process {pid} on host {host}"),
        }
    }
}

/// Returns the part of a host's name from outside that a message may show.
fn printable(host: &str) -> String {
    host.chars().filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).take(64).collect()
}

/// The initiator's description of itself and its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    pub secret: bool,
    pub purpose: Purpose,
    /// The id of the job. To join at an address, this is the id of the [`LaunchedJob`], or zero if the launcher has
    /// given it no name; otherwise it is the job's own id.
    pub job: JobId,
    pub n_ranks: u32,
    pub from: u32,
    pub to: u32,
    pub nonce: Nonce,
    pub process: Process,
    /// The last generation of the job that the rank was in; 0 if it was in none.
    pub generation: u64,
}

wire_struct!(Hello { version, secret, purpose, job, n_ranks, from, to, nonce; process, generation });

impl Hello {
    /// Reads a hello of any version. Those of later versions may have more at the end.
    pub fn of_any_version(payload: &[u8]) -> Result<Self, Malformed> {
        Reader::new(payload).take()
    }
}

/// The reasons why a member that proved itself is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// The two sides differ in something. `theirs` is the responder's value.
    Mismatch { what: String, theirs: String },
    /// The rank came already, from this address.
    Duplicate { first: String },
    /// All ranks have come.
    Complete { n_ranks: u32 },
    /// Another rank than the wanted one listens here.
    WrongPlace { here: u32 },
    /// Another job of a launcher meets here, with this name.
    OtherJob { theirs: String },
    /// Rank 0 listens at another place.
    Moved { to: Place },
}

wire_enum!(Rejection or "a rejection is for no known reason" {
    1 => Mismatch { what, theirs },
    2 => Duplicate { first },
    3 => Complete { n_ranks },
    4 => WrongPlace { here },
    5 => OtherJob { theirs },
    6 => Moved { to },
});

const _: () =
    assert!(2 * (MAX_TEXT + 2) + 1 + 32 <= frame::MAX_HANDSHAKE, "a rejection fits a handshake's frame");

#[cfg(test)]
mod tests {
    use mscclpp_net::wire::Wire;

    use super::*;
    use crate::fuzzing;

    fn hello(process: Process) -> Hello {
        Hello { process, generation: 7, ..fuzzing::hello(true, 2, 1) }
    }

    #[test]
    fn a_process_says_which_it_is() {
        let own = Process::own();
        let shown = own.to_string();
        assert!(shown.starts_with(&format!("process {} on host ", std::process::id())), "{shown}");
        assert_eq!(Hello::of_any_version(&hello(own.clone()).to_bytes()).unwrap().process, own);
    }

    /// Messages show the name that a stranger gives to its host.
    #[test]
    fn the_name_of_a_host_is_short_and_plain() {
        let process = Process { host: format!("a\u{1b}[2J\nrank 0 {}", "x".repeat(5000)), pid: 7 };
        let shown = Hello::of_any_version(&hello(process).to_bytes()).unwrap().process.to_string();
        assert!(shown.starts_with("process 7 on host a2Jrank0xxx") && shown.len() < 90, "{shown}");
    }

    #[test]
    fn a_hello_of_an_older_version_has_no_process_and_one_of_a_newer_has_more() {
        let whole = hello(Process::default()).to_bytes();
        let third = Hello::of_any_version(&whole[..whole.len() - 8]).unwrap();
        assert_eq!((third.process.to_string().as_str(), third.generation), ("an unknown process", 0));
        let older = Hello::of_any_version(&whole[..whole.len() - 14]).unwrap();
        assert_eq!(older, third);
        let newer = Hello::of_any_version(&[whole.as_slice(), b"more"].concat()).unwrap();
        assert_eq!(newer, hello(Process::default()));
    }
}
