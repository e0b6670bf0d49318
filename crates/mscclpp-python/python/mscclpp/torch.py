"""The backend `mscclpp` of `torch.distributed`: import this, then `torch.distributed.init_process_group("mscclpp")`.

CUDA tensors go through this library's collectives, CPU tensors and objects through gloo.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _meeting
from . import _torch_calls as calls
from . import _torch_lists as lists
from . import _torch_options as asked
from ._collectives import Collectives
from ._mscclpp import Communicator, TcpBootstrap, _log_meeting, device_count
from ._torch_calls import Call
from ._torch_messages import Messages, PutOff
from ._torch_work import _BARRIER, IN_CURRENT, Lane, OfGloo, Work

#: Whether CPU tensors go through collectives on simulated devices, for tests on machines without GPUs.
_ON_SIMULATED = os.environ.get("MSCCLPP_TORCH_SIMULATED") == "1"
#: The number of groups whose calls run on a device at the same time. If more groups call at once, their calls may
#: wait for each other for ever.
_CALLS_AT_ONCE = os.environ.get("MSCCLPP_TORCH_CALLS_AT_ONCE", "4")
if not (_CALLS_AT_ONCE.isdecimal() and 1 <= int(_CALLS_AT_ONCE) <= 32):
    raise ValueError(f"MSCCLPP_TORCH_CALLS_AT_ONCE is {_CALLS_AT_ONCE!r}; give a number from 1 to 32")


class _Coalescing(threading.local):
    """The calls of a thread since `_start_coalescing`. None outside of that."""

    calls: list[Call] | None = None
    by_gloo: list[Any] = []


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Ranks of a job. `torch.distributed.init_process_group("mscclpp")` and `new_group` make it.

    With a `device_id`, the group makes its communicator at once. Without one, the first collective with CUDA tensors
    makes it, on all ranks. A message between two ranks before that makes a communicator of these two.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, device: torch.device | None = None, name: str = ""
    ) -> None:
        # Older versions of torch have this form only for a group that Python derives.
        super().__init__(rank, size)
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._ranks = tuple(range(size))
        self._described = f"rank {rank} of {size}" + (f" of group {name}" if name else "")
        self._lanes: dict[str, Lane] = {}
        #: For each registered pool, by its id, the addresses and sizes of the memory that it had when it was registered.
        self._pools: dict[Any, list[tuple[int, int]]] = {}
        self._coalescing = _Coalescing()
        self._messages = Messages(self._make_messages, self._give_up)
        self._n_splits = 0
        #: The number of communicators that a refused call has ended.
        self._n_refused = 0
        #: The reason why there is no communicator any more.
        self._ended = ""
        #: The job of a communicator that is being made.
        self._forming: TcpBootstrap | None = None
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        # Calls of gloo go through a group of torch, which has all names that this version of torch has for them.
        self._of_cpu = dist.ProcessGroup(store, rank, size)
        for group in (self._of_cpu, self):
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        if not _ON_SIMULATED:
            _log_meeting(
                f"{self._described} of torch.distributed: CUDA tensors go through mscclpp, CPU tensors through gloo"
            )
        if device is not None and device.type == "cuda":
            self.eager_connect_single_device(device)

    # Collectives, by all names that versions of torch have for them.

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Reduce a tensor of all ranks, in place."""
        opts = asked.options(c10d.AllreduceOptions, opts, more, named)
        tensor = calls.single("allreduce", tensors)
        if self._is_gloos(tensor):
            return self._gloo("allreduce", [tensor], asked.coalesced([tensor], opts))
        return self._run(tensor, lambda: [calls.reducing("all_reduce", tensor, tensor, asked.op(opts), 1)], opts)

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
        return self._run(
            tensor, lambda: [calls.moving("broadcast", tensor, tensor, self._size, asked.root(opts))], opts
        )

    def reduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
        """Reduce a tensor of all ranks, on one of them."""
        opts = asked.options(c10d.ReduceOptions, opts, more, named)
        tensor = calls.single("reduce", tensors)
        if self._is_gloos(tensor):
            return self._gloo("reduce", [tensor], opts)
        op = asked.op(opts)
        return self._run(
            tensor, lambda: [calls.reducing("reduce", tensor, tensor, op, self._size, asked.root(opts))], opts
        )

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
        return self.all_gather_single_coalesced([output], [input], opts)

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
        return self.reduce_scatter_single_coalesced([output], [input], opts)

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
        if self._ended:
            raise RuntimeError(self._ended)
        # Messages are made first, because they may make the communicator.
        self._messages.make()
        if "all" not in self._lanes and not _ON_SIMULATED:
            return self._gloo("barrier", opts)
        call = Call("barrier", [], [], [_BARRIER])
        lane = self._lane(torch.device("cpu") if _ON_SIMULATED else self._lanes["all"].device)
        lane.number += 1
        return lane.run([call], asked.seconds(opts), blocks=True)

    # Other methods that torch calls.

    supports_splitting = supports_coalescing = True
    supports_time_estimate = supports_shrinking = supports_reconfigure = supports_window = False
    #: The options that `torch.distributed.split_group` copies for new groups.
    options = None

    def _get_backend(self, device: Any) -> ProcessGroup:
        return self

    get_backend = _get_backend

    def getBackendName(self) -> str:
        """The name of the backend, which torch asks for."""
        return "mscclpp"

    def name(self) -> str:
        """The name of the backend."""
        return "mscclpp"

    def get_group_store(self) -> Any:
        """The store through which the ranks meet."""
        return self._store

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Whether the backend has an allocator of its own. It does not."""
        return False

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Let the other ranks write straight into the memory that a `torch.cuda.MemPool` has now, in large calls that move
        data and do not reduce, and in large all-reduces among more than two ranks. It concerns this rank alone, and
        does not wait. `symm` changes nothing.
        """
        segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
        self._pools[pool.id] = segments
        for lane in self._lanes.values():
            lane.publish(pool.id, segments)

    def deregister_mem_pool(self, pool: Any) -> None:
        """Take back what `register_mem_pool` did: peers write straight into the memory of the pool no more."""
        if self._pools.pop(pool.id, None) is None:
            raise ValueError(f"{self._described}: memory pool {pool.id} is not registered")
        for lane in self._lanes.values():
            lane.withdraw(pool.id)

    def eager_connect_single_device(self, device: Any) -> None:
        """Make the communicator now."""
        self.bound_device_id = torch.device(device)
        self._lane(self.bound_device_id)

    def perform_nocolor_split(self, device: Any) -> None:
        """Do nothing: only the ranks of a group take part in making it."""

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing.calls, self._coalescing.by_gloo = [], []

    def _end_coalescing(self, device: Any) -> Any:
        gathered, by_gloo = self._coalescing.calls or [], self._coalescing.by_gloo
        self._drop_coalesced()
        works = []
        if gathered:
            are_messages = all(call.name in ("send", "recv") for call in gathered)
            works = [self._run(gathered[0].tensors[0], lambda: gathered, None, are_messages)]
        return works[0] if works and not by_gloo else OfGloo([*by_gloo, *works])

    def _drop_coalesced(self) -> None:
        self._coalescing.calls, self._coalescing.by_gloo = None, []

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time after which calls are given up."""
        self._timeout = timeout
        self._of_cpu._get_backend(torch.device("cpu"))._set_default_timeout(timeout)
        for lane in self._lanes.values():
            lane.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Make a group of some ranks. All ranks call it; those that are not in it get None."""
        self._messages.make()
        self._n_splits += 1
        if self._rank not in ranks:
            return None
        name = group_name or f"split {self._n_splits}"
        store = dist.PrefixStore(f"split/{self._n_splits}/{'-'.join(map(str, ranks))}", self._store)
        device = self.bound_device_id
        part = ProcessGroup(store, list(ranks).index(self._rank), len(ranks), timeout or self._timeout, device, name)
        part._set_group_name(name)
        part._set_group_desc(group_desc or "undefined")
        return part

    def abort(self) -> None:
        """End the waits of all calls, here and on the other ranks, and let go of the communicators."""
        reason = f"{self._described}: the program aborted the group"
        # Another thread may be making a communicator, and holds the lock of the messages until it is done.
        self._give_up(reason)
        for lane in list(self._lanes.values()):
            lane.abort(reason)
        if hasattr(self._of_cpu, "abort"):
            self._of_cpu.abort()
        self._messages.drop(reason)
        self._lanes.clear()

    def _give_up(self, reason: str) -> None:
        """Ends the making of a communicator, and refuses to make others."""
        self._ended = reason
        if self._forming is not None:
            self._forming.abort(reason)

    def shutdown(self) -> None:
        """Close the communicators, when their calls are complete."""
        self._messages.make()
        self._ended = f"{self._described}: the group was shut down"
        lanes, self._lanes = self._lanes, {}
        errors = []
        for lane in lanes.values():
            try:
                lane.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # Steps of the methods above.

    def _message(self, kind: str, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        if self._is_gloos(tensor):
            return self._gloo(kind, [tensor], peer, tag)
        message = calls.message(kind, tensor, peer)
        if self._coalescing.calls is not None:
            return self._run(tensor, lambda: [message], None, are_messages=True)
        if "all" in self._lanes and not self._messages.are_any and _is_awaited():
            return self._lane_of(tensor, self._ranks).run([message], in_current=True) or IN_CURRENT
        return self._messages.put_off(message, peer)

    def _make_messages(self, messages: list[PutOff]) -> None:
        if "all" in self._lanes:
            for message in messages:
                lane = self._lane_of(message.tensor, self._ranks)
            return _make_together(lane, [message.call for message in messages], messages)
        by_ranks: dict[tuple[int, ...], list[PutOff]] = {}
        # All ranks may not come here, so the two ranks of a message make a communicator of their own.
        for message in messages:
            by_ranks.setdefault(tuple(sorted({self._rank, message.peer})), []).append(message)
        # All ranks use the same order, since each waits for the peer to make the communicator.
        for ranks, some in sorted(by_ranks.items()):
            for message in some:
                lane = self._lane(message.tensor.device, ranks)
            _make_together(lane, [calls.message(m.call.name, m.tensor, ranks.index(m.peer)) for m in some], some)

    def _is_gloos(self, tensor: torch.Tensor) -> bool:
        if tensor.is_cuda or (_ON_SIMULATED and tensor.device.type == "cpu"):
            return False
        if tensor.device.type != "cpu":
            raise ValueError(f"the backend mscclpp takes tensors of CUDA and of the CPU, not of {tensor.device}")
        return True

    def _gloo(self, names: str | tuple[str, ...], *args: Any) -> Any:
        """Makes a call of gloo, under the name that this version of torch has. Options are passed on if there are
        any.
        """
        self._messages.make()
        names = (names,) if isinstance(names, str) else names
        call = next(getattr(self._of_cpu, name) for name in names if hasattr(self._of_cpu, name))
        work = call(*args[:-1]) if args and args[-1] is None else call(*args)
        if self._coalescing.calls is not None:
            self._coalescing.by_gloo.append(work)
        return work

    def _each_by_gloo(self, names: tuple[str, ...], outputs: Any, inputs: Any, opts: Any) -> Any:
        works = [self._gloo(names, output, input, opts) for output, input in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else OfGloo(works)

    def _run(self, tensor: torch.Tensor, make: Callable[[], list[Call]], opts: Any, are_messages: bool = False) -> Any:
        """Makes calls, or adds them to those that `_end_coalescing` makes. `tensor` is on their device."""
        if self._messages.are_any:
            self._messages.make()
        try:
            made = make()
            if self._coalescing.calls is not None:
                self._coalescing.calls += made
                return None
            if len(made) > 1:
                calls.expect_one_device(made[0].name, [call.tensors[0] for call in made])
        except Exception as error:
            if are_messages:
                raise
            # The error ends a coalescing, so all its calls are refused.
            self._lane(tensor.device).refuse_next(error)
        lane = self._lane_of(tensor, self._ranks if are_messages else None)
        if not are_messages:
            lane.number += 1
        # Newer versions of torch say whether the program waits at once.
        return lane.run(made, asked.seconds(opts), in_current=not getattr(opts, "asyncOp", True))

    def _lane_of(self, tensor: torch.Tensor, ranks: Sequence[int] | None = None) -> Lane:
        """Returns the communicator of all ranks for a tensor, as `_lane` does."""
        lane = self._lanes.get("all")
        if lane is None or lane.index != tensor.get_device():
            lane = self._lane(tensor.device, ranks)
        return lane

    def _lane(self, device: torch.device, ranks: Sequence[int] | None = None) -> Lane:
        """Returns the communicator of all ranks, or of some. The first call makes it, and blocks until all of its
        ranks call.
        """
        key = "all" if ranks is None or len(ranks) == self._size else "-".join(map(str, ranks))
        lane = self._lanes.get(key)
        if lane is None:
            if self._ended:
                raise RuntimeError(self._ended)
            lane = self._make_lane(device, key, ranks or self._ranks)
            if self._ended:
                lane.abort(self._ended)
                raise RuntimeError(self._ended)
            self._lanes[key] = lane
            for pool, segments in self._pools.items():
                lane.publish(pool, segments)
        if lane.stream is not None and device.index not in (None, lane.index):
            error = ValueError(
                f"{self._described} uses {lane.device}, not {device}: a group has one device for each rank"
            )
            if ranks is None:
                lane.refuse_next(error)
            raise error
        return lane

    def _forget(self, lane: Lane) -> None:
        """Drops a communicator that a refused call has ended. The next call makes another one."""
        if self._lanes.get("all") is lane:
            del self._lanes["all"]
            self._n_refused += 1
            # The program is being told about the error.
            with contextlib.suppress(Exception):
                lane.close()

    def _make_lane(self, device: torch.device, key: str, ranks: Sequence[int]) -> Lane:
        rank, seconds = ranks.index(self._rank), self._timeout.total_seconds()
        if _ON_SIMULATED:
            index = self._rank % device_count()
        else:
            index = torch.cuda.current_device() if device.index is None else device.index
        store = dist.PrefixStore(f"mscclpp/{key}/{self._n_refused}", self._store)
        self._forming = bootstrap = TcpBootstrap.create(rank, len(ranks))
        deadline = time.monotonic() + seconds

        def check() -> None:
            if self._ended:
                raise RuntimeError(self._ended)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._described}: rank {ranks[0]} has not begun to connect after {seconds:g} s")

        try:
            # An abort that came before this call must not be lost.
            check()
            bootstrap.initialize(_meeting._through_store(store, "id", rank, check), seconds)
            # The matrix multiplications of a backward pass run at the same time.
            collectives = Collectives(
                Communicator(bootstrap), index, timeout=seconds, calls_at_once=int(_CALLS_AT_ONCE), overlap=True
            )
        finally:
            self._forming = None
        return Lane(collectives, seconds, self._described, store if key == "all" else None, self._forget)


def _create(opts: Any, _backend_options: Any) -> ProcessGroup:
    """Makes a group of this backend. Torch calls it."""
    group = getattr(opts, "process_group", None)
    device = getattr(group, "bound_device_id", None)
    return ProcessGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout, device, opts.group_id)


#: The code of the functions of torch that wait for their message at once.
_AWAITED = [inspect.unwrap(function).__code__ for function in (dist.send, dist.recv)]


def _is_awaited() -> bool:
    """Whether `torch.distributed.send` or `recv` has called `ProcessGroup.send` or `recv`, which calls `_message`. Most
    versions call `isend` or `irecv` in between.
    """
    caller = sys._getframe(2).f_back
    if caller is not None and caller.f_code not in _AWAITED:
        caller = caller.f_back
    return caller is not None and caller.f_code in _AWAITED


def _make_together(lane: Lane, made: list[Call], messages: list[PutOff]) -> None:
    work = lane.run(made, behind=messages)
    for message in messages:
        message.work = work


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


if not hasattr(dist.Backend, "MSCCLPP"):
    _end_coalescing_by_errors()
    _split_from_no_group_of_python()
    dist.Backend.register_backend("mscclpp", _create, extended_api=True, devices=["cpu", "cuda"])

__all__ = ["ProcessGroup", "Work"]
