//! The one envelope format around everything that crosses a process boundary.
//!
//! ```text
//! offset  size  field
//!      0     4  magic "MSCP"
//!      4     2  version of the format, little endian like every number here
//!      6     2  kind of the content
//!      8     4  length of the content in bytes, at most 64 KiB
//!     12     n  content
//! ```
//! Reading is bounded by the bytes that are there: a length field never causes an allocation of its own, and nothing
//! may be left over at the end. Errors name the field, for users who have exchanged the wrong bytes.
//! (`mscclpp_net::wire`, which reads only what the library's own threads send, has shorter errors.)

use mscclpp_gpu::Platform;

use crate::{Error, Result, Transport};

const MAGIC: [u8; 4] = *b"MSCP";
/// The version of the format, raised with every change of any kind's content.
const VERSION: u16 = 2;
const HEADER: usize = 12;
const MAX_CONTENT: usize = 64 * 1024;

/// The kind of an envelope's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Endpoint = 1,
    Memory = 2,
    SemaphoreStub = 3,
    SemaphoreStubs = 4,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "an endpoint",
            Self::Memory => "a registered memory",
            Self::SemaphoreStub => "a semaphore stub",
            Self::SemaphoreStubs => "a list of semaphore stubs",
        }
    }

    fn name_of(code: u16) -> String {
        [Self::Endpoint, Self::Memory, Self::SemaphoreStub, Self::SemaphoreStubs]
            .into_iter()
            .find(|kind| *kind as u16 == code)
            .map_or_else(|| format!("an unknown kind ({code})"), |kind| kind.name().to_owned())
    }
}

/// Builds one envelope.
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((kind as u16).to_le_bytes());
        bytes.extend([0; 4]);
        Self { bytes }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn array<const N: usize>(&mut self, value: &[u8; N]) {
        self.bytes.extend(value);
    }

    /// Writes bytes with their length before them.
    pub(crate) fn blob(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.bytes.extend(value);
    }

    /// # Errors
    /// Fails for a platform that has no code on the wire.
    pub(crate) fn platform(&mut self, platform: Platform) -> Result<()> {
        self.u8(match platform {
            Platform::Sim => 0,
            Platform::Cuda => 1,
            Platform::Hip => 2,
            other => {
                return Err(Error::InvalidArgument(format!("platform {other} has no code on the wire")));
            }
        });
        Ok(())
    }

    /// # Errors
    /// Fails if the content is over the limit that every reader enforces.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        let len = self.bytes.len() - HEADER;
        if len > MAX_CONTENT {
            return Err(Error::InvalidArgument(format!(
                "the serialized form would have {len} bytes of content, more than the {MAX_CONTENT} that peers accept"
            )));
        }
        self.bytes[8..HEADER].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(self.bytes)
    }
}

/// Reads one envelope, field by field.
pub(crate) struct Reader<'a> {
    kind: Kind,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Opens an envelope that must hold `kind` and fill `bytes` exactly.
    pub(crate) fn open(kind: Kind, bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Self { kind, rest: bytes };
        if reader.array::<4>("the magic")? != MAGIC {
            return Err(reader.malformed(format!(
                "it starts with {:02x?} where {MAGIC:02x?} was expected: not made by this library{}",
                &bytes[..4],
                quoted(bytes)
            )));
        }
        let version = u16::from_le_bytes(reader.array("the version")?);
        if version != VERSION {
            return Err(reader.malformed(format!(
                "it is of wire version {version}, this library speaks version {VERSION}; use one version everywhere"
            )));
        }
        let found = u16::from_le_bytes(reader.array("the kind")?);
        if found != kind as u16 {
            return Err(reader.malformed(format!(
                "{} came where {} was due; do both sides make their calls in the same order?",
                Kind::name_of(found),
                kind.name()
            )));
        }
        let len = reader.u32("the length")? as usize;
        if len > MAX_CONTENT || len != reader.rest.len() {
            return Err(reader.malformed(format!(
                "its length says {len} bytes of content, {} are there (at most {MAX_CONTENT} are allowed)",
                reader.rest.len()
            )));
        }
        Ok(reader)
    }

    pub(crate) fn malformed(&self, problem: String) -> Error {
        Error::Malformed { what: self.kind.name(), problem }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self
                .malformed(format!("it ends inside {what}: {len} bytes expected, {} left", self.rest.len()))),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N, what)?);
        Ok(value)
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn blob(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.u32(what)? as usize;
        self.take(len, what)
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<String> {
        let bytes = self.blob(what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) if text.len() <= 256 && !text.chars().any(char::is_control) => Ok(text.to_owned()),
            _ => Err(self.malformed(format!("{what} is no plain text of at most 256 bytes"))),
        }
    }

    pub(crate) fn platform(&mut self) -> Result<Platform> {
        match self.u8("the platform")? {
            0 => Ok(Platform::Sim),
            1 => Ok(Platform::Cuda),
            2 => Ok(Platform::Hip),
            other => Err(self.malformed(format!("platform {other} is unknown"))),
        }
    }

    pub(crate) fn transport(&mut self) -> Result<Transport> {
        let code = self.u8("the transport")?;
        Transport::from_code(code).ok_or_else(|| self.malformed(format!("transport {code} is unknown")))
    }

    /// # Errors
    /// Fails if anything is left over.
    pub(crate) fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.malformed(format!("{} bytes are left over behind it", self.rest.len())))
    }
}

/// Whether `bytes` begin as everything does that this crate serializes.
pub fn is_an_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Quotes the beginning of a text, so that its sender recognises it; empty for other bytes.
fn quoted(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => {
            let shown: String = text.chars().take(SHOWN).collect();
            let more = if shown.len() < text.len() { "..." } else { "" };
            format!(" (it is the text {shown:?}{more})")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Kind::Memory);
        writer.u64(7);
        writer.blob(b"name");
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(u64, String)> {
        let mut reader = Reader::open(Kind::Memory, bytes)?;
        let value = (reader.u64("a number")?, reader.text("a name")?);
        reader.finish()?;
        Ok(value)
    }

    #[test]
    fn round_trip() {
        assert_eq!(read(&sample()).unwrap(), (7, "name".to_owned()));
    }

    #[test]
    fn every_truncation_and_extension_is_an_error() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len} bytes were accepted");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn errors_say_what_came_and_what_was_due() {
        let bytes = sample();
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            read(&bytes).unwrap_err().to_string()
        };
        assert!(with(0, b'X').contains("not made by this library"));
        assert!(
            read(b"hello there")
                .unwrap_err()
                .to_string()
                .ends_with("library (it is the text \"hello there\")")
        );
        assert!(with(4, 9).contains("version 9") && with(4, 9).contains("version 2"));
        assert!(with(6, 1).contains("an endpoint came where a registered memory was due"));
        assert!(with(6, 77).contains("unknown kind (77)"));
        assert!(with(8, 200).contains("200 bytes of content"));
        assert!(with(23, 0xff).contains("a name"));
    }
}
