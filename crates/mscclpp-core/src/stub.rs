use crate::{
    Connection, RegisteredMemory, Result,
    slab::{TOKEN_BLOCK, TOKEN_PAGE, TokenBlock},
    wire::{Kind, Reader, Writer},
};

/// One side's part of a semaphore: the token that the other side will raise.
///
/// Made over a connection and sent to the peer ([`SemaphoreStub::serialize`]); two stubs make one
/// [`Semaphore`](crate::Semaphore) at each end.
#[derive(Clone)]
pub struct SemaphoreStub {
    pub(crate) memory: RegisteredMemory,
    pub(crate) offset: u64,
    pub(crate) endpoint: u64,
    pub(crate) peer_endpoint: u64,
    pub(crate) local: Option<(Connection, TokenBlock)>,
}

impl SemaphoreStub {
    /// Makes a token, at zero, in the memory of the connection's local device, or in the memory that the transport
    /// asks for ([`Link::token_memory`](crate::provider::Link::token_memory)).
    ///
    /// # Errors
    /// [`Gpu`](crate::Error::Gpu) when memory is short; the transport's own error, if signals could overtake data
    /// there; the error of a connection that has failed.
    pub fn new(connection: &Connection) -> Result<Self> {
        Self::aligned(connection, TOKEN_BLOCK)
    }

    /// The same as [`SemaphoreStub::new`], with the token in a page of 4 KiB that has no other token yet.
    ///
    /// The page decides how far the token is from the link and from the multiprocessor that waits, which can be a
    /// considerable part of the time of a signal. To find a fast page, make several semaphores in this way, time
    /// signals over each, and keep the fastest. `Communicator::build_fastest_semaphore` of the crate `mscclpp` does
    /// this.
    ///
    /// # Errors
    /// The same as [`SemaphoreStub::new`].
    pub fn in_new_page(connection: &Connection) -> Result<Self> {
        Self::aligned(connection, TOKEN_PAGE)
    }

    fn aligned(connection: &Connection, alignment: u64) -> Result<Self> {
        connection.check()?;
        let context = connection.context();
        let block = context.token(connection.token_place()?, connection.transport(), alignment)?;
        Ok(Self {
            memory: block.memory().clone(),
            offset: block.offset,
            endpoint: connection.local_endpoint().info().id,
            peer_endpoint: connection.remote_endpoint().id,
            local: Some((connection.clone(), block)),
        })
    }

    /// The memory of the stub's token, which other semaphores of the context share.
    #[must_use]
    pub fn memory(&self) -> &RegisteredMemory {
        &self.memory
    }

    /// Returns the bytes to send to the peer, a few hundred.
    ///
    /// # Errors
    /// The same as [`RegisteredMemory::serialize`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut out = Writer::new(Kind::SemaphoreStub);
        out.u64(self.endpoint);
        out.u64(self.peer_endpoint);
        out.u64(self.offset);
        out.blob(&self.memory.serialize()?);
        out.finish()
    }

    /// Reads the bytes that a peer's [`SemaphoreStub::serialize`] returned.
    ///
    /// # Errors
    /// [`Malformed`](crate::Error::Malformed) for bytes that are truncated, foreign, of another version or of another kind.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::open(Kind::SemaphoreStub, bytes)?;
        let endpoint = r.u64("the endpoint id")?;
        let peer_endpoint = r.u64("the peer's endpoint id")?;
        let offset = r.u64("the offset")?;
        let memory = RegisteredMemory::deserialize(r.blob("the memory")?)?;
        let fits = offset.checked_add(TOKEN_BLOCK).is_some_and(|end| end <= memory.size());
        if !offset.is_multiple_of(TOKEN_BLOCK) || !fits {
            return Err(
                r.malformed(format!("its token at {offset} is not inside its memory of {}", memory.size()))
            );
        }
        r.finish()?;
        Ok(Self { memory, offset, endpoint, peer_endpoint, local: None })
    }

    /// Returns the bytes of several stubs for one peer, which reads them with [`SemaphoreStub::deserialize_all`]: at
    /// most 64 KiB in all, about two hundred stubs.
    ///
    /// # Errors
    /// The same as [`RegisteredMemory::serialize`]; [`InvalidArgument`](crate::Error::InvalidArgument) for too many.
    pub fn serialize_all(stubs: &[Self]) -> Result<Vec<u8>> {
        let mut out = Writer::new(Kind::SemaphoreStubs);
        for stub in stubs {
            out.blob(&stub.serialize()?);
        }
        out.finish()
    }

    /// Reads the bytes that a peer's [`SemaphoreStub::serialize_all`] returned.
    ///
    /// # Errors
    /// The same as [`SemaphoreStub::deserialize`].
    pub fn deserialize_all(bytes: &[u8]) -> Result<Vec<Self>> {
        let mut r = Reader::open(Kind::SemaphoreStubs, bytes)?;
        let mut stubs = Vec::new();
        while !r.is_empty() {
            stubs.push(Self::deserialize(r.blob("a stub")?)?);
        }
        Ok(stubs)
    }
}

mscclpp_os::debug_fields!(SemaphoreStub, |this| offset: this.offset, local: this.local.is_some());
