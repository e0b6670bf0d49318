"""The module of the C++ project's language for collectives. It can be imported; no such programs run here."""

from typing import Any


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"mscclpp.language.{name} is not there in this implementation of mscclpp, which runs no programs of that language"
    )
