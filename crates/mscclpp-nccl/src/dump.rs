//! `MSCCLPP_NCCL_DUMP` names a file. When that file appears, every process of the node writes the last calls of its
//! communicators. A user creates the file, or a process does when one of its calls waits too long. The ranks also exchange how
//! many calls they have made.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process,
    sync::{Arc, Once},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mscclpp::Bootstrap;

use crate::{
    comm::{self, Comm},
    env::Env,
    exit::{self, Unfinished},
    failure::{Failure, guarded},
    recorder::Position,
    report,
};

/// How often the file is looked for.
const LOOK: Duration = Duration::from_millis(250);
/// How long the other ranks have to say how far they have come.
const ANSWERS: Duration = Duration::from_secs(10);
/// The tag of messages.
const TAG: u32 = 0x6f00_0000;

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
                // At the end of the process, communicators are dropped first, which says goodbye to other ranks.
                let _unfinished = Unfinished::new();
                let comms = comm::all();
                let waits = comms.iter().filter_map(|comm| comm.ours("").ok()?.recorder.waits()).max();
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
    if !comm.ours("").is_ok_and(|ours| ours.recorder.waits().is_some()) {
        return;
    }
    let written = open(path).and_then(|mut file| {
        let (_, text) = told(comm, "is aborted").unzip();
        file.write_all(text.unwrap_or_default().as_bytes())
    });
    if let Err(error) = written {
        report::warn(&format!("MSCCLPP_NCCL_DUMP={}: {error}", path.display()));
    }
}

/// Writes the calls of all communicators, and then what the other ranks say.
fn write_all(path: &Path, comms: &[Arc<Comm>]) -> io::Result<()> {
    let mut file = open(path)?;
    let mut asked = Vec::new();
    // Several ranks may be of this process, so all are told before any is heard.
    for comm in comms {
        let Some((position, text)) = told(comm, "is asked") else { continue };
        file.write_all(text.as_bytes())?;
        let Ok(ours) = comm.ours("") else { continue };
        let bootstrap = ours.comm.bootstrap();
        let peers = (0..bootstrap.n_ranks()).filter(|peer| *peer != bootstrap.rank());
        for peer in peers.clone() {
            // The rank may have left; then it says nothing either.
            let _ = bootstrap.send(&message(SystemTime::now(), position), peer, TAG);
        }
        asked.push((comm, bootstrap, peers));
    }
    let deadline = Instant::now() + ANSWERS;
    for (comm, bootstrap, peers) in asked {
        let mut text = String::new();
        for peer in peers {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}: rank {peer} {}", comm.name(), said(&**bootstrap, peer, deadline));
        }
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// The message by which a rank says its position at a time, in seconds of the Unix epoch.
fn message(at: SystemTime, position: Position) -> Vec<u8> {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    [&at.as_secs().to_le_bytes()[..], &position.to_bytes()].concat()
}

/// The last thing that a rank has said, in words. A rank says something at each of its own dumps, and these may be more than
/// here: if its last message is an old one, waits for another until the deadline.
fn said(bootstrap: &dyn Bootstrap, peer: usize, deadline: Instant) -> String {
    let (mut last, mut is_new) = ("says nothing".to_owned(), false);
    loop {
        match bootstrap.try_recv(peer, TAG) {
            Ok(Some(bytes)) => {
                let said = bytes.split_first_chunk().and_then(|(at, position)| {
                    let at = UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_le_bytes(*at)))?;
                    Some((at.elapsed().unwrap_or_default(), Position::parse(position)?))
                });
                is_new = said.is_some_and(|(age, _)| age < ANSWERS);
                last = match said {
                    None => "says what is no position".to_owned(),
                    Some((_, position)) if is_new => position.to_string(),
                    Some((age, position)) => format!("{position}, {} seconds ago", age.as_secs()),
                };
            }
            Ok(None) if !is_new && Instant::now() < deadline && !exit::has_begun() => {
                thread::sleep(LOOK / 10);
            }
            Err(error) if last == "says nothing" => return format!("{last}: {error}"),
            Ok(None) | Err(_) => return last,
        }
    }
}

/// The position of this rank, and its calls in words.
fn told(comm: &Comm, why: &str) -> Option<(Position, String)> {
    let (position, calls) = comm.ours("").ok()?.recorder.told()?;
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
    use mscclpp::LocalBootstrap;

    use super::*;

    #[test]
    fn the_position_of_an_earlier_dump_is_not_taken_for_that_of_this_one() {
        let mut ranks = LocalBootstrap::group(2).into_iter();
        let (here, there) = (ranks.next().unwrap(), ranks.next().unwrap());
        let position = |bytes: [u8; 16]| Position::parse(&bytes).unwrap();
        let [old, new] = [position([7; 16]), position([0; 16])];
        let hour = Duration::from_secs(3600);
        there.send(&message(SystemTime::now() - hour, old), 0, TAG).unwrap();
        let told = said(&here, 1, Instant::now());
        // The message says the time in whole seconds, and some may pass before it is read.
        assert!((3600..3660).any(|age| told == format!("{old}, {age} seconds ago")), "{told}");
        there.send(&message(SystemTime::now() - hour, old), 0, TAG).unwrap();
        there.send(&message(SystemTime::now(), new), 0, TAG).unwrap();
        assert_eq!(said(&here, 1, Instant::now()), new.to_string());
        assert_eq!(said(&here, 1, Instant::now()), "says nothing");
    }

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
