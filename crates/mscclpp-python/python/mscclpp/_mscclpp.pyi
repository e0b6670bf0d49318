"""The classes of the extension module. Each has a second name, with `Cpp` in front."""

from _typeshed import Incomplete, SupportsGetItem, SupportsLenAndGetItem
from collections.abc import Sequence
from typing import Any, Final, SupportsFloat, SupportsIndex, final
from typing_extensions import Buffer, disjoint_base

import builtins
import collections.abc
import typing
import typing_extensions
from types import ModuleType
from typing import Self, overload

from ._errors import BaseError as BaseError
from ._errors import CudaError as CudaError
from ._errors import CuError as CuError
from ._errors import Error as Error
from ._errors import IbError as IbError
from ._errors import SysError as SysError

# What the Python layer adds.
cpp_numa: ModuleType
cpp_npkit: Any

def is_nvls_supported() -> bool: ...
def is_bulk_supported() -> bool: ...
def connect_nvls_collective(communicator: Any, all_ranks: Any, buffer_size: int) -> Any: ...

@final
class BaseMemoryChannel:
    """A channel through which kernels signal a peer and wait for it."""
    def __enter__(self, /) -> BaseMemoryChannel: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, semaphore: Semaphore | MemoryDevice2DeviceSemaphore) -> Self: ...
    @overload
    def __new__(cls, communicator: Communicator, connection: Connection) -> Self:
        """
        Makes a channel over a semaphore, or over a communicator and a connection: then both sides build a semaphore
        first.
        """
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    DeviceHandle = BaseMemoryChannelDeviceHandle
    def device_handle(self, /) -> BaseMemoryChannelDeviceHandle:
        """The handle that kernels use the channel with. It is valid as long as the channel lives."""

@final
class BaseMemoryChannelDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::BaseMemoryChannelDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def semaphore_(self, /) -> MemoryDevice2DeviceSemaphoreDeviceHandle:
        """The handle of its semaphore."""

@final
class BasePortChannel:
    """A channel through which kernels ask a proxy to signal, and to copy between any memories of its service."""
    def __enter__(self, /) -> BasePortChannel: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, semaphore_id: SupportsIndex | None = None, semaphore: Host2DeviceSemaphore | None = None, proxy: ProxyService | None = None) -> BasePortChannel: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    DeviceHandle = BasePortChannelDeviceHandle
    def device_handle(self, /) -> BasePortChannelDeviceHandle:
        """The handle that kernels use the channel with. It is valid as long as the channel lives."""

@final
class BasePortChannelDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::BasePortChannelDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def fifo_(self, /) -> FifoDeviceHandle:
        """The handle of the FIFO of its service."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def semaphore_(self, /) -> Host2DeviceSemaphoreDeviceHandle:
        """The handle of its semaphore."""
    @property
    def semaphore_id_(self, /) -> int:
        """The number of its semaphore in the service."""

class BaseProxyService:
    """Base class of services with a proxy. It has the methods that start and stop the proxy."""
    def __new__(cls, /, *_args: "object", **_kwargs: "object") -> "typing.Self": ...
    def __repr__(self, /) -> str:
        """Names the class of the object, which may be one of the program's own."""
    def start_proxy(self, /, blocking: bool = False) -> None:
        """Starts the proxy. A derived class defines it."""
    def stop_proxy(self, /) -> None:
        """Stops the proxy. A derived class defines it."""

@disjoint_base
class Bootstrap:
    """A job of ranks that exchange bytes. Made by `TcpBootstrap.create`."""
    def __enter__(self, /) -> "typing.Self": ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Gives up the job: the calls of all ranks fail from now on. Ends `initialize()`, too."""
    def all_gather(self, /, allData: "int | typing_extensions.Buffer", size: SupportsIndex, timeout_sec: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Exchanges `size` bytes of each rank. `allData` is an address or a buffer of `size` times the number of ranks.
        Before the call it holds this rank's bytes at this rank's place, after the call those of all ranks. When the
        time of `timeout_sec` runs out, the next collective call must be this one again; it goes on with the bytes
        that were given first.
        """
    def barrier(self, /, timeout_sec: SupportsFloat | SupportsIndex | None = None) -> None:
        """
        Returns when all ranks have called it. When the time of `timeout_sec` runs out, the next collective call must
        be this one again, which goes on with the same barrier.
        """
    def close(self, /) -> None:
        """
        Leaves the job, unless a Communicator still uses it. Ends `initialize()`. Calls that other threads have begun
        go on, and new ones raise. A second `close()` does nothing.
        """
    def get_n_ranks(self, /) -> int:
        """How many ranks the job has."""
    def get_n_ranks_per_ipc_domain(self, /) -> int:
        """How many ranks of the job can map each other's GPU memory: here those of one node."""
    def get_n_ranks_per_node(self, /) -> int:
        """How many ranks of the job are on this rank's node."""
    def get_rank(self, /) -> int:
        """The number of this rank, counted from 0."""
    @overload
    def recv(self, data: int | Buffer, size: int, peer: int, tag: int, *, timeout_sec: float | None = None) -> None: ...
    @overload
    def recv(self, data: Buffer, peer: int, tag: int, *, timeout_sec: float | None = None) -> None: ...
    @overload
    def recv(self, peer: int, tag: int, *, timeout_sec: float | None = None) -> bytes:
        """
        `recv(data, size, peer, tag)` into an address or a buffer, `recv(data, peer, tag)` into a buffer, or
        `recv(peer, tag)`, which returns the bytes. When the time of `timeout_sec` runs out, the call has received
        nothing and can be repeated.
        """
    @overload
    def send(self, data: int | Buffer, size: int, peer: int, tag: int) -> None: ...
    @overload
    def send(self, data: Buffer, peer: int, tag: int) -> None:
        """`send(data, size, peer, tag)` with an address or a buffer, or `send(data, peer, tag)` with a buffer."""

@final
class Communicator:
    """Exchanges endpoints, memories and semaphores with the other ranks of a job."""
    def __enter__(self, /) -> Communicator: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, bootstrap: Bootstrap, context: Context | None = None) -> Communicator: ...
    def __repr__(self, /) -> str: ...
    def connect_on_setup(self, remote_rank: int, tag: int, local_config: Any) -> SharedFuture_Connection: ...
    def send_memory_on_setup(self, /, memory: RegisteredMemory, remote_rank: int, tag: int = 0) -> None: ...
    def recv_memory_on_setup(self, /, remote_rank: int, tag: int = 0) -> SharedFuture_RegisteredMemory: ...
    def setup(self) -> None: ...
    def _settle(self, /, ranks: SupportsGetItem[int, SupportsIndex]) -> None:
        """Returns when each of `ranks` has called it, or after five seconds."""
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Gives up the job: the calls of all ranks fail, and device waits on its semaphores end."""
    def bootstrap(self, /) -> Bootstrap:
        """The bootstrap that it was made with."""
    def build_semaphore(self, /, connection: Connection, remote_rank: SupportsIndex, tag: "typing.SupportsIndex" = 0) -> SharedFuture_Semaphore:
        """
        Begins a semaphore over a connection together with the rank at its other end, which does the same. The future's
        `get()` waits for that rank.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connect(self, /, local_config: Endpoint | EndpointConfig | Transport, remote_rank: SupportsIndex, tag: "typing.SupportsIndex" = 0) -> SharedFuture_Connection:
        """Sends this side's endpoint to the peer. The future's `get()` connects it with the peer's."""
    def connect_all(self, /, local_config: Endpoint | EndpointConfig | Transport, remote_ranks: SupportsGetItem[int, SupportsIndex], tag: "typing.SupportsIndex" = 0) -> list[Connection]:
        """
        Connects with several ranks, which do the same in any order, and waits for all of them. Ranks cannot wait for
        each other in a circle. Wrong arguments are found before anything is sent.
        """
    def context(self, /) -> Context:
        """The context that its connections and memories are made in."""
    def recv_memory(self, /, remote_rank: SupportsIndex, tag: "typing.SupportsIndex" = 0) -> SharedFuture_RegisteredMemory:
        """Returns a future of the next memory that a rank sends with this tag. The future's `get()` waits for it."""
    def register_memory(self, /, ptr: SupportsIndex, size: SupportsIndex, transports: TransportFlags | Transport) -> RegisteredMemory:
        """
        Registers `size` bytes of device memory at the address `ptr` for `transports`. The memory must live as long as
        this or a peer uses it.
        """
    def remote_rank_of(self, /, connection: Connection) -> int:
        """The rank at the other end of a connection that this communicator made."""
    def send_memory(self, /, memory: RegisteredMemory, remote_rank: SupportsIndex, tag: "typing.SupportsIndex" = 0) -> None:
        """Sends a registered memory to a rank, whose `recv_memory()` with the same tag gets it. Does not wait for that."""
    def tag_of(self, /, connection: Connection) -> int:
        """The tag with which this communicator made a connection."""

@final
class Connection:
    """A connection from an endpoint of this process to a peer's."""
    def __enter__(self, /) -> Connection: ...
    def __eq__(self, other: object, /) -> bool:
        """
        Whether both objects stand for the same connection. A semaphore returns a new object for its connection at
        each call.
        """
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __hash__(self, /) -> int:
        """Hashes only values that never change. Collisions do no harm, as few connections meet in one dictionary."""
    def __repr__(self, /) -> str: ...
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def context(self, /) -> Context:
        """The context that it was made in."""
    def flush(self, /, timeout_usec: SupportsIndex = 30000000) -> None:
        """Waits until all earlier writes are complete at the peer."""
    def get_max_write_queue_size(self, /) -> int:
        """How many writes its queue takes before it is full; -1 where the transport chooses."""
    def local_device(self, /) -> Device:
        """The device of this side."""
    def remote_transport(self, /) -> Transport:
        """The transport of the peer's side."""
    def transport(self, /) -> Transport:
        """The transport of this side."""
    def update_and_sync(self, /, dst: RegisteredMemory, dst_offset: SupportsIndex, src: SupportsIndex, new_value: SupportsIndex) -> None:
        """
        Stores `new_value` in the 8 bytes at `dst_offset` of the peer's `dst`, after all earlier writes, and in the 8
        bytes of host memory at the address `src`.
        """
    def write(self, /, dst: RegisteredMemory, dstOffset: SupportsIndex, src: RegisteredMemory, srcOffset: SupportsIndex, size: SupportsIndex) -> None:
        """Starts copying `size` bytes from `src`, registered here, to `dst`, registered by the peer."""

@final
class Context:
    """Makes endpoints, connections and registered memories."""
    def __enter__(self, /) -> Context: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, *, ethernet_checksums: bool | None = None) -> Context: ...
    def __repr__(self, /) -> str: ...
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connect(self, /, local_endpoint: Endpoint, remote_endpoint: Endpoint) -> Connection:
        """
        Connects an endpoint of this context with a peer's, which does the same. Blocks if the transport needs an
        answer of the peer.
        """
    @staticmethod
    def create(*, ethernet_checksums: bool | None = None) -> Context:
        """
        Makes a context that no other object shares. `ethernet_checksums` says whether data that it sends over
        Ethernet has checksums, which the receiver checks. If it is None, `MSCCLPP_ETHERNET_CHECKSUMS` decides.
        """
    def create_endpoint(self, /, config: EndpointConfig | Transport) -> Endpoint:
        """Makes an endpoint for connections, from an `EndpointConfig` or a `Transport`."""
    def register_memory(self, /, ptr: SupportsIndex, size: SupportsIndex, transports: TransportFlags | Transport) -> RegisteredMemory:
        """
        Registers `size` bytes of device memory at the address `ptr` for `transports`. The memory must live as long as
        this or a peer uses it.
        """

@final
class Device:
    """A device of an endpoint. An id of -1 means the current one."""
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, type: DeviceType = ..., id: SupportsIndex = ...) -> Device: ...
    def __repr__(self, /) -> str: ...
    @property
    def id(self, /) -> int:
        """The number of the device, counted from 0; -1 is the current one."""
    @id.setter
    def id(self, /, value: SupportsIndex) -> None:
        """The number of the device, counted from 0; -1 is the current one."""
    @property
    def type(self, /) -> DeviceType:
        """The kind of device."""
    @type.setter
    def type(self, /, kind: DeviceType) -> None: ...

@final
class DeviceType:
    """The kind of device that an endpoint is on."""
    CPU: Final[DeviceType]
    GPU: Final[DeviceType]
    Unknown: Final[DeviceType]
    __members__: Final[dict[str, DeviceType]]
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> DeviceType: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class Endpoint:
    """One end of a connection."""
    def __enter__(self, /) -> Endpoint: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __repr__(self, /) -> str: ...
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def config(self, /) -> EndpointConfig:
        """The configuration that the endpoint was made with. For a peer's endpoint, the parts that are known here."""
    @staticmethod
    def deserialize(data: Buffer | Sequence[SupportsIndex]) -> Endpoint:
        """The endpoint that a peer has serialized."""
    def device(self, /) -> Device:
        """The device of the endpoint."""
    def max_write_queue_size(self, /) -> int:
        """How many writes its queue takes before it is full; -1 where the transport chooses."""
    def serialize(self, /) -> bytes:
        """The bytes from which the peer makes this endpoint with `deserialize()`."""
    def transport(self, /) -> Transport:
        """The transport of the endpoint."""

@final
class EndpointConfig:
    """The transport and the device of an endpoint, and parameters of its transport."""
    def __new__(cls, /, transport: Transport = ..., device: Device | DeviceType = ..., max_write_queue_size: SupportsIndex = ..., ib: EndpointConfigIb | None = None) -> EndpointConfig: ...
    def __repr__(self, /) -> str: ...
    ib_device_index: int
    ib_port: int
    ib_gid_index: int
    ib_mode: IbMode
    ib_max_cq_size: int
    ib_max_cq_poll_num: int
    ib_max_send_wr: int
    ib_max_recv_wr: int
    ib_max_wr_per_send: int
    @property
    def device(self, /) -> Device:
        """The device of the endpoint: a `Device`, or a `DeviceType` for the current one."""
    @device.setter
    def device(self, /, device: Device | DeviceType) -> None: ...
    @property
    def ib(self, /) -> EndpointConfigIb:
        """Parameters for InfiniBand."""
    @ib.setter
    def ib(self, /, value: EndpointConfigIb) -> None:
        """Parameters for InfiniBand."""
    @property
    def max_write_queue_size(self, /) -> int:
        """The largest number of writes in the queue; -1 leaves it to the transport."""
    @max_write_queue_size.setter
    def max_write_queue_size(self, /, value: SupportsIndex) -> None:
        """The largest number of writes in the queue; -1 leaves it to the transport."""
    @property
    def transport(self, /) -> Transport:
        """The transport that reaches the peers."""
    @transport.setter
    def transport(self, /, value: Transport) -> None:
        """The transport that reaches the peers."""

@final
class EndpointConfigIb:
    """Parameters of an InfiniBand endpoint. Where the default is -1, the transport chooses."""
    def __new__(cls, /, device_index: SupportsIndex = ..., port: SupportsIndex = ..., gid_index: SupportsIndex = ..., max_cq_size: SupportsIndex = 1024, max_cq_poll_num: SupportsIndex = 256, max_send_wr: SupportsIndex = 8192, max_recv_wr: SupportsIndex = 16, max_wr_per_send: SupportsIndex = 64, mode: IbMode = ..., *, traffic_class: SupportsIndex = ..., service_level: SupportsIndex = ..., pkey_index: SupportsIndex = ..., timeout: SupportsIndex = ..., retry_count: SupportsIndex = ..., rnr_retry: SupportsIndex = ...) -> EndpointConfigIb: ...
    def __repr__(self, /) -> str: ...
    @property
    def device_index(self, /) -> int:
        """The number of the adapter, which is used instead of the transport's number."""
    @device_index.setter
    def device_index(self, /, value: SupportsIndex) -> None:
        """The number of the adapter, which is used instead of the transport's number."""
    @property
    def gid_index(self, /) -> int:
        """The entry of the port's table of GIDs."""
    @gid_index.setter
    def gid_index(self, /, value: SupportsIndex) -> None:
        """The entry of the port's table of GIDs."""
    @property
    def max_cq_poll_num(self, /) -> int:
        """How many completions are polled at once."""
    @max_cq_poll_num.setter
    def max_cq_poll_num(self, /, value: SupportsIndex) -> None:
        """How many completions are polled at once."""
    @property
    def max_cq_size(self, /) -> int:
        """How many completions the completion queue holds."""
    @max_cq_size.setter
    def max_cq_size(self, /, value: SupportsIndex) -> None:
        """How many completions the completion queue holds."""
    @property
    def max_recv_wr(self, /) -> int:
        """How many work requests the receive queue holds."""
    @max_recv_wr.setter
    def max_recv_wr(self, /, value: SupportsIndex) -> None:
        """How many work requests the receive queue holds."""
    @property
    def max_send_wr(self, /) -> int:
        """How many work requests the send queue holds."""
    @max_send_wr.setter
    def max_send_wr(self, /, value: SupportsIndex) -> None:
        """How many work requests the send queue holds."""
    @property
    def max_wr_per_send(self, /) -> int:
        """How many work requests are posted at once."""
    @max_wr_per_send.setter
    def max_wr_per_send(self, /, value: SupportsIndex) -> None:
        """How many work requests are posted at once."""
    @property
    def mode(self, /) -> IbMode:
        """How signals are sent."""
    @mode.setter
    def mode(self, /, value: IbMode) -> None:
        """How signals are sent."""
    @property
    def pkey_index(self, /) -> int:
        """The entry of the port's table of partition keys."""
    @pkey_index.setter
    def pkey_index(self, /, value: SupportsIndex) -> None:
        """The entry of the port's table of partition keys."""
    @property
    def port(self, /) -> int:
        """The port of the adapter."""
    @port.setter
    def port(self, /, value: SupportsIndex) -> None:
        """The port of the adapter."""
    @property
    def retry_count(self, /) -> int:
        """How often a packet that was not acknowledged is sent again, 0 to 7."""
    @retry_count.setter
    def retry_count(self, /, value: SupportsIndex) -> None:
        """How often a packet that was not acknowledged is sent again, 0 to 7."""
    @property
    def rnr_retry(self, /) -> int:
        """How often a packet is sent again when the peer was not ready for it, 0 to 7."""
    @rnr_retry.setter
    def rnr_retry(self, /, value: SupportsIndex) -> None:
        """How often a packet is sent again when the peer was not ready for it, 0 to 7."""
    @property
    def service_level(self, /) -> int:
        """The service level of packets."""
    @service_level.setter
    def service_level(self, /, value: SupportsIndex) -> None:
        """The service level of packets."""
    @property
    def timeout(self, /) -> int:
        """The timeout of an acknowledgement, as the exponent that InfiniBand uses."""
    @timeout.setter
    def timeout(self, /, value: SupportsIndex) -> None:
        """The timeout of an acknowledgement, as the exponent that InfiniBand uses."""
    @property
    def traffic_class(self, /) -> int:
        """The traffic class of packets, 0 to 255."""
    @traffic_class.setter
    def traffic_class(self, /, value: SupportsIndex) -> None:
        """The traffic class of packets, 0 to 255."""

@final
class Env:
    """Environment variables as they were when they were first asked for."""
    def __repr__(self, /) -> str: ...
    @property
    def cache_dir(self, /) -> str:
        """The folder of compiled kernels: `MSCCLPP_CACHE_DIR`, or the default."""
    @property
    def comm_id(self, /) -> str:
        """`MSCCLPP_COMM_ID`."""
    @property
    def cuda_ipc_use_default_stream(self, /) -> bool:
        """`MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM`."""
    @property
    def debug(self, /) -> str:
        """`MSCCLPP_LOG_LEVEL`."""
    @property
    def debug_file(self, /) -> str:
        """`MSCCLPP_LOG_FILE`."""
    @property
    def debug_subsys(self, /) -> str:
        """`MSCCLPP_LOG_SUBSYS`."""
    @property
    def hca_devices(self, /) -> str:
        """`MSCCLPP_HCA_DEVICES`."""
    @property
    def hostid(self, /) -> str:
        """`MSCCLPP_HOSTID`."""
    @property
    def ib_gid_index(self, /) -> int:
        """`MSCCLPP_IB_GID_INDEX`, or -1."""
    @property
    def ibv_mode(self, /) -> str:
        """`MSCCLPP_IBV_MODE`."""
    @property
    def npkit_dump_dir(self, /) -> str:
        """`MSCCLPP_NPKIT_DUMP_DIR`."""
    @property
    def socket_family(self, /) -> str:
        """`MSCCLPP_SOCKET_FAMILY`."""
    @property
    def socket_ifname(self, /) -> str:
        """`MSCCLPP_SOCKET_IFNAME`."""

@final
class ErrorCode:
    """The kind of an `Error`."""
    Aborted: Final[ErrorCode]
    ExecutorError: Final[ErrorCode]
    InternalError: Final[ErrorCode]
    InvalidUsage: Final[ErrorCode]
    RemoteError: Final[ErrorCode]
    SystemError: Final[ErrorCode]
    Timeout: Final[ErrorCode]
    __members__: Final[dict[str, ErrorCode]]
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> ErrorCode: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class Fifo:
    """A queue in which device threads of the current GPU pass triggers to the host."""
    def __enter__(self, /) -> Fifo: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, size: SupportsIndex = ...) -> Fifo: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /) -> None:
        """Ends all waits of kernels on the queue, and all later ones."""
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    DeviceHandle = FifoDeviceHandle
    def device_handle(self, /) -> FifoDeviceHandle:
        """The handle that kernels push triggers with. It is valid as long as the FIFO lives."""
    def poll(self, /) -> ProxyTrigger | None:
        """Returns the next trigger, or None. The trigger stays in the queue until `pop()`."""
    def pop(self, /) -> None:
        """Removes the trigger that `poll()` returned."""
    def size(self, /) -> int:
        """How many triggers the queue holds."""

@final
class FifoDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::FifoDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def head(self, /) -> int:
        """The address of the count of triggers that were pushed."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def size(self, /) -> int:
        """How many triggers it holds."""
    @property
    def tail(self, /) -> int:
        """The address of the count of triggers that were taken."""
    @property
    def triggers(self, /) -> int:
        """The address of the triggers."""

@final
class GpuBufferGranularity:
    """How the size of a buffer is rounded up. This is a hint: sizes are always rounded to the driver's granularity."""
    AllocationMinimum: Final[GpuBufferGranularity]
    AllocationRecommended: Final[GpuBufferGranularity]
    MultiCastMinimum: Final[GpuBufferGranularity]
    MultiCastRecommended: Final[GpuBufferGranularity]
    __members__: Final[dict[str, GpuBufferGranularity]]
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> GpuBufferGranularity: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class Host2DeviceSemaphore:
    """A semaphore that a host thread signals and kernels wait on."""
    def __enter__(self, /) -> Host2DeviceSemaphore: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    @overload
    def __new__(cls, semaphore: Semaphore) -> Self: ...
    @overload
    def __new__(cls, communicator: Communicator, connection: Connection) -> Self: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connection(self, /) -> Connection:
        """The connection that it was made over."""
    DeviceHandle = Host2DeviceSemaphoreDeviceHandle
    def device_handle(self, /) -> Host2DeviceSemaphoreDeviceHandle:
        """The handle that kernels wait with. It is valid as long as the semaphore lives."""
    def signal(self, /) -> None:
        """Signals the peer, after all earlier writes of the connection."""

@final
class Host2DeviceSemaphoreDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::Host2DeviceSemaphoreDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def expected_inbound_token(self, /) -> int:
        """The address of the count that waits compare the token with."""
    @property
    def inbound_token(self, /) -> int:
        """The address of the token that the peer counts up."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""

@final
class Host2HostSemaphore:
    """A semaphore that a host thread signals and a host thread waits on."""
    def __enter__(self, /) -> Host2HostSemaphore: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    @overload
    def __new__(cls, semaphore: Semaphore) -> Self: ...
    @overload
    def __new__(cls, communicator: Communicator, connection: Connection) -> Self: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connection(self, /) -> Connection:
        """The connection that it was made over."""
    def poll(self, /) -> bool:
        """Takes a signal if there is one, and returns whether there was."""
    def signal(self, /) -> None:
        """Signals the peer, after all earlier writes of the connection."""
    def wait(self, /, max_spin_count: SupportsIndex = 10000000) -> None:
        """
        Waits for a signal and takes it. Polls at most `max_spin_count` times, or without a bound if the number is
        negative.
        """

@final
class HostCounts:
    """
    How many rows came in a dispatch, in memory of the host: made by `Experts.counts_to_host`. Its methods do not block. The
    counts are there when the work of the stream up to that call is complete; a graph stores them anew with each replay.
    """
    def rows_of_experts(self, /) -> list[int]:
        """Return how many rows came for each expert of this rank."""
    def rows_of_ranks(self, /) -> list[int]:
        """Return how many rows came from each rank."""

@final
class IbMode:
    """How signals travel over InfiniBand."""
    Default: Final[IbMode]
    Host: Final[IbMode]
    HostNoAtomic: Final[IbMode]
    __members__: Final[dict[str, IbMode]]
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> IbMode: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class MemoryChannel:
    """A channel through which kernels read and write a peer's memory, signal, and wait."""
    def __enter__(self, /) -> MemoryChannel: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, semaphore: Semaphore | MemoryDevice2DeviceSemaphore, dst: RegisteredMemory, src: RegisteredMemory, packet_buffer: int | RegisteredMemory | None = ...) -> Self: ...
    @overload
    def __new__(cls, communicator: Communicator, connection: Connection, dst: RegisteredMemory, src: RegisteredMemory, packet_buffer: int | RegisteredMemory | None = ...) -> Self:
        """
        Makes a channel over a semaphore, or over a communicator and a connection: then both sides build a semaphore
        first. It copies between the peer's memory `dst` and this side's `src`. `packet_buffer` is this side's packet
        buffer, as an address or a registered memory.
        """
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    DeviceHandle = MemoryChannelDeviceHandle
    def device_handle(self, /) -> MemoryChannelDeviceHandle:
        """The handle that kernels use the channel with. It is valid as long as the channel lives."""

@final
class MemoryChannelDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::MemoryChannelDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def dst_(self, /) -> int:
        """The address of the peer's memory."""
    @property
    def packetBuffer_(self, /) -> int:
        """The address of this side's packet buffer, or 0."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def semaphore_(self, /) -> MemoryDevice2DeviceSemaphoreDeviceHandle:
        """The handle of its semaphore."""
    @property
    def src_(self, /) -> int:
        """The address of this side's memory."""

@final
class MemoryDevice2DeviceSemaphore:
    """A semaphore that kernels signal and kernels wait on."""
    def __enter__(self, /) -> MemoryDevice2DeviceSemaphore: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    @overload
    def __new__(cls, semaphore: Semaphore) -> Self: ...
    @overload
    def __new__(cls, communicator: Communicator, connection: Connection) -> Self: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connection(self, /) -> Connection:
        """The connection that it was made over."""
    DeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle
    def device_handle(self, /) -> MemoryDevice2DeviceSemaphoreDeviceHandle:
        """The handle that kernels signal and wait with. It is valid as long as the semaphore lives."""

@final
class MemoryDevice2DeviceSemaphoreDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def expected_inbound_token(self, /) -> int:
        """The address of the count that waits compare the token with."""
    @property
    def inbound_token(self, /) -> int:
        """The address of the token that the peer counts up."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def remote_inbound_token(self, /) -> int:
        """The address of the peer's token, which signals increase."""

@final
class PortChannel:
    """A channel through which kernels ask a proxy to copy from a memory of this rank to one of the peer, and to signal."""
    def __enter__(self, /) -> PortChannel: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, semaphore_id: SupportsIndex | None = None, semaphore: Host2DeviceSemaphore | None = None, proxy: ProxyService | None = None, dst: SupportsIndex | None = None, src: SupportsIndex | None = None) -> PortChannel: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises an error if a wait of a kernel through this object failed: because the peer was lost, because
        of an abort or a spin bound, or because a proxy refused a request. Ask when the kernels have ended.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    DeviceHandle = PortChannelDeviceHandle
    def device_handle(self, /) -> PortChannelDeviceHandle:
        """The handle that kernels use the channel with. It is valid as long as the channel lives."""

@final
class PortChannelDeviceHandle:
    """A handle for kernels: `raw` has the bytes of `mscclpp::PortChannelDeviceHandle`."""
    def __repr__(self, /) -> str: ...
    @property
    def dst_(self, /) -> int:
        """The number of the peer's memory in the service."""
    @property
    def fifo_(self, /) -> FifoDeviceHandle:
        """The handle of the FIFO of its service."""
    @property
    def raw(self, /) -> bytes:
        """The bytes of the handle, as kernels take them."""
    @property
    def semaphore_(self, /) -> Host2DeviceSemaphoreDeviceHandle:
        """The handle of its semaphore."""
    @property
    def semaphore_id_(self, /) -> int:
        """The number of its semaphore in the service."""
    @property
    def src_(self, /) -> int:
        """The number of this side's memory in the service."""

@final
class Proxy:
    """
    A thread that calls `handler(trigger)`, which returns a `ProxyHandlerResult`, for each trigger that kernels of the
    current GPU push into its FIFO. An exception of the handler ends the proxy for good, and `stop()` raises it.
    """
    def __enter__(self, /) -> Proxy: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, handler: "collections.abc.Callable[[ProxyTrigger], ProxyHandlerResult]", fifo_size: SupportsIndex = ...) -> Proxy: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends the proxy for good, and the waits of kernels on its FIFO."""
    def close(self, /) -> None:
        """
        Stops the proxy as `stop()` does, and frees what the object holds.
        Any later call raises. A second `close()` does nothing.
        """
    def device_handle(self, /) -> FifoDeviceHandle:
        """The handle that kernels push triggers with."""
    def is_running(self, /) -> bool:
        """Whether the thread takes triggers."""
    def start(self, /, blocking: bool = False) -> None:
        """Starts the thread, and with `blocking` waits until it takes triggers."""
    def stop(self, /) -> None:
        """Handles all triggers that were pushed before, and ends the thread."""

@final
class ProxyHandlerResult:
    """Whether a proxy goes on after a trigger."""
    Continue: Final[ProxyHandlerResult]
    Retry: Final[ProxyHandlerResult]
    Stop: Final[ProxyHandlerResult]
    __members__: Final[dict[str, ProxyHandlerResult]]
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> ProxyHandlerResult: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class ProxyService(BaseProxyService):
    """
    Carries out, on a host thread, what kernels of one GPU request through port channels. The GPU is that of the first
    semaphore that is added; before that, it is the one that was current when the service was made.
    """
    def __enter__(self, /) -> ProxyService: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, fifo_size: SupportsIndex = ...) -> ProxyService: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = ...) -> None:
        """Aborts the service: it cannot be started again, and waits of kernels on its semaphores end."""
    def add_memory(self, /, memory: RegisteredMemory) -> int:
        """Adds memory of this rank or of a peer, which channels copy from or to. Returns its number."""
    def add_semaphore(self, /, semaphore: "Semaphore | Host2DeviceSemaphore") -> int:
        """Adds a Semaphore or a Host2DeviceSemaphore. From then on the proxy sends its signals."""
    def base_port_channel(self, /, id: SupportsIndex) -> BasePortChannel:
        """A channel over semaphore `id`. The memories are named at each copy."""
    def build_and_add_semaphore(self, /, comm: Communicator, connection: Connection) -> int:
        """
        Makes a semaphore over a connection with the rank at its other end, which does the same, and adds it. Returns its
        number.
        """
    def close(self, /) -> None:
        """
        Stops the proxy as `stop_proxy()` does, and frees what the object holds.
        Any later call raises. A second `close()` does nothing.
        """
    def health(self, /) -> None:
        """Raises the error that the service failed with, if it failed."""
    def port_channel(self, /, id: SupportsIndex, dst: SupportsIndex, src: SupportsIndex) -> PortChannel:
        """A channel over semaphore `id`, from memory `src`, this rank's, to memory `dst`, the peer's."""
    def semaphore(self, /, id: SupportsIndex) -> Host2DeviceSemaphore:
        """The semaphore that was added as number `id`."""
    def start_proxy(self, /, blocking: bool = False) -> None:
        """Starts its thread, and with `blocking` waits until it takes triggers."""
    def stop_proxy(self, /) -> None:
        """Carries out all requests that were pushed before, and ends the thread."""

@final
class ProxyTrigger:
    """A trigger: 128 bits that a thread of a kernel pushes for its proxy."""
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, fst: "typing.SupportsIndex" = 0, snd: "typing.SupportsIndex" = 0) -> ProxyTrigger: ...
    def __repr__(self, /) -> str: ...
    @property
    def fst(self, /) -> int:
        """The first 64 bits."""
    @fst.setter
    def fst(self, /, value: SupportsIndex) -> None:
        """The first 64 bits."""
    @property
    def snd(self, /) -> int:
        """The second 64 bits. The FIFO itself uses the highest one."""
    @snd.setter
    def snd(self, /, value: SupportsIndex) -> None:
        """The second 64 bits. The FIFO itself uses the highest one."""

@final
class Race:
    """
    Two accesses to the same bytes that nothing orders, though one of them writes; or a read of bytes that nobody has written.
    `str()` gives the whole report.
    """
    def __repr__(self, /) -> str: ...
    def __str__(self, /) -> str: ...
    @property
    def earlier(self, /) -> RaceAccess | None:
        """The access that came first in this run. None for a read of bytes that nobody has written."""
    @property
    def hint(self, /) -> str:
        """An operation that would have ordered the two accesses."""
    @property
    def later(self, /) -> RaceAccess:
        """The access that came second."""
    @property
    def memory(self, /) -> str:
        """The memory: whose it is, its address and size, and the offset in it."""

@final
class RaceAccess:
    """One of the two accesses of a race."""
    def __repr__(self, /) -> str: ...
    @property
    def place(self, /) -> str:
        """
        File and line of the kernel, and in parentheses those of a header if the access is in one. For the host, the
        name of its call.
        """
    @property
    def what(self, /) -> str:
        """The kind of the access, such as `write` or `atomic read at device scope`."""
    @property
    def who(self, /) -> str:
        """The origin of the access: kernel, device, block and thread, or the stream, or the host."""

@final
class RawGpuBuffer:
    """
    `nelems` bytes of zeroed device memory on the current GPU, which can be registered for every transport. On the
    simulated platform it is also ordinary host memory.
    """
    @property
    def __array_interface__(self, /) -> dict[str, Any]:
        """The array interface of NumPy, on the simulated platform only."""
    @property
    def __cuda_array_interface__(self, /) -> dict[str, Any]:
        """The array interface of CuPy, PyTorch and Numba, on CUDA only."""
    def __dlpack__(self, /, *, stream: "object" = None, max_version: "object" = None, dl_device: tuple[SupportsIndex, SupportsIndex] | None = None, copy: bool | None = None) -> Any:
        """The bytes as a DLPack capsule. There are neither copies nor other devices."""
    def __dlpack_device__(self, /) -> tuple[int, int]:
        """The type of the device, as DLPack numbers them, and the number of the GPU."""
    def __enter__(self, /) -> RawGpuBuffer: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, nelems: SupportsIndex, granularity: GpuBufferGranularity = ...) -> RawGpuBuffer: ...
    def __repr__(self, /) -> str: ...
    def bytes(self, /) -> int:
        """How many bytes the buffer has."""
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def data(self, /) -> int:
        """The address of the buffer on the device."""
    def device_id(self, /) -> int:
        """The number of the buffer's GPU."""
    def nelems(self, /) -> int:
        """How many bytes were asked for."""
    def read(self, /, offset: "typing.SupportsIndex" = 0, size: SupportsIndex | None = None) -> "builtins.bytes":
        """Waits until the writes of kernels and copies are done, and returns a copy of the bytes."""
    def to_dlpack(self, /, data_type: str, shape: SupportsGetItem[int, SupportsIndex] = ..., strides: SupportsGetItem[int, SupportsIndex] = ...) -> Any:
        """
        Returns a DLPack capsule of the memory as an array. Without a shape, the array has as many elements as fit.
        `data_type` is a name such as `float32` or `torch.float16`; strides count elements.
        """
    def write(self, /, data: Buffer | Sequence[SupportsIndex], offset: "typing.SupportsIndex" = 0) -> None:
        """Copies bytes into the buffer."""

@final
class RegisteredMemory:
    """Memory that can be the source or destination of transfers: this process's or a peer's."""
    def __enter__(self, /) -> RegisteredMemory: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /) -> RegisteredMemory: ...
    def __repr__(self, /) -> str: ...
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def data(self, /) -> int:
        """
        The address of the memory in this process. A peer's memory is mapped by this call, if there is a connection to
        its process over which memory can be mapped; else the address is 0. Raises the error if it cannot be mapped.
        """
    @staticmethod
    def deserialize(data: Buffer | Sequence[SupportsIndex]) -> RegisteredMemory:
        """The memory that a peer has serialized."""
    def serialize(self, /) -> bytes:
        """The bytes from which a peer makes this memory with `deserialize()`."""
    def size(self, /) -> int:
        """How many bytes the memory has."""
    def transports(self, /) -> TransportFlags:
        """The transports that the memory is registered for."""

@final
class Rendezvous:
    """
    The rank and the job of this process, and the address where the ranks meet. They come from torchrun, mpirun, srun
    or Kubernetes, or from `MSCCLPP_RANK`, `MSCCLPP_N_RANKS` and `MSCCLPP_ADDRESS`.
    """
    def __repr__(self, /) -> str: ...
    @property
    def address(self, /) -> str:
        """The address at which rank 0 listens."""
    def connect(self, /, timeout_sec: SupportsFloat | SupportsIndex = 30.0) -> TcpBootstrap:
        """Joins the job at the address."""
    @staticmethod
    def from_env() -> Rendezvous:
        """Reads the environment, and logs the values at level INFO. Two sources that disagree are an error."""
    @property
    def job(self, /) -> str | None:
        """The launcher's id of the job, if it has one."""
    @property
    def local_rank(self, /) -> int | None:
        """
        The number of this rank among the ranks of its node, if the launcher says it. It can serve as the number of
        the rank's device.
        """
    @property
    def n_ranks(self, /) -> int:
        """The number of ranks."""
    @property
    def rank(self, /) -> int:
        """The number of this rank."""
    @property
    def store(self, /) -> tuple[str, int, str] | None:
        """
        The host name and port of the launcher's store, and the prefix of keys in it, if there is a store to meet
        through.
        """

@final
class Semaphore:
    """Signals between the two ends of a connection. Each end has a token, which the signals of the other end increase."""
    def __enter__(self, /) -> Semaphore: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, local_stub: SemaphoreStub | None = None, remote_stub: SemaphoreStub | None = None) -> Semaphore: ...
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str = "aborted by the program") -> None:
        """Ends every wait through this object, on this side and at the peer, and all later ones."""
    def check(self, /) -> None:
        """
        Raises the error that happened to the semaphore, if there was one, even if no wait ended because of it: an
        abort, a lost peer, a peer that has left, or a spin bound.
        """
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def connection(self, /) -> Connection:
        """The connection that it was made over."""
    def local_memory(self, /) -> RegisteredMemory:
        """The memory with this side's token."""
    def remote_memory(self, /) -> RegisteredMemory:
        """The memory with the peer's token."""

@final
class SemaphoreStub:
    """One side's part of a semaphore, which is sent to the peer."""
    def __enter__(self, /) -> SemaphoreStub: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, connection: Connection) -> SemaphoreStub: ...
    def __repr__(self, /) -> str: ...
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    @staticmethod
    def deserialize(data: Buffer | Sequence[SupportsIndex]) -> SemaphoreStub:
        """The stub that a peer has serialized."""
    def memory(self, /) -> RegisteredMemory:
        """The memory that holds the token. Other semaphores use the same memory."""
    def serialize(self, /) -> bytes:
        """The bytes from which the peer makes this stub with `deserialize()`."""

@final
class SharedFuture_Connection:
    """A future of a `Connection`, which is there when the other rank has sent its part."""
    def __repr__(self, /) -> str: ...
    def get(self, /) -> Connection:
        """Waits for the object and returns it. Every call returns the same object."""

@final
class SharedFuture_RegisteredMemory:
    """A future of a `RegisteredMemory`, which is there when the other rank has sent its part."""
    def __repr__(self, /) -> str: ...
    def get(self, /) -> RegisteredMemory:
        """Waits for the object and returns it. Every call returns the same object."""

@final
class SharedFuture_Semaphore:
    """A future of a `Semaphore`, which is there when the other rank has sent its part."""
    def __repr__(self, /) -> str: ...
    def get(self, /) -> Semaphore:
        """Waits for the object and returns it. Every call returns the same object."""

@final
class TcpBootstrap(Bootstrap):
    """A rank of a job whose processes are connected by TCP."""
    @staticmethod
    def create(rank: SupportsIndex, nRanks: SupportsIndex) -> TcpBootstrap:
        """Makes the bootstrap of rank `rank` out of `nRanks`, which `initialize()` then connects."""
    @staticmethod
    def create_unique_id() -> UniqueId:
        """Makes the identity of a new job. One process calls it, which lives until all ranks have come."""
    def get_unique_id(self, /) -> UniqueId:
        """The identity with which this bootstrap was initialised."""
    def initialize(self, /, unique_id: "UniqueId | str | None" = None, timeout_sec: SupportsFloat | SupportsIndex = 30.0, *, if_ip_port_trio: str | None = None, job: str | None = None) -> None:
        """
        Joins the job; returns when all ranks are connected. `unique_id` is an id, or an address as `ip:port` or
        `interface:ip:port`, which may also be given as `if_ip_port_trio`. With an address, `job` is an id that all ranks of the
        job share and no other job has: `MSCCLPP_JOB_ID` if it is not given, or else the launcher's.
        """

@final
class Transport:
    """A way for two endpoints to reach each other."""
    CudaIpc: Final[Transport]
    Ethernet: Final[Transport]
    IB0: Final[Transport]
    IB1: Final[Transport]
    IB2: Final[Transport]
    IB3: Final[Transport]
    IB4: Final[Transport]
    IB5: Final[Transport]
    IB6: Final[Transport]
    IB7: Final[Transport]
    NumTransports: Final[Transport]
    Unknown: Final[Transport]
    __members__: Final[dict[str, Transport]]
    def __and__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __index__(self, /) -> int: ...
    def __int__(self, /) -> int: ...
    def __invert__(self, /) -> TransportFlags: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, value: SupportsIndex) -> Transport: ...
    def __or__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __reduce__(self, /) -> tuple[type, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    def __rand__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __ror__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __rxor__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __xor__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    @property
    def name(self, /) -> str:
        """The member's name."""
    @property
    def value(self, /) -> int:
        """The member's number."""

@final
class TransportFlags:
    """A set of transports."""
    def __and__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __iand__(self, other: TransportFlags | Transport, /) -> Self: ...
    def __invert__(self, /) -> TransportFlags: ...
    def __ior__(self, other: TransportFlags | Transport, /) -> Self: ...
    def __ixor__(self, other: TransportFlags | Transport, /) -> Self: ...
    def __new__(cls, /, transport: TransportFlags | Transport = ...) -> TransportFlags: ...
    def __or__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __rand__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __repr__(self, /) -> str: ...
    def __ror__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __rxor__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def __xor__(self, other: TransportFlags | Transport, /) -> TransportFlags: ...
    def all(self, /) -> bool:
        """Whether every transport is in the set."""
    def any(self, /) -> bool:
        """Whether something is in the set."""
    def count(self, /) -> int:
        """How many transports are in the set."""
    def has(self, /, transport: Transport) -> bool:
        """Whether a transport is in the set."""
    def none(self, /) -> bool:
        """Whether the set is empty."""

@final
class UniqueId:
    """The identity of a job: one process makes it and passes it to the others, for example by pickling it."""
    def __eq__(self, value: object, /) -> bool: ...
    def __getstate__(self, /) -> bytes:
        """The id as 128 bytes, its key among them: whoever has them can join the job."""
    def __hash__(self, /) -> int:
        """Hashes the part of the id that is not secret, in which any two jobs differ."""
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /) -> UniqueId: ...
    def __repr__(self, /) -> str: ...
    def __setstate__(self, /, state: bytes) -> None:
        """Takes the bytes that `__getstate__()` gave."""

@final
class _ChoiceCounter:
    """Counts the choices of tokens on one device."""
    def __new__(cls, /, device: SupportsIndex) -> _ChoiceCounter:
        """Loads the kernel."""
    def count(self, /, tokens: SupportsIndex, top_k: SupportsIndex, ids: SupportsIndex, id_bytes: SupportsIndex, experts: SupportsIndex, ranks: SupportsIndex, counts: SupportsIndex, is_in_rank: SupportsIndex, stream: "int") -> None:
        """
        Counts the choices of `tokens` tokens, `top_k` each, at the address `ids`. `counts` gets 1 + `ranks` + `experts`
        numbers of 4 bytes, and `is_in_rank` a byte for each token and rank. On a simulated device, it waits until that is done.
        """

@final
class _Collectives:
    """Collectives of all ranks of a communicator."""
    def __enter__(self, /) -> _Collectives: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, communicator: Communicator, device: SupportsIndex, max_blocks: SupportsIndex | None = None, scratch: SupportsIndex | None = None, calls_at_once: SupportsIndex | None = None, timeout_sec: SupportsFloat | SupportsIndex | None = None, check_calls: bool | None = None, overlap: bool = False) -> _Collectives:
        """Makes collectives of all ranks of a communicator. All ranks call it, and it blocks until they have."""
    def __repr__(self, /) -> str: ...
    def abort(self, /, reason: str) -> None:
        """Ends the waits of this rank's calls, and those of all other ranks' calls: gives up the job, for a part of it, too."""
    def all_reduce_rows(self, /, kernel: _Kernel, args: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex] | Buffer | Sequence[SupportsIndex]], rows: tuple[SupportsIndex, SupportsIndex, SupportsIndex, str], outputs: SupportsGetItem[int, tuple[SupportsIndex, str | None, bool]], stream: "int") -> bool:
        """
        Sums up rows and hands each to a kernel that was made for that: see `Collectives::all_reduce_rows` of the
        crate. `rows` is the address of the first row, the number of rows, the numbers in each, and their type. An
        output is its address, its type (None for 4 bytes for each row), and whether it stays on its rank. An argument
        of the kernel is its bytes, or the address and the size of memory. Returns what `enqueue` returns.
        """
    def capture_of(self, /, stream: "int") -> int | None:
        """The number of the capture that a stream is part of. None if no capture is active."""
    def check(self, /) -> None:
        """Raises an error if a complete call failed. Does not block."""
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def counts_to_host(self, /, counts: SupportsIndex, experts: SupportsIndex, stream: "int") -> tuple[int, list[list[int]], list[int]]:
        """
        Gathers the counts that a [`ChoiceCounter`](mscclpp_ep::ChoiceCounter) has stored at the address `counts`, for so many
        experts, and waits until the host has them. Returns the most tokens of a rank; how many tokens go from each rank to each;
        and how many rows come to each expert of this rank, which has an equal part of them, in order. Not in a capture.
        """
    def deregister(self, /, registered: _Registered) -> None:
        """Ends a registration on all ranks. All ranks call it together."""
    @property
    def device(self, /) -> int:
        """The number of the device."""
    def enqueue(self, /, requests: "list[Any]", stream: "int", protocol: str | None = None, blocks: SupportsIndex = 0, threads: SupportsIndex = 0, others: "list[int]" = ...) -> bool:
        """
        Puts collectives into a stream. A request is a tuple of kind, address of the input, address of the output,
        count, type, operation, and root or peer; a `_Requests` stands for several. The call waits for no other rank.
        Messages between two ranks are launched together. Returns whether all work of a simulated device was complete before.

        All ranks may name the same `protocol` ("ll16", "ll128", "simple", "two_steps", "two_steps_ll128" or "any"),
        number of blocks, and number of threads in each; 0 stands for the selected number. If the protocol is not
        possible for a call, another one is used.

        The calls wait for the work that the streams `others` have now, and later work of these streams waits for the
        calls.
        """
    def enqueue_behind(self, /, requests: "list[Any]", stream: "int", behind: "list[int | _Point]") -> _Point:
        """
        Puts collectives into a stream of a GPU, as `enqueue` does, when the work that is `behind` is complete: the present work
        of other streams, or what is before points. Returns the point behind the collectives.
        """
    def enqueue_tensors(self, kind: str, given: Any, taken: Any, parts: tuple[SupportsIndex, SupportsIndex], numbers: tuple[str, SupportsIndex, Any], root: SupportsIndex, stream: "int", behind: "int | None", /) -> "_Point | bool | None":
        """
        Puts one collective of tensors of PyTorch into a stream of a GPU: see `_Requests.of_tensors`. With `behind` it waits for
        the present work of that stream.

        Returns the point behind the collective if `behind` is given, else True. Returns None, and does nothing, for tensors that
        are empty or for which `_Requests.of_tensors` returns None.
        """
    @property
    def is_simulated(self, /) -> bool:
        """Whether the device is simulated."""
    def last_call(self, /) -> _Point | None:
        """The point behind the last call that is not in a graph. None if that is complete, or being made. Does not block."""
    def publish(self, /, address: SupportsIndex, size: SupportsIndex) -> _Published:
        """Publishes memory of this rank, and waits for no other."""
    @property
    def rank(self, /) -> int:
        """The number of this rank."""
    def register(self, /, address: SupportsIndex, size: SupportsIndex, symmetric: bool) -> _Registered:
        """Registers memory on all ranks. All ranks call it together."""
    def selection(self, /, request: Incomplete, protocol: str | None = None, blocks: SupportsIndex = 0, threads: SupportsIndex = 0) -> tuple[str, bool, int, int] | None:
        """
        Returns how `enqueue` would carry out the request: the protocol, whether in two steps, and how many blocks and
        threads. Returns None where no kernel is needed.
        """
    @property
    def size(self, /) -> int:
        """The number of ranks."""
    def split(self, /, color: SupportsIndex | None, key: SupportsIndex) -> _Collectives | None:
        """
        Makes collectives of those ranks that give the same color, in the order of their keys. Returns None without a
        color. All ranks call it.
        """
    def synchronize(self, /, stream: "int") -> None:
        """
        Waits until all work of the stream is complete, at most for the timeout of the collectives, and raises an
        error if a collective failed.
        """

@final
class _Experts:
    """The experts of all ranks of a communicator, as one rank has them."""
    def __enter__(self, /) -> _Experts: ...
    def __exit__(self, /, *_exception: "object") -> None: ...
    def __new__(cls, /, communicator: Communicator, device: SupportsIndex, dtype: str, experts: SupportsIndex, top_k: SupportsIndex, hidden: SupportsIndex, capacity: SupportsIndex, expert_map: SupportsGetItem[int, SupportsIndex] | None, quantise: str | None, row_bytes: SupportsIndex | None, also: SupportsGetItem[int, SupportsIndex], micro_batches: SupportsIndex, exact: bool, max_blocks: SupportsIndex | None, calls_at_once: SupportsIndex | None, timeout_sec: SupportsFloat | SupportsIndex | None, survive_loss: SupportsFloat | SupportsIndex | None, tag: SupportsIndex | None, ranks: SupportsGetItem[int, SupportsIndex] | None) -> _Experts:
        """Sets up the experts of the ranks of a communicator. All ranks call it, and it blocks until they have."""
    def __repr__(self, /) -> str: ...
    def check(self, /) -> None:
        """Raises an error if a complete call failed. Does not block."""
    def close(self, /) -> None:
        """
        Closes the object. What it holds is freed when no other object needs it. Any later call raises. Calls
        that other threads have begun go on. A second `close()` does nothing.
        """
    def combine(self, /, routed: _Routed, rows: tuple[SupportsIndex, SupportsIndex], out: tuple[SupportsIndex, SupportsIndex], weights: tuple[SupportsIndex, SupportsIndex] | None, biases: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]], exact: bool, row_weights: tuple[tuple[SupportsIndex, SupportsIndex], tuple[SupportsIndex, SupportsIndex]] | None, waits: tuple[SupportsIndex, SupportsIndex] | None, hook: bool, stream: "int") -> tuple[_Receive | None, bool]:
        """
        Sums the experts' rows. `row_weights` are the weights of rows and the memory for those that come back. Returns
        the second half if `hook`, and whether all work of a simulated device was complete before.
        """
    @property
    def device_bytes(self, /) -> int:
        """The device memory that this rank took, in bytes."""
    def dispatch(self, /, tokens: SupportsIndex, ids: tuple[SupportsIndex, SupportsIndex], id_bytes: SupportsIndex, weights: tuple[SupportsIndex, SupportsIndex] | None, rows: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]], layout: str, alignment: SupportsIndex, out: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]], along: SupportsLenAndGetItem[tuple[SupportsIndex, SupportsIndex] | None], micro_batch: SupportsIndex, zero_rest: bool, mask_along: bool, column_major: bool, hook: bool, stream: "int") -> tuple[_Routed, _Receive | None, bool]:
        """
        Sends tokens. `rows` has the memory of each tensor to send, `out` that of each tensor to receive (empty for the
        layout "rank"). `along` has five outputs, each of which may be None: local ids, weights and sources of the rows,
        counts of the experts, and waiting times. Returns the routing, the second half if `hook`, and whether all work of
        a simulated device was complete before.
        """
    def dispatch_again(self, /, routed: _Routed, rows: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]], out: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]], stream: "int") -> bool:
        """
        Sends other tensors the way of an earlier dispatch. Returns whether all work of a simulated device was
        complete before.
        """
    @property
    def is_simulated(self, /) -> bool:
        """Whether the device is simulated."""
    def lose(self, /, ranks: SupportsGetItem[int, SupportsIndex], stream: "int") -> None:
        """Has later calls go on without these ranks."""
    def lost(self, /) -> list[int]:
        """The ranks that are known to be lost."""
    def lost_choices(self, /) -> int:
        """How many choices counted as none because a rank was lost."""
    @property
    def n_local(self, /) -> int:
        """The number of this rank's experts."""
    @property
    def n_ranks(self, /) -> int:
        """The number of ranks."""
    @property
    def rank(self, /) -> int:
        """The number of this rank."""
    def release(self, /, routed: _Routed, stream: "int") -> None:
        """Gives the rows of a dispatch back without a combine."""
    def synchronize(self, /, stream: "int") -> None:
        """
        Waits until all work of the stream is complete, at most for the time-out of the set-up, and raises an error if
        a call failed.
        """
    def with_payload(self, /, quantise: str | None, row_bytes: SupportsIndex | None, also: SupportsGetItem[int, SupportsIndex]) -> _Experts:
        """Returns the same experts with other tensors that travel."""

@final
class _Kernel:
    """A kernel, loaded on the GPU that was current when this was made. `mscclpp.utils.Kernel` is built on it."""
    def __new__(cls, /, name: str, source: str, headers: SupportsGetItem[int, tuple[str, str]], kernel: str, ptx: str | None = None) -> _Kernel:
        """
        Compiles `source`, unless `ptx` was given, which was compiled from it before. `name` stands in messages.
        `headers` are the names by which the source includes files, and their texts.
        """
    def launch(self, /, params: Buffer | Sequence[SupportsIndex], nblocks: SupportsLenAndGetItem[SupportsIndex], nthreads: SupportsLenAndGetItem[SupportsIndex], shared: SupportsIndex, stream: SupportsIndex | None, keep: "tuple[typing.Any, ...] | None" = None, addresses: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex]] | None = None) -> None:
        """
        Submits a launch to `stream`, a driver's handle, or to the default stream, and does not wait for it. `keep`,
        the tuple that `params` was made of, lives at least until the launch is complete. `addresses` holds, for each
        place of the tuple with a tensor that can move, its address; then `launch_again` may launch the tuple again.
        If it is None, `launch_again` does not.
        """
    def launch_again(self, /, params: "tuple[typing.Any, ...]", nblocks: SupportsLenAndGetItem[SupportsIndex], nthreads: SupportsLenAndGetItem[SupportsIndex], shared: SupportsIndex, stream: SupportsIndex | None) -> bool:
        """
        Launches the tuple of the last launch again, if that launch still runs and nothing in the tuple has changed.
        Returns whether it did.
        """
    @staticmethod
    def of_binary(name: str, binary: Buffer | Sequence[SupportsIndex], kernel: str) -> _Kernel:
        """Loads a cubin or fatbin."""
    @staticmethod
    def of_rms_norm(kernel: str) -> _Kernel:
        """One of the library's kernels that add a residual and normalise, such as "all_reduce_rms_norm_f16"."""
    @property
    def parameter_names(self, /) -> list[str]:
        """The names of the parameters. The list is empty if the source does not have them."""
    @property
    def parameters(self, /) -> list[tuple[int, int]]:
        """The offset and size of each parameter, in bytes."""

@final
class _Point:
    """A point in a stream: the end of the work that the stream had when the point was made."""
    def __new__(cls, /, device: "int", stream: "int") -> _Point:
        """The present end of a stream of a device."""
    def advance(self, /, stream: "int") -> bool:
        """
        Moves the point to the present end of its stream, unless a capture of the stream has begun or ended since. Returns
        whether it is there.
        """
    def hold(self, /, stream: "int") -> None:
        """Makes later work of a stream of the device wait for the work before the point."""
    @property
    def is_captured(self, /) -> bool:
        """Whether the stream was being captured."""
    def is_complete(self, /) -> bool:
        """Whether the work before the point is complete. Does not block."""

@final
class _Published:
    """Memory that a rank has published, until this object is dropped."""
    @property
    def is_ready(self, /) -> bool:
        """Whether all other ranks have mapped it."""

@final
class _Receive:
    """The second half of a call that has sent."""
    def receive(self, /, stream: "int") -> None:
        """Puts the second half into a stream. Once only."""

@final
class _Registered:
    """A registration of memory. It ends when this object is dropped or given to `_Collectives.deregister`."""

@final
class _Requests:
    """Requests of one kind, made of tensors."""
    @staticmethod
    def of_tensors(kind: str, given: SupportsGetItem[int, Any], taken: SupportsGetItem[int, Any], parts: tuple[SupportsIndex, SupportsIndex], numbers: tuple[str, SupportsIndex, Any], /) -> _Requests | None:
        """
        Makes a request for each input and output, which are tensors of PyTorch, and may be the same one. The input has
        `parts[0]` times as many elements as the request's count, the output `parts[1]` times as many. `numbers` says what an
        element is sent as: the type of the numbers, how many they are, and the operation. A complex64 is two float32.

        Returns None unless all tensors are of one type, on one device, and have their numbers in memory in their order and with
        their signs. Without PyTorch's table for DLPack, which older versions lack, that is not known.
        """

@final
class _Routed:
    """The routing of a dispatch. It keeps the experts, whose memory it speaks of."""
    def check_received(self, /, stream: "int") -> None:
        """Checks, behind the work in the stream, that the rows of `received` are still there."""
    def counts_to_host(self, /, stream: "int") -> HostCounts:
        """Has the counts stored into memory of the host, behind the work in the stream."""
    def offsets_on_device(self, /) -> int:
        """The address of the offsets of the layout "flat"."""
    def received(self, /, part: SupportsIndex) -> tuple[int, int, int, int]:
        """
        Where the rows of a tensor are in the layout "rank": the address, the bytes of a row, from a row to the next,
        and from a rank to the next.
        """
    def row(self, /, rank: SupportsIndex, n: SupportsIndex) -> tuple[int, list[int], list[float]]:
        """Returns what came with a row: the number of the token, the local expert of each choice, and the weights."""
    def rows_of_experts(self, /) -> list[int]:
        """How many rows came for each expert of this rank."""
    def rows_of_experts_on_device(self, /) -> int:
        """The address of the counts of `rows_of_experts`."""
    def rows_of_ranks(self, /) -> list[int]:
        """How many rows came from each rank."""
    def rows_of_ranks_on_device(self, /) -> int:
        """The address of the counts of each rank."""

def _bind_to_node(node: SupportsIndex) -> None:
    """Binds this thread, and those that it starts later, to the processors of a NUMA node."""

def _cached_ptx(name: str, made_from: SupportsGetItem[int, str], make: "collections.abc.Callable[[], str]") -> str:
    """
    Returns PTX from the cache of compiled kernels. If it is not there, calls `make` and stores its result. The key is
    a hash of all of `made_from`.
    """

def _current_gpu() -> tuple[str, int, tuple[int, int] | None]:
    """The platform of the current GPU, its number, and its compute capability, if it is one of CUDA."""

def _data_types() -> list[tuple[str, int, int]]:
    """Name, bytes of a number, and code of the kind in DLPack, of each type that has collectives."""

def _device_of(address: SupportsIndex) -> int | None:
    """The number of the GPU whose memory holds an address."""

def _end_log_queue() -> None:
    """Closes the queue: lines that are in it are the last ones."""

def _end_proxies() -> None:
    """
    Ends all proxies, at the interpreter's exit. A proxy that was aborted cannot start again, and no other can be
    made.
    """

def _log_meeting(text: str) -> None:
    """Logs a line of the Python layer at level INFO: how ranks meet, and what they make together."""

def _log_to_queue(level: SupportsIndex) -> None:
    """Sends lines of `level`, as `logging` numbers it, and above to the queue from now on, and nowhere else."""

def _look_at_tensor(tensor: Any, device: SupportsIndex | None) -> tuple[int, int, str] | None:
    """
    Returns the address, the number of elements and the name of the type of a tensor on a device of CUDA, or on the host if
    `device` is None. Returns None for another object, and where the memory does not hold numbers of the types of collectives
    in their order and with their signs.
    """

def _next_log_line() -> tuple[str, int, str] | None:
    """Waits for the next line: the logger's name, the level and the text. None when the queue has ended."""

def _numa_node(device_id: "typing.SupportsIndex") -> int | None:
    """The NUMA node of a GPU. None where the system does not say it."""

def _of_dlpack(capsule: "object") -> tuple[int, int, int, list[int], list[int] | None]:
    """
    The address of the array in a capsule, the code of the kind of its numbers, their bits, the shape, and the strides in
    numbers if there are any. The memory stays the array's.
    """

def _start_log() -> None:
    """Sets up logging as the environment says. Does nothing the second time."""

def _synchronize(timeout_sec: SupportsFloat | SupportsIndex, abort: "object", device: SupportsIndex | None = None) -> None:
    """
    Waits until everything that was launched on the default stream of a GPU, by default the current one, is complete. If
    it is not complete in time, the objects in `abort` are aborted, which ends kernels that wait through them.
    """

def device_count() -> int:
    """
    How many GPUs, or simulated devices, this process sees; at least one. Raises `Error` if there is none, with a list
    of what was tried.
    """

def env() -> Env:
    """Returns the settings. Every call returns the same object."""

def get_host_name(maxlen: SupportsIndex, delim: str) -> str:
    """The host name up to `delim`, and at most `maxlen` characters of it."""

def races() -> list[Race]:
    """
    The races of kernels that simulated devices have found in this process so far, each pair of lines once. The list
    is empty unless `MSCCLPP_SIM_RACES=1` is set. A kernel with a race also fails when it ends, and the next
    `synchronize()` raises the report.
    """

def set_device(device: "typing.SupportsIndex") -> None:
    """
    Makes GPU `device`, counted from 0, the current one of the calling thread. Calls that name no device then use it,
    also those of CuPy and PyTorch. A thread that has not called it uses GPU 0, or the one that another library has
    made current. Raises `Error` if there is no such GPU. `mscclpp.set_device(rank % mscclpp.device_count())` spreads
    ranks over the GPUs.
    """

def version() -> "dict[str, str]":
    """The names and versions of this library and of the package."""

CppBaseMemoryChannel = BaseMemoryChannel
CppBaseMemoryChannelDeviceHandle = BaseMemoryChannelDeviceHandle
CppBasePortChannel = BasePortChannel
CppBasePortChannelDeviceHandle = BasePortChannelDeviceHandle
CppBaseProxyService = BaseProxyService
CppBootstrap = Bootstrap
CppCommunicator = Communicator
CppConnection = Connection
CppContext = Context
CppDevice = Device
CppDeviceType = DeviceType
CppEndpoint = Endpoint
CppEndpointConfig = EndpointConfig
CppEndpointConfigIb = EndpointConfigIb
CppEnv = Env
CppErrorCode = ErrorCode
CppFifo = Fifo
CppFifoDeviceHandle = FifoDeviceHandle
CppGpuBufferGranularity = GpuBufferGranularity
CppHost2DeviceSemaphore = Host2DeviceSemaphore
CppHost2DeviceSemaphoreDeviceHandle = Host2DeviceSemaphoreDeviceHandle
CppHost2HostSemaphore = Host2HostSemaphore
CppHostCounts = HostCounts
CppIbMode = IbMode
CppMemoryChannel = MemoryChannel
CppMemoryChannelDeviceHandle = MemoryChannelDeviceHandle
CppMemoryDevice2DeviceSemaphore = MemoryDevice2DeviceSemaphore
CppMemoryDevice2DeviceSemaphoreDeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle
CppPortChannel = PortChannel
CppPortChannelDeviceHandle = PortChannelDeviceHandle
CppProxy = Proxy
CppProxyHandlerResult = ProxyHandlerResult
CppProxyService = ProxyService
CppProxyTrigger = ProxyTrigger
CppRace = Race
CppRaceAccess = RaceAccess
CppRawGpuBuffer = RawGpuBuffer
CppRegisteredMemory = RegisteredMemory
CppRendezvous = Rendezvous
CppSemaphore = Semaphore
CppSemaphoreStub = SemaphoreStub
CppSharedFuture_Connection = SharedFuture_Connection
CppSharedFuture_RegisteredMemory = SharedFuture_RegisteredMemory
CppSharedFuture_Semaphore = SharedFuture_Semaphore
CppTcpBootstrap = TcpBootstrap
CppTransport = Transport
CppTransportFlags = TransportFlags
CppUniqueId = UniqueId
