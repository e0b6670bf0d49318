"""A client of nccl4py, NVIDIA's binding for Python: what `nccl.core` has beside device code.

    LD_PRELOAD=LIBRARY by_nccl4py.py [RANKS]

With MSCCLPP_PLATFORM=sim it runs on simulated devices, which the binding's own functions for devices and memory (`cuda.core`) do
not know. There it gives addresses in place of arrays, and handles of the library in place of streams and events. On GPUs it gives
tensors of the binding's own memory, and streams and events of PyTorch. Each rank is a thread.
"""

import concurrent.futures
import ctypes
import os
import sys
import threading
import traceback

import nccl.core as nccl
import numpy as np
from nccl.bindings import nccl as bindings
from nccl.core import communicator

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
TOTAL = float(sum(range(1, RANKS + 1)))
#: The vendor of the library's options in a configuration.
OURS = 0x6D7363


class Simulated:
    """Simulated devices."""

    def __init__(self):
        self.library = ctypes.CDLL(str(nccl.get_version().libnccl.path))
        communicator.NcclBuffer = lambda buffer, stream=None: buffer
        # It would ask cuda.core for the communicator's device.
        nccl.Communicator._validate_buffer_device = lambda *_: None

    def call(self, name, *arguments):
        assert getattr(self.library, f"mscclppSim{name}")(*arguments) == 0, name

    def set_device(self, rank):
        self.call("SetDevice", rank)

    def stream(self):
        return self.handle("Stream")

    def event(self):
        return self.handle("Event")

    def handle(self, name):
        made = ctypes.c_void_p()
        self.call(f"{name}Create", ctypes.byref(made))
        return made.value

    def synchronize(self, stream):
        self.call("StreamSynchronize", ctypes.c_void_p(stream))


class SimulatedNumbers:
    """Floats in memory of the library, with what the binding asks of a buffer."""

    dtype, device_id = nccl.FLOAT32, None

    def __init__(self, numbers):
        self.count = len(numbers)
        self.ptr = bindings.mem_alloc(4 * self.count)
        self.array = np.ctypeslib.as_array(ctypes.cast(self.ptr, ctypes.POINTER(ctypes.c_float)), (self.count,))
        self.array[:] = numbers

    @property
    def buffer(self):
        return self

    def write(self, number):
        self.array[:] = number

    def read(self):
        return self.array

    def free(self):
        bindings.mem_free(self.ptr)


class Gpus:
    """GPUs, by PyTorch."""

    def __init__(self):
        import torch

        self.torch, self.kept = torch, []

    def set_device(self, rank):
        self.torch.cuda.set_device(rank)

    def stream(self):
        self.kept.append(self.torch.cuda.Stream())
        return self.kept[-1].cuda_stream

    def event(self):
        self.kept.append(self.torch.cuda.Event())
        # It has a handle from its first use on.
        self.kept[-1].record()
        return self.kept[-1].cuda_event

    def synchronize(self, stream):
        self.torch.cuda.ExternalStream(stream).synchronize()


class GpuNumbers:
    """Floats in a tensor of the binding's own memory."""

    def __init__(self, numbers):
        from nccl.core.interop import torch as interop

        self.buffer = interop.empty(len(numbers), dtype=DEVICES.torch.float32)
        self.ptr = self.buffer.data_ptr()
        self.buffer.copy_(DEVICES.torch.tensor(numbers))
        DEVICES.torch.cuda.synchronize()

    def write(self, number):
        self.buffer.fill_(number)
        DEVICES.torch.cuda.synchronize()

    def read(self):
        return self.buffer.cpu().numpy()

    def free(self):
        self.buffer = None


IS_SIMULATED = os.environ.get("MSCCLPP_PLATFORM") == "sim"
DEVICES, Numbers = (Simulated(), SimulatedNumbers) if IS_SIMULATED else (Gpus(), GpuNumbers)


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
        DEVICES.set_device(rank)
        config = nccl.NCCLConfig(
            blocking=True, max_ctas=8, comm_name="all", num_rma_ctx=2, cta_policy=nccl.CTAPolicy.ZERO
        )
        self.comm = nccl.Communicator.init(RANKS, rank, unique_id, config)
        self.stream = DEVICES.stream()

    def expect(self, numbers, expected):
        DEVICES.synchronize(self.stream)
        found = numbers.read()
        assert (found == expected).all(), (found[:4], expected)

    def calls(self, config):
        comm, rank, on = self.comm, self.rank, {"stream": self.stream, "config": config}
        own, recv = Numbers([rank + 1.0] * 100), Numbers([0.0] * 100)
        each, all_of = np.repeat(np.arange(1.0, RANKS + 1), 100), Numbers([0.0] * 100 * RANKS)
        comm.allreduce(own.buffer, recv.buffer, nccl.SUM, **on)
        self.expect(recv, TOTAL)
        comm.reduce(own.buffer, recv.buffer, nccl.MAX, root=1, **on)
        self.expect(recv, RANKS if rank == 1 else TOTAL)
        comm.broadcast(own.buffer, recv.buffer, RANKS - 1, **on)
        self.expect(recv, float(RANKS))
        comm.allgather(own.buffer, all_of.buffer, **on)
        self.expect(all_of, each)
        comm.reduce_scatter(all_of.buffer, recv.buffer, nccl.AVG, **on)
        self.expect(recv, rank + 1.0)
        to = Numbers([0.0] * 100 * RANKS)
        comm.alltoall(all_of.buffer, to.buffer, **on)
        self.expect(to, rank + 1.0)
        comm.gather(own.buffer, to.buffer, 0, **on)
        self.expect(to, each if rank == 0 else rank + 1.0)
        comm.scatter(all_of.buffer, recv.buffer, 0, **on)
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
                launch_completion_event=DEVICES.event(),
            ),
        ):
            self.calls(config)
        numbers = Numbers([1.0])
        tree = nccl.NCCLCollConfig(alg_selection="tree,ring")
        refused(lambda: self.comm.allreduce(numbers.buffer, numbers.buffer, nccl.SUM, config=tree), 'algSelection is "tree,ring"')
        numbers.free()

    def groups(self):
        comm, after, before = self.comm, (self.rank + 1) % RANKS, (self.rank - 1) % RANKS
        own, theirs = Numbers([float(self.rank)] * 5000), Numbers([-1.0] * 5000)
        with nccl.group():
            comm.recv(theirs.buffer, before, stream=self.stream)
            comm.send(own.buffer, after, stream=self.stream)
        self.expect(theirs, before)
        nccl.group_start()
        comm.allreduce(own.buffer, own.buffer, nccl.SUM, stream=self.stream)
        # The call is not made, and has no predicted time on simulated devices.
        estimated = nccl.group_end(simulate=True).estimated_time
        assert estimated == -1.0 if IS_SIMULATED else estimated > 0
        self.expect(own, self.rank)
        halves = comm.create_pre_mul_sum(0.5, nccl.FLOAT32)
        comm.allreduce(own.buffer, own.buffer, halves, stream=self.stream)
        self.expect(own, (TOTAL - RANKS) / 2)
        halves.close()
        registered = comm.register_buffer(own.buffer)
        assert registered.is_valid
        registered.close()
        own.free()
        theirs.free()

    def windows(self):
        comm, after, before = self.comm, (self.rank + 1) % RANKS, (self.rank - 1) % RANKS
        numbers, part = Numbers([0.0] * 1000), Numbers([self.rank + 1.0] * 10)
        window = comm.register_window(numbers.buffer, nccl.WindowFlag.COLL_SYMMETRIC)
        assert window.is_valid and window.user_ptr == numbers.ptr
        assert window.get_lsa_device_pointer(after) and window.get_peer_device_pointer(after, 8)
        comm.put_signal(part.buffer, after, window, 5, stream=self.stream)
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
            numbers.write(1.0)
            comm.allreduce(numbers.buffer, numbers.buffer, nccl.SUM, stream=self.stream)
            self.expect(numbers, ranks)

        def works_and_ends(comm, ranks):
            adds(comm, ranks)
            comm.finalize()
            comm.destroy()

        part = comm.split(None if rank == 0 else 1, key=-rank)
        assert not part.is_valid if rank == 0 else (part.rank, part.nranks) == (RANKS - 1 - rank, RANKS - 1)
        if rank > 0:
            works_and_ends(part, RANKS - 1)
            shrunk = comm.shrink([0])
            assert (shrunk.rank, shrunk.nranks) == (rank - 1, RANKS - 1)
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
        refused(lambda: comm.allreduce(numbers.buffer, numbers.buffer, nccl.SUM), "suspended")
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
        DEVICES.set_device(rank)
        streams.append(DEVICES.stream())
        numbers.append(Numbers([rank + 1.0] * 3000))
    with nccl.group():
        for comm, memory, stream in zip(comms, numbers, streams):
            comm.allreduce(memory.buffer, memory.buffer, nccl.SUM, stream=stream)
    for comm, memory, stream in zip(comms, numbers, streams):
        DEVICES.synchronize(stream)
        assert (memory.read() == TOTAL).all()
        comm.destroy()
        memory.free()


def main():
    nccl.show_versions()
    assert str(nccl.get_version().libnccl.version) == "2.32.3"
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
