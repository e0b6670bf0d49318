"""How the ranks of a group find each other: at an address, or by an id that rank 0 passes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from . import _arguments, _mscclpp
from ._errors import Error
from ._mscclpp import Bootstrap, ErrorCode, Rendezvous, TcpBootstrap, UniqueId


def meet(
    mpi_comm: Any,
    torch_group: Any,
    address: str,
    rank: int | None,
    size: int | None,
    job: str | None,
    timeout_sec: float,
) -> Bootstrap:
    """Join the job of a communicator of mpi4py, of a group of PyTorch, or of a rank and an address."""
    if mpi_comm is not None and torch_group is not None:
        raise TypeError("CommGroup() takes one of 'mpi_comm' and 'torch_group', not both")
    share: Callable[[Any], Any] | None = None
    if mpi_comm is not None:
        _arguments.check_mpi(mpi_comm)
        rank, size = int(mpi_comm.Get_rank()), int(mpi_comm.Get_size())

        def share(id: Any) -> Any:
            return mpi_comm.bcast(id, 0)

    elif torch_group is not None:
        rank, size, share = _of_torch(torch_group)
    elif not address:
        raise TypeError(
            "CommGroup() takes 'mpi_comm', 'torch_group', or 'interfaceIpPortTrio' with 'rank' and 'size'; "
            "CommGroup.from_env() asks the environment"
        )
    if rank is None or size is None:
        raise TypeError("CommGroup() with 'interfaceIpPortTrio' alone takes 'rank' and 'size', too")
    place: UniqueId | str = address
    if share is not None and not address:
        place = _agree(rank, share)
    bootstrap = TcpBootstrap.create(rank, size)
    bootstrap.initialize(place, timeout_sec, job=job)
    return bootstrap


def _agree(rank: int, share: Callable[[Any], Any]) -> UniqueId:
    """Returns the id of the job, which rank 0 makes. If rank 0 fails, the error is raised on all ranks."""
    id: UniqueId | Exception | None = None
    if rank == 0:
        try:
            id = TcpBootstrap.create_unique_id()
        except Exception as error:  # passed on, not hidden
            id = error
    id = share(id)
    if isinstance(id, Exception):
        raise id
    assert isinstance(id, UniqueId)
    return id


def _of_torch(group: Any) -> tuple[int, int, Callable[[Any], Any]]:
    if not _arguments.is_torch_group(group):
        raise TypeError(f"argument 'torch_group': expected a group of PyTorch, got {group!r}")
    import torch.distributed as dist

    def share(id: Any) -> Any:
        shared = [id]
        dist.broadcast_object_list(shared, src=dist.get_global_rank(group, 0), group=group)
        return shared[0]

    return dist.get_rank(group), dist.get_world_size(group), share


#: Counts the jobs that this process has joined through its launcher's store, in which each job has its own key.
_met = itertools.count()


def launched(timeout_sec: float) -> tuple[Bootstrap, int | None]:
    """Join the job of a launched rank: by an id that goes through the launcher's store, or else at an address.

    Returns the rank's number on its node, too, if the launcher says it.
    """
    _arguments.check_seconds(timeout_sec)
    launched = Rendezvous.from_env()
    if launched.store is None:
        return launched.connect(timeout_sec), launched.local_rank
    try:
        from torch.distributed import TCPStore
    except ImportError:
        # Without PyTorch the store cannot be used: the ranks meet at a port beside the store's.
        return launched.connect(timeout_sec), launched.local_rank
    host, port, prefix = launched.store
    key = f"{prefix}/{next(_met)}"
    _mscclpp._log_meeting(f"ranks meet by an id, which goes through the launcher's store at {host}:{port} as {key}")
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_sec))
    bootstrap = TcpBootstrap.create(launched.rank, launched.n_ranks)
    bootstrap.initialize(_through_store(store, key, launched.rank), timeout_sec)
    return bootstrap, launched.local_rank


def _through_store(store: Any, key: str, rank: int, check: Callable[[], None] | None = None) -> UniqueId:
    """Returns the id of the job, as `_agree` does, through a store. The store holds bytes and no pickles, as anybody
    can write to it.

    `check` is called again and again during the wait for rank 0; an exception that it raises ends the wait.
    """
    good, bad = b"id:", b"error:"
    if rank == 0:
        try:
            id = TcpBootstrap.create_unique_id()
        except Exception as error:
            store.set(key, bad + str(error).encode())
            raise
        store.set(key, good + id.__getstate__())
        return id
    while check is not None and not store.check([key]):
        check()
        time.sleep(0.001)
    value = bytes(store.get(key))
    if not value.startswith(good):
        _fail(f"rank 0 made no id for the job: {value.removeprefix(bad).decode(errors='replace')}")
    id = UniqueId()
    id.__setstate__(value.removeprefix(good))
    return id


def _fail(message: str) -> NoReturn:
    raise Error(int(ErrorCode.RemoteError), message)
