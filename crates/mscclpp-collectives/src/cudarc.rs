//! Calls with memory and streams of the crate cudarc.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use mscclpp::{Platform, Stream};

use crate::{
    Collectives, Element, Error, Kind, ReduceOp, Request, Result,
    typed::{expect_len, refuse_addresses},
};

/// Calls on a stream of cudarc, of its `CudaSlice`s and views of them: see [`Collectives::on_cudarc`].
///
/// What a call is given is kept, and what else uses it waits, as with all of cudarc's own calls: by its events, if it tracks
/// these. Memory that several streams use while it does not is for the program to keep and to order.
#[derive(Debug)]
pub struct CudarcCalls<'a> {
    collectives: &'a Collectives,
    stream: &'a CudaStream,
    /// The same stream.
    here: Stream,
}

/// Every rank makes the same call. None waits for other ranks.
impl Collectives {
    /// These collectives on a stream of the crate cudarc, with feature `cudarc`. The stream is of the same device; its context
    /// is the primary one, as `CudaContext::new` makes it.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
    /// # use mscclpp_collectives::{Collectives, ReduceOp};
    /// fn average(collectives: &Collectives, numbers: &[f32]) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    ///     let context = CudaContext::new(collectives.gpu().id())?;
    ///     let stream: Arc<CudaStream> = context.new_stream()?;
    ///     let mut numbers: CudaSlice<f32> = stream.clone_htod(numbers)?;
    ///
    ///     let calls = collectives.on_cudarc(&stream)?;
    ///     calls.all_reduce_in_place(&mut numbers, ReduceOp::Avg)?;
    ///     calls.synchronize()?;
    ///     Ok(stream.clone_dtoh(&numbers)?)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stream of another device, or of a context that is not the primary one.
    pub fn on_cudarc<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<CudarcCalls<'a>> {
        let (gpu, context) = (self.gpu(), stream.context());
        if gpu.platform() != Platform::Cuda || context.ordinal() != gpu.id() || !context.is_primary() {
            let what = if context.is_primary() { "" } else { ", of a context of its own" };
            return Err(Error::InvalidArgument(format!(
                "a stream of CUDA device {}{what} for the collectives of {gpu}",
                context.ordinal()
            )));
        }
        // SAFETY: a stream of this device's primary context, which lives as long as what is returned. Calls keep no foreign
        // stream.
        let here = unsafe { Stream::from_raw(gpu, stream.cu_stream().cast())? };
        Ok(CudarcCalls { collectives: self, stream, here })
    }
}

/// Lengths are as in the methods of [`Collectives`] of the same names.
///
/// # Errors
/// [`Error::InvalidArgument`] for slices that are not as long as the call needs, and for
/// [`ReduceOp::PreMulSumAt`]; [`Error::Failed`], [`Error::Below`].
impl CudarcCalls<'_> {
    /// See [`Collectives::all_reduce`].
    pub fn all_reduce<T: Element>(
        &self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let count = send.len();
        self.moved("all_reduce", Kind::AllReduce(op), count, (send, count), (recv, count))
    }

    /// See [`Collectives::all_reduce`].
    pub fn all_reduce_in_place<T: Element>(
        &self,
        numbers: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
    ) -> Result<()> {
        self.in_place(Kind::AllReduce(op), numbers.len(), numbers)
    }

    /// See [`Collectives::all_gather`].
    pub fn all_gather<T: Element>(
        &self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let count = send.len();
        self.moved("all_gather", Kind::AllGather, count, (send, count), (recv, self.of_all(count)))
    }

    /// See [`Collectives::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let count = recv.len();
        let kind = Kind::ReduceScatter(op);
        self.moved("reduce_scatter", kind, count, (send, self.of_all(count)), (recv, count))
    }

    /// See [`Collectives::all_to_all`].
    pub fn all_to_all<T: Element>(
        &self,
        send: &impl DevicePtr<T>,
        recv: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let (all, count) = (send.len(), send.len() / self.collectives.n_ranks());
        self.moved("all_to_all", Kind::AllToAll, count, (send, self.of_all(count)), (recv, all))
    }

    /// See [`Collectives::broadcast`].
    pub fn broadcast<T: Element>(&self, numbers: &mut impl DevicePtrMut<T>, root: usize) -> Result<()> {
        self.in_place(Kind::Broadcast { root }, numbers.len(), numbers)
    }

    /// See [`Collectives::send`].
    pub fn send<T: Element>(&self, numbers: &impl DevicePtr<T>, peer: usize) -> Result<()> {
        let (address, _until) = numbers.device_ptr(self.stream);
        self.call::<T>(Kind::Send { peer }, numbers.len(), address, address)
    }

    /// See [`Collectives::recv`].
    pub fn recv<T: Element>(&self, numbers: &mut impl DevicePtrMut<T>, peer: usize) -> Result<()> {
        self.in_place(Kind::Recv { peer }, numbers.len(), numbers)
    }

    /// See [`Collectives::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.collectives.barrier(&self.here)
    }

    /// See [`Collectives::synchronize`]: unlike that of the stream, it says if calls failed.
    pub fn synchronize(&self) -> Result<()> {
        self.collectives.synchronize(&self.here)
    }

    fn of_all(&self, count: usize) -> usize {
        count.saturating_mul(self.collectives.n_ranks())
    }

    /// Each slice with the length that it should have.
    fn moved<T: Element>(
        &self,
        call: &str,
        kind: Kind<'_>,
        count: usize,
        (send, send_len): (&impl DevicePtr<T>, usize),
        (recv, recv_len): (&mut impl DevicePtrMut<T>, usize),
    ) -> Result<()> {
        expect_len(call, "send", send.len(), send_len)?;
        expect_len(call, "recv", recv.len(), recv_len)?;
        let (from, _until_read) = send.device_ptr(self.stream);
        let (to, _until_written) = recv.device_ptr_mut(self.stream);
        self.call::<T>(kind, count, from, to)
    }

    fn in_place<T: Element>(
        &self,
        kind: Kind<'_>,
        count: usize,
        numbers: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let (address, _until_written) = numbers.device_ptr_mut(self.stream);
        self.call::<T>(kind, count, address, address)
    }

    /// The memory is as long as the call needs, and what keeps it lives in the caller until the call is in the stream.
    fn call<T: Element>(&self, kind: Kind<'_>, count: usize, send: u64, recv: u64) -> Result<()> {
        let (send, recv) = (mscclpp::DevicePtr(send), mscclpp::DevicePtr(recv));
        let request = Request { kind, send, recv, count: count as u64, data_type: T::DATA_TYPE };
        refuse_addresses(&[request])?;
        // SAFETY: memory of cudarc's slices, which is not freed before what is in its streams is complete. Two slices of
        // which one is borrowed for writing do not overlap. The request names no other memory.
        unsafe { self.collectives.enqueue(&[request], &self.here) }
    }
}
