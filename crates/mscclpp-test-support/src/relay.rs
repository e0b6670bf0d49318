//! A stranger between two ends of a TCP connection.

use std::{
    io::{self, copy},
    net::{Shutdown, TcpStream},
    thread,
};

/// Passes what comes by either connection on to the other, until both have ended.
pub fn relay(mut here: TcpStream, mut there: TcpStream) -> io::Result<()> {
    let (mut from_here, mut from_there) = (here.try_clone()?, there.try_clone()?);
    let back = thread::spawn(move || copy(&mut from_there, &mut here));
    // Either end may break the connection.
    let _ = copy(&mut from_here, &mut there);
    let _ = there.shutdown(Shutdown::Both);
    let _ = back.join().expect("no panic");
    Ok(())
}
