"""Two ranks add up their arrays, once as they are, and once with what a layer of a network does next, in one launch.

    MSCCLPP_PLATFORM=sim python all_reduce.py

starts both, on simulated devices; without the variable they run on GPUs, and need CuPy. A launcher starts any number:
`torchrun --nproc-per-node 2 all_reduce.py --env`.
"""

import subprocess
import sys

import mscclpp
import numpy as np
from mscclpp import Collectives, CommGroup, GpuBuffer

# ANCHOR: epilogue
BIAS_AND_RELU = """
template <class N>
struct Epilogue {
  using Numbers = VectorNumbers<N>;  // of 16 bytes: four of float32
  const void* bias;
  struct Kept { Bytes16 numbers; };

  // For each vector of a row: first, while the other ranks' numbers are on their way,
  __device__ void prefetch(const RowVector& at, Kept& kept) const { kept.numbers = at.ofColumn(bias); }

  // then with its sums, in float32,
  __device__ void reduced(const RowVector&, const typename Numbers::Values& sums, Kept& kept) const {
    typename Numbers::Values numbers;
    Numbers::widen(kept.numbers, numbers);
    for (uint32_t i = 0; i < Numbers::Count; ++i) {
      numbers[i] += sums[i];
      if (numbers[i] < 0) numbers[i] = 0;
    }
    kept.numbers = Numbers::narrow(numbers);
  }

  // and once with the whole row.
  template <class Row, uint32_t Vectors>
  __device__ void finish(const Row& row, Kept (&kept)[Vectors]) const {
    row.each(kept, [&](const RowVector& at, const Kept& mine) { row.store(0, at, mine.numbers); });
  }
};
"""
# ANCHOR_END: epilogue


# ANCHOR: main
def main(group: CommGroup) -> None:
    mscclpp.set_device(group.my_rank % group.nranks_per_node % mscclpp.device_count())
    fused = mscclpp.fused_all_reduce(epilogue=BIAS_AND_RELU, parameters="const void* bias")
    comm = Collectives(group)
    fused.load(comm, "float32")
    group.barrier()

    rows, columns = 3, 8
    x, out = GpuBuffer((rows, columns), np.float32), GpuBuffer((rows, columns), np.float32)
    bias = GpuBuffer(columns, np.float32)
    x.set(np.full((rows, columns), group.my_rank + 1, np.float32))
    bias.set(np.arange(-columns, 0, dtype=np.float32))
    fused(comm, x, out, bias=bias)
    comm.all_reduce(x)
    comm.synchronize()

    total = group.nranks * (group.nranks + 1) / 2
    assert (x.get() == total).all()
    assert (out.get() == np.maximum(total + np.arange(-columns, 0), 0)).all()
    print(
        f"rank {group.my_rank}: the sums are {total:g}, and the largest number behind them {out.get().max():g}",
        flush=True,
    )
    group.barrier()
    # ANCHOR_END: main


if __name__ == "__main__":
    if "--env" in sys.argv:
        main(CommGroup.from_env())
    elif len(sys.argv) == 3:
        main(CommGroup(interfaceIpPortTrio=sys.argv[2], rank=int(sys.argv[1]), size=2))
    else:
        meeting = sys.argv[1] if len(sys.argv) == 2 else "127.0.0.1:15508"
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), meeting]) for rank in range(2)]
        sys.exit(max(abs(rank.wait(300)) for rank in ranks))
