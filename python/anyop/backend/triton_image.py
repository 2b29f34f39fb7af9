# SPDX-License-Identifier: Apache-2.0
"""Images of Triton kernels that a call needs and that are not beside its library: from the cache, or made now.

    <cache>/triton/<base>-<kind>-<Triton's version>.img

The base holds a hash of the kernel's file and of its launch. Where the file takes code from other modules, the name has
Triton's own hash of the kernel too, for which Triton is asked.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import importlib.metadata
import json
import os
import re
import threading

from anyop._paths import is_installed
from anyop.cache.place import cache_dir, check_private, make_private

_making = threading.RLock()


def make(op: str, text: str, kind: str) -> str:
    """Path of the file, which is whole; or why there is none. Core calls it at the first call of a kind."""
    launch = json.loads(text)
    with _making:
        try:
            return _find(launch, kind) or _make(op, launch, kind)
        except Exception as error:  # whatever the file and Triton do
            first = (str(error).strip() or "no text").splitlines()[0]
            return f"{launch['kernel']} of {launch['file']} cannot be compiled: {type(error).__name__}: {first}"


def image_name(launch: dict, kind: str) -> str:
    """As a library's images are called, without the end."""
    return f"{launch['base']}-{kind.replace(';', '_').replace(',', '.')}"


@functools.cache
def triton_version() -> str | None:
    """Of the installed one, which is imported only where its distribution has another name."""
    if not is_installed("triton"):
        return None
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        import triton

        version = triton.__version__
    return re.sub(r"[^0-9A-Za-z.+]", "_", version)


def _folder() -> str:
    return os.path.join(cache_dir(), "triton")


def _find(launch: dict, kind: str) -> str | None:
    """In the cache; of the installed Triton, or of any where there is none."""
    version, name = triton_version(), image_name(launch, kind)
    if launch["imports"] or not os.path.isdir(_folder()):
        return None
    check_private(cache_dir())
    check_private(_folder())
    stem = os.path.join(_folder(), name)
    for path in (
        [f"{stem}-{version}.img"] if version else sorted(glob.glob(f"{glob.escape(stem)}-*.img"))
    ):
        if _is_good(path, kind):
            return path
    return None


def _is_good(path: str, kind: str) -> bool:
    from anyop.backend.triton_compile import is_whole

    try:
        with open(path, "rb") as stream:
            return is_whole(stream.read(), kind)
    except OSError:
        return False


def _make(op: str, launch: dict, kind: str) -> str:
    version = triton_version()
    if version is None:
        return "needs triton, which is not installed (pip install triton)"
    from anyop.backend.triton_compile import CannotCompile, compile_image, jit_function

    name = image_name(launch, kind)
    try:
        if launch["imports"]:
            key = hashlib.sha256(jit_function(op, launch).cache_key.encode()).hexdigest()[:16]
            name = f"{name}-{key}"
        path = os.path.join(_folder(), f"{name}-{version}.img")
        if launch["imports"] and _is_good(path, kind):
            return path
        data = compile_image(op, launch, kind)
    except CannotCompile as error:
        return f"{launch['kernel']} of {launch['file']} has no image: {error}"
    for folder in (cache_dir(), _folder()):
        make_private(folder)
    write_image(path, data)
    return path


def write_image(path: str, data: bytes) -> None:
    """By a rename: nobody sees half a file."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as stream:
            stream.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
