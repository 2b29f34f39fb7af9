# SPDX-License-Identifier: Apache-2.0
"""The operators as Python sees them: functions by namespace, schemas, metadata, loading of libraries."""

import json
import os
import threading
import types
from collections.abc import Callable, Iterable

from anyop._load import core, register_tvm_ffi
from anyop._paths import check_utf8


class Namespace(types.SimpleNamespace):
    """Functions of operators by name, or namespaces by name."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        spaces = list(ops.__dict__.items())  # another thread may load more meanwhile
        space = next((key for key, value in spaces if value is self), None)
        if space is None:
            raise AttributeError(_no_namespace(name))
        from anyop._nearest import did_you_mean

        near = did_you_mean(name, list(self.__dict__))
        raise AttributeError(f"no operator is named {space}.{name}{near}")


ops = Namespace()  # ops.acme.rms_norm; anyop's own are there too, as ops.anyop
on_new_operators: list[
    Callable[[list[str]], None]
] = []  # adapters: called with the names that load() brings
# Held while operators come: a thread that finds them there finds them in every adapter. Nothing is built under it.
_coming = threading.RLock()
_package: dict | None = None
_loaded: dict[str, str] = {}  # path of a library -> hash of what was loaded


def add_functions(package: dict) -> None:
    """Put every operator where users find it: in the package's own names or under its namespace."""
    global _package
    _package = package
    _refresh()


def _refresh() -> None:
    for namespace, name, function in core.functions():
        space = ops.__dict__.setdefault(namespace, Namespace())
        if name in space.__dict__:
            continue
        setattr(space, name, function)
        if namespace == "anyop" and _package is not None:
            _package[name] = function


def list_ops(namespace: str | None = None) -> list[str]:
    """Names of all operators, or of one namespace. Those of other namespaces than anyop are written acme.rms_norm.

    Raises ValueError for a namespace of which no operators are loaded.
    """
    if namespace is not None and namespace not in ops.__dict__:
        raise ValueError("anyop.list_ops: " + _no_namespace(namespace))
    spaces = list(ops.__dict__.items())  # copies: another thread may load more meanwhile
    if namespace is not None:
        spaces = [(namespace, ops.__dict__[namespace])]
    return [_short(space, name) for space, names in sorted(spaces) for name in list(names.__dict__)]


def install(adapter: Callable[[list[str]], None]) -> None:
    """Call an adapter with the operators that are there, and with those that load() brings from now on."""
    with _coming:
        adapter(list_ops())
        on_new_operators.append(adapter)


def _no_namespace(name: str) -> str:
    """What to say of it, with the nearest one that there is."""
    from anyop._nearest import did_you_mean

    near = did_you_mean(name, list(ops.__dict__))
    return f"no operators of a namespace '{name}' are loaded; there are {', '.join(ops.__dict__)}{near}"


def no_attribute(package: str, name: str, known: Iterable[str]) -> AttributeError:
    """What the __getattr__ of one of anyop's packages raises.

    Names with an underscore, which Python and tools ask for, get no proposal.
    """
    text = f"module {package!r} has no attribute {name!r}"
    if not name.startswith("_"):
        from anyop._nearest import did_you_mean

        is_operator = name in ops.anyop.__dict__
        text += f"; it is anyop.{name}" if is_operator else did_you_mean(name, known)
    return AttributeError(text, name=name)  # no object: Python would propose a second name


def namespace(name: str) -> types.SimpleNamespace:
    """The functions of a namespace, for pickle. Raises LookupError where its library is not loaded."""
    if name not in ops.__dict__:
        fix = "anyop.load its library before what was pickled"
        raise LookupError(f"no operators of {name} are loaded in this process: {fix}")
    return ops.__dict__[name]


def _short(space: str, name: str) -> str:
    return name if space == "anyop" else f"{space}.{name}"


def find(name: str) -> Callable:
    """The function of an operator. Raises ValueError for an unknown name."""
    full = name.replace("::", ".")
    space, _, short = full.rpartition(".")
    function = getattr(ops.__dict__.get(space or "anyop"), "__dict__", {}).get(short)
    if function is None:
        core.schema(name)  # says why not
        raise ValueError(f"no operator is named {name}")
    return function


def schema(name: str) -> str:
    """Return the signature of an operator in ATen's notation. Raises ValueError for an unknown name."""
    return core.schema(name)


def metadata(name: str) -> dict:
    """Return all that the operator's schema file states. Raises ValueError for an unknown name."""
    return json.loads(core.metadata(name))


def hold(function: Callable) -> Callable:
    """The same operator as a function that keeps what it found out about its lists, for calls that come again.

    function:  of an operator that takes lists: ``anyop.hold(anyop.multi_tensor_adam)``.
    Its calls have the arguments, results and errors of that one. Sizes, strides, dtypes and devices are compared
    with those of its last call; what lies elsewhere now is checked anew. It keeps no tensor alive and reads none
    that it is not given. Threads may share it; while one calls it, calls of others check everything.
    Raises  TypeError for what is no such function.
    """
    return core.hold(function)


def load(path: str | os.PathLike) -> list[str]:
    """Load operators and return the names that came.

    path: a library, a folder of libraries (``*.so``), or a folder of operator files (``<op>.toml``), which
          ``anyop.build`` makes a library of first, once.

    All operators of a library come or, with an error, none. Loading the same library again is no error and gives the
    names again. What is loaded stays: another build of it needs a new process (``anyop.jit.load`` gives each text a
    namespace of its own). Raises FileNotFoundError when path does not exist, ValueError when it is no library of
    operators, was built for another machine or ABI, was built anew since it was loaded, or names an operator of another
    library; what ``anyop.build`` raises.
    """
    path = os.path.abspath(os.fsdecode(path))
    check_utf8(path, "the path is")
    files = _libraries(path)
    with _coming:
        before = set(list_ops())
        rows = []
        for file in files:
            _check_machine(file)
            digest = _check_same(file)
            if os.path.isdir(os.path.join(os.path.dirname(file), "modules")):
                register_tvm_ffi()  # what lies there is linked with libtvm_ffi
            rows += core.load_library(file)
            _loaded[file] = digest
        _refresh()
        new = [name for name in list_ops() if name not in before]
        if new:
            for callback in on_new_operators:
                callback(new)
    return [_short(*row) for row in rows]


def _check_same(file: str) -> str:
    """The file's hash. Refuses what the dynamic loader would pass over: it knows a path again, whatever lies there."""
    from anyop.cache.dependencies import hash_file

    digest = hash_file(file)
    if _loaded.get(file, digest) != digest:
        raise ValueError(
            f"{file} was built anew since it was loaded, and what is loaded stays: start a new process "
            "(in a notebook, restart the kernel)"
        )
    return digest


def _libraries(path: str) -> list[str]:
    """The files to load."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"no library of operators at {path}")
    if not os.path.isdir(path):
        return [path]
    names = sorted(os.listdir(path))
    files = [os.path.join(path, name) for name in names if name.endswith(".so")]
    # Beside operator files a library is a kernel, or was built from them before they changed.
    if files and not any(name.endswith(".toml") and name != "pyproject.toml" for name in names):
        return files
    from anyop.builder.folder import SCHEMA, find_files

    if not any(file.endswith(SCHEMA) for file in find_files(path)):
        raise ValueError(
            f"{path} holds no library of operators (*.so) and no operator files (<op>.toml)"
        )
    from anyop.builder.build import build

    return [build(path)]


def _check_machine(file: str) -> None:
    """Refuse what the dynamic loader would refuse in other words."""
    from anyop.cache.dependencies import open_regular

    with open(file, "rb", opener=open_regular) as library, open(core.__file__, "rb") as own:
        found, expected = library.read(20), own.read(20)
    # Class and byte order of an ELF file; what is another kind of file the loader says.
    if len(found) < len(expected) or found[:6] != expected[:6]:
        return
    if found[18:] != expected[18:]:
        from anyop.builder.elf import machine_of

        raise ValueError(f"{file} is for {machine_of(file)}, this machine is {os.uname().machine}")
    from anyop.builder.gpus import refuse_other_gpu

    refuse_other_gpu(file)
