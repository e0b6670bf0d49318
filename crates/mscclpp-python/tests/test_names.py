"""All public names resolve, also with the prefix `Cpp`, and take the arguments that programs give by name."""

import inspect
import warnings

import mscclpp
import pytest
from mscclpp import _mscclpp

PACKAGE = """
Device DeviceType Communicator Connection connect_nvls_collective EndpointConfig EndpointConfigIb IbMode ErrorCode Fifo
Semaphore Host2DeviceSemaphore Host2HostSemaphore numa ProxyService RegisteredMemory PortChannel MemoryChannel
MemoryDevice2DeviceSemaphore TcpBootstrap Transport TransportFlags DataType Executor ExecutionPlan PacketType RawGpuBuffer
ReduceOp env version is_bulk_supported is_nvls_supported npkit __version__ get_include get_lib Algorithm AlgorithmBuilder
AlgorithmCollection AlgorithmType CollectiveBufferMode Collectives CommGroup FusedAllReduce GpuBuffer GpuBufferGranularity
compile compile_native fused_all_reduce
Context Endpoint SemaphoreStub Bootstrap UniqueId BasePortChannel BaseMemoryChannel BaseProxyService
Proxy ProxyHandlerResult ProxyTrigger Rendezvous synchronize
BaseError Error SysError CudaError CuError IbError
Race RaceAccess races
""".split()

MEMBERS = {
    "Bootstrap": "get_rank get_n_ranks get_n_ranks_per_node get_n_ranks_per_ipc_domain send recv all_gather barrier",
    "UniqueId": "__getstate__ __setstate__",
    "Rendezvous": "from_env rank n_ranks address job local_rank store connect",
    "TcpBootstrap": "create create_unique_id get_unique_id initialize",
    "Transport": "Unknown CudaIpc IB0 IB1 IB2 IB3 IB4 IB5 IB6 IB7 Ethernet NumTransports",
    "TransportFlags": "has none any all count",
    "Device": "type id",
    "DeviceType": "Unknown CPU GPU",
    "IbMode": "Default Host HostNoAtomic",
    "EndpointConfigIb": "device_index port gid_index max_cq_size max_cq_poll_num max_send_wr max_recv_wr "
    "max_wr_per_send mode traffic_class service_level pkey_index timeout retry_count rnr_retry",
    "EndpointConfig": "transport device ib max_write_queue_size ib_device_index ib_port ib_gid_index ib_max_cq_size "
    "ib_max_cq_poll_num ib_max_send_wr ib_max_recv_wr ib_max_wr_per_send ib_mode",
    "RegisteredMemory": "data size transports serialize deserialize",
    "Endpoint": "config transport device max_write_queue_size serialize deserialize",
    "Connection": "write update_and_sync flush transport remote_transport context local_device "
    "get_max_write_queue_size",
    "Context": "create register_memory create_endpoint connect",
    "SemaphoreStub": "memory serialize deserialize",
    "Semaphore": "connection local_memory remote_memory",
    "SharedFuture_RegisteredMemory": "get",
    "SharedFuture_Connection": "get",
    "SharedFuture_Semaphore": "get",
    "Communicator": "bootstrap context register_memory send_memory recv_memory connect connect_on_setup "
    "send_memory_on_setup recv_memory_on_setup build_semaphore remote_rank_of tag_of setup connect_all abort",
    "Host2DeviceSemaphore": "connection signal device_handle DeviceHandle",
    "Host2HostSemaphore": "connection signal poll wait abort",
    "MemoryDevice2DeviceSemaphore": "connection device_handle DeviceHandle",
    "Fifo": "poll pop size device_handle",
    "FifoDeviceHandle": "triggers tail head size raw",
    "ProxyTrigger": "fst snd",
    "ProxyService": "start_proxy stop_proxy build_and_add_semaphore add_semaphore add_memory semaphore "
    "base_port_channel port_channel",
    "BasePortChannel": "device_handle",
    "PortChannel": "device_handle",
    "BaseMemoryChannel": "device_handle",
    "MemoryChannel": "device_handle",
    "RawGpuBuffer": "nelems bytes data device_id to_dlpack",
    "ErrorCode": "SystemError InternalError RemoteError InvalidUsage Timeout Aborted ExecutorError",
    "Env": "debug debug_subsys debug_file hca_devices hostid socket_family socket_ifname comm_id ibv_mode cache_dir "
    "npkit_dump_dir cuda_ipc_use_default_stream ib_gid_index",
}

ARGUMENTS = {
    "TcpBootstrap.create": "rank nRanks",
    "TcpBootstrap.initialize": "unique_id timeout_sec if_ip_port_trio job",
    "Bootstrap.all_gather": "allData size timeout_sec",
    "Connection.write": "dst dstOffset src srcOffset size",
    "Connection.update_and_sync": "dst dst_offset src new_value",
    "Connection.flush": "timeout_usec",
    "Context.register_memory": "ptr size transports",
    "Context.create_endpoint": "config",
    "Context.connect": "local_endpoint remote_endpoint",
    "Communicator.register_memory": "ptr size transports",
    "Communicator.send_memory": "memory remote_rank tag",
    "Communicator.recv_memory": "remote_rank tag",
    "Communicator.connect": "local_config remote_rank tag",
    "Communicator.connect_all": "local_config remote_ranks tag",
    "Communicator.connect_on_setup": "remote_rank tag local_config",
    "Communicator.build_semaphore": "connection remote_rank tag",
    "Host2HostSemaphore.wait": "max_spin_count",
    "ProxyService.start_proxy": "blocking",
    "ProxyService.build_and_add_semaphore": "comm connection",
    "ProxyService.add_semaphore": "semaphore",
    "ProxyService.add_memory": "memory",
    "ProxyService.port_channel": "id dst src",
    "RawGpuBuffer.to_dlpack": "data_type shape strides",
}

GROUP = {
    "__init__": "mpi_comm torch_group interfaceIpPortTrio rank size job timeout_sec",
    "barrier": "timeout_sec",
    "send": "tensor peer tag",
    "recv": "tensor peer tag",
    "my_ib_device": "local_rank",
    "make_connection": "all_ranks endpoints use_switch",
    "register_tensor_with_connections": "tensor connections",
    "make_semaphores": "connections",
    "make_memory_channels": "tensor connections",
    "make_memory_channels_with_scratch": "tensor registeredScratchBuffer connections",
    "make_port_channels": "proxy_service tensor connections",
    "make_port_channels_with_scratch": "proxy_service tensor registeredScratchBuffer connections",
    "register_semaphore_with_proxy": "proxy_service connections",
    "register_memory_with_proxy": "proxy_service tensor connections",
    "register_local_memory": "tensor connections",
}


@pytest.mark.parametrize("name", PACKAGE)
def test_the_package_has(name):
    assert hasattr(mscclpp, name)


def test_star_brings_what_is_public():
    names = {}
    exec("from mscclpp import *", names)
    assert set(PACKAGE) <= set(names)
    assert not [name for name in names if name.startswith("_") and name not in ("__builtins__", "__version__")]


@pytest.mark.parametrize("name", MEMBERS)
def test_classes_have_their_members_and_both_names(name):
    cls = getattr(_mscclpp, name)
    assert getattr(_mscclpp, f"Cpp{name}") is cls
    assert [member for member in MEMBERS[name].split() if not hasattr(cls, member)] == []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_methods_take_arguments_by_name(name):
    cls, method = name.split(".")
    parameters = inspect.signature(getattr(getattr(_mscclpp, cls), method)).parameters
    assert [parameter for parameter in parameters if parameter != "self"] == ARGUMENTS[name].split()


@pytest.mark.parametrize("method", GROUP)
def test_the_group_takes_arguments_by_name(method):
    parameters = inspect.signature(getattr(mscclpp.CommGroup, method)).parameters
    assert list(parameters)[1:] == GROUP[method].split()


def test_handles_have_their_fields():
    fields = {
        "Host2DeviceSemaphoreDeviceHandle": "inbound_token expected_inbound_token raw",
        "MemoryDevice2DeviceSemaphoreDeviceHandle": "inbound_token remote_inbound_token expected_inbound_token raw",
        "BaseMemoryChannelDeviceHandle": "semaphore_ raw",
        "MemoryChannelDeviceHandle": "semaphore_ dst_ src_ packetBuffer_ raw",
        "BasePortChannelDeviceHandle": "semaphore_id_ semaphore_ fifo_ raw",
        "PortChannelDeviceHandle": "semaphore_id_ semaphore_ fifo_ src_ dst_ raw",
    }
    for name, members in fields.items():
        cls = getattr(_mscclpp, name)
        assert [member for member in members.split() if not hasattr(cls, member)] == []


def test_other_modules():
    from mscclpp import utils
    from mscclpp.ext import AlgorithmCollectionBuilder  # noqa: F401
    from mscclpp.utils import GpuBuffer

    assert GpuBuffer is mscclpp.GpuBuffer
    for name in "Kernel KernelBuilder pack get_device_arch torch_dtype_to_mscclpp_dtype is_torch_tensor".split():
        assert callable(getattr(utils, name))
    assert _mscclpp.cpp_numa is mscclpp.numa and callable(mscclpp.numa.numa_bind)
    assert _mscclpp.cpp_npkit is mscclpp.npkit
    assert isinstance(_mscclpp.get_host_name(64, "."), str) and len(_mscclpp.get_host_name(2, ".")) <= 2
    assert _mscclpp.version() == mscclpp.version and set(mscclpp.version) == {"version", "git_commit"}


@pytest.mark.parametrize(
    "use",
    [
        lambda: mscclpp.ExecutionPlan("plan.json", 0),
        lambda: mscclpp.Algorithm(),
        lambda: mscclpp.AlgorithmBuilder(),
        lambda: mscclpp.compile(),
        lambda: mscclpp.compile_native(),
        lambda: mscclpp.connect_nvls_collective(None, [0], 1),
        lambda: mscclpp.npkit.init(0),
        lambda: mscclpp.npkit.dump("."),
        lambda: mscclpp.npkit.shutdown(),
        lambda: _mscclpp.CppSwitchChannel(),
    ],
)
def test_what_is_not_there_yet_says_so_when_it_is_used(use):
    with pytest.raises(NotImplementedError, match="not there yet"):
        use()
    assert mscclpp.is_nvls_supported() is False


def test_older_names_warn_once():
    for old, new in [
        ("SimpleProxyChannel", mscclpp.PortChannel),
        ("ProxyChannel", mscclpp.PortChannel),
        ("SmChannel", mscclpp.MemoryChannel),
    ]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert getattr(mscclpp, old) is new
            assert getattr(mscclpp, old) is new
        assert [(w.category, old in str(w.message)) for w in caught] == [(DeprecationWarning, True)]
    with pytest.warns(DeprecationWarning, match="mscclpp.CommGroup"):
        from mscclpp.comm import CommGroup
    assert CommGroup is mscclpp.CommGroup
    with pytest.raises(AttributeError, match="NoSuchName"):
        mscclpp.NoSuchName  # noqa: B018
