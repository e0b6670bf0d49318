"""`DataType` and `ReduceOp`: the types of numbers, and the operations, of the algorithms of `mscclpp.ext`."""

import enum
from typing import Any, TypeVar

_Member = TypeVar("_Member", bound=enum.IntEnum)


class DataType(enum.IntEnum):
    """A type of numbers. Some of them have no collectives: then `Algorithm.execute` raises."""

    int32 = 0
    uint32 = 1
    float16 = 2
    float32 = 3
    bfloat16 = 4
    float8_e4m3fn = 5
    float8_e5m2 = 6
    uint8 = 7
    float8_e4m3fnuz = 8
    float8_e5m2fnuz = 9
    float8_e4m3b15 = 10
    #: `float8_e4m3fn` under an older name.
    float8_e4m3 = 5


class ReduceOp(enum.IntEnum):
    """An operation that reduces numbers."""

    SUM = 0
    MIN = 3
    #: No reduction.
    NOP = 255


#: The types that have collectives: their names there, and the bytes of a number.
_OF_COLLECTIVES = {
    DataType.int32: ("int32", 4),
    DataType.uint32: ("uint32", 4),
    DataType.float16: ("float16", 2),
    DataType.float32: ("float32", 4),
    DataType.bfloat16: ("bfloat16", 2),
    DataType.float8_e4m3fn: ("float8_e4m3fn", 1),
    DataType.float8_e5m2: ("float8_e5m2", 1),
    DataType.uint8: ("uint8", 1),
}


def type_of_collectives(dtype: Any) -> tuple[str, int]:
    """Returns the name that the collectives have for a type, and the bytes of a number."""
    member = _member("dtype", dtype, DataType)
    known = _OF_COLLECTIVES.get(member)
    if known is None:
        there = ", ".join(each.name for each in _OF_COLLECTIVES)
        raise ValueError(
            f"argument 'dtype': this implementation has no collectives of numbers of type {member.name}; it has {there}"
        )
    return known


def operation_of_collectives(op: Any) -> str:
    """Returns the name that the collectives have for an operation."""
    member = _member("op", op, ReduceOp)
    if member is ReduceOp.NOP:
        raise ValueError("argument 'op': an allreduce reduces numbers; give ReduceOp.SUM or ReduceOp.MIN, not NOP")
    return {ReduceOp.SUM: "sum", ReduceOp.MIN: "min"}[member]


def _member(argument: str, value: Any, of: type[_Member]) -> _Member:
    try:
        return of(int(value))
    except (TypeError, ValueError):
        names = ", ".join(f"{each.name} ({each.value})" for each in of)
        raise ValueError(f"argument '{argument}': {value!r} is no {of.__name__}; there are {names}") from None
