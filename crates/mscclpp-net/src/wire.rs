//! Reads bytes from outside, with bounds, and writes them: integers, texts and IP addresses, in little-endian order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes from outside that are malformed; the text says what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Takes values off the front of a slice. Never reads past its end, and allocates no more than the bytes that are
/// there.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// If there are fewer. The same holds for all methods below.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// # Errors
    /// If it is not there.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// If it is not there.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// If it is not there.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// # Errors
    /// If it is not there.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// If it is not there, or another number.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    /// A text written by [`put_text`]; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// If it is not there.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        Ok(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }

    /// An address written by [`put_ip`].
    ///
    /// # Errors
    /// If it is not there, or of a family other than IPv4 and IPv6.
    pub fn ip(&mut self) -> Result<IpAddr, Malformed> {
        match self.u8()? {
            4 => Ok(Ipv4Addr::from(self.array::<4>()?).into()),
            6 => Ok(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => Err(Malformed("an address is of no known family")),
        }
    }

    /// # Errors
    /// If something is left over.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("it is too long")) }
    }
}

/// Texts are cut to this many bytes when they are written.
pub const MAX_TEXT: usize = 1024;

/// Writes a text of at most [`MAX_TEXT`] bytes: two bytes of length, then UTF-8.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.extend((end as u16).to_le_bytes());
    out.extend(&text.as_bytes()[..end]);
}

/// Writes an address: a byte 4 or 6, then its octets.
pub fn put_ip(out: &mut Vec<u8>, ip: &IpAddr) {
    match ip {
        IpAddr::V4(v4) => {
            out.push(4);
            out.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(6);
            out.extend(v6.octets());
        }
    }
}
