"""Moves data between GPUs, by collectives and by channels.

A `CommGroup` connects the ranks of a job. `Collectives` has `all_reduce` and its like, on arrays of CuPy, PyTorch and
NumPy. Through a `MemoryChannel` or a `PortChannel`, a kernel of yours writes to another GPU's memory and signals it. The
modules `ep` (experts), `torch` (a backend of torch.distributed), `nccl` (this library in NCCL's place) and `utils`
(kernels) have the rest.
"""

import atexit as _atexit
import importlib as _importlib
import os as _os
import warnings as _warnings
from typing import Any as _Any

from . import _mscclpp, numa
from ._algorithms import Algorithm, AlgorithmCollection, AlgorithmType, CollectiveBufferMode, Executor
from ._buffer import GpuBuffer
from ._collectives import Collectives
from ._data_types import DataType, ReduceOp
from ._errors import BaseError, CudaError, CuError, Error, IbError, SysError
from ._fused import FusedAllReduce, fused_all_reduce
from ._group import CommGroup
from ._log import log_to_python
from ._mscclpp import (
    BaseMemoryChannel,
    BasePortChannel,
    BaseProxyService,
    Bootstrap,
    Communicator,
    Connection,
    Context,
    Device,
    DeviceType,
    Endpoint,
    EndpointConfig,
    EndpointConfigIb,
    ErrorCode,
    Fifo,
    GpuBufferGranularity,
    Host2DeviceSemaphore,
    Host2HostSemaphore,
    IbMode,
    MemoryChannel,
    MemoryDevice2DeviceSemaphore,
    PortChannel,
    Proxy,
    ProxyHandlerResult,
    ProxyService,
    ProxyTrigger,
    Race,
    RaceAccess,
    RawGpuBuffer,
    RegisteredMemory,
    Rendezvous,
    Semaphore,
    SemaphoreStub,
    TcpBootstrap,
    Transport,
    TransportFlags,
    UniqueId,
    device_count,
    env,
    races,
    set_device,
)
from ._older import name as _older_name
from ._original import (
    AlgorithmBuilder,
    ExecutionPlan,
    NvlsConnection,
    PacketType,
    SwitchChannel,
    compile,
    compile_native,
    connect_nvls_collective,
    is_bulk_supported,
    is_nvls_supported,
    npkit,
)
from ._paths import get_include, get_lib

#: The version of this library, and the commit it was built from.
version = _mscclpp.version()
__version__ = version["version"]

_os.environ.setdefault("MSCCLPP_HOME", _os.path.dirname(_os.path.abspath(__file__)))
_atexit.register(_mscclpp._end_proxies)
try:
    _mscclpp._start_log()
except Error as _error:
    _warnings.warn(f"mscclpp does not log: {_error}", RuntimeWarning, stacklevel=2)


def synchronize(timeout_sec: float = 300.0, abort: _Any = None) -> None:
    """Wait until everything that was launched on the default stream of the current GPU is complete.

    On simulated devices, call it in place of `cupy.cuda.runtime.deviceSynchronize()`.

    If the work is not complete within `timeout_sec`, an `Error` names the ranks that kernels wait for, as far as their
    channels were in the tuple of a launch. The kernels go on running, and the call can be repeated. If the kernels have
    ended because a wait through such a channel failed, the call raises the reason once: a lost peer, an abort, a spin
    bound.

    `abort` is what the kernels wait through: a channel, a semaphore, a `ProxyService`, a `Communicator`, or a list of
    these. When the time is up, it is aborted for good, so that the kernels end. If the kernels end in time, the call
    also raises what went wrong with waits through it, even if it was not in the tuple of a launch.
    """
    _mscclpp._synchronize(timeout_sec, abort)


def __getattr__(name: str) -> _Any:
    if name in ("comm", "default_algos", "ep", "ext", "language", "utils"):
        return _importlib.import_module(f"{__name__}.{name}")
    return _older_name(name)


__all__ = [
    "Algorithm",
    "AlgorithmBuilder",
    "AlgorithmCollection",
    "AlgorithmType",
    "BaseError",
    "BaseMemoryChannel",
    "BasePortChannel",
    "BaseProxyService",
    "Bootstrap",
    "CollectiveBufferMode",
    "Collectives",
    "CommGroup",
    "Communicator",
    "Connection",
    "Context",
    "CuError",
    "CudaError",
    "DataType",
    "Device",
    "DeviceType",
    "Endpoint",
    "EndpointConfig",
    "EndpointConfigIb",
    "Error",
    "ErrorCode",
    "ExecutionPlan",
    "Executor",
    "Fifo",
    "FusedAllReduce",
    "GpuBuffer",
    "GpuBufferGranularity",
    "Host2DeviceSemaphore",
    "Host2HostSemaphore",
    "IbError",
    "IbMode",
    "MemoryChannel",
    "MemoryDevice2DeviceSemaphore",
    "NvlsConnection",
    "PacketType",
    "PortChannel",
    "Proxy",
    "ProxyHandlerResult",
    "ProxyService",
    "ProxyTrigger",
    "Race",
    "RaceAccess",
    "RawGpuBuffer",
    "ReduceOp",
    "RegisteredMemory",
    "Rendezvous",
    "Semaphore",
    "SemaphoreStub",
    "SwitchChannel",
    "SysError",
    "TcpBootstrap",
    "Transport",
    "TransportFlags",
    "UniqueId",
    "__version__",
    "compile",
    "compile_native",
    "connect_nvls_collective",
    "device_count",
    "env",
    "fused_all_reduce",
    "get_include",
    "get_lib",
    "is_bulk_supported",
    "is_nvls_supported",
    "log_to_python",
    "npkit",
    "numa",
    "races",
    "set_device",
    "synchronize",
    "version",
]
