"""`DataType` and `ReduceOp`: the types of numbers, and the operations, of the algorithms of `mscclpp.ext`."""

import enum
from typing import Any, TypeVar

from ._mscclpp import _data_types

#: The types that have collectives, by the names of NumPy and PyTorch, and the bytes of a number.
SIZES = {name: size for name, size, _ in _data_types()}
#: Their names by the code of the kind in DLPack, and the bits of a number.
OF_DLPACK = {(code, 8 * size): name for name, size, code in _data_types()}

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


class _Operations(enum.EnumMeta):
    def __getattr__(cls, name: str) -> Any:
        members: dict[str, Any] = cls.__dict__.get("_member_map_", {})
        if name in members:
            return members[name]
        raise AttributeError(
            f"ReduceOp has no {name}; it has those of the C++ project, {', '.join(members)}. Operations of "
            'mscclpp.Collectives are names: "sum", "prod", "max", "min", "avg"'
        )


class ReduceOp(enum.IntEnum, metaclass=_Operations):
    """An operation that reduces numbers."""

    SUM = 0
    MIN = 3
    #: No reduction.
    NOP = 255


def type_of_collectives(dtype: Any) -> tuple[str, int]:
    """Returns the name that the collectives have for a type, and the bytes of a number."""
    member = _member("dtype", dtype, DataType)
    size = SIZES.get(member.name)
    if size is None:
        there = ", ".join(each.name for each in DataType if each.name in SIZES)
        raise ValueError(
            f"argument 'dtype': this implementation has no collectives of numbers of type {member.name}; it has {there}"
        )
    return member.name, size


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
