"""The texts of `help()` and `repr()`, and the metadata of the package."""

import importlib.metadata
import inspect
import pickle
import re
import types

import mscclpp
import pytest
from fuzz_arguments import instances
from mscclpp import _mscclpp, ep, ext, numa, utils

import ranks


def members():
    """Every public name of every module, and of every class, with its value."""
    for module in (mscclpp, _mscclpp, utils, ep, ext, numa):
        # In other modules, the remaining names are imported modules.
        names = dir(module) if module is _mscclpp else module.__all__
        for name in names:
            # `CppTransport` is `Transport`.
            if name.startswith("_") or name.startswith("Cpp"):
                continue
            value = getattr(module, name)
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                for member, it in vars(value).items():
                    is_member_of_enumeration = isinstance(it, value)
                    if not member.startswith("_") and not is_member_of_enumeration:
                        yield f"{module.__name__}.{name}.{member}", it
    for name in vars(mscclpp.npkit):
        yield f"mscclpp.npkit.{name}", getattr(mscclpp.npkit, name)


def test_help_has_a_sentence_and_a_signature_for_every_public_name():
    names = dict(members())
    assert len(names) >= 279
    without_sentence, without_signature = [], []
    for name, value in names.items():
        if isinstance(value, (str, dict, types.SimpleNamespace)) or name.endswith("Cpp"):
            continue  # `version` and `npkit`, about which the modules speak
        if not re.search(r"\w.*\.(\s|$)", inspect.getdoc(value) or ""):
            without_sentence.append(name)
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if not callable(function) or inspect.isclass(function) and issubclass(function, BaseException):
            continue
        try:
            inspect.signature(function)
        except ValueError:
            without_signature.append(name)
    assert (without_sentence, without_signature) == ([], [])


def test_every_object_says_what_it_is_and_never_a_key():
    objects, _buffer = instances()
    ids = [it for it in objects if isinstance(it, mscclpp.UniqueId)]
    key = ids[0].__getstate__()[24:56]
    group = mscclpp.CommGroup.__new__(mscclpp.CommGroup)
    group._join(objects[0])
    objects += [group, group.bootstrap]
    for it in objects:
        text = repr(it)
        assert " object at 0x" not in text and type(it).__name__.removeprefix("SharedFuture_") in text, text
        assert (len(text) < 120 or not hasattr(it, "close")) and "Token" not in text and repr(key) not in text, text
        assert not any(key[i : i + 8].hex() in text for i in range(len(key) - 7)), text
    said = {type(it).__name__: repr(it) for it in reversed(objects)}
    assert said["TcpBootstrap"] == "<mscclpp.TcpBootstrap, rank 0 of 1>"
    assert said["CommGroup"] == "<mscclpp.CommGroup, rank 0 of 1>"
    assert said["Communicator"] == "<mscclpp.Communicator of rank 0 of 1>"
    assert said["Connection"] == "<mscclpp.Connection to rank 0 over CudaIpc>"
    assert said["RegisteredMemory"] == "<mscclpp.RegisteredMemory of 512 bytes for CudaIpc>"
    assert said["MemoryChannel"] == "<mscclpp.MemoryChannel with rank 0, from 512 to 512 bytes>"
    assert said["PortChannel"] == "<mscclpp.PortChannel with rank 0, from memory 1 to memory 0>"
    assert re.fullmatch(
        r"<mscclpp.ProxyService of .*, not running, with 1 semaphores and 2 memories>", said["ProxyService"]
    )
    assert (
        said["SharedFuture_Connection"] == "<mscclpp.SharedFuture_Connection of rank 0 with rank 0, not asked for yet>"
    )
    assert re.fullmatch(r"<mscclpp.MemoryChannelDeviceHandle of \d+ bytes>", said["MemoryChannelDeviceHandle"])
    assert said["Proxy"] == "<mscclpp.Proxy, not running>"
    group.close()
    assert repr(group) == "<mscclpp.CommGroup, rank 0 of 1, closed>"
    assert repr(group.communicator) == "<mscclpp.Communicator, closed>"


def test_kernels_say_their_names():
    assert repr(ranks.kernel("plain.cu", "indices", EXTRA=0)) == "<mscclpp.utils.Kernel indices of 1 parameters>"
    builder = utils.KernelBuilder("plain.cu", "indices", ranks.KERNELS)
    assert repr(builder) == f"<mscclpp.utils.KernelBuilder of indices in {ranks.KERNELS}/plain.cu>"


def test_ids_are_keys_of_dictionaries():
    first, second = (mscclpp.TcpBootstrap.create_unique_id() for _ in range(2))
    again = pickle.loads(pickle.dumps(first))
    jobs = {first: "first", second: "second", mscclpp.UniqueId(): "none"}
    assert jobs[again] == "first" and jobs[second] == "second" and jobs[mscclpp.UniqueId()] == "none"
    assert hash(again) == hash(first) and len({hash(first), hash(second)}) == 2 and first != second


def test_the_package_has_its_licence_and_says_whose_it_is():
    distribution = importlib.metadata.distribution("mscclpp")
    about = distribution.metadata
    assert about["Author"] == "The mscclpp-rs authors" and about["License-Expression"] == "MIT"
    assert about.get_all("License-File") == ["LICENSE", "THIRD-PARTY-LICENSES"]
    assert len(about.get_all("Classifier")) >= 8
    licences = {file.name: file for file in distribution.files or [] if "LICENSE" in file.name}
    if not licences:
        pytest.skip("an editable installation has no files of its own")
    assert "MIT License" in licences["LICENSE"].read_text()
    notices = licences["THIRD-PARTY-LICENSES"].read_text()
    for part in ("pyo3 ", "rustix ", "Rust's standard library", "BSD-3-Clause", "Permission is hereby granted"):
        assert part in notices, part
