//! A second rank 0, which finds the place of rank 0 taken.
//!
//! It cannot listen there, so nobody would hear of it: the first would wait for a rank that was started as another rank 0,
//! until its time is up. So it goes there as a rank that joins would, and says who it is. The first learns that there are
//! two, and the second why the place is taken.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mscclpp_net::random;

use crate::Error;
use crate::protocol::frame::{Frame, FrameReader, MAX_HANDSHAKE};
use crate::protocol::handshake::{Answer, Initiator};
use crate::protocol::hello::Purpose;
use crate::tcp::handshaking::{hello, reason};
use crate::tcp::service::Plan;

/// How long it may take. A rank 0 that forms a job answers at once; another program may never.
const LIMIT: Duration = Duration::from_secs(5);

/// Tells the rank 0 at `address`, if there is one of this job, that this is another. Gives what that answers, and nothing if
/// nobody of this library and with this key is there.
pub(crate) fn report_to(plan: &Plan, address: SocketAddr) -> Option<Error> {
    let deadline = Instant::now() + LIMIT.min(plan.timeout);
    exchange_hellos(plan, address, deadline).unwrap_or_else(|error| {
        tracing::debug!(target: crate::LOG, %address, %error, "nobody answers at the place of rank 0");
        None
    })
}

fn exchange_hellos(plan: &Plan, address: SocketAddr, deadline: Instant) -> io::Result<Option<Error>> {
    let mut stream = TcpStream::connect_timeout(&address, left(deadline)?)?;
    let local = stream.local_addr().ok().map(|address| address.to_string());
    let mut reader = FrameReader::new(MAX_HANDSHAKE);
    let hello = hello(plan, 0, Purpose::Join, random().map_err(|error| error.source)?);
    let challenge = next(&mut stream, &mut reader, deadline)?;
    let (initiator, proof) =
        Initiator::answer(plan.key.clone(), &hello, &challenge).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&proof)?;
    let answer = next(&mut stream, &mut reader, deadline)?;
    Ok(match initiator.conclude(&answer).map_err(io::Error::other)? {
        Answer::Rejected(rejection) => reason(plan, 0, address, local, rejection),
        // Rank 0 is there, so it does not let another one in.
        Answer::Accepted { .. } => None,
    })
}

fn next(stream: &mut TcpStream, reader: &mut FrameReader, deadline: Instant) -> io::Result<Frame> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(frame) = reader.next().map_err(io::Error::other)? {
            return Ok(frame);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => reader.push(&bytes[..n]),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
