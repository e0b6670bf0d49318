"""Values without a job: enumerations, flags, configurations, ids, errors, settings."""

import os
import pickle

import mscclpp
import pytest
from mscclpp import (
    Device,
    DeviceType,
    EndpointConfig,
    EndpointConfigIb,
    Error,
    ErrorCode,
    IbMode,
    TcpBootstrap,
    Transport,
    TransportFlags,
    UniqueId,
)

import ranks


def test_flags_are_sets_and_transports_convert():
    flags = TransportFlags(Transport.CudaIpc) | Transport.IB0
    assert flags.has(Transport.CudaIpc) and flags.has(Transport.IB0) and not flags.has(Transport.IB1)
    assert (flags.count(), flags.any(), flags.none(), flags.all()) == (2, True, False, False)
    assert flags == Transport.CudaIpc | Transport.IB0 and flags != Transport.CudaIpc
    assert TransportFlags(Transport.IB3) == Transport.IB3 and Transport.IB3 == TransportFlags(Transport.IB3)
    assert (flags & Transport.IB0) == Transport.IB0 and (flags ^ Transport.IB0) == Transport.CudaIpc
    assert not (~flags).has(Transport.IB0) and (~flags | flags).all()
    assert TransportFlags().none() and TransportFlags() == TransportFlags(Transport.Unknown)
    flags |= Transport.Ethernet
    assert flags.count() == 3
    flags &= ~TransportFlags(Transport.CudaIpc)
    assert flags == Transport.IB0 | Transport.Ethernet
    flags ^= Transport.Ethernet
    assert flags == Transport.IB0
    assert (flags == "IB0") is False
    with pytest.raises(TypeError):
        flags | 3


def test_members_have_names_values_and_pickle():
    assert (Transport.IB0.name, Transport.IB0.value, Transport(2)) == ("IB0", 2, Transport.IB0)
    assert int(ErrorCode.Timeout) == 4 and ErrorCode.__members__["Timeout"] == ErrorCode.Timeout
    assert {Transport.IB0: 1}[Transport(2)] == 1
    for member in (Transport.CudaIpc, DeviceType.GPU, IbMode.Host, ErrorCode.Aborted):
        assert pickle.loads(pickle.dumps(member)) == member
    with pytest.raises(ValueError, match="77 is no Transport"):
        Transport(77)


def test_configurations_have_their_defaults_and_can_be_changed():
    ib = EndpointConfigIb()
    assert (ib.device_index, ib.port, ib.gid_index, ib.mode) == (-1, -1, -1, IbMode.Default)
    sizes = (ib.max_cq_size, ib.max_cq_poll_num, ib.max_send_wr, ib.max_recv_wr, ib.max_wr_per_send)
    assert sizes == (1024, 256, 8192, 16, 64)
    chosen = (ib.traffic_class, ib.service_level, ib.pkey_index, ib.timeout, ib.retry_count, ib.rnr_retry)
    assert chosen == (-1,) * 6, "left to the transport"
    tuned = EndpointConfigIb(
        traffic_class=106, service_level=3, pkey_index=1, timeout=18, retry_count=7, rnr_retry=6, mode=IbMode.Host
    )
    assert (tuned.traffic_class, tuned.service_level, tuned.pkey_index) == (106, 3, 1)
    assert (tuned.timeout, tuned.retry_count, tuned.rnr_retry, tuned.mode) == (18, 7, 6, IbMode.Host)
    tuned.timeout = 20
    assert tuned.timeout == 20 and EndpointConfig(Transport.IB0, ib=tuned).ib.timeout == 20
    with pytest.raises(TypeError):
        EndpointConfigIb(-1, -1, -1, 1, 1, 1, 1, 1, IbMode.Default, 106)
    config = EndpointConfig(Transport.IB0, DeviceType.CPU, 7, EndpointConfigIb(port=2))
    assert (config.transport, config.device.type, config.device.id) == (Transport.IB0, DeviceType.CPU, -1)
    assert (config.max_write_queue_size, config.ib.port, config.ib_port) == (7, 2, 2)
    config.ib_gid_index = 3
    config.ib.max_send_wr = 16
    config.device.id = 1
    other = EndpointConfig(Transport.CudaIpc)
    other.device = DeviceType.CPU
    assert (other.device.type, other.device.id) == (DeviceType.CPU, -1)
    with pytest.raises(TypeError, match="a Device or a DeviceType"):
        other.device = 3
    config.transport = Transport.Ethernet
    assert (config.ib.gid_index, config.ib_max_send_wr, config.device.id) == (3, 16, 1)
    assert config.transport == Transport.Ethernet
    assert EndpointConfig().transport == Transport.Unknown
    assert EndpointConfig(Transport.CudaIpc).device.type == DeviceType.GPU
    assert (Device(DeviceType.GPU, 3).id, Device(DeviceType.GPU).id, Device().type) == (3, -1, DeviceType.Unknown)


def test_settings_of_infiniband_arrive_and_their_ranges_are_checked():
    """On an endpoint over Ethernet, which passes the values on and does not use them."""
    context = mscclpp.Context.create()
    given = dict(traffic_class=106, service_level=3, pkey_index=500, timeout=0, retry_count=7, rnr_retry=6, port=1)
    config = EndpointConfig(Transport.Ethernet, DeviceType.CPU, ib=EndpointConfigIb(**given))
    held = context.create_endpoint(config).config().ib
    assert {name: getattr(held, name) for name in given} == given
    default = context.create_endpoint(EndpointConfig(Transport.Ethernet, DeviceType.CPU)).config().ib
    assert all(getattr(default, name) == -1 for name in given)
    for name, value, most in [("traffic_class", 256, 255), ("pkey_index", 65536, 65535), ("retry_count", -2, 255)]:
        wrong = EndpointConfig(Transport.Ethernet, DeviceType.CPU, ib=EndpointConfigIb(**{name: value}))
        with pytest.raises(Error, match=f"ib.{name} is {value}, which is no number from 0 to {most}"):
            context.create_endpoint(wrong)


def test_ids_pickle_and_hide_their_key():
    id = TcpBootstrap.create_unique_id()
    state = id.__getstate__()
    assert len(state) == 128
    again = pickle.loads(pickle.dumps(id))
    assert again == id and again.__getstate__() == state
    assert state[24:56].hex() not in repr(id) and "key hidden" in repr(id)
    fresh = UniqueId()
    fresh.__setstate__(state)
    assert fresh == id and pickle.loads(pickle.dumps(UniqueId())) == UniqueId()
    with pytest.raises(Error, match="checksum"):
        fresh.__setstate__(state[:100] + bytes([state[100] ^ 1]) + state[101:])


def test_errors_have_a_number_and_a_text_and_pickle():
    with pytest.raises(Error) as caught:
        TcpBootstrap.create(0, 1).barrier()
    error = caught.value
    assert error.args == (int(ErrorCode.InvalidUsage), str(error)) and isinstance(error.args[0], int)
    assert error.code == ErrorCode.InvalidUsage and "initialize" in error.message
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Error and again.args == error.args
    for name in ("Error", "SysError", "CudaError", "CuError", "IbError"):
        cls = getattr(mscclpp, name)
        assert issubclass(cls, mscclpp.BaseError) and getattr(mscclpp._mscclpp, name) is cls
        assert pickle.loads(pickle.dumps(cls(7, "seven"))).args == (7, "seven")


def test_settings_are_one_read_only_object():
    settings = mscclpp.env()
    assert mscclpp.env() is settings
    assert isinstance(settings.debug, str) and isinstance(settings.npkit_dump_dir, str)
    assert isinstance(settings.cuda_ipc_use_default_stream, bool) and isinstance(settings.ib_gid_index, int)
    with pytest.raises(AttributeError):
        settings.debug = "INFO"


def test_older_names_of_the_log_count_where_newer_are_not_set():
    ask = "import mscclpp; e = mscclpp.env(); print(e.debug, e.debug_subsys, e.debug_file)"
    names = ("LOG_LEVEL", "LOG_SUBSYS", "LOG_FILE", "DEBUG", "DEBUG_SUBSYS", "DEBUG_FILE")
    unset = {f"MSCCLPP_{name}": None for name in names}
    older = {"MSCCLPP_DEBUG": "INFO", "MSCCLPP_DEBUG_SUBSYS": "NET", "MSCCLPP_DEBUG_FILE": os.devnull}

    def said(**variables):
        return ranks.python("-c", ask, timeout=60, **{**unset, **variables})

    assert said(**older).stdout.split() == ["INFO", "NET", os.devnull]
    assert said(**older, MSCCLPP_LOG_LEVEL="WARN").stdout.split() == ["WARN", "NET", os.devnull]
    assert "MSCCLPP_DEBUG" in said(MSCCLPP_DEBUG="LOUD").stderr


def noted(caught):
    return " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: TcpBootstrap.create("zero", 2), "rank"),
        (lambda: TcpBootstrap.create(0, 2).initialize(5), "unique_id"),
        (lambda: TcpBootstrap.create(0, 2).initialize("x", timeout_sec="long"), "timeout_sec"),
        (lambda: EndpointConfig("CudaIpc"), "transport"),
        (lambda: EndpointConfig(Transport.CudaIpc, 3), "device"),
        (lambda: mscclpp.Context.create().register_memory(1, 2, "IB0"), "transports"),
        (lambda: mscclpp.Context.create().register_memory(-1, 2, Transport.CudaIpc), "ptr"),
        (lambda: mscclpp.Context.create().create_endpoint(None), "config"),
        (lambda: mscclpp.Communicator("bootstrap"), "bootstrap"),
        (lambda: mscclpp.Host2DeviceSemaphore(1), "semaphore"),
        (lambda: mscclpp.Host2HostSemaphore(1, 2), "communicator"),
        (lambda: mscclpp.MemoryChannel(1, 2, 3), "semaphore"),
        (lambda: mscclpp.MemoryChannel(communicator=1, connection=2, dst=3, src=4), "communicator"),
        (lambda: mscclpp.BaseMemoryChannel(semaphore=1), "semaphore"),
        (lambda: mscclpp.BaseMemoryChannel(sempahore=1), "sempahore"),
        (lambda: mscclpp.BaseMemoryChannel(mscclpp.Semaphore(), semaphore=mscclpp.Semaphore()), "semaphore"),
        (lambda: mscclpp.ProxyService().add_semaphore(4), "semaphore"),
        (lambda: mscclpp.ProxyService().add_memory(4), "memory"),
        (lambda: mscclpp.Proxy(handler=3), "handler"),
        (lambda: mscclpp.Endpoint.deserialize(3.5), "data"),
        (lambda: mscclpp.RawGpuBuffer(-1), "nelems"),
        (lambda: TcpBootstrap.create(0, -2), "nRanks"),
        (lambda: mscclpp.ProxyService().port_channel(0, 2**32, 0), "dst"),
        (lambda: mscclpp.RawGpuBuffer(8).to_dlpack("quaternion"), "data_type"),
    ],
)
def test_a_wrong_argument_is_named(call, argument):
    with pytest.raises((TypeError, ValueError, OverflowError, Error)) as caught:
        call()
    assert f"'{argument}'" in noted(caught)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TcpBootstrap.create(2, 2), "rank is 2, and nRanks is 2: ranks are counted from 0"),
        (lambda: mscclpp.Fifo(3), "3"),
        (lambda: mscclpp.ProxyService(5), "5"),
        (lambda: mscclpp.RawGpuBuffer(0), "at least one byte"),
        (lambda: mscclpp.Semaphore().connection(), "empty"),
        (lambda: mscclpp.MemoryChannel().device_handle(), "empty"),
        (lambda: mscclpp.MemoryChannel(None, None, None, None).device_handle(), "empty"),
        (lambda: mscclpp.BaseMemoryChannel(semaphore=None).device_handle(), "empty"),
        (lambda: mscclpp.PortChannel().device_handle(), "empty"),
        (lambda: mscclpp.Fifo().pop(), "no trigger"),
        (lambda: mscclpp.Endpoint.deserialize(b"nonsense"), "endpoint"),
        (lambda: mscclpp.Context.create().create_endpoint(Transport.IB0), "IB0"),
        (lambda: mscclpp.Context.create().create_endpoint(Transport.NumTransports), "how many"),
        (
            lambda: mscclpp.Context.create().create_endpoint(
                EndpointConfig(Transport.CudaIpc, Device(DeviceType.GPU, 99))
            ),
            "99",
        ),
    ],
)
def test_misuse_says_what_is_wrong(call, words):
    with pytest.raises(Error, match=words) as caught:
        call()
    assert caught.value.code == ErrorCode.InvalidUsage or caught.value.code == ErrorCode.RemoteError


def test_checksums_of_ethernet_can_be_chosen():
    for chosen in (True, False, None):
        mscclpp.Context(ethernet_checksums=chosen).close()
        mscclpp.Context.create(ethernet_checksums=chosen).close()
    with pytest.raises(TypeError):
        mscclpp.Context(ethernet_checksums="yes")
