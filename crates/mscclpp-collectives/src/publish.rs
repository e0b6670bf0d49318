//! Memory that one rank publishes, so that its peers write into it.

use std::sync::Arc;

use mscclpp::{DeviceBuffer, DevicePtr};

use crate::{
    Collectives, Error, Result,
    rank::{Registry, Segment, SegmentMemory},
};

/// Memory that this rank has published with [`Collectives::publish`].
///
/// When this is dropped, later calls of this rank do not use the memory as published any more. Launches and graphs that do so go
/// on. When they are gone too, a thread in the background tells the peers, which unmap the memory.
#[must_use = "calls use the memory until this is dropped"]
pub struct Published(Option<Arc<Segment>>);

impl Collectives {
    /// Publishes `buffer`, so that peers may write into it. Unlike [`Collectives::register`], this concerns this rank alone: the
    /// other ranks need not publish anything, and this does not wait for them. A thread in the background has the peers map the
    /// memory, which takes milliseconds. From then on peers write straight into it in large calls that move and do not reduce,
    /// and in large ones of `all_reduce` among more than two ranks. Until then, and if a peer cannot map the memory, its data
    /// is copied out of the scratch, as it is for memory that is not published.
    ///
    /// A call finds the published memory by itself, if it takes data into it at an address that is a multiple of 16, and sends
    /// nothing that overlaps that data; an `all_reduce` may also be in place. Memory may be published while a stream is being
    /// captured. Captured calls publish by themselves the memory that they take data into, unless `MSCCLPP_GRAPH_REGISTER=0`.
    ///
    /// A rank has up to 256 pieces of published memory at a time, including those of captured calls. If it has as many, this
    /// call has no effect, and neither has it between nodes.
    ///
    /// ```
    /// # #[cfg(feature = "cuda-ipc")]
    /// # fn main() -> Result<(), mscclpp_collectives::Error> {
    /// # use std::sync::Arc;
    /// # use mscclpp::prelude::*;
    /// # use mscclpp_collectives::{Collectives, DeviceSlice};
    /// # use mscclpp_collectives::Result;
    /// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<()> {
    /// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
    /// # let rank = comm.bootstrap().rank();
    /// # let gpu = comm.context().gpu(rank)?;
    /// # let collectives = Collectives::new(&comm, &gpu)?;
    /// # let stream = gpu.stream()?;
    /// let all = DeviceSlice::<f32>::new(&gpu.allocate(1 << 20)?)?;
    /// // Rank 1 publishes nothing.
    /// let published = if rank == 0 { Some(collectives.publish(all.buffer())?) } else { None };
    ///
    /// let part = all.len() / collectives.n_ranks();
    /// let own = all.slice(rank * part..(rank + 1) * part)?;
    /// own.write(&vec![rank as f32; part])?;
    /// collectives.all_gather(&own, &all, &stream)?;
    /// collectives.synchronize(&stream)?;
    /// assert_eq!(all.read()?[part..], vec![1.0; part]);
    /// drop(published);
    /// # comm.bootstrap().barrier()?;
    /// # Ok(())
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cuda-ipc"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory of another device. [`Error::Failed`] after a rank was lost or these collectives were
    /// aborted.
    pub fn publish(&self, buffer: &DeviceBuffer) -> Result<Published> {
        self.expect_here([buffer])?;
        self.publish_with(|registry| registry.publish(SegmentMemory::Buffer(buffer.clone())))
    }

    /// Publishes the allocation that holds `bytes` bytes of device memory at an address, as [`Collectives::publish`] does, for
    /// bindings. If the bytes lie in several allocations, this has no effect.
    ///
    /// If the memory is freed, and other memory is mapped at its addresses, later calls notice that.
    ///
    /// # Safety
    /// The bytes are memory of this rank's device as long as calls take data into them, and the memory is freed only after these
    /// calls are complete. Virtual memory may then be freed at any time, by any thread, since its physical memory is kept. Other
    /// memory is freed only some milliseconds after what this call returns was dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no bytes, or an address that the driver does not know; otherwise those of
    /// [`Collectives::publish`].
    pub unsafe fn publish_memory(&self, memory: DevicePtr, bytes: u64) -> Result<Published> {
        let allocation = self.rank.gpu.allocation(memory).map_err(|error| {
            Error::InvalidArgument(format!("publishing {bytes} bytes at {memory:?}: {error}"))
        })?;
        if bytes == 0 {
            return Err(Error::InvalidArgument(format!("publishing 0 bytes at {memory:?}")));
        }
        self.publish_with(|registry| registry.publish_around(allocation, memory, bytes))
    }

    fn publish_with(
        &self,
        publish: impl FnOnce(&Arc<Registry>) -> Option<Arc<Segment>>,
    ) -> Result<Published> {
        self.check_usable()?;
        Ok(Published(self.publisher.as_ref().and_then(|_| publish(&self.rank.registry))))
    }
}

impl Published {
    /// Whether all peers have mapped the memory, so that they write straight into it in calls from now on. Does not block.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.as_ref().is_some_and(|segment| segment.is_ready())
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if let Some(segment) = &self.0 {
            segment.end();
        }
    }
}

mscclpp_os::debug_fields!(Published, |this| is_ready: this.is_ready(), ..);

#[cfg(all(test, feature = "cuda-ipc"))]
mod tests {
    use std::thread;

    use mscclpp::{Communicator, Context, ContextExt, LocalBootstrap, Platform, Stream};
    use mscclpp_test_support::until;

    use super::*;
    use crate::{DeviceSlice, Protocol, Query, ReduceOp, Selection, Selector};

    /// Chooses Simple for every call, in two steps where that is possible, with this number of blocks.
    #[derive(Debug)]
    struct BySimple(u32);

    impl Selector for BySimple {
        fn choose(&self, _: &Query) -> Selection {
            Selection { protocol: Protocol::Simple, two_steps: true, blocks: self.0, threads: 64 }
        }
    }

    const PART: usize = 5000;

    /// Runs `n` ranks, each in a thread, whose calls have this number of blocks.
    fn ranks(n: usize, blocks: u32, run: impl Fn(&Collectives, &Stream) + Sync) {
        thread::scope(|scope| {
            for bootstrap in LocalBootstrap::group(n) {
                let run = &run;
                scope.spawn(move || {
                    let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
                    let gpu = comm.context().gpu(comm.bootstrap().rank()).expect("a device");
                    let builder = Collectives::builder(&comm, &gpu).scratch(4 << 20);
                    let collectives = builder.selector(BySimple(blocks)).connect().expect("collectives");
                    run(&collectives, &gpu.stream().expect("a stream"));
                    comm.bootstrap().barrier().expect("all are there");
                });
            }
        });
    }

    /// The kinds of calls.
    #[derive(Debug, Clone, Copy)]
    enum Does {
        Gather,
        Sum,
        SumInPlace,
    }

    /// A call, and its memory.
    struct Call<'a> {
        does: Does,
        collectives: &'a Collectives,
        stream: &'a Stream,
        send: DeviceSlice<u32>,
        recv: DeviceSlice<u32>,
    }

    impl<'a> Call<'a> {
        fn new(does: Does, collectives: &'a Collectives, stream: &'a Stream) -> Self {
            let zeros = |len: usize| {
                let memory = collectives.gpu().allocate(4 * len as u64).expect("memory");
                DeviceSlice::new(&memory).expect("a slice")
            };
            let all = PART * collectives.n_ranks();
            let recv = zeros(all);
            let send = match does {
                Does::Gather => zeros(PART),
                Does::Sum => zeros(all),
                Does::SumInPlace => recv.clone(),
            };
            Self { does, collectives, stream, send, recv }
        }

        fn enqueue(&self) {
            let called = match self.does {
                Does::Gather => self.collectives.all_gather(&self.send, &self.recv, self.stream),
                _ => self.collectives.all_reduce(&self.send, &self.recv, ReduceOp::Sum, self.stream),
            };
            called.expect("a call");
        }

        /// Makes the call by `launch`, together with the other ranks, and checks its numbers. Returns the ranks whose data came
        /// directly.
        fn run(&self, launch: impl FnOnce(), round: u32) -> Vec<usize> {
            self.collectives.rank.comm.bootstrap().barrier().expect("all are there");
            let (rank, n) = (self.collectives.rank(), self.collectives.n_ranks());
            let sums = !matches!(self.does, Does::Gather);
            let last = |from| self.collectives.engine.last_direct(from, sums).expect("memory");
            let before: Vec<_> = (0..n).map(last).collect();
            self.recv.write(&vec![0; n * PART]).expect("memory");
            self.send.write(&vec![round + rank as u32; self.send.len()]).expect("memory");
            launch();
            self.collectives.synchronize(self.stream).expect("it is complete");
            let numbers = (0..n as u32).map(|from| round + from);
            let sum = numbers.clone().sum();
            let all = self.recv.read().expect("memory");
            for (from, number) in numbers.enumerate() {
                let expected = if sums { sum } else { number };
                assert!(all[from * PART..(from + 1) * PART].iter().all(|word| *word == expected));
            }
            (0..n).filter(|from| last(*from) > before[*from]).collect()
        }

        /// Makes calls until on each rank the data of all ranks in its `expected` comes directly, and asserts that no other data
        /// does. One call is not enough: a sender looks for a place only for a short time (D8), in which a busy machine may
        /// not run the receiver.
        fn run_until_direct(&self, expected: &[usize], launch: impl Fn()) {
            let (rank, n) = (self.collectives.rank(), self.collectives.n_ranks());
            let mut round = 0;
            until("data comes directly", || {
                round += 100;
                let directly = self.run(&launch, round);
                let what = format!("{:?}, {n} ranks, rank {rank}: {directly:?}, not {expected:?}", self.does);
                assert!(directly.iter().all(|from| expected.contains(from)), "{what}");
                self.collectives.rank.group.all(directly == expected).expect("all are there")
            });
        }
    }

    fn others(n: usize, rank: usize) -> Vec<usize> {
        (0..n).filter(|other| *other != rank).collect()
    }

    #[test]
    fn what_one_rank_has_published_comes_directly_to_it_alone() {
        use Does::{Gather, Sum, SumInPlace};
        for (n, blocks, does) in [
            (2, 2, Gather),
            (3, 1, Gather),
            (3, 2, Gather),
            (5, 4, Gather),
            (3, 1, Sum),
            (4, 2, Sum),
            (3, 1, SumInPlace),
            (5, 4, SumInPlace),
        ] {
            ranks(n, blocks, |collectives, stream| {
                let rank = collectives.rank();
                let call = Call::new(does, collectives, stream);
                let run = |round| call.run(|| call.enqueue(), round);
                assert!(run(1).is_empty(), "nobody has published anything");
                let published =
                    (rank == 1).then(|| collectives.publish(call.recv.buffer()).expect("it is here"));
                until("the peers map it", || published.as_ref().is_none_or(Published::is_ready));
                let expected = if rank == 1 { others(n, 1) } else { Vec::new() };
                for _ in 0..2 {
                    call.run_until_direct(&expected, || call.enqueue());
                }
                drop(published);
                assert!(run(300).is_empty(), "it is not named any more");
            });
        }
    }

    #[test]
    fn captured_calls_publish_what_they_take_data_into_and_go_directly_later() {
        for (n, does) in [(2, Does::Gather), (4, Does::Gather), (4, Does::Sum), (3, Does::SumInPlace)] {
            ranks(n, 2, |collectives, stream| {
                let call = Call::new(does, collectives, stream);
                stream.begin_capture().expect("a capture");
                call.enqueue();
                let graph = stream.end_capture().expect("a graph");
                let expected = others(n, collectives.rank());
                // SAFETY: the graph keeps what it uses.
                call.run_until_direct(&expected, || unsafe { graph.launch(stream).expect("a launch") });
                // Eager calls into the same memory go directly, too, and no longer when the graph is gone.
                call.run_until_direct(&expected, || call.enqueue());
                drop(graph);
                assert!(call.run(|| call.enqueue(), 7).is_empty());
            });
        }
    }
}
