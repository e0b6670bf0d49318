"""What PTX, the assembly language of CUDA, says about a kernel."""

import re

from ._errors import Error
from ._mscclpp import ErrorCode

_PARAMETER = re.compile(
    r"""\.param \s+ (?: \.align \s+ (?P<align>\d+) \s+ )? \.[a-z]+ (?P<bits>\d+) \b
        (?: \s+ \.ptr (?: \s+ \.(?:global|shared|const|local) )? (?: \s+ \.align \s+ \d+ )? )?
        \s+ [\w$]+ (?: \[ (?P<count>\d+) \] )? \s* \Z""",
    re.VERBOSE,
)


def parameters(ptx: str, kernel: str) -> list[tuple[int, int]]:
    """Size and alignment of each parameter of a kernel, in bytes."""
    # Of an entry that has a body or ends its declaration; comments are not entries.
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.DOTALL)
    entry = re.search(rf"\.entry\s+{re.escape(kernel)}\s*(?:\(([^)]*)\))?\s*[\n.{{;]", text)
    if entry is None:
        known = ", ".join(dict.fromkeys(re.findall(r"\.entry\s+([\w$]+)", text))) or "none"
        raise Error(int(ErrorCode.InvalidUsage), f'there is no kernel named "{kernel}" in this PTX; it has: {known}')
    found = []
    for declaration in filter(None, map(str.strip, (entry.group(1) or "").split(","))):
        parameter = _PARAMETER.match(declaration)
        if parameter is None:
            raise ValueError(f"the PTX of {kernel!r} has a parameter that is not understood: {declaration}")
        element = int(parameter["bits"]) // 8
        found.append((element * int(parameter["count"] or 1), int(parameter["align"] or element)))
    return found
