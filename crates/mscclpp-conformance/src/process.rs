//! Cases whose other end is in a process of its own.
//!
//! The program that runs the suite starts itself again, with the name of the setup. The two processes talk over the
//! child's standard input and output, in lines of hexadecimal digits.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use mscclpp_core::{Connection, Endpoint, Error, RegisteredMemory, Semaphore, SemaphoreStub};

use crate::{
    Setup,
    pair::{End, PATIENCE, SharedMemory, assert_error, assert_same, await_value, eventually, within},
    semaphores::build_from,
};

/// A case, which gets its setup and the setup's name for the second process.
type ProcessCase = fn(&dyn Setup, &str);

pub(crate) const CASES: &[(&str, ProcessCase)] = cases!["process":
    data_comes_before_its_update_both_ways,
    a_killed_process_is_lost,
    a_process_that_ends_is_gone,
];

const LEN: u64 = 64 << 10;
const ROUNDS: u64 = 50;
/// The longest time that the second process may run.
const LIMIT: Duration = Duration::from_secs(4 * PATIENCE.as_secs());

/// The objects of an end that is connected: it sends from the first half of its memory to the second half of the
/// other's.
struct Connected {
    connection: Connection,
    memory: SharedMemory,
    theirs: RegisteredMemory,
    semaphore: Semaphore,
    end: End,
}

/// The two processes' conversation.
struct Line<R, W> {
    from: R,
    to: W,
}

impl<R: BufRead, W: Write> Line<R, W> {
    fn say(&mut self, bytes: &[u8]) {
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // If the other process does not hear this, it fails by itself.
        let _ = writeln!(self.to, "{text}").and_then(|()| self.to.flush());
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        let mut text = String::new();
        self.from.read_line(&mut text).ok()?;
        let digits = text.trim_end().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        (!digits.is_empty()).then(|| digits.chunks(2).map(byte).collect())?
    }

    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.say(bytes);
        self.hear().expect("the other process says nothing")
    }

    fn connect(&mut self, setup: &dyn Setup, side: usize) -> Connected {
        let end = End::open(setup, side);
        let memory = end.share(2 * LEN + 8);
        let endpoint = self.exchange(&end.endpoint.serialize().expect("an endpoint"));
        let endpoint = Endpoint::deserialize(&endpoint).expect("the peer's endpoint");
        let theirs = self.exchange(&memory.memory.serialize().expect("a memory"));
        let connection = end.context.connect(&end.endpoint, &endpoint).expect("connecting");
        let stub = SemaphoreStub::new(&connection).expect("a stub");
        let their_stub = self.exchange(&stub.serialize().expect("a stub"));
        Connected {
            semaphore: build_from(&stub, &their_stub),
            theirs: RegisteredMemory::deserialize(&theirs).expect("the peer's memory"),
            connection,
            memory,
            end,
        }
    }
}

/// Returns the data of a round that a side sends.
fn data(side: usize, round: u64) -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + round * 31 + side as u64 * 101) as u8).collect()
}

impl Connected {
    fn send(&self, side: usize, round: u64) {
        self.memory.buffer.write(0, &data(side, round)).expect("filling the source");
        self.connection.write(&self.theirs, LEN, &self.memory.memory, 0, LEN).expect("a write");
        self.connection.update_and_sync(&self.theirs, 2 * LEN, &mut 0, round).expect("an update");
    }

    fn receive(&self, from: usize, round: u64) {
        await_value(&self.memory, 2 * LEN, round);
        let mut got = vec![0; LEN as usize];
        self.memory.buffer.read(LEN, &mut got).expect("reading");
        assert_same(&got, &data(from, round), &format!("round {round} from side {from}"));
    }
}

/// The first argument of a second process, before the name of a setup.
const SECOND: &str = "--second-process";

/// Returns the name of the setup if this is a second process.
pub(crate) fn setup_of_this() -> Option<String> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next().as_deref() == Some(SECOND)).then(|| arguments.next())?
}

/// Plays the second process: connects, answers round by round, and ends when its standard input does.
pub(crate) fn serve(setup: &dyn Setup) {
    // The other process waits for this one's lines without a limit of its own.
    std::thread::spawn(|| {
        std::thread::sleep(LIMIT);
        eprintln!("the second process is still not done after {LIMIT:?}");
        std::process::exit(1);
    });
    let mut line = Line { from: std::io::stdin().lock(), to: std::io::stdout() };
    let connected = line.connect(setup, 1);
    line.say(b"ready");
    // The other process decides how many rounds there are.
    while let Some(round) = line.hear() {
        let round = u64::from_le_bytes(round.try_into().expect("a number"));
        connected.receive(0, round);
        connected.send(1, round);
        connected.connection.flush(PATIENCE).expect("a flush");
    }
}

/// The second process, which is killed when this is dropped.
struct Peer {
    child: Child,
    line: Option<Line<BufReader<ChildStdout>, ChildStdin>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(setup: &dyn Setup, name: &str) -> (Peer, Connected) {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args([SECOND, name]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starting a second process");
    let (from, to) = (child.stdout.take().expect("its output"), child.stdin.take().expect("its input"));
    let mut peer = Peer { child, line: Some(Line { from: BufReader::new(from), to }) };
    let line = peer.line.as_mut().expect("just made");
    let connected = line.connect(setup, 0);
    assert_eq!(line.hear().as_deref(), Some(&b"ready"[..]), "the second process is not ready");
    (peer, connected)
}

fn data_comes_before_its_update_both_ways(setup: &dyn Setup, name: &str) {
    let (mut peer, here) = start(setup, name);
    let end = &here.end;
    let mapped = end.context.map_memory(&here.theirs, &end.gpu).expect("mapping what another process has");
    assert_eq!((mapped.is_some(), here.theirs.data()), (setup.maps_peer_memory(), mapped));
    let line = peer.line.as_mut().expect("still there");
    for round in 1..=ROUNDS {
        line.say(&round.to_le_bytes());
        here.send(0, round);
        here.receive(1, round);
        here.connection.flush(PATIENCE).expect("a flush");
    }
    here.semaphore.check().expect("nothing has happened");
    // The process's input ends, and so does the process.
    peer.line = None;
    let ended = eventually(PATIENCE, || peer.child.try_wait().expect("asking").is_some());
    assert!(ended && peer.child.wait().expect("its end").success(), "the second process failed");
}

/// Checks that the loss is noticed without any operation, and that operations fail afterwards.
fn a_killed_process_is_lost(setup: &dyn Setup, name: &str) {
    let (mut peer, here) = start(setup, name);
    here.connection.set_label("the other process");
    peer.child.kill().expect("killing it");
    peer.child.wait().expect("its end");
    assert!(eventually(PATIENCE, || here.connection.check().is_err()), "nobody noticed");
    let error = here.connection.check().expect_err("the connection has failed");
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    assert!(error.to_string().contains("the other process"), "{error}");
    assert_error!(here.semaphore.check(), Error::PeerLost { .. });
    within(PATIENCE, "using a connection whose peer was killed", move || {
        let write = here.connection.write(&here.theirs, LEN, &here.memory.memory, 0, LEN);
        assert!(write.is_err() && here.connection.flush(PATIENCE).is_err());
    });
}

fn a_process_that_ends_is_gone(setup: &dyn Setup, name: &str) {
    let (mut peer, here) = start(setup, name);
    peer.line = None;
    assert!(eventually(PATIENCE, || here.connection.check().is_err()), "nobody noticed");
    assert_error!(here.connection.check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
}
