"""The collectives under the names of the C++ original, called in the order of a serving engine.

It runs with every library of arrays that is there: `pytest tests/test_algorithms.py` on a machine with two GPUs has CuPy and
PyTorch do it there, with all sizes and in graphs.
"""

import importlib
import time

import mscclpp
import numpy
import pytest
from mscclpp import AlgorithmCollection, DataType, ReduceOp
from mscclpp.ext import AlgorithmCollectionBuilder

import libraries
import ranks
from device import ON_GPU, sim_only

#: Bytes of messages, numbers of blocks and of threads, the calls in a graph, and the number of replays.
SIZES = [512 << i for i in range(15)] if ON_GPU else [512, 16 << 10, 128 << 10]
BLOCKS = [0, 1, 2, 4, 8, 16, 24, 32, 64] if ON_GPU else [0, 3]
THREADS = [0, 256, 512, 768, 1024] if ON_GPU else [0, 96]
CALLS, REPLAYS = (20, 10) if ON_GPU else (2, 2)


class Engine:
    """The objects that a serving engine has on a rank."""

    def __init__(self, library, group):
        self.library, self.group, self.n = library, group, group.nranks
        self.executor = mscclpp.Executor(group.communicator)
        self.raw = mscclpp.RawGpuBuffer(1 << 20)
        self.scratch = library.of_raw(self.raw)
        assert self.scratch.nbytes == self.raw.bytes() == 1 << 20
        AlgorithmCollectionBuilder.reset()
        builder = AlgorithmCollectionBuilder()
        assert AlgorithmCollectionBuilder() is builder
        algorithms = builder.build_default_algorithms(
            scratch_buffer=library.address(self.scratch), scratch_buffer_size=self.scratch.nbytes, rank=group.my_rank
        )
        self.reducing = [each for each in algorithms if each.collective == "allreduce"]
        self.gathering = [each for each in algorithms if each.collective == "allgather"]
        names = {each.name for each in algorithms}
        assert {"default_allreduce_packet", "default_allreduce_rsag_zero_copy", "default_allreduce_fullmesh"} <= names
        assert "default_allgather_fullmesh2" in names and not [name for name in names if "nvls" in name]

    def reduce(self, algorithm, x, y=None, blocks=0, threads=0, op=ReduceOp.SUM, dtype=DataType.float16):
        """Puts an allreduce into the current stream: of `x`, in place or into `y`."""
        given = self.library.address(x)
        size = x.nbytes
        code = algorithm.execute(
            comm=self.group.communicator,
            executor=self.executor,
            input_buffer=given,
            output_buffer=given if y is None else self.library.address(y),
            input_size=size,
            output_size=size,
            dtype=int(dtype),
            op=op,
            stream=self.library.stream(),
            nblocks=blocks,
            nthreads_per_block=threads,
            symmetric_memory=True,
            extras=None,
        )
        assert int(code) == 0

    def slowest(self, seconds):
        """The time of the slowest rank, which is the same on all."""
        times = numpy.zeros(self.n)
        times[self.group.my_rank] = seconds
        self.group.bootstrap.all_gather(times, 8)
        return times.max()


def numbers(count, rank):
    """Small whole numbers, whose sums are exact."""
    return ((numpy.arange(count) + 3 * rank) % 11 + rank).astype("float16")


def tune(engine, rank):
    """Returns the fastest algorithm of each size, with its blocks and threads. Checks the results of all of them."""
    library, best = engine.library, {}
    for size in SIZES:
        x, y, z = (library.empty(size // 2, "float16") for _ in range(3))
        library.fill(x, numbers(size // 2, rank))
        total = sum(numbers(size // 2, r) for r in range(engine.n))
        tried = []
        for algorithm in engine.reducing:
            for blocks in BLOCKS:
                for threads in THREADS:
                    how = (algorithm, blocks, threads)
                    library.fill(y, 0)
                    library.fill(z, library.host(x))
                    # The first call sets up the collectives. It is in place, as in engines.
                    engine.reduce(algorithm, z, None, blocks, threads)
                    assert (library.host(z) == total).all(), how
                    replay = library.captured(lambda: [engine.reduce(algorithm, x, y, *how[1:]) for _ in range(CALLS)])
                    engine.group.barrier()
                    begin = time.perf_counter()
                    for _ in range(REPLAYS):
                        replay()
                    library.synchronize()
                    tried.append((engine.slowest(time.perf_counter() - begin), len(tried), how))
                    assert (library.host(y) == total).all(), how
        best[size] = min(tried)[2]
    for algorithm in engine.reducing:
        algorithm.reset()
    for size, (algorithm, _, _) in best.items():
        algorithm.set_message_size_range(min(size, algorithm.message_size_range[0]), size)
    return best


def arbitrary(engine, best, rank, name):
    """Arrays of any length at any place, which are not registered, in one graph."""
    library = engine.library
    counts = [3, 129, 1000, 4097, 70_001]
    given = [library.empty(count + 1, "float16")[1:] for count in counts]

    def work():
        for x in given:
            algorithm, blocks, threads = best[next((size for size in SIZES if size >= x.nbytes), SIZES[-1])]
            if ON_GPU and name == "torch":
                # The graph's memory is from PyTorch's allocator, and belongs to another tensor later.
                y = x * 1
                engine.reduce(algorithm, y, None, blocks, threads)
                x[:] = y
            else:
                engine.reduce(algorithm, x, None, blocks, threads)

    replay = library.captured(work)
    for add in range(3):
        for x in given:
            library.fill(x, numbers(len(x), rank + add))
        library.synchronize()
        replay()
        for x in given:
            expected = sum(numbers(len(x), r + add) for r in range(engine.n))
            assert (library.host(x) == expected).all(), len(x)


def gather(engine, rank):
    library = engine.library
    for algorithm in engine.gathering:
        for in_place in (False, True):
            everything = library.empty(engine.n * 1000, "float32")
            mine = everything[rank * 1000 : rank * 1000 + 1000] if in_place else library.empty(1000, "float32")
            library.fill(mine, rank + 1)
            library.synchronize()
            done = algorithm.execute(
                comm=engine.group.communicator,
                executor=None,
                input_buffer=library.address(mine),
                output_buffer=library.address(everything),
                input_size=4000,
                output_size=4000 * engine.n,
                dtype=DataType.float32,
                stream=library.stream(),
            )
            library.synchronize()
            assert done == 0 and (library.host(everything).reshape(engine.n, 1000).T == range(1, engine.n + 1)).all()


def plays(rank, n, address, name, other_address):
    library = libraries.of(name)
    group = library.group(rank, n, address, other_address)
    engine = Engine(library, group)
    best = tune(engine, rank)
    gather(engine, rank)
    arbitrary(engine, best, rank, name)
    group.barrier()


@pytest.mark.parametrize("name", libraries.usable())
def test_the_sequence_of_an_engine(name):
    ranks.run(2, plays, name, ranks.free_address(), timeout=580)


@sim_only
@ranks.each_of(3, timeout=500)
def test_each_name_uses_its_protocol(rank, n, address):
    from mscclpp._algorithms import _collectives_of

    group = ranks.group(rank, n, address)
    buffer = mscclpp.GpuBuffer(1 << 16, dtype="float32")
    _, made = _collectives_of(group.communicator, buffer.data.ptr)
    request = ("all_reduce", buffer.data.ptr, buffer.data.ptr, 1 << 12, "float32", "sum", 0)
    large = request[:3] + (1 << 16,) + request[4:]
    collection = AlgorithmCollectionBuilder().build_default_algorithms()
    protocols = {
        each.name: made.selection(request, each._protocol, 2, 64) for each in collection.get_by_collective("allreduce")
    }
    assert protocols == {
        "default_allreduce_packet": ("ll128", True, 2, 64),
        "default_allreduce_allpair_packet": ("ll16", False, 2, 64),
        "default_allreduce_fullmesh": ("ll128", False, 2, 64),
        "default_allreduce_rsag_zero_copy": ("simple", True, 2, 64),
    }
    assert made.selection(large, "two_steps", 0, 0)[:2] == ("simple", True)
    assert made.selection(request, "two_steps", 1000, 1024)[2] == 4, "more than there may be"
    # Without an override, the override of another call has no effect.
    assert made.selection(request) == made.selection(request, "any", 0, 0)
    mine = numpy.full(1000, 1 + rank, "int32")
    done = collection["default_allreduce_fullmesh"].execute(
        group, None, mine.ctypes.data, mine.ctypes.data, 4000, 4000, DataType.int32, ReduceOp.MIN
    )
    mscclpp.synchronize(60)
    assert done == 0 and (mine == 1).all()
    group.barrier()


@ranks.each_of(2, timeout=500)
def test_wrong_calls_are_named(rank, n, address):
    group = ranks.group(rank, n, address)
    buffer = mscclpp.GpuBuffer(64, dtype="float32")
    algorithm = AlgorithmCollectionBuilder().build_default_algorithms()["default_allreduce_packet"]
    right = dict(
        comm=group.communicator, executor=None, input_buffer=buffer.data.ptr, output_buffer=buffer.data.ptr, input_size=256,
        output_size=256, dtype=DataType.float32, op=ReduceOp.SUM, stream=0,
    )  # fmt: skip
    for wrong, text in [
        ({"dtype": DataType.float8_e4m3fnuz}, "no collectives of numbers of type float8_e4m3fnuz; it has int32"),
        ({"dtype": DataType.float8_e5m2fnuz}, "numbers of type float8_e5m2fnuz"),
        ({"dtype": DataType.float8_e4m3b15}, "numbers of type float8_e4m3b15"),
        ({"dtype": 77}, "'dtype': 77 is no DataType"),
        ({"op": ReduceOp.NOP}, "'op': an allreduce reduces numbers"),
        ({"op": 1}, "'op': 1 is no ReduceOp"),
        ({"input_size": 255}, "'input_size': 255 bytes are no numbers of type float32"),
        ({"output_size": 128}, "'output_size': an allreduce of 256 bytes by 2 ranks gives 256 bytes, not 128"),
        ({"nblocks": -1}, "'nblocks': -1 is no number of blocks"),
        ({"nthreads_per_block": 2**32}, "'nthreads_per_block'"),
    ]:
        with pytest.raises(ValueError, match=text):
            algorithm.execute(**(right | wrong))
    with pytest.raises(TypeError, match="'comm': expected a Communicator, got NoneType"):
        algorithm.execute(**(right | {"comm": None}))
    with pytest.raises(TypeError, match="'stream'"):
        algorithm.execute(**(right | {"stream": "main"}))
    buffer.set(numpy.full(64, rank + 1, "float32"))
    assert algorithm.execute(**right) == 0
    assert (buffer.get() == 3).all()
    group.barrier()


def test_a_collection_is_a_list_with_names():
    builder = AlgorithmCollectionBuilder()
    collection = builder.build_default_algorithms()
    packets = collection["default_allreduce_packet"]
    assert collection[0] is packets and packets in collection and "default_allreduce_packet" in collection
    assert "default_allreduce_nvls_packet" not in collection and len(collection) == len(list(collection))
    assert collection.to_list() == list(collection) and "default_allgather_fullmesh2" in repr(collection)
    assert {each.collective for each in collection.get_by_collective("allgather")} == {"allgather"}
    with pytest.raises(
        KeyError, match="no algorithm 'default_allreduce_nvls_packet' here; there are default_allreduce"
    ):
        collection["default_allreduce_nvls_packet"]
    assert packets.message_size_range == (0, 2**64 - 1)
    packets.set_message_size_range(512, 1 << 20)
    assert packets.message_size_range == (512, 1 << 20)
    # Another collection has algorithms of its own.
    assert builder.build_default_algorithms()["default_allreduce_packet"].message_size_range == (0, 2**64 - 1)
    with pytest.raises(ValueError, match="from 2 to 1"):
        packets.set_message_size_range(2, 1)
    assert "default_allreduce_packet" in repr(packets) and packets.reset() is None
    assert (packets.tags, packets.constraint.world_size, packets.constraint.n_ranks_per_node) == ({}, 0, 0)
    assert packets.buffer_mode == mscclpp.CollectiveBufferMode.ANY and packets.type == mscclpp.AlgorithmType.NATIVE

    own = AlgorithmCollection()
    assert len(own) == 0 and own.get_by_collective("allreduce") == []
    own.register_algorithm("allreduce", packets.name, packets)
    own.register_algorithm("allreduce", packets.name, packets)
    assert own.to_list() == [packets]
    with pytest.raises(ValueError, match="not other, allreduce"):
        own.register_algorithm("allreduce", "other", packets)
    builder.add_algorithm_builder(packets)
    assert packets.name in AlgorithmCollectionBuilder().build()
    AlgorithmCollectionBuilder.reset()
    assert len(AlgorithmCollectionBuilder().build()) == 0
    with pytest.raises(NotImplementedError, match="message_size_range"):
        builder.set_algorithm_selector(lambda collection, request: None)


def test_types_and_operations_are_numbers():
    names = "int32 uint32 float16 float32 bfloat16 uint8 "
    names += "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e4m3b15"
    numbers = [int(getattr(DataType, name)) for name in names.split()]
    assert len(set(numbers)) == len(numbers) and DataType.float8_e4m3 is DataType.float8_e4m3fn
    assert len({int(op) for op in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.NOP)}) == 3
    with pytest.raises(AttributeError, match='ReduceOp has no AVG; it has .* SUM, MIN, NOP. .*"avg"'):
        ReduceOp.AVG  # noqa: B018
    assert mscclpp._mscclpp.CppDataType is DataType and mscclpp._mscclpp.CppReduceOp is ReduceOp


def test_what_is_absent_can_be_imported():
    from mscclpp import default_algos, language

    assert __import__("mscclpp.ext.algorithm_collection_builder") is mscclpp
    # A serving engine imports these before it knows whether it uses them.
    for name in ("mscclpp", "mscclpp.ext", "mscclpp.default_algos", "mscclpp.language"):
        assert importlib.import_module(name).__name__ == name

    assert mscclpp.language is language and mscclpp.default_algos is default_algos
    with pytest.raises(AttributeError, match="runs no programs"):
        language.AlgoSpec  # noqa: B018
    with pytest.raises(AttributeError, match="build_default_algorithms"):
        default_algos.allreduce_nvls  # noqa: B018
    with pytest.raises(NotImplementedError, match="execution plan"):
        mscclpp.Algorithm(id="x")
