"""Finds out which NCCL library a module of this Python's environment calls, and writes findings as lines of JSON.

    python -c THIS [MODULE]

Without a module it writes about the environment. It runs in the environment that is examined, and needs nothing but Python.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys

SONAME = "libnccl.so.2"


def found(item, status, text, remedy=None, **facts):
    said = {"section": "nccl", "item": item, "status": status, "facts": facts}
    said.update({"text": text} if remedy is None else {"reason": text, "remedy": remedy})
    print("\n" + json.dumps({"Found": said}), flush=True)


def is_same(one, other):
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def described(library):
    """Whether a library that is loaded is this project's, its version in words, and the file of its functions."""
    version, function = ctypes.c_int(), library.ncclGetVersion
    function(ctypes.byref(version))
    is_ours, (head, patch) = hasattr(library, "mscclppSimSetDevice"), divmod(version.value, 100)
    major, minor = divmod(head, 100 if head >= 100 else 10)
    address, file = ctypes.cast(function, ctypes.c_void_p).value, ""
    with open("/proc/self/maps") as lines:
        for line in lines:
            start, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
            if start <= address < end:
                file = line.split(maxsplit=5)[5].rstrip("\n")
    name = f"NCCL {major}.{minor}.{patch}"
    return is_ours, f"{'mscclpp in place of ' if is_ours else ''}{name}", file


def called():
    """The NCCL library that modules of this process call: the first one for all libraries, else the one of that name."""
    for name, mode in ((None, ctypes.DEFAULT_MODE), (SONAME, os.RTLD_NOLOAD)):
        try:
            library = ctypes.CDLL(name, mode)
            library.ncclGetVersion
        except (OSError, AttributeError):
            continue
        return library
    return None


def why(file, module):
    """The reason why a module has this file."""
    preloaded = [name for name in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if name]
    if any(is_same(name, file) for name in preloaded):
        return "LD_PRELOAD names it"
    if "mscclpp.nccl" in sys.modules:
        return "mscclpp.nccl was imported first"
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and is_same(os.path.join(folder, SONAME), file):
            return "it is in a folder of LD_LIBRARY_PATH"
    if os.path.join("nvidia", "nccl", "lib") in file:
        return f"{module} opens that of the package nvidia-nccl, by its path or by the RPATH of its own libraries"
    return "the dynamic loader finds it among the system's libraries"


def package():
    """This project's library in the environment, without an import of the package."""
    spec = importlib.util.find_spec("mscclpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [os.path.join(folder, "lib", SONAME) for folder in folders]
    return next((file for file in files if os.path.exists(file)), None)


def remedy(module):
    if package():
        return f"import mscclpp.nccl before {module}, or start the program by `python -m mscclpp.nccl PROGRAM`"
    return (
        f"install the Python package mscclpp in this environment, and import mscclpp.nccl before {module}; or set "
        "LD_PRELOAD to the libnccl.so that `cargo build --release -p mscclpp-nccl` makes"
    )


def of_module(module):
    try:
        name = "nccl" if module == "nccl4py" else module
        if importlib.util.find_spec(name) is None:
            return found(module, "note", "it is not installed in this environment")
        importlib.import_module(name)
        if module == "cupy":
            importlib.import_module("cupy.cuda.nccl")
        if module == "nccl4py":
            # It loads NCCL at its first call.
            importlib.import_module("nccl.core").get_version()
    except Exception as error:
        return found(module, "note", f"it cannot be imported: {type(error).__name__}: {error}")
    library = called()
    if library is None:
        text = f"it has not loaded NCCL with its import; it does so at its first use, from where it finds {SONAME}"
        return found(module, "unavailable", text, remedy(module))
    is_ours, name, file = described(library)
    text = f"{name}, {file}: {why(file, module)}"
    found(module, *(("ok", text) if is_ours else ("unavailable", text, remedy(module))), file=file, is_ours=is_ours)


def of_environment():
    found("Python", "note", f"{sys.executable}, {sys.version.split()[0]}")
    ours = package()
    found("mscclpp.nccl", "note", ours or "this environment has no package mscclpp with the library", file=ours)
    variable = "VLLM_NCCL_SO_PATH"
    path = os.environ.get(variable)
    if not path:
        return
    advice = "set it to what mscclpp.nccl.path() returns, or unset it: then vLLM calls what torch calls"
    try:
        is_ours, name, file = described(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        return found(variable, "problem", f"vLLM cannot load the file that it names: {error}", advice)
    text = f"vLLM calls {name}, {file}"
    found(variable, *(("ok", text) if is_ours else ("unavailable", text, advice)), file=file, is_ours=is_ours)


if len(sys.argv) > 1:
    of_module(sys.argv[1])
else:
    of_environment()
print("\n" + json.dumps("Done"), flush=True)
