"""A client that loads libnccl.so.2 and calls it through ctypes, as vLLM's wrapper `pynccl` does: the same functions, with the
same types, in the same order. Each rank is a process.

    by_ctypes.py LIBRARY RANKS

With MSCCLPP_PLATFORM=sim it runs on simulated devices, with `hip` on AMD GPUs, else on NVIDIA GPUs. The script runs itself as
the other ranks.
"""

import ctypes
import os
import struct
import subprocess
import sys
import time

F32, SUM, AVG, MAX = 7, 0, 4, 2


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


Result, Comm, Stream, Buffer, Window = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
Count, Int, Out = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p

FUNCTIONS = {
    "ncclGetErrorString": (ctypes.c_char_p, [Result]),
    "ncclGetLastError": (ctypes.c_char_p, [Comm]),
    "ncclGetVersion": (Result, [ctypes.POINTER(Int)]),
    "ncclGetUniqueId": (Result, [ctypes.POINTER(UniqueId)]),
    "ncclCommInitRank": (Result, [ctypes.POINTER(Comm), Int, UniqueId, Int]),
    "ncclAllReduce": (Result, [Buffer, Buffer, Count, Int, Int, Comm, Stream]),
    "ncclReduce": (Result, [Buffer, Buffer, Count, Int, Int, Int, Comm, Stream]),
    "ncclAllGather": (Result, [Buffer, Buffer, Count, Int, Comm, Stream]),
    "ncclReduceScatter": (Result, [Buffer, Buffer, Count, Int, Int, Comm, Stream]),
    "ncclSend": (Result, [Buffer, Count, Int, Int, Comm, Stream]),
    "ncclRecv": (Result, [Buffer, Count, Int, Int, Comm, Stream]),
    "ncclBroadcast": (Result, [Buffer, Buffer, Count, Int, Int, Comm, Stream]),
    "ncclCommDestroy": (Result, [Comm]),
    "ncclGroupStart": (Result, []),
    "ncclGroupEnd": (Result, []),
    "ncclCommWindowRegister": (Result, [Comm, Buffer, Count, ctypes.POINTER(Window), Int]),
    "ncclCommWindowDeregister": (Result, [Comm, Window]),
    # The wrapper does not call these functions, but this client does.
    "ncclCommInitAll": (Result, [ctypes.POINTER(Comm), Int, Out]),
    "ncclCommAbort": (Result, [Comm]),
    "ncclCommGetAsyncError": (Result, [Comm, ctypes.POINTER(Result)]),
    "ncclCommSuspend": (Result, [Comm, Int]),
    "ncclCommResume": (Result, [Comm]),
    "ncclCommMemStats": (Result, [Comm, Int, ctypes.POINTER(ctypes.c_uint64)]),
    "ncclMemAlloc": (Result, [ctypes.POINTER(Buffer), Count]),
    "ncclMemFree": (Result, [Buffer]),
}


class Library:
    """The library's functions; each raises an error with the text of `ncclGetLastError` if it does not succeed."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            code = function(*arguments)
            if FUNCTIONS[name][0] is Result and code != 0:
                said = self.library.ncclGetErrorString(code), self.library.ncclGetLastError(None)
                raise RuntimeError(f"{name}: {said}")
            return code

        return call


class Simulated:
    """Simulated devices: streams come from the library, and device memory is memory of the process."""

    def __init__(self, library, rank):
        self.library = library.library
        self.check(self.library.mscclppSimSetDevice(rank))

    @staticmethod
    def check(code):
        if code != 0:
            raise RuntimeError(f"code {code}")

    def current(self):
        return None

    def stream(self):
        stream = ctypes.c_void_p()
        self.check(self.library.mscclppSimStreamCreate(ctypes.byref(stream)))
        return stream

    def synchronize(self, stream):
        self.check(self.library.mscclppSimStreamSynchronize(stream))

    def capture(self, stream, calls):
        graph = ctypes.c_void_p()
        self.check(self.library.mscclppSimStreamBeginCapture(stream))
        calls()
        self.check(self.library.mscclppSimStreamEndCapture(stream, ctypes.byref(graph)))
        return lambda: self.check(self.library.mscclppSimGraphLaunch(graph, stream))

    def free_bytes(self):
        return None

    def write(self, address, data):
        ctypes.memmove(address, data, len(data))

    def read(self, address, size):
        return ctypes.string_at(address, size)


class Gpus:
    """NVIDIA GPUs, through the CUDA driver."""

    def __init__(self, _library, rank):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), rank)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def current(self):
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", stream)

    def capture(self, stream, calls):
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", stream, 1)
        calls()
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return lambda: self.call("cuGraphLaunch", executable, stream)

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def write(self, address, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


class Hip:
    """AMD GPUs, through the HIP runtime."""

    def __init__(self, _library, rank):
        self.hip = ctypes.CDLL("libamdhip64.so.7")
        self.call("hipSetDevice", rank)
        self.copies = self.stream()

    def call(self, name, *arguments):
        code = getattr(self.hip, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: HIP error {code}")

    def current(self):
        device = ctypes.c_int()
        self.call("hipGetDevice", ctypes.byref(device))
        return device.value

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("hipStreamCreateWithFlags", ctypes.byref(stream), 1)
        return stream

    def synchronize(self, stream):
        self.call("hipStreamSynchronize", stream)

    def capture(self, stream, calls):
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("hipStreamBeginCapture", stream, 1)
        calls()
        self.call("hipStreamEndCapture", stream, ctypes.byref(graph))
        self.call("hipGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return lambda: self.call("hipGraphLaunch", executable, stream)

    def free_bytes(self):
        return None

    def copy(self, to, from_, size):
        self.call("hipMemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(from_), ctypes.c_size_t(size), 4, self.copies)
        self.synchronize(self.copies)

    def write(self, address, data):
        held = ctypes.create_string_buffer(data, len(data))
        self.copy(address, ctypes.addressof(held), len(data))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.copy(ctypes.addressof(data), address, size)
        return data.raw


class Numbers:
    """Floats in device memory that the library allocates."""

    def __init__(self, library, devices, numbers):
        self.devices, self.count, pointer = devices, len(numbers), ctypes.c_void_p()
        library.ncclMemAlloc(ctypes.byref(pointer), 4 * self.count)
        self.address, self.free = pointer.value, lambda: library.ncclMemFree(pointer)
        devices.write(self.address, struct.pack(f"{self.count}f", *numbers))

    def read(self):
        return list(struct.unpack(f"{self.count}f", self.devices.read(self.address, 4 * self.count)))


def platform():
    return {"sim": Simulated, "hip": Hip}.get(os.environ.get("MSCCLPP_PLATFORM"), Gpus)


def of_one_thread(path, ranks):
    """Makes and calls all ranks from this thread, and checks that its device stays the same."""
    library, comms = Library(path), (Comm * ranks)()
    library.ncclCommInitAll(comms, ranks, None)
    parts = []
    for rank in range(ranks):
        devices = platform()(library, rank)
        parts.append((devices, devices.stream(), Numbers(library, devices, [rank + 1.0] * 3000)))
    before = devices.current()
    for _ in range(2):
        library.ncclGroupStart()
        for comm, (_, stream, numbers) in zip(comms, parts):
            library.ncclAllReduce(numbers.address, numbers.address, 3000, F32, SUM, comm, stream)
        library.ncclGroupEnd()
        assert devices.current() == before
    # A group waits for all its ranks, which one call does not.
    for name, more in (("ncclCommSuspend", [1]), ("ncclCommResume", [])):
        library.ncclGroupStart()
        for comm in comms:
            getattr(library, name)(comm, *more)
        library.ncclGroupEnd()
    # The device of the last rank is the thread's: it reads the memory of all.
    for comm, (devices, stream, numbers) in zip(comms, parts):
        devices.synchronize(stream)
        assert numbers.read() == [float(sum(range(1, ranks + 1)) * ranks)] * 3000
        library.ncclCommDestroy(comm)
        numbers.free()


def communicator(library, rank, ranks, exchange):
    unique_id, comm = UniqueId(), ctypes.c_void_p()
    if rank == 0:
        library.ncclGetUniqueId(ctypes.byref(unique_id))
    ctypes.memmove(ctypes.byref(unique_id), bytes.fromhex(exchange(bytes(unique_id).hex())), 128)
    library.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id, rank)
    return comm


def an_abort_ends_the_kernels_of_others(library, devices, rank, ranks, exchange):
    """Checks that kernels that wait for rank 0 end when it aborts."""
    comm, stream = communicator(library, rank, ranks, exchange), devices.stream()
    numbers = Numbers(library, devices, [1.0] * 256)
    if rank > 0:
        library.ncclAllReduce(numbers.address, numbers.address, 256, F32, SUM, comm, stream)
        print("waiting", flush=True)
    exchange("abort")
    begun = time.monotonic()
    if rank > 0:
        try:
            devices.synchronize(stream)
        except RuntimeError:
            # Simulated devices report here that a wait failed; GPUs do not.
            pass
        state = ctypes.c_int(0)
        while state.value == 0 and time.monotonic() - begun < 30:
            library.ncclCommGetAsyncError(comm, ctypes.byref(state))
        took = time.monotonic() - begun
        assert state.value == 6, state
        # The fake of the HIP runtime has simulated devices, too.
        assert took < 5 or devices.__class__ is not Gpus, f"the kernel went on for {took:.1f} s"
    library.ncclCommAbort(comm)
    numbers.free()


def run(path, rank, ranks, exchange):
    library = Library(path)
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    assert version.value == int(os.environ.get("MSCCLPP_NCCL_VERSION", "23203")), version
    devices = platform()(library, rank)

    comm = communicator(library, rank, ranks, exchange)
    stream = devices.stream()

    def numbers(values):
        return Numbers(library, devices, values)

    def expect(got, values):
        devices.synchronize(stream)
        assert got.read() == values, (got.read()[:4], values[:4])

    total = float(sum(range(1, ranks + 1)))
    send, recv = numbers([rank + 1.0] * 256), numbers([0.0] * 256)
    library.ncclAllReduce(send.address, recv.address, 256, F32, SUM, comm, stream)
    expect(recv, [total] * 256)
    library.ncclAllReduce(send.address, recv.address, 256, F32, AVG, comm, stream)
    expect(recv, [total / ranks] * 256)
    library.ncclReduce(send.address, recv.address, 256, F32, MAX, 0, comm, stream)
    if rank == 0:
        expect(recv, [float(ranks)] * 256)
    gathered = numbers([0.0] * 256 * ranks)
    library.ncclAllGather(send.address, gathered.address, 256, F32, comm, stream)
    expect(gathered, [r + 1.0 for r in range(ranks) for _ in range(256)])
    library.ncclReduceScatter(gathered.address, recv.address, 256, F32, SUM, comm, stream)
    expect(recv, [(rank + 1.0) * ranks] * 256)
    library.ncclBroadcast(send.address, send.address, 256, F32, ranks - 1, comm, stream)
    expect(send, [float(ranks)] * 256)

    # Two calls are captured in a graph; between its replays calls run in another stream and in the default one.
    captured, other = numbers([1.0] * 256), devices.stream()

    def twice():
        for _ in range(2):
            library.ncclAllReduce(captured.address, captured.address, 256, F32, SUM, comm, stream)

    replay = devices.capture(stream, twice)
    for between in (stream, other, None, other):
        devices.write(captured.address, struct.pack("256f", *[1.0] * 256))
        replay()
        expect(captured, [float(ranks * ranks)] * 256)
        library.ncclAllReduce(captured.address, captured.address, 256, F32, SUM, comm, between)
        devices.synchronize(between)
        expect(captured, [float(ranks**3)] * 256)

    window = ctypes.c_void_p()
    library.ncclCommWindowRegister(comm, send.address, 1024, ctypes.byref(window), 1)
    library.ncclCommWindowDeregister(comm, window)

    # While the communicator is suspended, the device has its memory, if that can be given back. The graph is good again then.
    suspendable, free = ctypes.c_uint64(), devices.free_bytes()
    library.ncclCommMemStats(comm, 0, ctypes.byref(suspendable))
    library.ncclCommSuspend(comm, 1)
    print(f"{suspendable.value >> 20} MiB are given back; free: {free} bytes, then {devices.free_bytes()}", file=sys.stderr)
    if free is not None:
        assert devices.free_bytes() - free >= suspendable.value // 2
    library.ncclCommResume(comm)
    devices.write(captured.address, struct.pack("256f", *[1.0] * 256))
    replay()
    expect(captured, [float(ranks * ranks)] * 256)

    # Each rank sends to the next one and receives from the one before, in one group.
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    mine, theirs = numbers([float(rank)] * 5000), numbers([-1.0] * 5000)
    library.ncclGroupStart()
    library.ncclRecv(theirs.address, 5000, F32, before, comm, stream)
    library.ncclSend(mine.address, 5000, F32, after, comm, stream)
    library.ncclGroupEnd()
    expect(theirs, [float(before)] * 5000)

    # vLLM scatters and gathers parts of different sizes so: by a group of broadcasts, and by one of reductions.
    sizes = [100 + 10 * r for r in range(ranks)]
    starts = [sum(sizes[:r]) for r in range(ranks)]
    part, parts = numbers([float(rank)] * sizes[rank]), numbers([0.0] * sum(sizes))
    library.ncclGroupStart()
    for root in range(ranks):
        library.ncclBroadcast(part.address, parts.address + 4 * starts[root], sizes[root], F32, root, comm, stream)
    library.ncclGroupEnd()
    expect(parts, [float(r) for r in range(ranks) for _ in range(sizes[r])])
    library.ncclGroupStart()
    for root in range(ranks):
        to = part.address
        library.ncclReduce(parts.address + 4 * starts[root], to, sizes[root], F32, SUM, root, comm, stream)
    library.ncclGroupEnd()
    expect(part, [float(rank * ranks)] * sizes[rank])

    library.ncclCommDestroy(comm)
    an_abort_ends_the_kernels_of_others(library, devices, rank, ranks, exchange)
    for memory in (send, recv, gathered, captured, mine, theirs, part, parts):
        memory.free()


def main():
    path, ranks = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        rank = int(sys.argv[3])
        run(path, rank, ranks, lambda _: sys.stdin.readline().strip())
        return
    command = [sys.executable, *sys.argv]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(1, ranks)]
    try:

        def exchange(said):
            """Passes a text of rank 0 to all other ranks. If it is "abort", first waits until these have started kernels."""
            if said == "abort":
                assert all(other.stdout.readline() == "waiting\n" for other in others)
            for other in others:
                other.stdin.write(said + "\n")
                other.stdin.flush()
            return said

        run(path, 0, ranks, exchange)
        of_one_thread(path, ranks)
        codes = [other.wait(timeout=60) for other in others]
        assert not any(codes), codes
    finally:
        for other in others:
            other.kill()
    print(f"{ranks} ranks: all as expected")


if __name__ == "__main__":
    main()
