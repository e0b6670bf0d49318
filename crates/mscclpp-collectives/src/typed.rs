//! Collectives of typed memory, which cannot be misused.

use mscclpp::{DeviceBuffer, DevicePtr, Gpu, Stream};

use crate::{Collectives, DeviceSlice, Element, Error, Kind, ReduceOp, Request, Result};

/// A message for, or of, another rank, for [`Collectives::exchange`].
#[derive(Debug, Clone)]
pub enum Transfer<'a, T> {
    /// These numbers go to rank `peer`.
    Send {
        /// The numbers.
        numbers: &'a DeviceSlice<T>,
        /// The rank that gets them.
        peer: usize,
    },
    /// The numbers that come from rank `peer`.
    Recv {
        /// The memory that they go to.
        numbers: &'a DeviceSlice<T>,
        /// The rank that gives them.
        peer: usize,
    },
}

/// All of them put a kernel into `stream` and return at once: they do not wait for other ranks. Every rank makes the
/// same call.
///
/// # Errors
/// [`Error::InvalidArgument`] for slices that are not as long as the call needs, ranks that do not exist, memory of
/// another device or a stream of one: nothing was put into the stream then, and the other ranks wait for this one
/// until it makes its call, or leaves. Others as for [`Collectives::enqueue`].
impl Collectives {
    /// `recv` gets the numbers of all ranks, reduced. Both slices are as long; they may be the same.
    pub fn all_reduce<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: &DeviceSlice<T>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        expect("all_reduce", "recv", recv, send.len())?;
        self.one(Kind::AllReduce(op), Some(send), Some(recv), send.len(), stream)
    }

    /// `recv` gets the numbers of all ranks behind each other. It is as long as all of `send` together; `send` may be
    /// this rank's part of it.
    pub fn all_gather<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: &DeviceSlice<T>,
        stream: &Stream,
    ) -> Result<()> {
        expect("all_gather", "recv", recv, self.of_all(send.len())?)?;
        self.one(Kind::AllGather, Some(send), Some(recv), send.len(), stream)
    }

    /// The same as [`Collectives::all_gather`], where rank r gives `counts[r]` numbers.
    pub fn all_gather_v<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: &DeviceSlice<T>,
        counts: &[u64],
        stream: &Stream,
    ) -> Result<()> {
        expect_counted("all_gather_v", "recv", recv, counts)?;
        expect_counted(
            "all_gather_v",
            "send",
            send,
            counts.get(self.rank()..=self.rank()).unwrap_or_default(),
        )?;
        self.one(Kind::AllGatherV(counts), Some(send), Some(recv), 0, stream)
    }

    /// `recv` gets this rank's part of the numbers of all ranks, reduced. `send` is as long as all of `recv`
    /// together; `recv` may be this rank's part of it.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: &DeviceSlice<T>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        expect("reduce_scatter", "send", send, self.of_all(recv.len())?)?;
        self.one(Kind::ReduceScatter(op), Some(send), Some(recv), recv.len(), stream)
    }

    /// Each rank gets a part of each rank's numbers: part s of `recv` is this rank's part of rank s's `send`. Both
    /// are as long, a multiple of the number of ranks; they may be the same.
    pub fn all_to_all<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: &DeviceSlice<T>,
        stream: &Stream,
    ) -> Result<()> {
        expect("all_to_all", "recv", recv, send.len())?;
        if !send.len().is_multiple_of(self.n_ranks()) {
            return Err(Error::InvalidArgument(format!(
                "all_to_all of {} numbers, which {} ranks cannot share evenly; see all_to_all_v()",
                send.len(),
                self.n_ranks()
            )));
        }
        self.one(Kind::AllToAll, Some(send), Some(recv), send.len() / self.n_ranks(), stream)
    }

    /// The same as [`Collectives::all_to_all`], with `send_counts[r]` numbers for rank r, and `recv_counts[r]` numbers of rank
    /// r, which lie behind each other. The two slices are not the same.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        send_counts: &[u64],
        recv: &DeviceSlice<T>,
        recv_counts: &[u64],
        stream: &Stream,
    ) -> Result<()> {
        expect_counted("all_to_all_v", "send", send, send_counts)?;
        expect_counted("all_to_all_v", "recv", recv, recv_counts)?;
        let kind = Kind::AllToAllV { send: send_counts, recv: recv_counts };
        self.one(kind, Some(send), Some(recv), 0, stream)
    }

    /// `numbers` of all ranks become those of rank `root`.
    pub fn broadcast<T: Element>(
        &self,
        numbers: &DeviceSlice<T>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.one(Kind::Broadcast { root }, Some(numbers), Some(numbers), numbers.len(), stream)
    }

    /// Rank `root`, which alone gives `recv`, gets the numbers of all ranks there, reduced. It is as long as `send`,
    /// and may be the same.
    pub fn reduce<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: Option<&DeviceSlice<T>>,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.expect_at("reduce", "recv", recv, root, send.len())?;
        self.one(Kind::Reduce { root, op }, Some(send), recv, send.len(), stream)
    }

    /// Rank `root`, which alone gives `recv`, gets the numbers of all ranks there, behind each other.
    pub fn gather<T: Element>(
        &self,
        send: &DeviceSlice<T>,
        recv: Option<&DeviceSlice<T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.expect_at("gather", "recv", recv, root, self.of_all(send.len())?)?;
        self.one(Kind::Gather { root }, Some(send), recv, send.len(), stream)
    }

    /// Each rank gets its part of the numbers of rank `root`, which alone gives `send`.
    pub fn scatter<T: Element>(
        &self,
        send: Option<&DeviceSlice<T>>,
        recv: &DeviceSlice<T>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.expect_at("scatter", "send", send, root, self.of_all(recv.len())?)?;
        self.one(Kind::Scatter { root }, send, Some(recv), recv.len(), stream)
    }

    /// Makes later work in `stream` wait for all work that any rank has put into its stream before.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.one::<u8>(Kind::Barrier, None, None, 0, stream)
    }

    /// Sends `numbers` to rank `peer`, which calls [`Collectives::recv`]. Only the two ranks call. A large message is
    /// complete when it has been received; two ranks that both send first wait for each other: see
    /// [`Collectives::exchange`].
    pub fn send<T: Element>(&self, numbers: &DeviceSlice<T>, peer: usize, stream: &Stream) -> Result<()> {
        self.exchange(&[Transfer::Send { numbers, peer }], stream)
    }

    /// Gets `numbers` from rank `peer`, which calls [`Collectives::send`]. Messages of two ranks arrive in the order
    /// in which they were sent.
    pub fn recv<T: Element>(&self, numbers: &DeviceSlice<T>, peer: usize, stream: &Stream) -> Result<()> {
        self.exchange(&[Transfer::Recv { numbers, peer }], stream)
    }

    /// Sends and receives, all at the same time. A rank may send to itself what it receives in the same call.
    pub fn exchange<T: Element>(&self, transfers: &[Transfer<'_, T>], stream: &Stream) -> Result<()> {
        let (mut requests, mut buffers) = (Vec::new(), Vec::new());
        for transfer in transfers {
            let (kind, numbers) = match *transfer {
                Transfer::Send { numbers, peer } => (Kind::Send { peer }, numbers),
                Transfer::Recv { numbers, peer } => (Kind::Recv { peer }, numbers),
            };
            let (memory, count) = (numbers.ptr(), numbers.len() as u64);
            requests.push(Request { kind, send: memory, recv: memory, count, data_type: T::DATA_TYPE });
            buffers.push(numbers.buffer());
        }
        self.checked(&requests, &buffers, stream)
    }

    /// One request of slices that are long enough.
    fn one<T: Element>(
        &self,
        kind: Kind<'_>,
        send: Option<&DeviceSlice<T>>,
        recv: Option<&DeviceSlice<T>>,
        count: usize,
        stream: &Stream,
    ) -> Result<()> {
        let address = |slice: Option<&DeviceSlice<T>>| slice.map_or(DevicePtr::NULL, DeviceSlice::ptr);
        let (send_ptr, recv_ptr) = (address(send), address(recv));
        let request =
            Request { kind, send: send_ptr, recv: recv_ptr, count: count as u64, data_type: T::DATA_TYPE };
        let buffers: Vec<_> = send.iter().chain(&recv).map(|slice| slice.buffer()).collect();
        self.checked(&[request], &buffers, stream)
    }

    fn checked(&self, requests: &[Request<'_>], buffers: &[&DeviceBuffer], stream: &Stream) -> Result<()> {
        self.expect_here(buffers.iter().copied())?;
        refuse_addresses(requests)?;
        // SAFETY: the memory is that of slices, which reach from their address as far as the callers have checked,
        // and which the launches keep.
        unsafe { self.submit(requests, self.call(stream, buffers)) }
    }

    /// Checks that memory is on the device of these collectives.
    pub(crate) fn expect_here<'a>(&self, buffers: impl IntoIterator<Item = &'a DeviceBuffer>) -> Result<()> {
        buffers.into_iter().try_for_each(|buffer| self.expect_device("memory", buffer.gpu()))
    }

    /// Checks that `what` is of the device of these collectives.
    pub(crate) fn expect_device(&self, what: &str, of: &Gpu) -> Result<()> {
        let gpu = self.gpu();
        if (of.platform(), of.id()) == (gpu.platform(), gpu.id()) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{what} of {of} for the collectives of {gpu}")))
    }

    fn of_all(&self, count: usize) -> Result<usize> {
        let all = count.checked_mul(self.n_ranks());
        all.ok_or_else(|| Error::InvalidArgument(format!("{count} numbers of each rank are too many")))
    }

    /// Checks that the rank `root` gives a slice, that it has that length. The other ranks may give none, or one of any length.
    fn expect_at<T: Element>(
        &self,
        call: &str,
        name: &str,
        slice: Option<&DeviceSlice<T>>,
        root: usize,
        len: usize,
    ) -> Result<()> {
        match slice {
            _ if root != self.rank() => Ok(()),
            Some(slice) => expect(call, name, slice, len),
            None => Err(Error::InvalidArgument(format!("{call}: the root, rank {root}, gives `{name}`"))),
        }
    }
}

/// Refuses factors in device memory: a safe call cannot check their addresses.
pub(crate) fn refuse_addresses(requests: &[Request<'_>]) -> Result<()> {
    if requests.iter().any(|request| matches!(request.kind.op(), Some(ReduceOp::PreMulSumAt(_)))) {
        return Err(Error::InvalidArgument(
            "a factor in device memory is a bare address: pass it to enqueue(), which is unsafe".to_owned(),
        ));
    }
    Ok(())
}

fn expect<T: Element>(call: &str, name: &str, slice: &DeviceSlice<T>, len: usize) -> Result<()> {
    expect_len(call, name, slice.len(), len)
}

pub(crate) fn expect_len(call: &str, name: &str, found: usize, len: usize) -> Result<()> {
    if found == len {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{call}: `{name}` has {found} numbers instead of {len}")))
}

fn expect_counted<T: Element>(call: &str, name: &str, slice: &DeviceSlice<T>, counts: &[u64]) -> Result<()> {
    let all = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    match all.and_then(|all| usize::try_from(all).ok()) {
        Some(all) => expect(call, name, slice, all),
        None => Err(Error::InvalidArgument(format!("{call}: {counts:?} numbers are too many"))),
    }
}
