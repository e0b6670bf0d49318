"""With the PyTorch that is installed: `pip install torch`, which CI does not, as it is large.

pytest tests/test_torch.py tests/test_examples.py
"""

import datetime
import os

import mscclpp
import numpy
import pytest
from mscclpp import GpuBuffer, RawGpuBuffer
from mscclpp._arrays import is_of_cuda, locate
from mscclpp.utils import is_torch_tensor, pack, torch_dtype_to_mscclpp_dtype

import ranks
from device import ON_GPU, Exported

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "float8_e4m3fn", "complex64"])
def test_tensors_are_found_whatever_they_are_of(dtype):
    tensor = torch.zeros((3, 5), dtype=getattr(torch, dtype))
    size = tensor.element_size()
    assert is_torch_tensor(tensor) and not is_of_cuda(tensor)
    assert locate(tensor) == (tensor.data_ptr(), 15 * size)
    assert locate(tensor[1:]) == (tensor.data_ptr() + 5 * size, 10 * size)
    assert locate(tensor.t()) == locate(tensor), "the same memory in another order"
    with pytest.raises(ValueError, match="'tensor'.*one piece"):
        locate(tensor[:, 1:])
    if not ON_GPU:
        with pytest.raises(ValueError, match="in the memory of the host"):
            pack(tensor)


def test_parameters_and_tensors_that_need_gradients_are_tensors():
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    assert is_torch_tensor(parameter) and locate(parameter) == (parameter.data_ptr(), 8)


def test_types_of_elements():
    for name in ("float16", "float32", "int32", "uint8", "bfloat16"):
        assert torch_dtype_to_mscclpp_dtype(getattr(torch, name)) == getattr(mscclpp.DataType, name)
    assert torch_dtype_to_mscclpp_dtype(torch.float8_e4m3fn) == mscclpp.DataType.float8_e4m3
    with pytest.raises(ValueError, match="complex64"):
        torch_dtype_to_mscclpp_dtype(torch.complex64)


def test_torch_takes_the_memory_of_buffers():
    raw = RawGpuBuffer(64)
    tensor = torch.from_dlpack(Exported(raw, "torch.bfloat16", [4, 8]))
    assert (tensor.dtype, tuple(tensor.shape), tensor.data_ptr()) == (torch.bfloat16, (4, 8), raw.data())
    tensor.fill_(1)
    assert raw.read(0, 2) == b"\x80\x3f"
    assert torch.from_dlpack(raw).tolist() == [0x80, 0x3F] * 32
    buffer = GpuBuffer(6, dtype=numpy.float32)
    view = torch.as_tensor(buffer) if ON_GPU else torch.from_numpy(buffer)
    view += 2
    assert buffer.tolist() == [2.0] * 6 and view.data_ptr() == buffer.data.ptr
    del raw, buffer
    assert tensor.sum() == 32 and view.sum() == 12, "a tensor keeps its memory"


def test_a_kernel_works_on_a_tensor():
    out = torch.from_dlpack(RawGpuBuffer(64)).view(torch.int64)
    ranks.kernel("plain.cu", "packed", EXTRA=0).launch_kernel((1, 2, mscclpp.Fifo(), out), 1, 1, 0, None)
    mscclpp.synchronize(60)
    assert out[:2].tolist() == [1, 2]


def of_process_group(rank, n, address, how):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=n)
    if how == "all":
        group, members = dist.group.WORLD, list(range(n))
    else:
        # Its ranks are counted from 0 again: its rank 0 is not rank 0 of all.
        members = [2, 3]
        group = dist.new_group(members)
    result = None
    if rank in members:
        job = mscclpp.CommGroup(torch_group=group)
        assert (job.my_rank, job.nranks) == (members.index(rank), len(members))
        peer = (job.my_rank + 1) % job.nranks
        sent, got = torch.full((3,), rank, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)
        job.send(sent, peer, 1)
        job.recv(got, (job.my_rank - 1) % job.nranks, 1)
        connections = job.make_connection([peer], mscclpp.Transport.CudaIpc) if job.nranks == 2 else {}
        if connections:
            inbox = torch.from_dlpack(RawGpuBuffer(8)).view(torch.bfloat16)
            outbox = torch.from_dlpack(RawGpuBuffer(8)).view(torch.bfloat16)
            outbox.fill_(rank + 0.5)
            memories = job.register_tensor_with_connections(inbox, connections)
            source = job.register_local_memory(outbox, connections)
            connections[peer].write(memories[peer], 0, source, 0, 8)
            connections[peer].flush()
            job.barrier()
            assert inbox.tolist() == [members[peer] + 0.5] * 4
            with pytest.raises(mscclpp.Error) as caught:
                job.register_local_memory(torch.zeros(3), connections)
            assert "GpuBuffer" in caught.value.__notes__[0]
        job.barrier()
        result = got.tolist()
    dist.barrier()
    dist.destroy_process_group()
    return result


def test_a_process_group_and_a_part_of_one():
    assert ranks.run(2, of_process_group, "all") == [[1.0] * 3, [0.0] * 3]
    assert ranks.run(4, of_process_group, "part") == [None, None, [3.0] * 3, [2.0] * 3]


def of_agent(rank, n, address, port):
    for name, value in {
        "RANK": rank,
        "WORLD_SIZE": n,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "a-test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        os.environ[name] = str(value)
    groups = [mscclpp.CommGroup.from_env() for _ in range(2)]
    assert [group.bootstrap.get_unique_id() for group in groups], "met by ids"
    for group in groups:
        group.barrier()
    return [group.my_rank for group in groups]


def test_an_id_goes_through_a_real_store():
    port = int(ranks.free_address().rpartition(":")[2])
    seconds = datetime.timedelta(seconds=30)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=seconds)
    assert ranks.run(2, of_agent, port) == [[0, 0], [1, 1]]
    assert store.check(["mscclpp/a-test/0/0", "mscclpp/a-test/0/1"])
