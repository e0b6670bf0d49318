//! The identity of a job: 128 bytes that one process makes and all ranks need.
//!
//! ```text
//! 0    4     5      6     8        24       56                  120       128
//! MSUI ver.  count  port  job id   key      addresses, padded   checksum
//! ```
//! An address is a byte 4 or 6 and its octets; the padding is zero. The checksum, the first eight bytes of the
//! SHA-256 of everything before it, detects damage on the way; it does not protect against forgery.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::digest::digest;
use crate::{Error, Result};
use mscclpp_net::wire::{Malformed, Reader, Wire};

const MAGIC: [u8; 4] = *b"MSUI";
const VERSION: u8 = 1;
const ADDRESSES: std::ops::Range<usize> = 56..120;

/// The identity of a job: the addresses of its rank 0, and the job's key.
///
/// It is made by [`TcpBootstrap::create_unique_id`](crate::TcpBootstrap::create_unique_id), and passed to the other
/// processes by any means. Whoever has it can join the job, so treat it as a password. [`Debug`] and
/// [`Display`](fmt::Display) show the address and hide the key.
///
/// ```
/// # use mscclpp_bootstrap::{TcpBootstrap, UniqueId};
///
/// let id = TcpBootstrap::create_unique_id()?;
/// let through_the_environment: String = id.to_hex();
/// let same: UniqueId = through_the_environment.parse()?;
/// assert_eq!(id.to_bytes(), same.to_bytes());
/// assert!(UniqueId::from_bytes(&[0; 128]).is_err());
/// # Ok::<(), mscclpp_bootstrap::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId {
    bytes: [u8; Self::SIZE],
}

impl UniqueId {
    /// The number of bytes of an id.
    pub const SIZE: usize = 128;

    /// Returns the bytes to pass to the other processes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        self.bytes
    }

    /// Reads an id from bytes. If [`to_bytes`](Self::to_bytes) did not make them, the error is
    /// [`Error::BadUniqueId`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |reason: String| Error::BadUniqueId { reason };
        let bytes: [u8; Self::SIZE] =
            bytes.try_into().map_err(|_| bad(format!("{} bytes instead of {}", bytes.len(), Self::SIZE)))?;
        if bytes[..4] != MAGIC {
            return Err(bad("it does not begin with the mark of one".to_owned()));
        }
        if bytes[4] != VERSION {
            return Err(bad(format!("version {} instead of {VERSION}", bytes[4])));
        }
        if bytes[120..] != checksum(&bytes) {
            return Err(bad("the checksum is wrong: it was damaged on the way".to_owned()));
        }
        let id = Self { bytes };
        id.parse_addresses().map_err(|e| bad(e.to_string()))?;
        Ok(id)
    }

    /// Returns the id of another job, whose ranks meet through the same process. The same label always gives the same id.
    pub fn derive(&self, label: &[u8]) -> Self {
        let job = digest(&[b"mscclpp-bootstrap derived id\0", &self.job(), label]);
        let addresses = self.addresses();
        let ips: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        let port = addresses.first().map_or(0, SocketAddr::port);
        Self::new(&ips, port, job, self.key())
    }

    /// Returns the id as 256 hexadecimal digits, for environment variables and command lines. They contain the key.
    pub fn to_hex(&self) -> String {
        self.bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Makes an id for a listener on `port` at `addresses`, of which as many are kept as fit.
    pub(crate) fn new(addresses: &[IpAddr], port: u16, job: [u8; 16], key: [u8; 32]) -> Self {
        let mut packed = Vec::new();
        let mut count = 0_u8;
        for address in addresses {
            let one = address.to_bytes();
            if packed.len() + one.len() <= ADDRESSES.len() {
                packed.extend(one);
                count += 1;
            }
        }
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = count;
        bytes[6..8].copy_from_slice(&port.to_le_bytes());
        bytes[8..24].copy_from_slice(&job);
        bytes[24..56].copy_from_slice(&key);
        bytes[ADDRESSES.start..ADDRESSES.start + packed.len()].copy_from_slice(&packed);
        let sum = checksum(&bytes);
        bytes[120..].copy_from_slice(&sum);
        Self { bytes }
    }

    /// Returns the addresses at which rank 0 listens, best first; never empty.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.parse_addresses().unwrap_or_default()
    }

    pub(crate) fn job(&self) -> [u8; 16] {
        std::array::from_fn(|i| self.bytes[8 + i])
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        std::array::from_fn(|i| self.bytes[24 + i])
    }

    fn parse_addresses(&self) -> std::result::Result<Vec<SocketAddr>, Malformed> {
        let port = u16::from_le_bytes([self.bytes[6], self.bytes[7]]);
        if port == 0 {
            return Err(Malformed("the port is 0"));
        }
        let count = usize::from(self.bytes[5]);
        if count == 0 {
            return Err(Malformed("it has no address"));
        }
        let mut reader = Reader::new(&self.bytes[ADDRESSES]);
        let mut addresses = Vec::new();
        for _ in 0..count {
            addresses.push(SocketAddr::new(reader.take()?, port));
        }
        if reader.rest().iter().any(|&b| b != 0) {
            return Err(Malformed("the padding is not zero"));
        }
        Ok(addresses)
    }
}

fn checksum(bytes: &[u8; UniqueId::SIZE]) -> [u8; 8] {
    digest(&[&bytes[..120]])
}

impl std::str::FromStr for UniqueId {
    type Err = Error;

    /// Reads the digits that [`to_hex`](Self::to_hex) wrote.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason: String| Error::BadUniqueId { reason };
        let text = text.trim().as_bytes();
        if text.len() != 2 * Self::SIZE {
            return Err(bad(format!("{} characters instead of {}", text.len(), 2 * Self::SIZE)));
        }
        let mut bytes = [0; Self::SIZE];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(bad("a character is no hexadecimal digit".to_owned()));
            };
            *byte = (high * 16 + low) as u8;
        }
        Self::from_bytes(&bytes)
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = &self.bytes[8..12];
        write!(f, "job {:02x}{:02x}{:02x}{:02x} at ", job[0], job[1], job[2], job[3])?;
        for (i, address) in self.addresses().iter().enumerate() {
            write!(f, "{}{address}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self}, key hidden)")
    }
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self> {
        Self::from_bytes(bytes)
    }
}
