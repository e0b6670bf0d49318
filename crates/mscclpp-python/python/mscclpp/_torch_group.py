"""A group of ranks of the backend of `torch.distributed`: its communicators, from the first call to the end."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

from . import _meeting
from . import _torch_calls as calls
from . import _torch_options as asked
from ._collectives import Collectives
from ._mscclpp import Communicator, TcpBootstrap, _log_meeting, device_count
from ._torch_calls import Call
from ._torch_lane import _BARRIER, Lane
from ._torch_messages import Messages, PutOff
from ._torch_work import IN_CURRENT, OfGloo

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


class Group(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a group, and what torch asks of it beside collectives."""

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

    # Other methods that torch calls.

    supports_splitting = supports_coalescing = True
    supports_time_estimate = supports_shrinking = supports_reconfigure = supports_window = False
    #: The options that `torch.distributed.split_group` copies for new groups.
    options = None

    def _get_backend(self, device: Any) -> Self:
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
    ) -> Self | None:
        """Make a group of some ranks. All ranks call it; those that are not in it get None."""
        self._messages.make()
        self._n_splits += 1
        if self._rank not in ranks:
            return None
        name = group_name or f"split {self._n_splits}"
        store = dist.PrefixStore(f"split/{self._n_splits}/{'-'.join(map(str, ranks))}", self._store)
        device = self.bound_device_id
        part = type(self)(store, list(ranks).index(self._rank), len(ranks), timeout or self._timeout, device, name)
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

    def _barrier(self, opts: Any) -> Any:
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

    def _run_one(
        self,
        kind: str,
        given: torch.Tensor,
        taken: torch.Tensor,
        opts: Any,
        op: Any = None,
        root: int = 0,
        parts: tuple[int, int] = (1, 1),
    ) -> Any:
        """Makes a call that moves one tensor, or with `op` reduces it. `parts` is as for `_Requests`."""
        lane = self._lanes.get("all")
        if lane is not None and lane.index == given.get_device() >= 0:
            numbers = calls.known_numbers(given, op)
            if numbers is not None and self._coalescing.calls is None and not self._messages.are_any:
                in_current = not getattr(opts, "asyncOp", True)
                work = lane.run_one(kind, given, taken, parts, numbers, root, asked.seconds(opts), in_current)
                if work is not None:
                    return work
        if op is None:
            return self._run(given, lambda: [calls.moving(kind, given, taken, self._size, root)], opts)
        return self._run(given, lambda: [calls.reducing(kind, given, taken, op, self._size, root)], opts)

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
