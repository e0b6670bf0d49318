"""A client of nccl4py, NVIDIA's binding for Python: what `nccl.core` has beside device code.

    LD_PRELOAD=LIBRARY MSCCLPP_NCCL_VERSION=23203 by_nccl4py.py

It runs on simulated devices, which the binding's own functions for devices and memory (`cuda.core`) do not know. So this
client gives addresses in place of arrays, and handles of the library in place of streams and events. Each rank is a thread.
"""

import concurrent.futures
import ctypes
import os
import sys
import threading
import traceback

os.environ["MSCCLPP_PLATFORM"] = "sim"

import nccl.core as nccl
import numpy as np
from nccl.bindings import nccl as bindings
from nccl.core import communicator

RANKS = 3
TOTAL = float(sum(range(1, RANKS + 1)))
#: The vendor of the library's options in a configuration.
OURS = 0x6D7363

LIBRARY = ctypes.CDLL(str(nccl.get_version().libnccl.path))


def sim(name, *arguments):
    assert getattr(LIBRARY, f"mscclppSim{name}")(*arguments) == 0, name


def handle(name):
    """A new stream or event."""
    made = ctypes.c_void_p()
    sim(f"{name}Create", ctypes.byref(made))
    return made.value


class Numbers:
    """Floats in memory of the library, with what the binding asks of a buffer."""

    dtype, device_id = nccl.FLOAT32, None

    def __init__(self, numbers):
        self.count = len(numbers)
        self.ptr = bindings.mem_alloc(4 * self.count)
        self.array = np.ctypeslib.as_array(ctypes.cast(self.ptr, ctypes.POINTER(ctypes.c_float)), (self.count,))
        self.array[:] = numbers

    def free(self):
        bindings.mem_free(self.ptr)


communicator.NcclBuffer = lambda buffer, stream=None: buffer
# It would ask cuda.core for the communicator's device.
nccl.Communicator._validate_buffer_device = lambda *_: None


def refused(call, said):
    """Checks that a call is refused with a sentence."""
    try:
        call()
    except bindings.NCCLError:
        text = bindings.get_last_error(bindings.Comm(0))
        assert said in text, text
    else:
        raise AssertionError(f"not refused: {said}")


class Rank:
    def __init__(self, rank, unique_id):
        self.rank = rank
        sim("SetDevice", rank)
        config = nccl.NCCLConfig(
            blocking=True, max_ctas=8, comm_name="all", num_rma_ctx=2, cta_policy=nccl.CTAPolicy.ZERO
        )
        self.comm = nccl.Communicator.init(RANKS, rank, unique_id, config)
        self.stream = handle("Stream")

    def expect(self, numbers, expected):
        sim("StreamSynchronize", ctypes.c_void_p(self.stream))
        assert (numbers.array == expected).all(), (numbers.array[:4], expected)

    def calls(self, config):
        comm, rank, on = self.comm, self.rank, {"stream": self.stream, "config": config}
        own, recv = Numbers([rank + 1.0] * 100), Numbers([0.0] * 100)
        each, all_of = np.repeat(np.arange(1.0, RANKS + 1), 100), Numbers([0.0] * 100 * RANKS)
        comm.allreduce(own, recv, nccl.SUM, **on)
        self.expect(recv, TOTAL)
        comm.reduce(own, recv, nccl.MAX, root=1, **on)
        self.expect(recv, RANKS if rank == 1 else TOTAL)
        comm.broadcast(own, recv, 2, **on)
        self.expect(recv, 3.0)
        comm.allgather(own, all_of, **on)
        self.expect(all_of, each)
        comm.reduce_scatter(all_of, recv, nccl.AVG, **on)
        self.expect(recv, rank + 1.0)
        to = Numbers([0.0] * 100 * RANKS)
        comm.alltoall(all_of, to, **on)
        self.expect(to, rank + 1.0)
        comm.gather(own, to, 0, **on)
        self.expect(to, each if rank == 0 else rank + 1.0)
        comm.scatter(all_of, recv, 0, **on)
        self.expect(recv, rank + 1.0)
        for memory in (own, recv, all_of, to):
            memory.free()

    def configured(self):
        for config in (
            None,
            nccl.NCCLCollConfig(min_ctas=1, max_ctas=2, cta_policy=nccl.CTAPolicy.EFFICIENCY, user_profiler_tag=7),
            nccl.NCCLCollConfig(alg_selection="simple"),
            nccl.NCCLCollConfig(alg_selection="tree,ring", force_alg_selection=False),
            nccl.NCCLCollConfig(
                vendor_options=(nccl.VendorOption(1, 1, str_value="theirs"), nccl.VendorOption(OURS, 1, int_value=64)),
                launch_completion_event=handle("Event"),
            ),
        ):
            self.calls(config)
        numbers = Numbers([1.0])
        tree = nccl.NCCLCollConfig(alg_selection="tree,ring")
        refused(lambda: self.comm.allreduce(numbers, numbers, nccl.SUM, config=tree), 'algSelection is "tree,ring"')
        numbers.free()

    def groups(self):
        comm, after, before = self.comm, (self.rank + 1) % RANKS, (self.rank - 1) % RANKS
        own, theirs = Numbers([float(self.rank)] * 5000), Numbers([-1.0] * 5000)
        with nccl.group():
            comm.recv(theirs, before, stream=self.stream)
            comm.send(own, after, stream=self.stream)
        self.expect(theirs, before)
        nccl.group_start()
        comm.allreduce(own, own, nccl.SUM, stream=self.stream)
        # There is no predicted time on simulated devices, and the call is not made.
        assert nccl.group_end(simulate=True).estimated_time == -1.0
        self.expect(own, self.rank)
        halves = comm.create_pre_mul_sum(0.5, nccl.FLOAT32)
        comm.allreduce(own, own, halves, stream=self.stream)
        self.expect(own, (TOTAL - RANKS) / 2)
        halves.close()
        registered = comm.register_buffer(own)
        assert registered.is_valid
        registered.close()
        own.free()
        theirs.free()

    def windows(self):
        comm, after, before = self.comm, (self.rank + 1) % RANKS, (self.rank - 1) % RANKS
        numbers, part = Numbers([0.0] * 1000), Numbers([self.rank + 1.0] * 10)
        window = comm.register_window(numbers, nccl.WindowFlag.COLL_SYMMETRIC)
        assert window.is_valid and window.user_ptr == numbers.ptr
        assert window.get_lsa_device_pointer(after) and window.get_peer_device_pointer(after, 8)
        comm.put_signal(part, after, window, 5, stream=self.stream)
        comm.wait_signal(nccl.WaitSignalDesc(before), stream=self.stream)
        self.expect(numbers, [0.0] * 5 + [before + 1.0] * 10 + [0.0] * 985)
        comm.signal(after, signal_index=3, context=1, stream=self.stream)
        comm.wait_signal([nccl.WaitSignalDesc(before, signal_index=3, context=1)], stream=self.stream)
        self.expect(part, self.rank + 1.0)
        assert window.get_lsa_multimem_device_pointer() is None
        refused(lambda: window.get_peer_le_info(after), "CFT")
        refused(comm.create_dev_comm, "device API")
        # Peers write into the window until all have deregistered it.
        window.close()
        part.free()

    def queries(self):
        comm, rank = self.comm, self.rank
        assert (comm.rank, comm.nranks, comm.cuda_dev, comm.n_lsa_teams) == (rank, RANKS, rank, 1)
        properties = comm.properties
        assert properties.host_rma_support and properties.comm_hash
        assert not (comm.device_api_support or comm.multimem_support or properties.cft_support)
        assert comm.gin_type == comm.railed_gin_type == nccl.NcclGinType.NONE
        world, lsa = comm.team_world, comm.team_lsa
        assert (world.n_ranks, lsa.n_ranks, comm.team_rail.n_ranks) == (RANKS, RANKS, 1)
        assert (comm.team_cft().n_ranks, comm.team_cft_multimem.n_ranks) == (0, 0)
        assert comm.team_rank_to_world(lsa, 1) == comm.team_rank_to_lsa(world, 1) == 1
        total = comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_TOTAL)
        suspend = comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_SUSPEND)
        assert suspend > 0 and total - suspend == comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_PERSIST)
        assert comm.get_async_error() == bindings.Result.Success

    def others(self):
        """Communicators that are made of this one, and its end."""
        comm, rank, numbers = self.comm, self.rank, Numbers([1.0] * 8)

        def adds(comm, ranks):
            numbers.array[:] = 1.0
            comm.allreduce(numbers, numbers, nccl.SUM, stream=self.stream)
            self.expect(numbers, ranks)

        def works_and_ends(comm, ranks):
            adds(comm, ranks)
            comm.finalize()
            comm.destroy()

        part = comm.split(None if rank == 0 else 1, key=-rank)
        assert not part.is_valid if rank == 0 else (part.rank, part.nranks) == (2 - rank, 2)
        if rank > 0:
            works_and_ends(part, 2)
            shrunk = comm.shrink([0])
            assert (shrunk.rank, shrunk.nranks) == (rank - 1, 2)
            # The rank that was left out joins again.
            unique_id = shrunk.get_unique_id() if rank == 1 else None
            if rank == 1:
                GROWS.set_result(bytes(unique_id))
            grown = shrunk.grow(RANKS, unique_id)
            shrunk.destroy()
        else:
            unique_id = nccl.UniqueId.from_bytes(GROWS.result(60))
            grown = nccl.Communicator().grow(RANKS, unique_id, rank=RANKS - 1)
        assert grown.rank == (rank - 1) % RANKS
        works_and_ends(grown, RANKS)
        comm.suspend()
        assert comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_SUSPENDED) == 1
        refused(lambda: comm.allreduce(numbers, numbers, nccl.SUM), "suspended")
        comm.resume()
        adds(comm, RANKS)
        # An abort ends what other ranks still wait for.
        WORKED.wait(60)
        comm.revoke()
        comm.abort()
        assert not comm.is_valid
        numbers.free()


#: All ranks have seen that a resumed communicator works.
WORKED = threading.Barrier(RANKS)
#: The unique id with which a communicator grows.
GROWS = concurrent.futures.Future()


def run(rank, unique_id):
    of = Rank(rank, unique_id)
    of.configured()
    of.groups()
    of.queries()
    of.windows()
    of.others()


def all_ranks_of_one_thread():
    comms = nccl.Communicator.init_all(range(RANKS))
    assert [comm.rank for comm in comms] == list(range(RANKS))
    streams, numbers = [], []
    for rank in range(RANKS):
        sim("SetDevice", rank)
        streams.append(handle("Stream"))
        numbers.append(Numbers([rank + 1.0] * 3000))
    with nccl.group():
        for comm, memory, stream in zip(comms, numbers, streams):
            comm.allreduce(memory, memory, nccl.SUM, stream=stream)
    for comm, memory, stream in zip(comms, numbers, streams):
        sim("StreamSynchronize", ctypes.c_void_p(stream))
        assert (memory.array == TOTAL).all()
        comm.destroy()
        memory.free()


def main():
    nccl.show_versions()
    assert str(nccl.get_version().libnccl.version) == "2.32.3", "MSCCLPP_NCCL_VERSION=23203"
    assert nccl.get_error_string(bindings.Result.Success) == "no error"
    assert nccl.params["NCCL_COMM_BLOCKING"] == "1" and "MSCCLPP_NCCL_TIMEOUT" in list(nccl.params)
    nccl.dump_params()
    unique_id = nccl.get_unique_id()
    with concurrent.futures.ThreadPoolExecutor(RANKS) as threads:
        ranks = [threads.submit(run, rank, unique_id) for rank in range(RANKS)]
        for rank in concurrent.futures.as_completed(ranks, 120):
            if rank.exception():
                # The others may wait for this rank for ever.
                traceback.print_exception(rank.exception())
                sys.stderr.flush()
                os._exit(1)
    all_ranks_of_one_thread()
    print(f"{RANKS} ranks: all as expected")


if __name__ == "__main__":
    main()
