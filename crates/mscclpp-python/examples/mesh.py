"""A mesh of ranks, each connected with all others: every rank sends its part of an array to all, through port channels.

    MSCCLPP_PLATFORM=sim python mesh.py            four ranks, on simulated devices
    python mesh.py --ranks 8                        eight ranks, on the GPUs that there are; needs CuPy
    mpirun -n 8 python mesh.py --mpi                eight ranks, a GPU each; needs mpi4py and CuPy
    torchrun --nproc-per-node 8 mesh.py --env       the same without MPI
    torchrun --nproc-per-node 8 mesh.py --torch     the ranks of a process group of torch.distributed

Where there are fewer devices than ranks, ranks share one.
"""

# ANCHOR: connect
import argparse
import os
import subprocess
import sys

import mscclpp
import numpy as np
from mscclpp import CommGroup, Connection, GpuBuffer, PortChannel, ProxyService, Transport
from mscclpp.utils import KernelBuilder, pack


def create_connection(group: CommGroup, transport: str) -> dict[int, Connection]:
    peers = [rank for rank in range(group.nranks) if rank != group.my_rank]
    if transport == "NVLink":
        tran = Transport.CudaIpc
    elif transport == "IB":
        tran = group.my_ib_device(group.my_rank % 8)
    else:
        assert False
    return group.make_connection(peers, tran)
    # ANCHOR_END: connect


# ANCHOR: launch
def launch_kernel(my_rank: int, nranks: int, channels: dict[int, PortChannel], memory: GpuBuffer) -> None:
    file_dir = os.path.dirname(os.path.abspath(__file__))
    kernel = KernelBuilder(file="mesh.cu", kernel_name="exchange", file_dir=file_dir).get_compiled_kernel()
    raw = {rank: channel.device_handle().raw for rank, channel in channels.items()}
    # There is no channel to oneself.
    raw[my_rank] = bytes(len(next(iter(raw.values()))))
    handles = np.frombuffer(b"".join(raw[rank] for rank in range(nranks)), dtype=np.uint8)
    d_channels = GpuBuffer(handles.size, dtype=np.uint8)
    d_channels.set(handles)
    kernel.launch_kernel(pack(d_channels, my_rank, nranks, memory.size), 1, 512, 0, None)
    # ANCHOR_END: launch


# ANCHOR: main
def main(group: CommGroup) -> None:
    mscclpp.set_device(group.my_rank % group.nranks_per_node % mscclpp.device_count())
    connections = create_connection(group, "NVLink")
    nelems = 1024 // group.nranks * group.nranks
    part = nelems // group.nranks
    memory = GpuBuffer(nelems, dtype=np.int32)
    mine = np.zeros(nelems, dtype=np.int32)
    mine[part * group.my_rank : part * (group.my_rank + 1)] = group.my_rank + 1
    memory.set(mine)
    proxy_service = ProxyService()
    channels = group.make_port_channels(proxy_service, memory, connections)
    proxy_service.start_proxy()
    group.barrier()
    launch_kernel(group.my_rank, group.nranks, channels, memory)
    mscclpp.synchronize(60.0, abort=list(channels.values()))
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

        main(CommGroup(MPI.COMM_WORLD))
    elif arguments.torch:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        main(CommGroup(torch_group=dist.group.WORLD))
        dist.destroy_process_group()
    elif arguments.env:
        main(CommGroup.from_env())
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
