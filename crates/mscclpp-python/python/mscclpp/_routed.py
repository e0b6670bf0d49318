"""`Routed`: the routing of a dispatch."""

from __future__ import annotations

from typing import Any

from . import _mscclpp
from ._arguments import count
from ._expert_rows import ExpertRows


class Routed:
    """The routing of a dispatch, made by `Experts.dispatch`. It does not age: later calls may use it at any time.

    The methods are for dispatches that are complete, after `Experts.synchronize()`. They wait for the device's answer.
    A routing keeps the memory of its experts, also when these are closed.
    """

    #: The number of this rank's tokens.
    tokens: int
    #: The layout of the dispatch.
    layout: str
    #: The arrays that rows came to, one for each tensor that travels; none for the layout "rank".
    out: tuple[Any, ...]

    def __init__(
        self,
        experts: ExpertRows,
        made: _mscclpp._Routed,
        tokens: int,
        layout: str,
        out: tuple[Any, ...],
        n_rows: int,
        column_major: bool,
    ) -> None:
        self._experts, self._made, self._n_rows, self._column_major = experts, made, n_rows, column_major
        self.tokens, self.layout, self.out = tokens, layout, out

    def __repr__(self) -> str:
        return f"<mscclpp.ep.Routed of {self.tokens} tokens, layout {self.layout}>"

    def rows_of_ranks(self) -> list[int]:
        """Return how many rows came from each rank."""
        return self._made.rows_of_ranks()

    def rows_of_experts(self) -> list[int]:
        """Return how many rows came for each expert of this rank."""
        return self._made.rows_of_experts()

    def row(self, rank: int, n: int) -> tuple[int, list[int], list[float]]:
        """Return what came with row `n` of a rank: the number of the token there, the local expert of each choice (-1
        for those elsewhere), and the weights.
        """
        return self._made.row(count("rank", rank), count("n", n))

    @property
    def rows_of_experts_on_device(self) -> int:
        """The address of the numbers of `rows_of_experts()`, of type uint32, in device memory."""
        return self._made.rows_of_experts_on_device()

    @property
    def rows_of_ranks_on_device(self) -> int:
        """The address of the numbers of `rows_of_ranks()`, of type uint32, in device memory."""
        return self._made.rows_of_ranks_on_device()

    @property
    def offsets_on_device(self) -> int:
        """The address of the rows at which the experts begin in the layout "flat", and at which one more would: multiples of
        the alignment, of type uint32, in device memory.
        """
        return self._made.offsets_on_device()

    def received(self, part: int = 0) -> Received:
        """Return the rows of a tensor that came in the layout "rank". They stay until the `combine` or `release`."""
        if self.layout != "rank":
            raise ValueError(f'received() is for the layout "rank", and this dispatch had "{self.layout}"')
        return Received(self, *self._made.received(count("part", part)))


class Received:
    """Rows in the memory of the library, as an array [R, C, bytes of a row] of type uint8.

    It has the array interface of CUDA, or on simulated devices that of NumPy: `cupy.asarray(it)`,
    `torch.as_tensor(it, device="cuda")` or `numpy.asarray(it)` is an array without a copy, and a `view` of that has
    other numbers.
    """

    def __init__(self, routed: Routed, address: int, row_bytes: int, row_stride: int, rank_stride: int) -> None:
        #: The routing, which keeps the memory.
        self._routed = routed
        experts = routed._experts
        interface = {
            "shape": (experts.n_ranks, experts.capacity, row_bytes),
            "strides": (rank_stride, row_stride, 1),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        setattr(self, "__array_interface__" if experts.is_simulated else "__cuda_array_interface__", interface)
