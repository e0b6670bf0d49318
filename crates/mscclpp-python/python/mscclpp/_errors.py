"""The exceptions of the library. `args` of each is a number and a text, so that it can be pickled and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._mscclpp import ErrorCode


class BaseError(RuntimeError):
    """The base class of all errors of the library."""

    args: tuple[int, str]

    def __init__(self, code: int = 0, message: str = "") -> None:
        super().__init__(code, message)

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def message(self) -> str:
        """The text: what happened, with the values that matter, and what to do."""
        return self.args[1]

    @property
    def code(self) -> int | ErrorCode:
        """The number: that of a system call or driver, or an `ErrorCode`."""
        return self.args[0]


class Error(BaseError):
    """An error of the library itself. Its number is an `ErrorCode`."""

    @property
    def code(self) -> ErrorCode:
        from ._mscclpp import ErrorCode

        return ErrorCode(self.args[0])


class SysError(BaseError):
    """The operating system refused something. Its number is `errno`."""


class CudaError(BaseError):
    """An error of the CUDA runtime. This library uses the driver, whose errors are `CuError`."""


class CuError(BaseError):
    """The GPU's driver refused something. Its number is the driver's."""


class IbError(BaseError):
    """An error of InfiniBand. This library reports these as `SysError` or as `Error`."""


def misuse(text: str) -> Error:
    """Makes the error for a call that can never be right."""
    from ._mscclpp import ErrorCode

    return Error(int(ErrorCode.InvalidUsage), text)


for _class in (BaseError, Error, SysError, CudaError, CuError, IbError):
    # Tracebacks and pickles then show the name that programs use.
    _class.__module__ = "mscclpp"
