use std::{
    collections::VecDeque,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
};

use mscclpp_core::MemoryRegion;
use mscclpp_gpu::DevicePtr;
use mscclpp_net::links::{
    Suspicions,
    header::{HEADER, Header, Outbound},
};
use parking_lot::Mutex;

use crate::{
    frame::Frame,
    link_state::{Carrier, LinkState},
    settings::Settings,
    socket::{self, Piece, SendMode},
};

/// The number of works for which a backlog has room before it must grow.
pub(super) const BACKLOG: usize = 64;

/// The state that the owner of a queue and the queue's driver share.
pub(super) struct SendConnection {
    pub(super) stream: TcpStream,
    pub(super) outbound: Outbound,
    pub(super) link: Arc<LinkState>,
    suspicions: Suspicions,
    pub(super) settings: Settings,
    /// Works that were handed over and that the driver has not taken yet.
    pub(super) backlog: Mutex<VecDeque<Work>>,
    /// The number of works that the driver has carried out (invariant 1).
    pub(super) done: AtomicU64,
    /// Whether the system holds data back (invariant 3).
    pub(super) held: AtomicBool,
    /// Whether the queue was dropped.
    pub(super) closing: AtomicBool,
    /// Whether the connection has failed, so that nothing can be sent any more.
    broken: AtomicBool,
    driver: OnceLock<Thread>,
}

/// A task that the owner hands to the driver: a frame, and its data, of which it keeps the memory until it is done.
pub(super) struct Work {
    pub(super) head: Head,
    pub(super) source: Option<SourceRange>,
}

#[derive(Clone, Copy)]
pub(super) enum Head {
    /// A frame that is sealed when it is sent, because its checksum is known only when its data is.
    Frame { frame: Frame, checksum: bool },
    /// A header that was sealed and partly sent.
    Begun { header: Header, sent: usize },
}

/// A range of registered memory.
#[derive(Clone)]
pub(super) struct SourceRange {
    pub(super) region: Arc<MemoryRegion>,
    pub(super) address: DevicePtr,
    pub(super) len: u64,
}

impl SourceRange {
    /// The range as host memory, which it must be.
    pub(super) fn piece(&self) -> Piece {
        Piece { start: self.address.as_mut_ptr(), len: self.len as usize }
    }

    /// The `len` bytes from offset `at` on.
    pub(super) fn part(&self, at: u64, len: u64) -> Self {
        Self { region: self.region.clone(), address: self.address.add(at), len }
    }
}

/// How much of a frame the system took at once.
pub(super) enum Sent {
    All,
    /// The system took this number of bytes.
    Part(usize),
    /// The connection failed.
    Nothing,
}

impl SendConnection {
    pub(super) fn new(
        stream: TcpStream,
        outbound: Outbound,
        link: Arc<LinkState>,
        suspicions: Suspicions,
        settings: Settings,
    ) -> Self {
        Self {
            stream,
            outbound,
            link,
            suspicions,
            settings,
            backlog: Mutex::new(VecDeque::with_capacity(BACKLOG)),
            done: AtomicU64::new(0),
            held: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            driver: OnceLock::new(),
        }
    }

    pub(super) fn set_driver(&self, thread: Thread) {
        // The code that starts the driver sets the thread, and does so once.
        let _ = self.driver.set(thread);
    }

    /// Wakes the driver, which then sees everything that was stored before.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.driver.get() {
            thread.unpark();
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Ends sending. `reason` becomes the connection's error unless the link soon gives another: a closing peer's goodbye and
    /// the end of its sockets may come in either order.
    pub(super) fn fail(&self, reason: String) {
        self.cut();
        self.suspicions.report(reason);
    }

    /// Sends a header and the host memory after it, as far as the system takes them. It may be called only where invariant 1
    /// allows.
    ///
    /// # Safety
    /// `data` must be readable.
    pub(super) unsafe fn try_send(&self, header: &Header, data: Piece, mode: SendMode) -> Sent {
        loop {
            // SAFETY: the header is a reference, and the caller promises that the data is readable.
            match unsafe { socket::send(&self.stream, &[Piece::of(header), data], mode) } {
                Ok(count) if count == HEADER + data.len => return Sent::All,
                Ok(count) => return Sent::Part(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Sent::Part(0),
                Err(error) => {
                    self.fail(format!("sending to it failed: {error}"));
                    return Sent::Nothing;
                }
            }
        }
    }
}

impl Carrier for SendConnection {
    fn cut(&self) {
        self.broken.store(true, Ordering::Release);
        // This fails for a socket that is no longer connected, which needs no shutdown.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.wake();
    }
}
