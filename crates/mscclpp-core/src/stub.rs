use crate::{
    Connection, RegisteredMemory, Result,
    slab::{TOKEN_BLOCK, TOKEN_PAGE, TokenBlock},
    wire::{Kind, Reader, Writer},
};

/// One side's part of a semaphore: the token that the other side will raise.
///
/// Made over a connection, sent to the peer ([`SemaphoreStub::serialize`]); two stubs make one
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
    /// Makes a token, at zero, in the memory of the connection's local device, or where the transport wants it
    /// ([`Link::token_memory`](crate::provider::Link::token_memory)).
    ///
    /// # Errors
    /// [`Gpu`](crate::Error::Gpu) when memory is short; the transport's own, if signals cannot be kept behind data there;
    /// what the connection failed with, if it did.
    pub fn new(connection: &Connection) -> Result<Self> {
        Self::aligned(connection, TOKEN_BLOCK)
    }

    /// As [`SemaphoreStub::new`], with the token in a page of 4 KiB that has no other token yet.
    ///
    /// The page decides how far the token is from the link and from the multiprocessor that waits. That can be a tenth of the
    /// time of a signal, or more. To find a fast page, make several semaphores in this way, time signals over each, and keep
    /// the fastest. `Communicator::build_fastest_semaphore` of the crate `mscclpp` does this.
    ///
    /// # Errors
    /// As [`SemaphoreStub::new`].
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

    /// The memory of its token, which other semaphores of its context share.
    #[must_use]
    pub fn memory(&self) -> &RegisteredMemory {
        &self.memory
    }

    /// Bytes to send to the peer, a few hundred.
    ///
    /// # Errors
    /// As [`RegisteredMemory::serialize`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut out = Writer::new(Kind::SemaphoreStub);
        out.u64(self.endpoint);
        out.u64(self.peer_endpoint);
        out.u64(self.offset);
        out.blob(&self.memory.serialize()?);
        out.finish()
    }

    /// Reads what a peer's [`SemaphoreStub::serialize`] made.
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

    /// Several for one peer, which takes them with [`SemaphoreStub::deserialize_all`]: 64 KiB in all, about two hundred.
    ///
    /// # Errors
    /// As [`RegisteredMemory::serialize`]; [`InvalidArgument`](crate::Error::InvalidArgument) for too many.
    pub fn serialize_all(stubs: &[Self]) -> Result<Vec<u8>> {
        let mut out = Writer::new(Kind::SemaphoreStubs);
        for stub in stubs {
            out.blob(&stub.serialize()?);
        }
        out.finish()
    }

    /// Reads what a peer's [`SemaphoreStub::serialize_all`] made.
    ///
    /// # Errors
    /// As [`SemaphoreStub::deserialize`].
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
