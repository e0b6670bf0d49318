"""The backend `mscclpp` of `torch.distributed`: import this, then `torch.distributed.init_process_group("mscclpp")`.

CUDA tensors go through this library's collectives, CPU tensors and objects through gloo.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _torch_calls as calls
from . import _torch_lists as lists
from . import _torch_options as asked
from ._torch_group import Group
from ._torch_work import OfGloo, Work


class ProcessGroup(Group):
    """Ranks of a job. `torch.distributed.init_process_group("mscclpp")` and `new_group` make it.

    With a `device_id`, the group makes its communicator at once. Without one, the first collective with CUDA tensors
    makes it, on all ranks. A message between two ranks before that makes a communicator of these two.
    """

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Reduce a tensor of all ranks, in place."""
        opts = asked.options(c10d.AllreduceOptions, opts, more, named)
        tensor = calls.single("allreduce", tensors)
        if self._is_gloos(tensor):
            return self._gloo("allreduce", [tensor], asked.coalesced([tensor], opts))
        return self._run_one("all_reduce", tensor, tensor, opts, asked.op(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors of all ranks, in place."""
        tensors = calls.as_list(tensors)
        if not tensors:
            return OfGloo([])
        if self._is_gloos(tensors[0]):
            return self._gloo(
                "allreduce_coalesced" if len(tensors) > 1 else "allreduce", tensors, asked.coalesced(tensors, opts)
            )
        return self._run(tensors[0], lambda: calls.several("all_reduce", tensors, tensors, 1, asked.op(opts)), opts)

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Give all ranks the tensor of one."""
        opts = asked.options(c10d.BroadcastOptions, opts, more, named)
        tensor = calls.single("broadcast", tensors)
        if self._is_gloos(tensor):
            return self._gloo("broadcast", [tensor], opts)
        return self._run_one("broadcast", tensor, tensor, opts, root=asked.root(opts))

    def reduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Reduce a tensor of all ranks, on one of them."""
        opts = asked.options(c10d.ReduceOptions, opts, more, named)
        tensor = calls.single("reduce", tensors)
        if self._is_gloos(tensor):
            return self._gloo("reduce", [tensor], opts)
        return self._run_one("reduce", tensor, tensor, opts, asked.op(opts), asked.root(opts))

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Give all ranks the tensors of all, which may be of different sizes."""
        opts = asked.options(c10d.AllgatherOptions, opts, more, named)
        taken, given = calls.single_list("allgather", output_tensors), calls.single("allgather", input_tensors)
        if self._is_gloos(given):
            return self._gloo("allgather", [taken], [given], opts)
        return self._run(given, lambda: [lists.into_list("all_gather", given, taken, self._rank, self._size)], opts)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """`allgather` of several tensors."""
        if self._is_gloos(input_list[0]):
            return self._gloo("allgather_coalesced", output_lists, input_list, opts)
        # Each list of the outputs holds what one rank sends.
        pairs = zip(input_list, zip(*output_lists, strict=True), strict=True)
        return self._run(
            input_list[0],
            lambda: [lists.into_list("all_gather", *pair, self._rank, self._size) for pair in pairs],
            opts,
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Give all ranks the tensors of all, one after the other in one tensor."""
        if self._is_gloos(input):
            return self._gloo(("all_gather_single", "_allgather_base"), output, input, opts)
        return self._run_one("all_gather", input, output, opts, parts=(1, self._size))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of several tensors."""
        if self._is_gloos(inputs[0]):
            return self._each_by_gloo(("all_gather_single", "_allgather_base"), outputs, inputs, opts)
        return self._run(inputs[0], lambda: calls.several("all_gather", inputs, outputs, self._size), opts)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any, **named: Any
    ) -> Any:
        """Reduce a list with a tensor for each rank; each rank gets its own."""
        opts = asked.options(c10d.ReduceScatterOptions, opts, more, named)
        taken, given = (
            calls.single("reduce_scatter", output_tensors),
            calls.single_list("reduce_scatter", input_tensors),
        )
        if self._is_gloos(taken):
            return self._gloo("reduce_scatter", [taken], [given], opts)
        op = asked.op(opts)
        if any(part.numel() != taken.numel() for part in given):
            # On a rank that does not take the result, the input stands in for the output.
            ends = [(root, part, taken if root == self._rank else part) for root, part in enumerate(given)]
            return self._run(
                taken,
                lambda: [calls.reducing("reduce", part, end, op, self._size, root) for root, part, end in ends],
                opts,
            )
        return self._run(
            taken,
            lambda: [lists.of_list("reduce_scatter", given, taken, self._rank, self._size, op)],
            opts,
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduce a tensor of all ranks, and give each rank its part."""
        if self._is_gloos(input):
            return self._gloo(("reduce_scatter_single", "_reduce_scatter_base"), output, input, opts)
        return self._run_one("reduce_scatter", input, output, opts, asked.op(opts), parts=(self._size, 1))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of several tensors."""
        if self._is_gloos(inputs[0]):
            return self._each_by_gloo(("reduce_scatter_single", "_reduce_scatter_base"), outputs, inputs, opts)
        return self._run(
            inputs[0], lambda: calls.several("reduce_scatter", inputs, outputs, self._size, asked.op(opts)), opts
        )

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Give one rank the tensors of all."""
        opts = asked.options(c10d.GatherOptions, opts, more, named)
        given = calls.single("gather", input_tensors)
        if self._is_gloos(given):
            return self._gloo("gather", output_tensors, [given], opts)
        root = asked.root(opts)
        taken = calls.single_list("gather", output_tensors) if self._rank == root else []
        return self._run(given, lambda: [lists.into_list("gather", given, taken, self._rank, self._size, root)], opts)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Give one rank the tensors of all, one after the other in one tensor."""
        if self._is_gloos(input):
            return self._gloo(("gather_single", "gather_into_tensor"), output, input, opts)
        root = asked.root(opts)
        return self._run(
            input,
            lambda: [calls.moving("gather", input, output if self._rank == root else input, self._size, root)],
            opts,
        )

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Give each rank its tensor of one rank's list."""
        opts = asked.options(c10d.ScatterOptions, opts, more, named)
        taken = calls.single("scatter", output_tensors)
        if self._is_gloos(taken):
            return self._gloo("scatter", [taken], input_tensors, opts)
        root = asked.root(opts)
        given = calls.single_list("scatter", input_tensors) if self._rank == root else []
        return self._run(
            taken, lambda: [lists.of_list("scatter", given, taken, self._rank, self._size, root=root)], opts
        )

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **named: Any) -> Any:
        """Send each rank its tensor of the list, and receive one from each."""
        opts = asked.options(c10d.AllToAllOptions, opts, (), named)
        taken, given = list(output_tensors), list(input_tensors)
        if self._is_gloos(taken[0]):
            return self._gloo("alltoall", taken, given, opts)
        return self._run(taken[0], lambda: [lists.between(given, taken, self._rank, self._size)], opts)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = (),
        input_split_sizes: Any = (),
        opts: Any = None,
        **named: Any,
    ) -> Any:
        """Send each rank its part of a tensor, along the first dimension, and receive a part from each."""
        opts = asked.options(c10d.AllToAllOptions, opts, (), named)
        taken, given = list(output_split_sizes or ()), list(input_split_sizes or ())
        if self._is_gloos(input):
            names = ("all_to_all_single", "alltoall_base")
            return self._gloo(names, output, input, taken, given, opts)
        return self._run(input, lambda: [lists.with_splits(input, output, given, taken, self._size)], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send a tensor to a rank, which receives a tensor of the same length. Only gloo looks at tags."""
        return self._message("send", calls.single("send", tensors), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank."""
        return self._message("recv", calls.single("recv", tensors), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a CPU tensor from any rank."""
        tensor = calls.single("recv", tensors)
        if self._is_gloos(tensor):
            return self._gloo("recv_anysource", [tensor], tag)
        raise ValueError("recv: the backend mscclpp receives CUDA tensors of a rank that is given")

    def barrier(self, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Block the host until all ranks have called it, and their collectives with CUDA tensors are complete."""
        opts = asked.options(c10d.BarrierOptions, opts, more, named)
        return self._barrier(opts)


def _create(opts: Any, _backend_options: Any) -> ProcessGroup:
    """Makes a group of this backend. Torch calls it."""
    group = getattr(opts, "process_group", None)
    device = getattr(group, "bound_device_id", None)
    return ProcessGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout, device, opts.group_id)


def _end_coalescing_by_errors() -> None:
    """Makes `_coalescing_manager` of torch stop gathering when an error ends its block.

    Otherwise later calls would be gathered and never made, without an error. Programs may have imported the manager
    before this module. So the function that it calls is wrapped, in the closure that `contextmanager` made.
    """
    (cell,) = c10d._coalescing_manager.__closure__
    manage = cell.cell_contents

    def managed(group: Any = None, *args: Any, **named: Any) -> Any:
        try:
            yield from manage(group, *args, **named)
        except BaseException:
            group = group or c10d._get_default_group()
            if isinstance(group, ProcessGroup):
                c10d._world.pg_coalesce_state.pop(group, None)
                group._drop_coalesced()
            raise

    cell.cell_contents = managed


def _split_from_no_group_of_python() -> None:
    """Keeps `new_group` of torch from splitting a group of this backend.

    With a `device_id` torch would split the group of all ranks, and pass it on in options that take groups of C++
    only.
    """
    source_of = getattr(c10d, "_get_split_source", None)
    if source_of is None:
        return

    def source(*args: Any, **named: Any) -> Any:
        found = source_of(*args, **named)
        return None if isinstance(found, ProcessGroup) else found

    c10d._get_split_source = source


def _find_tensors_of_lists_at_once() -> None:
    """Makes torch find the tensors of a future without pickling its value, if that is a list of tensors.

    Futures of collectives have such values, and DDP looks for the tensors of each twice.
    """
    of_any = getattr(torch._jit_internal, "_extract_tensors", None)
    if of_any is None:
        return

    def extract(value: Any) -> Any:
        if type(value) is list and all(type(each) is torch.Tensor for each in value):
            return value
        return of_any(value)

    torch._jit_internal._extract_tensors = extract


if not hasattr(dist.Backend, "MSCCLPP"):
    _end_coalescing_by_errors()
    _split_from_no_group_of_python()
    _find_tensors_of_lists_at_once()
    dist.Backend.register_backend("mscclpp", _create, extended_api=True, devices=["cpu", "cuda"])

__all__ = ["ProcessGroup", "Work"]
