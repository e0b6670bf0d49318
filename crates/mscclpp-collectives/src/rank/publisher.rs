//! The thread that publishes and withdraws the segments of this process's ranks, and maps those of their peers. Only the end of a
//! communicator waits for it, until the thread no longer uses that communicator.
//!
//! Ranks send each other messages by [`Group::tell`], and those of a rank arrive in order. A message is a list of words: its
//! kind, the slot, the segment's generation, and what the kind adds.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Once, Weak},
    time::{Duration, Instant},
};

use mscclpp::{Platform, RegisteredMemory, engine::Group, errors::CoreError, gpu::fork::OfProcess};
use parking_lot::Mutex;

use crate::{Result, handle::SEGMENTS};

use super::{
    engine::Engine,
    meeting::purpose,
    pause::pause,
    peer_segments::{MappedSegment, is_slot},
    registry::{Command, Segment},
    served::{OfThisProcess, Served},
    state::RankState,
};

/// The kinds of messages.
const PUBLISH: u64 = 0;
const MAPPED: u64 = 1;
const WITHDRAW: u64 = 2;

/// The pause between two looks for messages of peers: if the thread had work lately, and otherwise.
const BUSY: Duration = Duration::from_micros(500);
const IDLE: Duration = Duration::from_millis(50);
/// How long after its last work the thread makes the pauses of [`BUSY`].
const BUSY_FOR: Duration = Duration::from_millis(500);

static ALL: OfThisProcess<Publishing> = Mutex::new(None);

/// A lock that the thread holds while it calls drivers. The end of the process takes it and never gives it back.
static WORKS: Mutex<()> = Mutex::new(());
/// How long the end of the process waits for each lock of the thread.
const AT_EXIT: Duration = Duration::from_secs(1);

/// The publisher of a communicator, whose segments the thread serves until this is dropped.
pub(crate) struct Publisher {
    served: OfProcess<Arc<Publishing>>,
    all: Arc<Mutex<Served<Publishing>>>,
}

/// A communicator as the thread knows it. When the communicator ends, this becomes None, so that the thread releases nothing of
/// it later.
type Publishing = Mutex<Option<Communicator>>;

/// The parts of a communicator that the thread needs.
struct Communicator {
    group: Group,
    rank: Arc<RankState>,
    engine: Arc<dyn Engine>,
    /// The segments that this rank has published, by slot.
    own: HashMap<u64, PublishedSegment>,
    /// For each rank, whether no more messages of it can come.
    gone: Vec<bool>,
}

/// A segment of which this rank has told its peers.
struct PublishedSegment {
    segment: Weak<Segment>,
    generation: u64,
    /// For each rank, whether it has mapped the segment.
    mapped_by: Vec<bool>,
    /// The exported memory. Peers need it until they have mapped it, and peers in this process as long as they have it mapped.
    _exported: RegisteredMemory,
}

impl Publisher {
    pub(crate) fn new(rank: &Arc<RankState>, engine: &Arc<dyn Engine>) -> Result<Self> {
        let group = rank.group.telling(purpose::PUBLISH, 0);
        let gone = vec![false; group.ranks().len()];
        let (rank, engine) = (Arc::clone(rank), Arc::clone(engine));
        let served = Communicator { group, rank, engine, own: HashMap::new(), gone };
        let served = Arc::new(Mutex::new(Some(served)));
        stop_at_exit();
        let all = Served::of_process(&ALL);
        Served::add(&all, &served, "publish", serve_all)?;
        Ok(Self { served: OfProcess::new(served), all })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let Ok(ours) = self.served.here() else { return };
        self.all.lock().remove(ours);
        // The thread may hold the lock while it maps something.
        drop(ours.lock().take());
    }
}

/// Serves all communicators of the process, as long as there are some.
fn serve_all(all: &Mutex<Served<Publishing>>) {
    let mut last = Instant::now();
    loop {
        let served = all.lock().all().to_vec();
        if served.is_empty() {
            return;
        }
        let works = WORKS.lock();
        let mut has_worked = false;
        for served in &served {
            if let Some(communicator) = &mut *served.lock() {
                has_worked |= communicator.work();
            }
        }
        if has_worked {
            last = Instant::now();
            continue;
        }
        // Graphs keep segments, among other objects. Releasing those may block, but nobody waits for this thread here.
        let gpu = served.first().and_then(|served| served.lock().as_ref().map(|it| it.rank.gpu.clone()));
        drop(served);
        if let Some(Err(error)) = gpu.map(|gpu| gpu.release_graph_objects()) {
            tracing::debug!(target: "mscclpp::conn", %error, "what graphs have kept is not released");
        }
        drop(works);
        pause(if last.elapsed() < BUSY_FOR { BUSY } else { IDLE });
    }
}

/// Keeps the thread from calling drivers at the end of the process, when drivers are taken down.
fn stop_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays loaded until the process ends: programs, the Python package and the library in place of NCCL
        // are never unloaded.
        let _without_it_the_thread_goes_on = unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    // A forked child has no such thread, and the parent's thread may have held the lock.
    if ALL.try_lock_for(AT_EXIT).is_some_and(|all| all.as_ref().is_some_and(OfProcess::is_here))
        && let Some(works) = WORKS.try_lock_for(AT_EXIT)
    {
        mem::forget(works);
    }
}

impl Communicator {
    /// Carries out the commands and handles the messages that have come, and returns whether there were any.
    fn work(&mut self) -> bool {
        let commands = self.rank.registry.take_commands();
        let mut has_worked = !commands.is_empty();
        for command in commands {
            match command {
                Command::Publish(segment, exported) => {
                    let Some(segment) = segment.upgrade() else { continue };
                    if let Err(error) = self.publish(&segment, exported) {
                        self.log("memory is not published, so data comes into it through scratch", &error);
                    }
                }
                Command::Withdraw { slot, generation, memory } => {
                    if let Err(error) = self.withdraw(slot, generation) {
                        self.log("memory is not withdrawn", &error);
                    }
                    drop(memory);
                }
            }
        }
        for peer in self.group.others() {
            while !self.gone[peer] {
                match self.group.told_by(peer) {
                    Ok(Some(words)) => {
                        has_worked = true;
                        if let Err(error) = self.hear(peer, &words) {
                            self.log("a peer's memory is not mapped", &error);
                        }
                    }
                    Ok(None) => break,
                    // The peer has left, or the job has failed: the error of a call says which.
                    Err(_) => self.gone[peer] = true,
                }
            }
        }
        has_worked
    }

    fn log(&self, what: &str, error: &crate::Error) {
        let rank = self.group.ranks()[self.group.rank()];
        tracing::debug!(target: "mscclpp::conn", rank, %error, "{what}");
    }

    fn tell_all(&self, words: &[u64]) {
        for peer in self.group.others().filter(|peer| !self.gone[*peer]) {
            // An error means that the peer has left. Then it need not know.
            let _ = self.group.tell(peer, words);
        }
    }

    /// Sends the peers what they need to map a segment.
    fn publish(&mut self, segment: &Arc<Segment>, exported: RegisteredMemory) -> Result<()> {
        let Segment { slot, generation, .. } = **segment;
        let bytes = exported.serialize().map_err(mscclpp::Error::from)?;
        let mut words = vec![PUBLISH, slot, generation, bytes.len() as u64];
        words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        let mapped_by = vec![false; self.group.ranks().len()];
        let segment = Arc::downgrade(segment);
        self.own.insert(slot, PublishedSegment { segment, generation, mapped_by, _exported: exported });
        self.tell_all(&words);
        Ok(())
    }

    /// Frees the slot of a segment that this rank names no more, and tells the peers to unmap it. If a call has failed, this does
    /// nothing: peers may still write into the segment for that call.
    fn withdraw(&mut self, slot: u64, generation: u64) -> Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        self.rank.registry.free(slot)?;
        self.own.remove(&slot);
        self.tell_all(&[WITHDRAW, slot, generation]);
        Ok(())
    }

    fn has_failed(&self) -> bool {
        let failed = |failure| !matches!(failure, None | Some(CoreError::PeerClosed { .. }));
        self.rank.aborted.get().is_some()
            || self.engine.check_mismatch(&self.rank).is_err()
            || self.engine.semaphores().any(|semaphore| failed(semaphore.failure()))
    }

    /// Handles a message of a peer.
    fn hear(&mut self, peer: usize, words: &[u64]) -> Result<()> {
        let malformed = |problem: &str| Err(self.group.malformed(peer, problem.to_owned()).into());
        let [kind, slot, generation, rest @ ..] = words else {
            return malformed("it has fewer than 3 words");
        };
        let (slot, generation) = (*slot, *generation);
        if !is_slot(slot) {
            return malformed(&format!(
                "it names segment {slot}, and segments have the numbers 1 to {SEGMENTS}"
            ));
        }
        match (*kind, rest) {
            (PUBLISH, [len, rest @ ..]) => {
                let mapped = self.map(peer, slot, generation, *len, rest);
                let is_mapped = mapped.is_ok();
                // An error means that the peer has left. Then it need not know.
                let _ = self.group.tell(peer, &[MAPPED, slot, generation, is_mapped.into()]);
                mapped
            }
            (MAPPED, [is_mapped]) => {
                let Some(published) = self.own.get_mut(&slot) else { return Ok(()) };
                if published.generation != generation || *is_mapped == 0 {
                    return Ok(());
                }
                published.mapped_by[peer] = true;
                let by_all = self.group.others().all(|peer| published.mapped_by[peer]);
                match published.segment.upgrade() {
                    Some(segment) if by_all => self.rank.registry.set_ready(&segment),
                    _ => Ok(()),
                }
            }
            (WITHDRAW, []) => self.rank.registry.peers.unmap(peer, slot, generation),
            _ => malformed("its words are not a message about published memory"),
        }
    }

    /// Maps a segment of a peer. Its exported memory is serialized in the first `len` bytes of `words`.
    fn map(&self, peer: usize, slot: u64, generation: u64, len: u64, words: &[u64]) -> Result<()> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        let memory = RegisteredMemory::deserialize(&bytes).map_err(mscclpp::Error::from)?;
        let (context, gpu) = (self.rank.comm.context(), &self.rank.gpu);
        // If the memory belongs to this process, another thread of the program may free it at any time. If it is virtual memory,
        // and this rank uses it at its owner's addresses, CUDA's driver does not survive that. So this rank maps it at other
        // addresses. Plain memory cannot be mapped twice in a process, so it is used at its owner's addresses.
        let at = match gpu.platform() {
            Platform::Cuda => {
                context.map_memory_apart(&memory, gpu).or_else(|_| context.map_memory(&memory, gpu))
            }
            _ => context.map_memory(&memory, gpu),
        };
        let Some(at) = at.map_err(mscclpp::Error::from)? else {
            return Err(self.group.malformed(peer, "its memory has no address here".to_owned()).into());
        };
        let bytes = memory.size();
        self.rank.registry.peers.map(peer, slot, MappedSegment { generation, at, bytes, _memory: memory })
    }
}
