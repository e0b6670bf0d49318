//! The plain socket with which puts are compared.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use crate::{
    data::{GUARD, Memory},
    one_way::Transfer,
    prelude::*,
};

/// The bytes that are written by one call.
const WRITE: usize = 1 << 20;
/// The longest time in which no byte moves.
const SILENCE: Duration = Duration::from_secs(60);

/// One TCP connection from rank 0 to rank 1, over loopback unless the ranks were started by hand, with the system's own
/// buffer sizes. The receiver reads into the destination itself, and answers with a byte when it has everything.
pub(super) struct PlainSocket {
    stream: TcpStream,
    sends: bool,
    memory: RefCell<Vec<u8>>,
}

impl PlainSocket {
    /// Connects the ranks for messages of up to `largest` bytes.
    pub(super) fn new(ranks: &Ranks, largest: u64) -> Result<Self> {
        let sends = ranks.rank == 0;
        let stream = if sends { accept(ranks)? } else { connect(ranks)? };
        // A small message does not wait for another.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let memory = RefCell::new(vec![0; (largest + 2 * GUARD) as usize]);
        Ok(Self { stream, sends, memory })
    }
}

fn accept(ranks: &Ranks) -> Result<TcpStream> {
    let listener = TcpListener::bind(ranks.address_of_rank_0(0)?)?;
    ranks.swap(&listener.local_addr()?.port())?;
    // The peer has connected by now, so it is among the connections that can be accepted.
    let peer = ranks.swap(&0_u16)?;
    loop {
        let (stream, from) = listener.accept()?;
        if from.port() == peer {
            return Ok(stream);
        }
    }
}

fn connect(ranks: &Ranks) -> Result<TcpStream> {
    let port = ranks.swap(&0_u16)?;
    let stream = TcpStream::connect_timeout(&ranks.address_of_rank_0(port)?, SILENCE)?;
    ranks.swap(&stream.local_addr()?.port())?;
    Ok(stream)
}

impl Transfer for PlainSocket {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn carry(&self, bytes: u64, rounds: u32) -> Result<()> {
        let other = usize::from(self.sends);
        self.exchange(bytes, rounds).map_err(|error| {
            format!("the plain socket to rank {other}, which may have ended: {error}").into()
        })
    }
}

impl PlainSocket {
    fn exchange(&self, bytes: u64, rounds: u32) -> io::Result<()> {
        let (mut stream, mut memory) = (&self.stream, self.memory.borrow_mut());
        let len = bytes as usize;
        for _ in 0..rounds {
            if self.sends {
                memory[..len].chunks(WRITE).try_for_each(|chunk| stream.write_all(chunk))?;
            } else {
                stream.read_exact(&mut memory[GUARD as usize..][..len])?;
            }
        }
        match self.sends {
            true => stream.read_exact(&mut [0])?,
            false => stream.write_all(&[0])?,
        }
        Ok(())
    }
}

impl Memory for RefCell<Vec<u8>> {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self.borrow()[offset as usize..][..bytes.len()]);
        Ok(())
    }
}
