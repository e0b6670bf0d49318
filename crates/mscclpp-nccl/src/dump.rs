//! Writes the last calls of all communicators of the process, for `MSCCLPP_NCCL_DUMP`: when the file appears that it names, which
//! is when a user makes it, or a process one of whose calls waits too long. So all processes of the node write at the same time,
//! and hear from each other how far they have come.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process,
    sync::{Arc, Once},
    thread,
    time::{Duration, Instant},
};

use crate::{
    comm::{self, Backend, Comm},
    env::Env,
    failure::{Failure, guarded},
    ours::Ours,
    recorder::Position,
    report,
};

/// How often the file is looked for.
const LOOK: Duration = Duration::from_millis(250);
/// How long the other ranks have to say how far they have come.
const ANSWERS: Duration = Duration::from_secs(10);
/// The upper bits of the tags of messages; the lower ones, `NUMBERS`, are the number of the dump.
const DUMPS: u32 = 0x6f00_0000;
const NUMBERS: u32 = 0x00ff_ffff;

/// Starts, at its first call, the thread that looks for the file, if `MSCCLPP_NCCL_DUMP` is set.
pub(crate) fn begin(env: &'static Env) {
    static ONCE: Once = Once::new();
    let Some(path) = &env.dump else { return };
    ONCE.call_once(|| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        if let Some(folder) = folder {
            let (path, folder) = (path.display(), folder.display());
            report::warn(&format!(
                "MSCCLPP_NCCL_DUMP={path}: there is no folder {folder}; calls cannot be written"
            ));
        }
        let mut file = Trigger { path, is_there: path.exists(), was_made: false };
        let look = move || {
            loop {
                thread::sleep(LOOK);
                let comms = comm::all();
                let waits = comms.iter().filter_map(|comm| ours(comm)?.recorder.waits()).max();
                let written = guarded("writing the last calls", || {
                    match file.look(waits.is_some_and(|waits| waits > env.timeout)) {
                        true => write_all(path, &comms),
                        false => Ok(()),
                    }
                    .map_err(|error| Failure::usage(format!("MSCCLPP_NCCL_DUMP={}: {error}", path.display())))
                });
                if let Err(failure) = written {
                    report::warn(&failure.text);
                }
            }
        };
        let thread = thread::Builder::new().name("mscclpp-nccl-dump".to_owned()).spawn(look);
        if let Err(error) = thread {
            report::warn(&format!("MSCCLPP_NCCL_DUMP has no effect: starting a thread: {error}"));
        }
    });
}

/// The file whose appearance is waited for.
struct Trigger<'a> {
    path: &'a Path,
    is_there: bool,
    /// Whether this process has made it, which it does once.
    was_made: bool,
}

impl Trigger<'_> {
    /// Looks for the file, and makes it if a call `waits` too long. Returns whether it has appeared since the last look.
    fn look(&mut self, waits: bool) -> bool {
        if waits && !self.was_made {
            self.was_made = true;
            // Another process may make it at the same time. Without it, only this process writes.
            let made = OpenOptions::new().create(true).append(true).open(self.path);
            report::warn(&format!(
                "a call is not complete after MSCCLPP_NCCL_TIMEOUT: the processes of this node write their last calls to \
                 {}.NODE.PROCESS",
                self.path.display()
            ));
            if made.is_err() {
                return true;
            }
        }
        let was_there = std::mem::replace(&mut self.is_there, self.path.exists());
        self.is_there && !was_there
    }
}

/// Writes the calls of a communicator that is aborted while some of them are not complete.
pub(crate) fn of_abort(comm: &Comm) {
    let Ok(Env { dump: Some(path), .. }) = Env::of_process() else { return };
    let Some(ours) = ours(comm).filter(|ours| ours.recorder.waits().is_some()) else { return };
    let written = open(path).and_then(|mut file| {
        let (_, text) = told(comm, ours, "is aborted").unzip();
        file.write_all(text.unwrap_or_default().as_bytes())
    });
    if let Err(error) = written {
        report::warn(&format!("MSCCLPP_NCCL_DUMP={}: {error}", path.display()));
    }
}

fn ours(comm: &Comm) -> Option<&Ours> {
    match comm.outcome()? {
        Ok(Backend::Ours(ours)) => Some(ours),
        Ok(Backend::Handed(_)) | Err(_) => None,
    }
}

/// Writes the calls of all communicators, and then what the other ranks say.
fn write_all(path: &Path, comms: &[Arc<Comm>]) -> io::Result<()> {
    let mut file = open(path)?;
    let mut asked = Vec::new();
    // Several ranks may be of this process, so all are told before any is heard.
    for comm in comms {
        let Some(ours) = ours(comm) else { continue };
        let Some((position, text)) = told(comm, ours, "is asked") else { continue };
        file.write_all(text.as_bytes())?;
        let tag = DUMPS | ours.recorder.next_dump() & NUMBERS;
        let bootstrap = ours.comm.bootstrap();
        let peers = (0..bootstrap.n_ranks()).filter(|peer| *peer != bootstrap.rank());
        for peer in peers.clone() {
            // The rank may have left; then it says nothing either.
            let _ = bootstrap.send(&position.to_bytes(), peer, tag);
        }
        asked.push((comm, ours, tag, peers));
    }
    let deadline = Instant::now() + ANSWERS;
    for (comm, ours, tag, peers) in asked {
        let mut text = String::new();
        for peer in peers {
            let left = deadline.saturating_duration_since(Instant::now());
            let said = match ours.comm.bootstrap().recv_timeout(peer, tag, left) {
                Ok(bytes) => Position::parse(&bytes)
                    .map_or_else(|| "says what is no position".to_owned(), |it| it.to_string()),
                Err(error) => format!("says nothing: {error}"),
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}: rank {peer} {said}", comm.name());
        }
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// The position of this rank, and its calls in words.
fn told(comm: &Comm, ours: &Ours, why: &str) -> Option<(Position, String)> {
    let (position, calls) = ours.recorder.told()?;
    Some((position, format!("{} {why}: this rank {position}\n{calls}", comm.name())))
}

/// The file of this process, beside the one that the variable names.
fn open(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{}", report::node(), process::id()));
    OpenOptions::new().create(true).append(true).open(PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_once_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dump");
        let mut file = Trigger { path: &path, is_there: false, was_made: false };
        let mut look = |waits| file.look(waits);
        assert!(!look(false));
        File::create(&path).unwrap();
        assert_eq!([look(false), look(false)], [true, false]);
        std::fs::remove_file(&path).unwrap();
        assert!(!look(false));
        // A call that waits makes the file, and only once.
        assert_eq!([look(true), path.exists()], [true, true]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!([look(true), path.exists()], [false, false]);
    }
}
