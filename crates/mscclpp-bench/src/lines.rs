//! Reads what a process prints.

use std::{
    io::{BufRead, BufReader, Read},
    sync::mpsc::{self, Receiver},
    thread,
};

/// Receives the lines that come out of a pipe, each as `read` returns it. A line need not be UTF-8.
pub(crate) fn lines_of<T: Send + 'static>(
    pipe: Option<impl Read + Send + 'static>,
    read: impl Fn(Vec<u8>) -> Option<T> + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // The thread is not joined: a process that was left behind may keep the pipe open. It ends if nobody receives any more.
    thread::spawn(move || {
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n'));
        lines.map_while(Result::ok).filter_map(read).try_for_each(|line| sender.send(line))
    });
    receiver
}
