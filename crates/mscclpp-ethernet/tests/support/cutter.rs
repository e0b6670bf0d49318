//! A proxy between two processes, which ends a TCP connection while both live.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::set_socket_linger,
};

/// How a connection ends, and which sides notice. A side that does not notice has a peer that receives and sends nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// The number of the connection; and the bytes that must have passed before, from the dialling and the listening side.
    pub(crate) connection: usize,
    pub(crate) after: [usize; 2],
    pub(crate) reset: bool,
    pub(crate) dialler: bool,
    pub(crate) listener: bool,
    /// Whether, instead of a cut, the dialling side's next byte is changed.
    pub(crate) flips: bool,
}

/// A proxy that passes on everything that comes to its port, until it is dropped.
pub(crate) struct Cutter {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    armed: Arc<AtomicBool>,
    /// The bytes of the second connection that the dialling and the listening side have sent.
    passed: Arc<[AtomicUsize; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Cutter {
    pub(crate) fn to(port: u16, cut: Option<Cut>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let own = listener.local_addr().expect("an address");
        let (stop, armed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let passed = Arc::<[AtomicUsize; 2]>::default();
        let thread = thread::spawn({
            let (stop, armed, passed) = (stop.clone(), armed.clone(), passed.clone());
            move || {
                thread::scope(|scope| {
                    for number in 0.. {
                        let (here, _) = listener.accept().expect("a connection");
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let there = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)));
                        let cut = cut.filter(|cut| cut.connection == number).map(|cut| (cut, &*armed));
                        let (passed, stop) = ((number == 1).then_some(&*passed), &stop);
                        scope.spawn(move || relay(here, there.expect("a process"), cut, passed, stop));
                    }
                });
            }
        });
        Self { port: own.port(), stop, armed, passed, thread: Some(thread) }
    }

    /// Arms the cut: from now on it is made when enough bytes have passed.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn passed(&self) -> [usize; 2] {
        self.passed.each_ref().map(|passed| passed.load(Ordering::Relaxed))
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn relay(
    here: TcpStream,
    there: TcpStream,
    mut cut: Option<(Cut, &AtomicBool)>,
    passed: Option<&[AtomicUsize; 2]>,
    stop: &AtomicBool,
) {
    let (mut so_far, mut bytes) = ([0, 0], vec![0; 16 << 10]);
    for stream in [&here, &there] {
        stream.set_nodelay(true).expect("an option");
    }
    let look = Timespec::try_from(Duration::from_millis(50)).ok();
    let mut flip = false;
    while !stop.load(Ordering::Relaxed) {
        if let Some((due, _)) = cut.filter(|(cut, armed)| {
            armed.load(Ordering::Relaxed) && so_far[0] >= cut.after[0] && so_far[1] >= cut.after[1]
        }) {
            if !due.flips {
                return end(here, there, due, stop);
            }
            (cut, flip) = (None, true);
        }
        let mut polled = [&here, &there].map(|stream| PollFd::new(stream, PollFlags::IN));
        let _ = poll(&mut polled, look.as_ref());
        let heard = polled.map(|polled| !polled.revents().is_empty());
        for (side, mut from, mut to) in [(1, &there, &here), (0, &here, &there)] {
            // No more is read than up to the cut; the answer to earlier bytes may still come.
            let left =
                cut.map_or(bytes.len(), |(cut, _)| cut.after[0].saturating_sub(so_far[0]).min(bytes.len()));
            let room = if side == 0 { left } else { bytes.len() };
            if !heard[side] || room == 0 {
                continue;
            }
            // When one side ends its connection, both connections end.
            let Ok(count @ 1..) = from.read(&mut bytes[..room]) else { return };
            if side == 0 && std::mem::take(&mut flip) {
                bytes[0] ^= 1;
            }
            // The bytes are counted before they are sent on, so that a receiver finds them counted.
            so_far[side] += count;
            let _ = passed.inspect(|passed| passed[side].store(so_far[side], Ordering::Relaxed));
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    }
}

/// Ends a connection for one side or both, and keeps the other side open.
fn end(here: TcpStream, there: TcpStream, cut: Cut, stop: &AtomicBool) {
    let mut kept = Vec::new();
    for (stream, ends) in [(here, cut.dialler), (there, cut.listener)] {
        if ends && cut.reset {
            set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option");
            continue;
        }
        if ends {
            // The socket is not closed, because closing it with unread bytes would reset the connection.
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        kept.push(stream);
    }
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
    }
}
