"""Tests for GPUs only: streams, libraries with memory of their own, the compiler nvcc."""

import concurrent.futures
import ctypes
import datetime
import shutil
import subprocess
import time

import mscclpp
import numpy
import pytest
from mscclpp.utils import Kernel, KernelBuilder, _find_nvcc, get_device_arch, pack

import ranks
from device import arrays, gpu_only, let_go

pytestmark = gpu_only


def streams():
    torch = pytest.importorskip("torch")
    of_cupy, of_torch = arrays.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    return [(of_cupy, of_cupy), (of_torch, of_torch), (of_cupy.ptr, of_cupy)]


def test_kernels_run_on_streams_of_other_libraries():
    """The launch waits for its own stream, and not for others."""
    kernel, out = ranks.kernel("plain.cu", "write_later", EXTRA=0), mscclpp.GpuBuffer(100, dtype=numpy.int32)
    for given, stream in streams():
        stop = mscclpp.RawGpuBuffer(4)
        out.fill(0)
        mscclpp.synchronize(60)
        kernel.launch_kernel((stop, out, 100), 1, 1, 0, given)
        mscclpp.synchronize(60)  # of the default stream
        side = arrays.cuda.Stream(non_blocking=True)
        assert out.get(stream=side).sum() == 0
        let_go(stop)
        stream.synchronize()
        assert out.get(stream=side).tolist() == list(range(100))


def of_other_libraries(rank, n, address, kind):
    """Memory that another library has allocated, as both ends of a put by the host and by a kernel."""
    group, peer = ranks.group(rank, n, address), 1 - rank
    if kind == "torch":
        import torch

        torch.cuda.set_device(rank % torch.cuda.device_count())
        tensor = torch.full((1000,), rank + 1, dtype=torch.bfloat16, device="cuda")
        parts = tensor.view(torch.uint8).chunk(2)
        torch.cuda.synchronize()
    else:
        tensor = arrays.full(1000, rank + 1, dtype=numpy.float16)
        parts = [tensor[:500], tensor[500:]]
        arrays.cuda.runtime.deviceSynchronize()
    connections = group.make_connection([peer], mscclpp.Transport.CudaIpc)
    memories = group.register_tensor_with_connections(parts[0], connections)
    source = group.register_local_memory(parts[1], connections)
    group.barrier()
    connections[peer].write(memories[peer], 0, source, 0, 1000)
    connections[peer].flush()
    group.barrier()
    got = set(tensor.tolist())
    channel = group.make_memory_channels(tensor, connections)[peer]
    outcome = mscclpp.GpuBuffer(1, dtype=numpy.int32)
    kernel = ranks.kernel("memory_channel.cu", "meet")
    base = mscclpp.BaseMemoryChannel(group.communicator, connections[peer])
    kernel.launch_kernel((base, outcome), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert int(outcome[0]) == 1 and channel.device_handle().dst_ != 0
    with pytest.raises(mscclpp.Error) as caught:
        group.register_local_memory(numpy.zeros(3), connections)
    assert "GpuBuffer" in caught.value.__notes__[0]
    group.barrier()
    return got


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_memory_of_other_libraries(kind):
    if kind == "torch":
        pytest.importorskip("torch")
    assert ranks.run(2, of_other_libraries, kind) == [{1, 2}] * 2


def test_what_was_compiled_is_kept(tmp_path, monkeypatch):
    if _find_nvcc() is None:
        pytest.skip("there is no nvcc")
    for name in ("plain.cu", "plain.hpp"):
        shutil.copy(f"{ranks.KERNELS}/{name}", tmp_path)
    ran = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: ran.append(args) or run(*args, **kwargs))

    def shown():
        kernel = KernelBuilder("plain.cu", "show", str(tmp_path), {"EXTRA": 3}).get_compiled_kernel()
        out = mscclpp.GpuBuffer(8, dtype=numpy.uint64)
        args = (0, 0, mscclpp.Fifo(), out, 0, ctypes.c_double(0), ctypes.c_float(0), False)
        kernel.launch_kernel(args, 1, 1, 0, None)
        mscclpp.synchronize(60)
        return int(out[7])

    assert (shown(), shown(), len(ran)) == (1003, 1003, 1)
    (tmp_path / "plain.hpp").write_text('#include "sub/number.hpp"\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "number.hpp").write_text('#include "beside.hpp"\n')
    (tmp_path / "sub" / "beside.hpp").write_text("#define OF_HEADER 2000\n")
    assert (shown(), shown(), len(ran)) == (2003, 2003, 2)
    (tmp_path / "sub" / "beside.hpp").write_text("#define OF_HEADER 4000\n")
    assert (shown(), shown(), len(ran)) == (4003, 4003, 3)


def test_a_kernel_in_the_cache_needs_no_nvcc(monkeypatch):
    if _find_nvcc() is None:
        pytest.skip("there is no nvcc")

    def load():
        return KernelBuilder("plain.cu", "indices", ranks.KERNELS, {"EXTRA": 7}).get_compiled_kernel()

    load()
    # There is no other compiler either: with its name there is an error if it is looked for.
    monkeypatch.setattr(mscclpp.utils, "_find_nvcc", lambda: pytest.fail("nvcc was looked for"))
    assert load()


def test_a_kernel_with_much_shared_memory_puts(tmp_path):
    """The kernel has more shared memory than the 24 KiB that bulk puts leave."""
    (tmp_path / "much.cu").write_text("""
        #include <mscclpp/port_channel_device.hpp>
        extern "C" __global__ void much(int* out, mscclpp::PortChannelDeviceHandle* channel) {
          __shared__ int own[10 * 1024];
          for (int i = threadIdx.x; i < 10 * 1024; i += blockDim.x) own[i] = i;
          __syncthreads();
          if (threadIdx.x == 0) *out = own[10 * 1024 - 1];
          if (channel != nullptr) channel->put(0, 0, 4096);
        }
    """)
    kernel = KernelBuilder("much.cu", "much", str(tmp_path)).get_compiled_kernel()
    out = mscclpp.GpuBuffer(1, dtype=numpy.int32)
    kernel.launch_kernel((out, 0), 1, 32, 0, None)
    mscclpp.synchronize(60)
    assert out.get().tolist() == [10 * 1024 - 1]


def set_up(group, rank, peer):
    """Everything that a program has before its first kernel, and one use of it."""
    buffer = mscclpp.RawGpuBuffer(64)
    connections = group.make_connection([peer], mscclpp.Transport.CudaIpc)
    memories = group.register_tensor_with_connections(buffer, connections)
    own = group.register_local_memory(buffer, connections)
    semaphores = group.make_semaphores(connections)
    proxy = mscclpp.ProxyService()
    channels = [
        group.make_memory_channels(buffer, connections),
        group.make_port_channels(proxy, buffer, connections),
        KernelBuilder("plain.cu", "indices", ranks.KERNELS, {"EXTRA": 1}).get_compiled_kernel(),
    ]
    proxy.start_proxy()
    connections[peer].write(memories[peer], 0, own, 32, 32)
    connections[peer].flush()
    group.barrier()
    proxy.stop_proxy()
    return [buffer, connections, memories, own, semaphores, proxy, channels]


def within_a_capture(rank, n, address, library, where):
    group, peer, runtime = ranks.group(rank, n, address), 1 - rank, arrays.cuda.runtime

    def work():
        if where == "this thread":
            return set_up(group, rank, peer)
        device = rank % mscclpp.device_count()
        with concurrent.futures.ThreadPoolExecutor(1, initializer=mscclpp.set_device, initargs=(device,)) as other:
            return other.submit(set_up, group, rank, peer).result(60)

    if library == "torch":
        import torch

        torch.cuda.set_device(rank % torch.cuda.device_count())
        array, graph = torch.zeros(4, dtype=torch.int32, device="cuda"), torch.cuda.CUDAGraph()
        array += 0
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            array += 3
            made = work()
        graph.replay()
        torch.cuda.synchronize()
    else:
        array, stream = arrays.zeros(4, dtype=numpy.int32), arrays.cuda.Stream(non_blocking=True)
        with stream:
            array += 0
            runtime.deviceSynchronize()
            # PyTorch does the same.
            stream.begin_capture(runtime.streamCaptureModeGlobal)
            array += 3
            made = work()
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
    group.barrier()
    return len(made), array.tolist()


@pytest.mark.parametrize("where", ["this thread", "another thread"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_everything_is_set_up_while_a_stream_captures(library, where):
    if library == "torch":
        pytest.importorskip("torch")
    assert ranks.run(2, within_a_capture, library, where) == [(7, [3] * 4)] * 2


@pytest.mark.parametrize("form", ["ptx", "cubin", "fatbin"])
def test_compiled_code_is_taken(form, tmp_path):
    nvcc = _find_nvcc()
    if nvcc is None:
        pytest.skip("there is no nvcc")
    file = tmp_path / "code"
    command = [
        nvcc,
        f"-{form}",
        f"-arch={get_device_arch()}",
        f"-I{mscclpp.get_include()}",
        f"{ranks.KERNELS}/plain.cu",
    ]
    subprocess.run([*command, "-o", file], check=True)
    code, out = file.read_bytes(), mscclpp.GpuBuffer(8, dtype=numpy.uint64)
    kernel = Kernel(code, "packed")
    kernel.launch_kernel(pack(1, 2, mscclpp.Fifo().device_handle().raw, out), 1, 1, 0, None)
    mscclpp.synchronize(60)
    kernel.launch_kernel((3, 4, mscclpp.Fifo(), out), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out[:2].tolist() == [3, 4]
    with pytest.raises(mscclpp.Error, match="missing"):
        Kernel(code, "missing")
    if form != "ptx":
        with pytest.raises(mscclpp.Error, match="the code of packed cannot be loaded"):
            Kernel(code[: len(code) // 2], "packed")


def test_without_nvcc_there_is_nvrtc(monkeypatch):
    monkeypatch.setattr(mscclpp.utils, "_find_nvcc", lambda: None)
    out = mscclpp.GpuBuffer(4 * 6, dtype=numpy.int32)
    kernel = KernelBuilder("plain.cu", "indices", ranks.KERNELS, {"EXTRA": 5}).get_compiled_kernel()
    kernel.launch_kernel((out,), (2, 2), (3, 2), 4 * 6, None)
    mscclpp.synchronize(60)
    assert out.tolist() == [100 * block + thread for block in range(4) for thread in range(6)]


def of_nccl(rank, n, address):
    """A process group that has only NCCL."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://{address}", rank=rank, world_size=n)
    groups = [mscclpp.CommGroup(torch_group=group) for group in (dist.group.WORLD, dist.new_group([1, 0]))]
    for group in groups:
        group.barrier()
    got = [(group.my_rank, group.nranks) for group in groups]
    dist.destroy_process_group()
    return got


def test_a_process_group_of_nccl():
    pytest.importorskip("torch")
    if mscclpp.device_count() < 2:
        pytest.skip("NCCL wants a GPU for each rank")
    assert ranks.run(2, of_nccl) == [[(0, 2), (0, 2)], [(1, 2), (1, 2)]]


def refusals(rank, n, address):
    """One rank, then every rank, refuses a gather and a scatter. It fails on all ranks, and the next call works."""
    import mscclpp.torch  # noqa: F401
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("mscclpp", init_method=f"tcp://{address}", rank=rank, world_size=n)
    x = torch.arange(6.0, device="cuda")
    turned, parts = x.reshape(2, 3).t(), [torch.empty(6, device="cuda") for _ in range(n)]
    for alone in (True, False):
        given = turned if not alone or rank == n - 1 else x
        for begin in (
            lambda g=given: dist.gather(g, parts if rank == 0 else None, 0, async_op=True),
            lambda g=given: dist.scatter(g, parts if rank == 0 else None, 0, async_op=True),
        ):
            begun = time.monotonic()
            with pytest.raises(ValueError, match="Tensors must be contiguous"):
                begin().wait(datetime.timedelta(seconds=60))
            assert time.monotonic() - begun < 30
            dist.all_reduce(total := torch.full((1000,), float(rank), device="cuda"))
            assert bool((total == n * (n - 1) / 2).all())
    dist.destroy_process_group()


def test_what_one_rank_refuses_fails_on_all():
    pytest.importorskip("torch")
    n = min(mscclpp.device_count(), 4)
    if n < 2:
        pytest.skip("torch wants a GPU for each rank")
    ranks.run(n, refusals)


def test_memory_that_was_dropped_is_freed():
    mscclpp.synchronize(60)
    free = arrays.cuda.runtime.memGetInfo()[0]
    for _ in range(200):
        mscclpp.RawGpuBuffer(1 << 30)
    assert free - arrays.cuda.runtime.memGetInfo()[0] < 8 << 30
