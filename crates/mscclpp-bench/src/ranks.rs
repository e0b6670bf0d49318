//! Two processes: this one is rank 0, and starts itself again as rank 1.

use std::{
    env,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mscclpp::{TcpBootstrap, prelude::*};

use crate::Result;

const INIT: Duration = Duration::from_secs(60);
/// How long the other rank may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);

/// One rank of two.
pub(crate) struct Ranks {
    pub(crate) comm: Communicator,
    /// This process's.
    pub(crate) rank: usize,
    _other: Option<Other>,
}

impl Ranks {
    /// Starts the other rank, with this process's arguments, or joins as that rank.
    pub(crate) fn join(context: Context, peer: bool) -> Result<Self> {
        let rank = usize::from(peer);
        let (id, mut other) = if peer { (read_id()?, None) } else { start_other(context.platform()?)? };
        let form = move || TcpBootstrap::new(rank, 2, id, INIT);
        let bootstrap = match &mut other {
            None => form()?,
            Some(other) => other.meanwhile(form)??,
        };
        let comm = Communicator::with_context(Arc::new(bootstrap), context);
        Ok(Self { comm, rank, _other: other })
    }

    pub(crate) fn other(&self) -> usize {
        1 - self.rank
    }

    /// Both ranks give a memory to each other.
    pub(crate) fn share(&self, mine: &RegisteredMemory) -> Result<RegisteredMemory> {
        self.comm.send_memory(mine, self.other(), 0)?;
        Ok(self.comm.recv_memory(self.other(), 0)?.wait()?)
    }

    /// The other rank's number, for this one's.
    pub(crate) fn swap(&self, number: u64) -> Result<u64> {
        let all = self.comm.bootstrap().all_gather(&number.to_le_bytes())?;
        let others =
            all.get(self.other()).and_then(|bytes| Some(u64::from_le_bytes(bytes[..].try_into().ok()?)));
        Ok(others.ok_or("the other rank sent something else than a number")?)
    }

    /// Whether both ranks say yes. Waits for both.
    pub(crate) fn both(&self, yes: bool) -> Result<bool> {
        let answers = self.comm.bootstrap().all_gather(&[u8::from(yes)])?;
        Ok(answers.iter().all(|answer| answer == &[1]))
    }

    /// Waits for the other.
    pub(crate) fn meet(&self) -> Result<()> {
        Ok(self.comm.bootstrap().barrier()?)
    }
}

/// The process of rank 1; waited for when dropped.
struct Other(Child);

fn start_other(platform: Platform) -> Result<(UniqueId, Option<Other>)> {
    let id = TcpBootstrap::create_unique_id()?;
    let process = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .arg("--peer")
        .env("MSCCLPP_PLATFORM", platform.to_string())
        .stdin(Stdio::piped())
        .spawn()?;
    let mut other = Other(process);
    // Not on the command line: the id contains the job's key.
    if let Some(mut input) = other.0.stdin.take() {
        input.write_all(id.to_hex().as_bytes())?;
    }
    Ok((id, Some(other)))
}

impl Other {
    /// What `form` gives, which needs the other rank; an error as soon as that one has ended.
    fn meanwhile<T: Send + 'static>(&mut self, form: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let forming = thread::spawn(form);
        while !forming.is_finished() {
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("the process of rank 1 ended before it had joined: {status}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        forming.join().map_err(|_| "forming the job panicked".into())
    }
}

fn read_id() -> Result<UniqueId> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text.parse()?)
}

impl Drop for Other {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // It does not end; nothing is left that could be done if this fails too.
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
