# SPDX-License-Identifier: Apache-2.0
"""What the package offers; the operators are in _functions.pyi, which codegen writes."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from types import SimpleNamespace
from typing import Any, Literal

from anyop import aten as aten
from anyop import jit as jit
from anyop._functions import *

class InternalError(RuntimeError): ...
class DeviceError(RuntimeError): ...
class DeclinedError(NotImplementedError): ...

class BuildError(RuntimeError):
    output: str

class MissingToolError(BuildError): ...

class use(ContextDecorator):  # noqa: N801
    def __init__(
        self, backend: str | Sequence[str], ops: str | Sequence[str] | None = None
    ) -> None: ...
    def __enter__(self) -> use: ...
    def __exit__(self, *error: object) -> None: ...

class Route:
    operator: str
    device: str
    backend: str | None
    chosen: str | None
    choice: int | None
    runs: str | None
    reason: str
    rule: list[str]
    fallback: bool
    candidates: list[dict[str, Any]]

__version__: str
ops: SimpleNamespace

def backends(op: str) -> list[str]: ...
def build(
    folder: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    arch: str | Iterable[str] | None = None,
    flags: Iterable[str] = (),
    toolchains: Mapping[str, str] | None = None,
    backends: Iterable[str] | None = None,
    static: bool = False,
    verbose: bool = False,
) -> str: ...
def cmake_dir() -> str: ...
def explain(op: str, *args: Any, **kwargs: Any) -> Route: ...
def get_num_threads() -> int: ...
def include_dir() -> str: ...
def is_deterministic() -> bool: ...
def hold(function: Callable[..., Any]) -> Callable[..., Any]: ...
def list_ops(namespace: str | None = None) -> list[str]: ...
def load(path: str | os.PathLike[str]) -> list[str]: ...
def load_routes(path: str | os.PathLike[str] | None) -> None: ...
def log_dispatch(
    level: Literal[0, 1, 2] = 1, file: str | os.PathLike[str] | None = None, *, stderr: bool = True
) -> None: ...
def metadata(name: str) -> dict[str, Any]: ...
def record(path: str | os.PathLike[str] | None) -> None: ...
def register(
    op: str,
    backend: str = "python",
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    framework: str | None = None,
    device: str = "any",
    dtypes: Sequence[str] | None = None,
    when: str | None = None,
    priority: int = -200,
    deterministic: bool = False,
    needs: Sequence[str] = (),
) -> Callable[..., Any]: ...
def register_tvm_ffi(
    op: str,
    call: str,
    function: Any = None,
    *,
    backend: str = "tvm_ffi",
    name: str | None = None,
    module: str = "",
    library: str = "",
    needs: Sequence[str] = (),
    device: str = "any",
    when: str | None = None,
    priority: int = -50,
    deterministic: bool = False,
    source: str | None = None,
) -> None: ...
def schema(name: str) -> str: ...
def set_num_threads(count: int, /) -> None: ...
def unregister(op: str, name: str) -> None: ...
def use_deterministic(on: bool = True) -> None: ...
