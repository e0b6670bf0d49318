//! A wire that is slow and loses packets: whatever comes to one interface leaves at another, later or never.

use std::{
    collections::VecDeque,
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What a wire does to packets.
#[derive(Clone, Copy)]
pub(crate) struct Nuisance {
    pub(crate) delay: Duration,
    /// One in so many is lost.
    pub(crate) loses_one_in: u64,
}

/// Runs until it is dropped.
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Between two interfaces of this network namespace.
    pub(crate) fn between(a: &str, b: &str, nuisance: Nuisance) -> io::Result<Self> {
        let mut ports = [Port::open(a)?, Port::open(b)?];
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = thread::spawn({
            let (stop, lost) = (stop.clone(), lost.clone());
            move || {
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    let now = Instant::now();
                    for side in [0, 1] {
                        while let Some(packet) = ports[side].receive() {
                            seen += 1;
                            if seen % nuisance.loses_one_in == 0 {
                                lost.fetch_add(1, Ordering::Relaxed);
                            } else {
                                ports[1 - side].later.push_back((now + nuisance.delay, packet));
                            }
                        }
                        ports[side].send_due(now);
                    }
                    thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Ok(Self { stop, lost, thread: Some(thread) })
    }

    /// How many packets have been lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An interface, as raw packets. They come and go with the header that says what is left to do for them (checksums,
/// cutting into segments), because between two hosts on one machine nobody has done it yet.
struct Port {
    socket: OwnedFd,
    /// To be sent, and when.
    later: VecDeque<(Instant, Vec<u8>)>,
}

const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_OUTGOING: u8 = 4;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Port {
    fn open(interface: &str) -> io::Result<Self> {
        let every = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a new socket, owned by nobody else.
        let socket =
            unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, every.into()))?) };
        let name = CString::new(interface)?;
        // SAFETY: a string that ends with a zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let on: libc::c_int = 1;
        let size = size_of_val(&on) as libc::socklen_t;
        // SAFETY: an option of that size.
        check(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_VNET_HDR,
                (&raw const on).cast(),
                size,
            )
        })?;
        // SAFETY: an address of zeros is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = index as i32;
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address of that size.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
        Ok(Self { socket, later: VecDeque::new() })
    }

    /// The next packet that has come in.
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut packet = vec![0; 70_000];
            // SAFETY: an address of zeros is one.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut size = size_of_val(&from) as libc::socklen_t;
            // SAFETY: a buffer and an address of those sizes.
            let len = unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    packet.as_mut_ptr().cast(),
                    packet.len(),
                    0,
                    (&raw mut from).cast(),
                    &raw mut size,
                )
            };
            packet.truncate(usize::try_from(len).ok()?);
            // What this machine itself sends there is seen too.
            if from.sll_pkttype != PACKET_OUTGOING {
                return Some(packet);
            }
        }
    }

    fn send_due(&mut self, now: Instant) {
        while self.later.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, packet)) = self.later.pop_front()
        {
            // SAFETY: a slice. What cannot be sent is lost, as on any wire.
            unsafe { libc::send(self.socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) };
        }
    }
}
