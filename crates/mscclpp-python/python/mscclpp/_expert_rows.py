"""`ExpertRows`: the checks of the arrays that experts take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _arrays
from ._data_types import SIZES
from ._on_device import OnDevice, _Array, _new

#: The address and the size of memory.
_Memory = tuple[int, int]


class ExpertRows(OnDevice):
    """An object with the settings of experts, which checks arrays by them."""

    #: The number of ranks.
    n_ranks: int
    #: The number of this rank's experts.
    n_local: int
    #: The settings.
    top_k: int
    hidden: int
    capacity: int
    dtype: str
    quantise: str | None
    #: Whether the first tensor has numbers of the set-up's type.
    _are_numbers: bool
    #: The bytes of the rows of the tensors that are given, and of those that come.
    _given: list[int]
    _coming: list[int]

    def _at_least(self, name: str, x: Any, dtype: str, least: int, is_written: bool = True) -> _Memory | None:
        """Returns the memory of an array with at least so many numbers, or None if there is no array."""
        if x is None:
            return None
        array = self._look(name, x, is_written)
        if array.dtype != dtype:
            raise TypeError(f"argument '{name}': expected numbers of type {dtype}, got {array.dtype}")
        if array.length < least:
            raise ValueError(f"argument '{name}': expected at least {least} numbers, got {array.length}")
        return array.address, array.length * SIZES[dtype]

    def _numbers(self, name: str, x: Any, is_written: bool = False) -> _Array:
        """Returns the properties of an array of numbers of the set-up's type, or of their bits."""
        array = self._look(name, x, is_written)
        if array.dtype not in (self.dtype, f"uint{8 * SIZES[self.dtype]}"):
            raise TypeError(f"argument '{name}': expected numbers of type {self.dtype}, got {array.dtype}")
        return array

    def _bytes(self, name: str, x: Any, is_number: bool, is_written: bool = False) -> _Memory:
        array = self._numbers(name, x, is_written) if is_number else self._look(name, x, is_written)
        return array.address, array.length * array.size

    def _rows_given(self, rows: Any, also: Sequence[Any], tokens: int) -> list[_Memory]:
        if len(also) != len(self._given) - 1:
            raise ValueError(f"argument 'also': expected {len(self._given) - 1} arrays, got {len(also)}")
        given = []
        for n, (x, row) in enumerate(zip((rows, *also), self._given)):
            name = f"also[{n - 1}]" if n else "rows"
            memory = self._bytes(name, x, n == 0 and self._are_numbers)
            if memory[1] != tokens * row:
                raise ValueError(
                    f"argument '{name}': expected {tokens} rows of {row} bytes, one for each token, got {memory[1]} bytes"
                )
            given.append(memory)
        return given

    def _rows_of_tokens(self, name: str, x: Any, tokens: int, is_written: bool = False) -> _Memory:
        """Returns the memory of an array with a row of numbers for each token."""
        array = self._numbers(name, x, is_written)
        if array.length != tokens * self.hidden:
            raise ValueError(
                f"argument '{name}': expected {tokens} rows of {self.hidden} numbers, got {array.length} numbers"
            )
        return array.address, array.length * SIZES[self.dtype]

    def _weights(self, weights: Any, tokens: int) -> _Memory | None:
        if weights is None:
            return None
        array = self._look("weights", weights)
        if array.dtype != "float32":
            raise TypeError(f"argument 'weights': expected numbers of type float32, got {array.dtype}")
        if tuple(array.shape) != (tokens, self.top_k):
            raise ValueError(
                f"argument 'weights': expected an array of shape {(tokens, self.top_k)}, got {tuple(array.shape)}"
            )
        return array.address, 4 * array.length

    def _rows_of(self, layout: str, alignment: int) -> int:
        """Returns the number of rows that a layout needs in the worst case."""
        most, local = self.n_ranks * self.capacity, self.n_local
        if layout == "expert":
            return local * most
        return most * min(self.top_k, local) + local * (alignment - 1) if layout == "flat" else most

    def _rows_coming(
        self, rows: Any, also: Sequence[Any], layout: str, out: Any, n_rows: int, column_major: bool
    ) -> tuple[tuple[Any, ...], list[_Memory], int]:
        """Returns the arrays of a layout, by default with so many rows, their memory, and how many rows they have."""
        if layout == "rank":
            if out is not None:
                raise ValueError("argument 'out': the layout \"rank\" copies no rows; Routed.received() has them")
            return (), [], n_rows
        if out is None:
            shape = (self.n_local, self.n_ranks * self.capacity) if layout == "expert" else (n_rows,)
            out = self._new_rows(rows, also, shape, column_major)
        out = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(out) != len(self._coming):
            raise ValueError(
                f"argument 'out': expected {len(self._coming)} arrays, one for each tensor that comes, got {len(out)}"
            )
        coming, exactly = [], n_rows if layout == "expert" else None
        for n, (x, row) in enumerate(zip(out, self._coming)):
            is_number = n == 0 and self._are_numbers and self.quantise is None
            memory = self._bytes(f"out[{n}]", x, is_number, is_written=True)
            if memory[1] % row or exactly not in (None, memory[1] // row):
                expected = "rows" if exactly is None else f"{exactly} rows"
                raise ValueError(f"argument 'out[{n}]': expected {expected} of {row} bytes, got {memory[1]} bytes")
            coming.append(memory)
        counts = [size // row for (_, size), row in zip(coming, self._coming)]
        if column_major and len(counts) > 1 and counts[1] != min(counts):
            raise ValueError(
                f"argument 'out[1]': expected {min(counts)} rows, as many as the others have, because it lies column by "
                f"column, got {counts[1]}"
            )
        return out, coming, min(counts)

    def _new_rows(self, rows: Any, also: Sequence[Any], shape: tuple[int, ...], column_major: bool) -> tuple[Any, ...]:
        like: list[tuple[Any, str | None]] = [(rows, None), *((x, None) for x in also)]
        if self.quantise is not None:
            numbers = "float8_e4m3fn" if _arrays.is_torch_tensor(rows) else "uint8"
            like[:1] = [(rows, numbers), (rows, "float32" if self.quantise == "e4m3" else "uint8")]
        made = []
        for n, ((x, dtype), row) in enumerate(zip(like, self._coming)):
            if n == 1 and column_major:
                # Words of 4 bytes, as the kernels store them.
                has_words = dtype == "float32" or (dtype is None and getattr(x, "itemsize", 1) == 4)
                made.append(_new(x, (*shape[:-1], row // 4, shape[-1]), dtype if has_words else "int32"))
            else:
                size = SIZES[dtype] if dtype else getattr(x, "itemsize", 1)
                made.append(_new(x, (*shape, row // size), dtype))
        return tuple(made)


def _expect_one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"argument '{name}': expected {', '.join(map(repr, choices))}, got {value!r}")
