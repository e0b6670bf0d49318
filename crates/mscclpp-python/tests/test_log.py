"""The log in Python's `logging`."""

import pytest

import ranks

#: A handler that keeps all records, and a line of the library at the level INFO.
BEGINNING = """
import logging, os, sys, threading, time
import mscclpp
from mscclpp import _mscclpp

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def wait(self, n):
        end = time.monotonic() + 30
        while len(self.records) < n:
            assert time.monotonic() < end, [record.getMessage() for record in self.records]
            time.sleep(0.01)

say = _mscclpp._log_meeting
kept = Kept()
logger = logging.getLogger("mscclpp")
logger.setLevel(1)
logger.propagate = False
"""


def python(program, **environment):
    # Python warns of a fork beside threads, which is what these tests do.
    ignored = ("-W", "ignore::DeprecationWarning")
    run = ranks.python(*ignored, "-c", BEGINNING + program, timeout=60, **environment)
    assert run.returncode == 0, run.stderr
    return run


def test_a_line_says_that_collectives_were_made():
    run = python(
        """
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
mscclpp.Collectives(mscclpp.Communicator(bootstrap), max_blocks=1)
""",
        MSCCLPP_LOG_LEVEL="INFO",
    )
    assert "collectives through the memory" in run.stderr and "nodes=1" in run.stderr, run.stderr


def test_lines_arrive_with_their_level_and_part():
    run = python("""
logger.addHandler(kept)
mscclpp.log_to_python("DEBUG")
say("100 % of the ranks")
bootstrap = mscclpp.TcpBootstrap.create(0, 1)
bootstrap.initialize(mscclpp.TcpBootstrap.create_unique_id())
mscclpp.Communicator(bootstrap).connect(mscclpp.Transport.CudaIpc, 0).get()
kept.wait(3)
first = kept.records[0]
assert (first.name, first.levelno, first.getMessage()) == ("mscclpp.bootstrap", logging.INFO, "100 % of the ranks")
assert first.threadName == "mscclpp-log"
assert any((record.name, record.levelno) == ("mscclpp.conn", logging.DEBUG) for record in kept.records)
""")
    assert run.stderr == "", "nothing goes to standard error"


def test_the_level_is_kept_to_and_can_be_changed():
    python("""
logger.addHandler(kept)
mscclpp.log_to_python(logging.WARNING)
say("not shown")
mscclpp.log_to_python()
say("shown")
kept.wait(1)
assert [record.getMessage() for record in kept.records] == ["shown"]
mscclpp.log_to_python(logging.CRITICAL)
say("not shown")
mscclpp.log_to_python("info")
say("the last")
kept.wait(2)
assert [record.getMessage() for record in kept.records] == ["shown", "the last"]
""")


def test_without_the_request_the_environment_decides():
    run = python('say("on standard error")', MSCCLPP_LOG_LEVEL="INFO")
    assert "on standard error" in run.stderr


@pytest.mark.parametrize(
    ("level", "words"), [("LOUD", "no level of logging"), (None, "no level of logging"), (1.5, "float")]
)
def test_a_wrong_level_is_an_error(level, words):
    import mscclpp

    with pytest.raises((ValueError, TypeError), match=words):
        mscclpp.log_to_python(level)


def test_a_handler_may_log_and_call_the_library():
    python("""
class Again(Kept):
    def emit(self, record):
        super().emit(record)
        if len(self.records) < 5:
            say("again")
            mscclpp.TcpBootstrap.create(0, 1).close()
            logging.getLogger("mscclpp.mine").warning("from the handler") if len(self.records) == 1 else None

kept = Again()
logger.addHandler(kept)
mscclpp.log_to_python()
say("first")
kept.wait(6)
assert "from the handler" in [record.getMessage() for record in kept.records]
""")


def test_a_handler_that_blocks_makes_nobody_wait_and_loses_lines_that_are_counted():
    python("""
entered, goes_on = threading.Event(), threading.Event()
class Slow(Kept):
    def emit(self, record):
        entered.set()
        goes_on.wait(30)
        super().emit(record)

kept = Slow()
logger.addHandler(kept)
mscclpp.log_to_python()
say("the first")
assert entered.wait(30)
start = time.monotonic()
threads = [threading.Thread(target=lambda: [say(f"line {i}") for i in range(2500)]) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert time.monotonic() - start < 20
goes_on.set()
# The first line, the warning, and the lines that waited.
kept.wait(4098)
warnings = [record for record in kept.records if record.levelno == logging.WARNING]
assert [record.name for record in warnings] == ["mscclpp.log"], warnings
lost = int(warnings[0].getMessage().split()[0])
assert lost + len(kept.records) - 1 == 10001, (lost, len(kept.records))
""")


def test_a_handler_that_raises_gets_the_next_line():
    run = python("""
class Broken(Kept):
    def emit(self, record):
        super().emit(record)
        raise ZeroDivisionError("in the handler")

kept = Broken()
logger.addHandler(kept)
mscclpp.log_to_python()
say("one")
say("two")
kept.wait(2)
""")
    assert "in the handler" in run.stderr


def test_lines_that_wait_at_exit_are_written():
    run = python("""
class Slow(logging.StreamHandler):
    def emit(self, record):
        time.sleep(0.01)
        super().emit(record)

logger.addHandler(Slow(sys.stdout))
mscclpp.log_to_python()
proxy = mscclpp.Proxy(lambda trigger: mscclpp.ProxyHandlerResult.Continue)
proxy.start(blocking=True)
for i in range(50):
    say(f"line {i}")
""")
    lines = [line for line in run.stdout.splitlines() if line.startswith("line ")]
    assert lines == [f"line {i}" for i in range(50)] and run.stderr == ""


def test_a_handler_that_blocks_for_ever_does_not_keep_the_process():
    python("""
from mscclpp import _threads
_threads._PATIENCE = 0.5
class Stuck(logging.Handler):
    def handle(self, record):  # without the handler's lock, which logging itself takes at exit
        threading.Event().wait()

logger.addHandler(Stuck())
mscclpp.log_to_python()
say("one")
say("two")
time.sleep(0.2)
""")


def test_after_a_fork_the_child_logs_nothing_and_the_parent_goes_on():
    run = python("""
logger.addHandler(kept)
mscclpp.log_to_python()
say("before")
kept.wait(1)
pid = os.fork()
if pid == 0:
    for _ in range(10000):
        say("in the child")
    try:
        mscclpp.log_to_python()
    except mscclpp.Error as error:
        print(error.code, "fork" in str(error), flush=True)
    time.sleep(0.2)
    assert len(kept.records) == 1
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
say("after")
kept.wait(2)
assert [record.getMessage() for record in kept.records] == ["before", "after"]
""")
    assert run.stdout == "ErrorCode.InvalidUsage True\n" and run.stderr == ""
