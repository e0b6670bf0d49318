"""The texts of errors and log lines: they use the names of Python, and say the values and what to do."""

import math
import os
import re
import subprocess
import sys
import threading

import mscclpp
import pytest
from mscclpp import CommGroup, DeviceType, EndpointConfig, Error, TcpBootstrap, Transport
from mscclpp.utils import KernelBuilder, pack

import ranks
from device import sim_only


def said(error, call):
    """Returns the text of the exception that a call raised, with its notes."""
    with pytest.raises(error) as caught:
        call()
    return " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@pytest.fixture
def group():
    with CommGroup(interfaceIpPortTrio=ranks.free_address(), rank=0, size=1) as group:
        yield group


def test_where_there_is_no_gpu_the_error_names_the_simulated_devices():
    program = "import mscclpp\nprint(mscclpp.device_count())"
    run = ranks.python("-c", program, timeout=60, MSCCLPP_PLATFORM=None)
    if run.returncode == 0:
        pytest.skip("there is a GPU")
    assert "set MSCCLPP_PLATFORM=sim" in run.stderr, run.stderr


def test_an_address_in_the_place_of_a_communicator_is_told_where_it_goes():
    for call in (lambda: CommGroup("127.0.0.1:1", rank=0, size=1), lambda: CommGroup("127.0.0.1:1", None, "", 0, 1)):
        text = said(TypeError, call)
        assert "'mpi_comm'" in text and "'127.0.0.1:1'" in text and "interfaceIpPortTrio=" in text, text


@pytest.mark.parametrize(
    ("call", "argument", "expected"),
    [
        (lambda group: group.make_connection([0], "NVLink"), "endpoints", "a Transport or an EndpointConfig"),
        (lambda group: group.make_connection("zero", Transport.CudaIpc), "all_ranks", "numbers of ranks, got 'zero'"),
        (lambda group: group.make_semaphores([1]), "connections", "a dictionary of Connections by rank.*got list"),
        (lambda group: group.make_semaphores({0: 3}), "connections", "a Connection, got int"),
        (lambda group: group.make_memory_channels(3, {}), "tensor", "an array"),
        (
            lambda group: group.make_port_channels("x", mscclpp.GpuBuffer(4), {}),
            "proxy_service",
            "a ProxyService, got str",
        ),
        (
            lambda group: group.make_memory_channels_with_scratch(mscclpp.GpuBuffer(4), mscclpp.GpuBuffer(4), {}),
            "registeredScratchBuffer",
            "a RegisteredMemory",
        ),
        (lambda group: mscclpp.Device(3), "type", "a DeviceType, got int"),
        (lambda group: mscclpp.Fifo("x"), "size", "an int, got str"),
        (lambda group: group.bootstrap.send(b"", "zero", 0), "peer", "an int, got str"),
        (lambda group: mscclpp.set_device(0.5), "device", "an int, got float"),
    ],
)
def test_a_wrong_type_names_what_was_expected(group, call, argument, expected):
    text = said(TypeError, lambda: call(group))
    assert f"'{argument}'" in text and re.search(f"expected .*{expected}", text), text


def test_numbers_out_of_range_name_the_range():
    count = mscclpp.device_count()
    assert f"the number of a device, 0 to {count - 1}, got -1" in said(OverflowError, lambda: mscclpp.set_device(-1))
    assert f"0 to {count - 1}, got -7" in said(OverflowError, lambda: mscclpp.numa.get_device_numa_node(-7))
    assert "from 0 to 18446744073709551615, got -1" in said(OverflowError, lambda: mscclpp.RawGpuBuffer(8).read(0, -1))
    for timeout in (math.inf, math.nan, -1):
        assert "it must be a number of seconds from 0 to 1.8e19" in said(Error, lambda: mscclpp.synchronize(timeout))
        assert "'timeout_sec': expected seconds from 0 to" in said(ValueError, lambda: CommGroup.from_env(timeout))


def test_numbers_of_a_launch_out_of_range_name_the_range():
    kernel = ranks.kernel("plain.cu", "indices", EXTRA=0)
    params = pack(mscclpp.GpuBuffer(8))
    text = said(OverflowError, lambda: kernel.launch_kernel(params, 1, -1, 0, None))
    assert text == "argument 'nthreads': expected numbers from 1 to 1024, got -1"
    text = said(OverflowError, lambda: kernel.launch_kernel(params, (1, 2**40), 1, 0, None))
    assert text == f"argument 'nblocks': expected numbers from 1 to 2147483647, got {2**40}"
    text = said(TypeError, lambda: kernel.launch_kernel(params, 1, 1.5, 0, None))
    assert text == "argument 'nthreads': expected an int, or up to three, got 1.5"
    assert "'stream'" in said(TypeError, lambda: kernel.launch_kernel(params, 1, 1, 0, -1))


def test_the_place_of_an_argument_is_no_name():
    kernel = ranks.kernel("plain.cu", "indices", EXTRA=0)
    text = said(TypeError, lambda: kernel.launch_kernel((object(),), 1, 1, 0, None))
    assert text.startswith("argument 0 (out) of indices: expected an array"), text


def test_texts_count_as_people_do(tmp_path):
    (tmp_path / "one.cu").write_text('extern "C" __global__ void one(int* p) {}\n__global__ void not_named() {}\n')
    one = KernelBuilder("one.cu", "one", str(tmp_path)).get_compiled_kernel()
    for arguments, given in [((), "0 are given"), ((1, 2), "2 are given")]:
        text = said(TypeError, lambda arguments=arguments: one.launch_kernel(arguments, 1, 1, 0, None))
        assert text == f"argument 'params': one takes 1 argument (p), and {given}"
    text = said(Error, KernelBuilder("one.cu", "not_named", str(tmp_path)).get_compiled_kernel)
    assert text.endswith('; a kernel is found by its name only if it is declared extern "C" __global__')
    for size, missing in [(2, "rank 1"), (4, "ranks 1, 2, 3"), (20, "ranks 1, 2, 3, 4, 5, 6, 7, 8, .* 16 and 3 more")]:
        first = TcpBootstrap.create(0, size)
        text = said(Error, lambda first=first: first.initialize(TcpBootstrap.create_unique_id(), 0.1))
        assert re.search(f"; missing: {missing}$", text), text


@sim_only
def test_texts_name_what_python_has(group):
    connections = group.make_connection([0], Transport.CudaIpc)
    text = said(Error, lambda: mscclpp.Host2HostSemaphore(group.communicator, connections[0]))
    assert "use a Host2DeviceSemaphore, or an endpoint on DeviceType.CPU" in text
    cpu = group.make_connection([0], EndpointConfig(Transport.Ethernet, DeviceType.CPU))
    text = said(Error, lambda: mscclpp.Host2DeviceSemaphore(group.communicator, cpu[0]))
    assert "use a Host2HostSemaphore" in text
    kernel = KernelBuilder("plain.cu", "indices", ranks.KERNELS, {"EXTRA": 0}).get_compiled_kernel()
    text = said(Error, lambda: kernel.launch_kernel((mscclpp.GpuBuffer(8),), 1, 1, 0, 5))
    assert "pass None for the default stream" in text
    config = EndpointConfig(Transport.Ethernet, mscclpp.Device())
    text = said(Error, lambda: group.communicator.context().create_endpoint(config))
    assert "DeviceType.GPU, DeviceType.CPU or a Device" in text
    assert said(Error, lambda: mscclpp.RawGpuBuffer(16).read(20, 1)).startswith("RawGpuBuffer.read: ")

    def handler(trigger):
        proxy.stop()
        return mscclpp.ProxyHandlerResult.Continue

    proxy = mscclpp.Proxy(handler)
    report = KernelBuilder("custom_proxy.cu", "report", os.path.join(os.path.dirname(ranks.KERNELS), "..", "examples"))
    kernel = report.get_compiled_kernel()
    proxy.start(True)
    kernel.launch_kernel((proxy, 3), 1, 1, 0, None)
    with pytest.raises(Error, match=r"it returns ProxyHandlerResult\.Stop"):
        mscclpp.synchronize(20, group.communicator)
        proxy.stop()


WAITS = """
import sys, threading, mscclpp
from mscclpp import DeviceType, EndpointConfig, Transport
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
communicator = mscclpp.Communicator(bootstrap)
connection = communicator.connect(EndpointConfig(Transport.Ethernet, DeviceType.CPU), 0).get()
semaphore = mscclpp.Host2HostSemaphore(communicator, connection)
def end():
    sys.stdin.readline()
    semaphore.signal()
    bootstrap.send(b"x", 0, 7)
threading.Thread(target=end).start()
waiting = threading.Thread(target=semaphore.wait, args=(-1,))
waiting.start()
bootstrap.recv(0, 7)
waiting.join()
"""


def test_the_log_says_plainly_what_a_long_wait_is_for():
    expected = {"waiting for a signal from rank 0 (for 1", "rank 0: waiting for recv from rank 0 with tag 7 (for 1"}
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin and program.stderr
        limit = threading.Timer(120, program.kill)
        limit.start()
        said = ""
        # Runs until both waits have been logged, or the program is ended.
        while not all(text in said for text in expected) and (line := program.stderr.readline()):
            said += line
        _, rest = program.communicate("\n")
        limit.cancel()
    assert program.returncode == 0, said + rest
    assert "waiting for waiting for" not in said + rest
