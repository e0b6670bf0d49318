//! A relay between two interfaces, which delays or loses packets or acts as a firewall: packets that arrive at one interface
//! leave at the other, later or never.

use std::{
    collections::{HashSet, VecDeque},
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How the relay disturbs packets.
#[derive(Clone, Copy)]
pub(crate) struct Nuisance {
    pub(crate) delay: Duration,
    /// One packet in this many is lost.
    pub(crate) loses_one_in: u64,
}

impl Nuisance {
    pub(crate) const NONE: Self = Self { delay: Duration::ZERO, loses_one_in: u64::MAX };
}

/// The IPv4 packets that the relay drops silently, as a firewall does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swallow {
    Nothing,
    /// All packets from or to a TCP port.
    Port(u16),
    /// The packets of the TCP connections with this port at one end that carry data, once they have carried some. Connections
    /// with only short messages pass.
    DataOf(u16),
}

/// A thread that passes packets on, until this is dropped.
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    swallow: Arc<Mutex<Swallow>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay between two interfaces of this network namespace.
    pub(crate) fn between(a: &str, b: &str, nuisance: Nuisance) -> io::Result<Self> {
        let mut ports = [Port::open(a)?, Port::open(b)?];
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let swallow = Arc::new(Mutex::new(Swallow::Nothing));
        let thread = thread::spawn({
            let (stop, lost, swallow) = (stop.clone(), lost.clone(), swallow.clone());
            move || {
                let (mut seen, mut firewall) = (0, Firewall::default());
                while !stop.load(Ordering::Relaxed) {
                    let now = Instant::now();
                    let swallow = *swallow.lock().unwrap_or_else(PoisonError::into_inner);
                    for side in [0, 1] {
                        while let Some(packet) = ports[side].receive() {
                            seen += 1;
                            if firewall.swallows(swallow, &packet) {
                                continue;
                            }
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
        Ok(Self { stop, lost, swallow, thread: Some(thread) })
    }

    /// Sets the packets that are dropped from now on.
    pub(crate) fn swallow(&self, what: Swallow) {
        *self.swallow.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// The number of packets that were lost.
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

#[derive(Default)]
struct Firewall {
    /// The ports of connections that carry data.
    carriers: HashSet<[u16; 2]>,
}

impl Firewall {
    fn swallows(&mut self, what: Swallow, packet: &[u8]) -> bool {
        let Some((ports, data)) = tcp(packet) else { return false };
        match what {
            Swallow::Nothing => false,
            Swallow::Port(port) => ports.contains(&port),
            Swallow::DataOf(port) => {
                // No handshake, frame without data, or answer is this long.
                if data > 500 {
                    self.carriers.insert(ports);
                }
                ports.contains(&port) && self.carriers.contains(&ports)
            }
        }
    }
}

/// The ports of a packet with TCP over IPv4, in the same order for both directions, and the number of bytes of its data.
fn tcp(packet: &[u8]) -> Option<([u16; 2], usize)> {
    let ip = packet.get(OFFLOADS + ETHERNET..)?;
    let (version, header) = (ip.first()? >> 4, 4 * usize::from(ip.first()? & 15));
    if version != 4 || *ip.get(9)? != libc::IPPROTO_TCP as u8 {
        return None;
    }
    let tcp = ip.get(header..)?;
    let number = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let mut ports = [number(0)?, number(2)?];
    ports.sort_unstable();
    Some((ports, tcp.len().saturating_sub(4 * usize::from(tcp.get(12)? >> 4))))
}

/// The bytes in front of an IP packet: the header of offloads, and the Ethernet header.
const OFFLOADS: usize = 10;
const ETHERNET: usize = 14;

/// An interface that gives and takes raw packets. They come and go with the header of offloads, which says what is left to
/// do for them (checksums, cutting into segments): between two namespaces of one machine nobody has done that yet.
struct Port {
    socket: OwnedFd,
    /// The packets to be sent, and the times when they are due.
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
        // SAFETY: the socket is new, and nobody else owns it.
        let socket =
            unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, every.into()))?) };
        let name = CString::new(interface)?;
        // SAFETY: the string ends with NUL.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let on: libc::c_int = 1;
        let size = size_of_val(&on) as libc::socklen_t;
        // SAFETY: the option has the given size.
        check(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_VNET_HDR,
                (&raw const on).cast(),
                size,
            )
        })?;
        // SAFETY: zeros are a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = index as i32;
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address has the given size.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
        Ok(Self { socket, later: VecDeque::new() })
    }

    /// The next packet that has arrived.
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut packet = vec![0; 70_000];
            // SAFETY: zeros are a valid address.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut size = size_of_val(&from) as libc::socklen_t;
            // SAFETY: the buffer and the address have the given sizes.
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
            // The socket also shows packets that this machine itself sends there.
            if from.sll_pkttype != PACKET_OUTGOING {
                return Some(packet);
            }
        }
    }

    fn send_due(&mut self, now: Instant) {
        while self.later.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, packet)) = self.later.pop_front()
        {
            // SAFETY: the slice is valid. A packet that cannot be sent is lost, as on any network.
            unsafe { libc::send(self.socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) };
        }
    }
}
