//! The hub of a provider: the endpoints and regions to which peers may connect, and the threads that carry out their queues'
//! operations.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use mscclpp::{errors::CoreError, provider::MemoryRegion};

use crate::{
    Result,
    staging::{CHUNK, Staging},
    wire::{Address, FAILED, Frame, GOODBYE, Hello, NO, yes},
};

pub(crate) struct Hub {
    address: Address,
    next_endpoint: AtomicU64,
    open: Arc<Open>,
    closing: Arc<AtomicBool>,
}

/// The links that lead to an endpoint, by number: the endpoint from which each comes, and its socket.
type Links = HashMap<u64, (u64, UnixStream)>;

/// The endpoints and regions that peers may name. The threads of the hub share it.
#[derive(Default)]
struct Open {
    endpoints: Mutex<HashMap<u64, Links>>,
    next_link: AtomicU64,
    regions: Mutex<HashMap<u64, Arc<OpenRegion>>>,
}

/// A region, and whether it may be written to.
struct OpenRegion {
    region: Arc<MemoryRegion>,
    /// Locked for reading while data is stored in the region, and for writing when the region is withdrawn.
    is_open: RwLock<bool>,
}

impl OpenRegion {
    /// Calls `store` with the region. Returns none if the region has been withdrawn, or if `store` fails.
    fn put(&self, store: impl FnOnce(&MemoryRegion) -> Option<()>) -> Option<()> {
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        is_open.then(|| store(&self.region))?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn open() -> Result<Arc<Self>> {
        let mut random = [0; 32];
        let filled = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        filled.map_err(|e| CoreError::system("reading /dev/urandom", e))?;
        let (hub, key) = random.split_at(16);
        // Endpoints of different hubs have different numbers.
        let first = u64::from_le_bytes(hub[..8].try_into().expect("8 bytes"));
        let address =
            Address { hub: hub.try_into().expect("16 bytes"), key: key.try_into().expect("16 bytes"), id: 0 };
        let listener = address.socket().and_then(|socket| UnixListener::bind_addr(&socket));
        let listener = listener.map_err(|e| CoreError::system("opening a hub", e))?;
        let this = Arc::new(Self {
            address,
            next_endpoint: AtomicU64::new(first),
            open: Arc::default(),
            closing: Arc::default(),
        });
        let (open, closing) = (this.open.clone(), this.closing.clone());
        let accept = move || {
            for caller in listener.incoming() {
                if closing.load(Ordering::Acquire) {
                    return;
                }
                let (open, Ok(caller)) = (open.clone(), caller) else { continue };
                let serve = move || {
                    // The connection ends here, in whatever way serving has ended.
                    let _ = open.serve(caller, &address.key);
                };
                // If there is no thread, the connection ends at once.
                let _ = thread::Builder::new().name("post-serve".to_owned()).spawn(serve);
            }
        };
        thread::Builder::new()
            .name("post-hub".to_owned())
            .spawn(accept)
            .map_err(|e| CoreError::system("starting a thread", e))?;
        Ok(this)
    }

    pub(crate) fn address(&self, id: u64) -> Address {
        Address { id, ..self.address }
    }

    pub(crate) fn open_endpoint(&self) -> u64 {
        let id = self.next_endpoint.fetch_add(1, Ordering::Relaxed);
        lock(&self.open.endpoints).insert(id, Links::new());
        id
    }

    pub(crate) fn close_endpoint(&self, id: u64) {
        let links = lock(&self.open.endpoints).remove(&id).unwrap_or_default();
        for (_, (_, mut link)) in links {
            // This fails if the peer is gone, which needs no goodbye.
            let _ = link.write_all(&GOODBYE);
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    /// Tells the owner of endpoint `peer`, on its links to endpoint `id`, that this side has failed.
    pub(crate) fn tell_failure(&self, id: u64, peer: u64, reason: &str) {
        let said = [&FAILED[..], &(reason.len() as u16).to_le_bytes(), reason.as_bytes()].concat();
        let mut endpoints = lock(&self.open.endpoints);
        let links = endpoints.get_mut(&id).into_iter().flat_map(Links::values_mut);
        for (_, link) in links.filter(|(from, _)| *from == peer) {
            // So few bytes always fit the buffer of a socket. This fails if the peer is gone.
            let _ = link.write_all(&said);
        }
    }

    pub(crate) fn publish(&self, region: &Arc<MemoryRegion>) -> Published {
        let place = Arc::new(OpenRegion { region: region.clone(), is_open: RwLock::new(true) });
        lock(&self.open.regions).insert(region.id(), place.clone());
        Published { open: self.open.clone(), place }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        // The connection wakes the thread that accepts.
        let _ = self.address.socket().and_then(|socket| UnixStream::connect_addr(&socket));
    }
}

/// A region that peers can write to until this is dropped.
pub(crate) struct Published {
    open: Arc<Open>,
    place: Arc<OpenRegion>,
}

impl Drop for Published {
    fn drop(&mut self) {
        lock(&self.open.regions).remove(&self.place.region.id());
        // This waits for the chunk that is being stored, and no longer. Afterwards nothing more is stored.
        *self.place.is_open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Open {
    /// Serves a caller from its hello to its end. Returns none when the caller is gone or sends something wrong; its connection
    /// then ends.
    fn serve(&self, mut caller: UnixStream, key: &[u8; 16]) -> Option<()> {
        match Hello::read(&mut caller, key) {
            Some(Hello::Link { id, from }) => {
                let number = self.next_link.fetch_add(1, Ordering::Relaxed);
                // The answer is sent under the lock, so that no goodbye comes before it.
                match lock(&self.endpoints).get_mut(&id) {
                    Some(links) => {
                        links.insert(number, (from, caller.try_clone().ok()?));
                        caller.write_all(&yes(true)).ok()?;
                    }
                    None => return caller.write_all(&[NO]).ok(),
                }
                // Callers send nothing more, so this waits until their link or the endpoint ends.
                let _ = caller.read(&mut [0]);
                lock(&self.endpoints).get_mut(&id)?.remove(&number);
                Some(())
            }
            Some(Hello::Region { id, len }) => {
                let known = lock(&self.regions).get(&id).filter(|place| place.region.len() == len).cloned();
                match known {
                    Some(place) => caller.write_all(&yes(place.region.ptr().0.is_multiple_of(8))).ok(),
                    None => caller.write_all(&[NO]).ok(),
                }
            }
            Some(Hello::Queue { id }) => {
                let known = lock(&self.endpoints).contains_key(&id);
                caller.write_all(&if known { yes(true) } else { [NO] }).ok()?;
                known.then(|| self.deliver(caller))?
            }
            None => None,
        }
    }

    /// Carries out the operations of a queue, one after the other.
    fn deliver(&self, mut queue: UnixStream) -> Option<()> {
        let mut staging = Staging::new();
        while let Some(frame) = Frame::read(&mut queue) {
            match frame {
                Frame::Write { region, offset, len } => {
                    let place = self.place(region, offset, len)?;
                    for done in (0..len).step_by(CHUNK as usize) {
                        let part = CHUNK.min(len - done);
                        queue.read_exact(staging.bytes(part)).ok()?;
                        place.put(|region| staging.store(region, offset + done, part))?;
                    }
                }
                Frame::Update { region, offset, value } => {
                    let place = self.place(region, offset, 8)?;
                    // A peer that ignores `aligned` is refused.
                    (place.region.ptr().0 + offset).is_multiple_of(8).then_some(())?;
                    place.put(|region| staging.update(region, offset, value))?;
                }
                // Everything before the flush has been carried out.
                Frame::Flush { ticket } => queue.write_all(&ticket.to_le_bytes()).ok()?,
            }
        }
        Some(())
    }

    /// The region, if the range is inside it. A peer never sends an address.
    fn place(&self, region: u64, offset: u64, len: u64) -> Option<Arc<OpenRegion>> {
        let place = lock(&self.regions).get(&region)?.clone();
        (offset.checked_add(len)? <= place.region.len()).then_some(place)
    }
}
