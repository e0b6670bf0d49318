"""The process as a whole: importing, forks, and its end."""

import filecmp
import os
import pathlib
import time

import mscclpp
import pytest

import ranks
from device import sim_only

ROOT = pathlib.Path(__file__).resolve().parents[3]


def python(program, **environment):
    # Python warns of a fork beside threads, which is what some of these tests do.
    ignored = ("-W", "ignore::DeprecationWarning")
    return ranks.python(*ignored, "-c", program, ranks.KERNELS, timeout=100, **environment)


def test_importing_needs_nothing_and_is_quick():
    program = """
import sys, time
start = time.process_time()
import mscclpp
print(time.process_time() - start)
print([name for name in ("numpy", "cupy", "torch", "mpi4py") if name in sys.modules])
import os
print(os.environ["MSCCLPP_HOME"] == os.path.dirname(mscclpp.__file__))
"""
    runs = [python(program, MSCCLPP_PLATFORM="", MSCCLPP_HOME="").stdout.splitlines() for _ in range(3)]
    run = ranks.python("-c", program, timeout=100, MSCCLPP_HOME=None)
    assert run.stdout.splitlines()[1:] == ["[]", "True"], run.stderr
    # The time of the processor does not depend on other load of the machine.
    assert min(float(lines[0]) for lines in runs) < 0.3
    assert python("import os, mscclpp; print(os.environ['MSCCLPP_HOME'])", MSCCLPP_HOME="/mine").stdout == "/mine\n"


def test_without_a_gpu_a_use_says_what_is_missing():
    run = python(
        "import mscclpp\ntry: mscclpp.Fifo()\nexcept mscclpp.Error as error: print(error)", MSCCLPP_PLATFORM="hip"
    )
    assert "hip" in run.stdout, run.stderr


def test_the_command_line():
    run = ranks.python("-m", "mscclpp", "--version", timeout=60)
    assert run.stdout == f"mscclpp {mscclpp.__version__} ({mscclpp.version['git_commit']})\n"


def test_the_headers_are_those_of_the_repository():
    theirs = ROOT / "cuda" / "include" / "mscclpp"
    if not theirs.is_dir():
        pytest.skip("not in the repository")
    ours = pathlib.Path(mscclpp.get_include()) / "mscclpp"
    names = sorted(path.name for path in theirs.iterdir())
    assert names == sorted(path.name for path in ours.iterdir()) and "memory_channel_device.hpp" in names
    assert filecmp.cmpfiles(ours, theirs, names, shallow=False) == (names, [], [])
    assert any(name.startswith("_mscclpp") for name in os.listdir(mscclpp.get_lib()))


def test_objects_of_a_parent_raise_in_its_forked_child():
    program = """
import os, pickle, sys, mscclpp
from mscclpp.utils import KernelBuilder
kernels = sys.argv[1]
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
comm = mscclpp.Communicator(bootstrap)
connection = comm.connect(mscclpp.Transport.CudaIpc, 0).get()
semaphore = comm.build_semaphore(connection, 0).get()
service = mscclpp.ProxyService()
service.start_proxy(blocking=True)
raw = mscclpp.RawGpuBuffer(64)
proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
proxy.start(blocking=True)
buffer = mscclpp.GpuBuffer(8)
memory = comm.register_memory(buffer.data.ptr, 64, mscclpp.Transport.CudaIpc)
future, fifo, context = comm.recv_memory(0, 5), mscclpp.Fifo(), comm.context()
endpoint = context.create_endpoint(mscclpp.Transport.CudaIpc)
channel = mscclpp.MemoryChannel(semaphore, memory, memory)
number = service.build_and_add_semaphore(comm, connection)
port = service.base_port_channel(number)
to_device, stub = mscclpp.Host2DeviceSemaphore(comm, connection), mscclpp.SemaphoreStub(connection)
kept = KernelBuilder("plain.cu", "packed", kernels, {"EXTRA": 0}).get_compiled_kernel()
calls = [bootstrap.barrier, connection.flush, semaphore.connection, service.stop_proxy, raw.data, proxy.stop,
         lambda: comm.connect(mscclpp.Transport.CudaIpc, 0), service.health, memory.size, future.get, fifo.poll,
         lambda: context.create_endpoint(mscclpp.Transport.CudaIpc), endpoint.serialize, channel.device_handle,
         port.device_handle, to_device.signal, stub.serialize, bootstrap.get_rank, bootstrap.abort, comm.abort,
         semaphore.abort, lambda: connection.write(memory, 0, memory, 0, 8), lambda: mscclpp.BaseMemoryChannel(semaphore),
         lambda: kept.launch_kernel(b"", 1, 1, 0, None), lambda: mscclpp.synchronize(1, abort=channel)]
pid = os.fork()
if pid == 0:
    raised = 0
    for call in calls:
        try:
            call()
        except mscclpp.Error as error:
            assert "fork" in str(error) and error.code == mscclpp.ErrorCode.InvalidUsage
            raised += 1
    for inherited in (bootstrap, comm, connection, service, raw, proxy, fifo, channel):
        assert "of process" in repr(inherited)
        inherited.close()  # leaves the parent's alone
    del calls, call, inherited, bootstrap, comm, connection, semaphore, service, raw, proxy, buffer, memory, future, fifo
    del context, endpoint, channel, port, to_device, stub, kept
    assert mscclpp.TcpBootstrap.create(0, 1).get_rank() == 0
    os._exit(raised)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(calls)
bootstrap.barrier()
proxy.stop()
service.stop_proxy()
print("the parent goes on")
"""
    run = python(program)
    assert (run.returncode, run.stdout) == (0, "the parent goes on\n"), run.stderr


#: The two ways to fork: functions that start `run` in a child, and return its number and the function that waits for it.
FORKS = {
    "os.fork": """
def fork(run):
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    return pid, lambda: os.waitpid(pid, 0)
""",
    "multiprocessing": """
def fork(run):
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process.pid, process.join
""",
}
#: The beginning of a program with `child(body)`, which returns the value or the exception of `body` in a forked child.
IN_CHILD = """
import multiprocessing, os, signal, sys, numpy, mscclpp
from mscclpp.utils import KernelBuilder

def child(body):
    here, there = multiprocessing.Pipe(False)
    def run():
        try:
            there.send(repr(body()))
        except BaseException as error:
            there.send(f"{type(error).__name__}: {error}")
    pid, wait = fork(run)
    there.close()
    said = here.recv() if here.poll(20) else "it hangs"
    os.kill(pid, signal.SIGKILL)
    wait()
    return said
"""


@sim_only
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_forked_child_has_no_devices_and_is_told_so(how):
    program = """
buffer = mscclpp.GpuBuffer(8, dtype=numpy.int32)
view = buffer[2:4]
plain = buffer.copy()
kernel = KernelBuilder("plain.cu", "packed", sys.argv[1], {"EXTRA": 0}).get_compiled_kernel()
mscclpp.synchronize(20)
named = f"of process {os.getpid()}"
uses = [
    lambda: mscclpp.GpuBuffer(8), lambda: mscclpp.RawGpuBuffer(64), mscclpp.device_count, lambda: mscclpp.set_device(0),
    lambda: mscclpp.synchronize(5), mscclpp.Fifo, mscclpp.ProxyService,
    lambda: mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Stop), lambda: KernelBuilder(
        "plain.cu", "packed", sys.argv[1], {"EXTRA": 0}).get_compiled_kernel().launch_kernel(b"", 1, 1, 0, None),
    lambda: buffer[0], lambda: view[0], lambda: buffer.__setitem__(0, 7), lambda: buffer.fill(7), lambda: buffer + 1,
    lambda: numpy.add(1, 2, out=buffer[:1]), lambda: buffer.sum(), lambda: numpy.concatenate([buffer, buffer]),
    lambda: buffer.tolist(), lambda: buffer.get(), lambda: buffer.set(plain), lambda: list(buffer), lambda: buffer.data,
    lambda: bool(view[:1]), lambda: buffer.tobytes(), lambda: numpy.sort(buffer), lambda: buffer.__iadd__(1),
]
for number, use in enumerate(uses):
    said = child(use)
    assert said.startswith("Error: ") and "a fork of" in said and "spawn" in said, (number, said)
assert child(lambda: f"{buffer!s} {view!r}") == repr(f"<mscclpp.GpuBuffer {named}> <mscclpp.GpuBuffer {named}>")
assert child(lambda: int(plain.sum())) == "0", "its memory is not a device's"
assert (buffer + 1).tolist() == [1] * 8 and buffer.tolist() == [0] * 8
print("the parent goes on")
"""
    run = python(IN_CHILD + FORKS[how] + program)
    assert (run.returncode, run.stdout) == (0, "the parent goes on\n"), run.stderr


@sim_only
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_child_may_be_the_first_to_use_devices(how):
    program = """
def first():
    buffer = mscclpp.GpuBuffer(8, dtype=numpy.int32)
    buffer += 3
    mscclpp.synchronize(20)
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
    return int(mscclpp.Communicator(bootstrap).context() is not None and buffer.sum())
assert mscclpp.TcpBootstrap.create(0, 1).get_rank() == 0
print(child(first), child(first), first())
"""
    run = python(IN_CHILD + FORKS[how] + program)
    assert (run.returncode, run.stdout) == (0, "24 24 24\n"), run.stderr


@sim_only
def test_a_child_that_reaches_the_memory_all_the_same_ends_and_says_why():
    program = """
import os, numpy, mscclpp
array = numpy.asarray(mscclpp.GpuBuffer(8, dtype=numpy.int32)).view(numpy.ndarray)
pid = os.fork()
if pid == 0:
    array[0] = 7
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), array[0])
"""
    run = python(program)
    assert run.stdout == "-11 0\n", run.stderr
    assert "this process is a fork" in run.stderr and "spawn" in run.stderr


@pytest.mark.parametrize("order", ["", "import gc; gc.disable(); cycle = [sys.modules[__name__]]; cycle.append(cycle)"])
def test_objects_may_be_alive_when_the_interpreter_exits(order):
    program = f"""
import sys, numpy, mscclpp
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
comm = mscclpp.Communicator(bootstrap)
connection = comm.connect(mscclpp.Transport.CudaIpc, 0).get()
buffer = mscclpp.GpuBuffer(4)
memory = comm.register_memory(buffer.data.ptr, 32, mscclpp.Transport.CudaIpc)
semaphore = comm.build_semaphore(connection, 0).get()
comm.send_memory(memory, 0)
channel = mscclpp.MemoryChannel(semaphore, comm.recv_memory(0).get(), memory)
service = mscclpp.ProxyService()
service.add_semaphore(comm.build_semaphore(connection, 0).get())
service.start_proxy()
fifo, pending = mscclpp.Fifo(), comm.recv_memory(0)
proxy = mscclpp.Proxy(lambda trigger: fifo)
proxy.start()
capsule = mscclpp.RawGpuBuffer(8).to_dlpack("int32")
{order}
print("done")
"""
    run = python(program)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


#: Activities that may go on when the interpreter exits.
GOING_ON = {
    "a kernel that waits": """
stop, out = mscclpp.GpuBuffer(1, dtype=numpy.int32), mscclpp.GpuBuffer(4, dtype=numpy.int32)
write_later = kernel("write_later")
write_later.launch_kernel((stop, out, 4), 1, 1, 0, None)
write_later.launch_kernel(pack(stop, out, 4), 1, 1, 0, None)
""",
    "a kernel that waits for a proxy": """
def handler(trigger):
    return mscclpp.ProxyHandlerResult.Retry
proxy = mscclpp.Proxy(handler)
proxy.start(blocking=True)
positions = mscclpp.GpuBuffer(4, dtype=numpy.uint64)
kernel("push").launch_kernel((proxy, 1, positions), 1, 4, 0, None)
time.sleep(0.2)
""",
    "a handler of a proxy": """
entered = threading.Event()
def handler(trigger):
    entered.set()
    time.sleep(0.5)
    return mscclpp.ProxyHandlerResult.Continue
proxy = mscclpp.Proxy(handler)
proxy.start(blocking=True)
positions = mscclpp.GpuBuffer(1, dtype=numpy.uint64)
kernel("push").launch_kernel((proxy, 1, positions), 1, 1, 0, None)
entered.wait()
""",
    "threads that wait": """
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
comm = mscclpp.Communicator(bootstrap)
for wait in (lambda: bootstrap.recv(0, 1), comm.recv_memory(0).get):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
""",
}


@pytest.mark.parametrize("going_on", GOING_ON)
def test_the_interpreter_exits_whatever_is_going_on(going_on):
    program = f"""
import sys, threading, time
import mscclpp, numpy
from mscclpp.utils import KernelBuilder, pack

def kernel(name):
    return KernelBuilder("plain.cu", name, sys.argv[1], {{"EXTRA": 0}}).get_compiled_kernel()
{GOING_ON[going_on]}
print("done")
"""
    run = python(program)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def two_groups(rank, n, address):
    """A process that ends with all its objects alive, while its peer still has its own."""
    group, _, connections = ranks.pair(rank, n, address)
    data = mscclpp.GpuBuffer(16)
    globals()["kept"] = (group, connections, data, group.make_memory_channels(data, connections))
    group.barrier()
    return True


def test_ranks_end_one_after_the_other():
    assert ranks.run(4, lonely_pairs) == [True] * 4
    assert ranks.run(2, two_groups) == [True, True]


def lonely_pairs(rank, n, address):
    """Connections among all four ranks, dropped in the order of the ranks."""
    group = ranks.group(rank, n, address)
    connections = group.make_connection([peer for peer in range(n) if peer != rank], mscclpp.Transport.CudaIpc)
    semaphores = group.make_semaphores(connections)
    group.barrier()
    time.sleep(0.1 * rank)
    del connections, semaphores, group
    return True


def test_a_malformed_log_setting_is_a_warning():
    run = python("import mscclpp", MSCCLPP_LOG_LEVEL="LOUD")
    assert run.returncode == 0 and "MSCCLPP_LOG_LEVEL" in run.stderr and "LOUD" in run.stderr
    run = python("import mscclpp; mscclpp.TcpBootstrap.create_unique_id()", MSCCLPP_LOG_LEVEL="DEBUG")
    assert run.returncode == 0 and run.stderr.strip() != ""


def test_numa():
    assert mscclpp.numa.get_device_numa_node(0) >= -1
    before = os.sched_getaffinity(0)
    mscclpp.numa.numa_bind(-1)
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ValueError, match="node 4096"):
        mscclpp.numa.numa_bind(4096)
