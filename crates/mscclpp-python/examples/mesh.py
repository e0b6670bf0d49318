"""A mesh of ranks, each connected with all others: every rank sends its part of an array to all, through port channels.

    MSCCLPP_PLATFORM=host python mesh.py            four ranks, on simulated devices
    python mesh.py --ranks 8                        eight ranks, on the GPUs that there are; needs CuPy
    mpirun -n 8 python mesh.py --mpi                eight ranks, a GPU each; needs mpi4py and CuPy
    torchrun --nproc-per-node 8 mesh.py --env       the same without MPI
    torchrun --nproc-per-node 8 mesh.py --torch     the ranks of a process group of torch.distributed

It is written with the older names of the API, as programs of some age are; each warns once and works.
"""

# ANCHOR: connect
import argparse
import os
import subprocess
import sys
from typing import Any, Dict

import mscclpp
import mscclpp.comm as mscclpp_comm
import numpy as np
from mscclpp import Connection, ProxyService, SimpleProxyChannel, Transport
from mscclpp.utils import GpuBuffer, KernelBuilder, pack


def create_connection(group: mscclpp_comm.CommGroup, transport: str) -> Dict[int, Connection]:
    remote_nghrs = list(range(group.nranks))
    remote_nghrs.remove(group.my_rank)
    if transport == "NVLink":
        tran = Transport.CudaIpc
    elif transport == "IB":
        tran = group.my_ib_device(group.my_rank % 8)
    else:
        assert False
    return group.make_connection(remote_nghrs, tran)
    # ANCHOR_END: connect


# ANCHOR: launch
def launch_kernel(my_rank: int, nranks: int, simple_channels: Dict[int, SimpleProxyChannel], memory: Any) -> None:
    file_dir = os.path.dirname(os.path.abspath(__file__))
    kernel = KernelBuilder(file="mesh.cu", kernel_name="simple_proxy_channel", file_dir=file_dir).get_compiled_kernel()
    first_arg = next(iter(simple_channels.values()))
    size_of_channels = len(first_arg.device_handle().raw)
    device_handles = []
    for rank in range(nranks):
        if rank == my_rank:
            device_handles.append(bytes(size_of_channels))  # there is no channel to oneself
        else:
            device_handles.append(simple_channels[rank].device_handle().raw)
    handles = np.frombuffer(b"".join(device_handles), dtype=np.uint8)
    d_channels = GpuBuffer(handles.size, dtype=np.uint8)
    d_channels.set(handles)
    kernel.launch_kernel(pack(d_channels, my_rank, nranks, memory.size), 1, 512, 0, None)
    # ANCHOR_END: launch


# ANCHOR: main
def main(group: mscclpp_comm.CommGroup) -> None:
    mscclpp.set_device(group.my_rank % group.nranks_per_node % mscclpp.device_count())
    connections = create_connection(group, "NVLink")
    nelems = 1024 // group.nranks * group.nranks
    part = nelems // group.nranks
    memory = GpuBuffer(nelems, dtype=np.int32)
    mine = np.zeros(nelems, dtype=np.int32)
    mine[part * group.my_rank : part * (group.my_rank + 1)] = group.my_rank + 1
    memory.set(mine)
    proxy_service = ProxyService()
    simple_channels = group.make_proxy_channels(proxy_service, memory, connections)
    proxy_service.start_proxy()
    group.barrier()
    launch_kernel(group.my_rank, group.nranks, simple_channels, memory)
    mscclpp.synchronize()
    group.barrier()
    proxy_service.stop_proxy()
    got = memory.get()
    assert got.tolist() == [rank + 1 for rank in range(group.nranks) for _ in range(part)], got
    print(f"rank {group.my_rank}: has the parts of all {group.nranks} ranks", flush=True)
    group.barrier()
    # ANCHOR_END: main


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mpi", action="store_true", help="the ranks are those of MPI")
    parser.add_argument("--torch", action="store_true", help="the ranks are those of torch.distributed")
    parser.add_argument("--env", action="store_true", help="the environment says which rank this is")
    parser.add_argument("--ranks", type=int, default=4, help="otherwise: how many ranks to start on this machine")
    parser.add_argument("--port", type=int, default=15505, help="otherwise: the port at which they meet")
    arguments = parser.parse_args()
    if arguments.mpi:
        from mpi4py import MPI

        main(mscclpp_comm.CommGroup(MPI.COMM_WORLD))
    elif arguments.torch:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        main(mscclpp_comm.CommGroup(torch_group=dist.group.WORLD))
        dist.destroy_process_group()
    elif arguments.env:
        main(mscclpp_comm.CommGroup.from_env())
    else:
        ranks = []
        for rank in range(arguments.ranks):
            settings = {
                "MSCCLPP_RANK": str(rank),
                "MSCCLPP_N_RANKS": str(arguments.ranks),
                "MSCCLPP_ADDRESS": f"127.0.0.1:{arguments.port}",
            }
            ranks.append(subprocess.Popen([sys.executable, __file__, "--env"], env={**os.environ, **settings}))
        sys.exit(max(abs(rank.wait(300)) for rank in ranks))
