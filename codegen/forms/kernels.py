# SPDX-License-Identifier: Apache-2.0
"""The section [kernels]: what serves a backend, and whether it is compiled, linked, opened or called."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..schema import defaults
from ..schema.binding import Binding
from ..schema.conditions import read_when
from ..schema.operator_sections import BACKENDS, COMPILED, DEVICES, check_keys, section, texts_of
from ..schema.params import Param
from ..schema.source import Mistake, Source, listed, nearest
from . import binaries
from .binary_call import Image, Module, read_image, read_module
from .foreign import Foreign, read_aten, read_call, read_python
from .library_call import DEVICE, LibraryCall, is_library, read_library_call
from .triton_launch import Launch, check_launch, read_launch

# Suffix -> form of a file that no compiler takes.
_FORMS = {
    ".o": "object", ".a": "object", ".cubin": "image", ".fatbin": "image", ".ptx": "image", ".cl": "image",
    ".hsaco": "image", ".so": "module", ".py": "python",
}  # fmt: skip
_EVERY = ("name", "device", "when", "priority", "deterministic")
_KEYS = {
    "source": ("file", "arch", "choices"),
    "object": ("file", "choices"),
    "image": (
        "file",
        "entry",
        "grid",
        "block",
        "shared_bytes",
        "arguments",
        "cluster",
        "cooperative",
        "pdl",
        "scratch_bytes",
    ),
    "module": ("file", "function", "arguments"),
    "library": ("call", "same", "within"),
    "aten": ("call",),
    "python": ("file", "function", "framework", "needs"),
    "tvm_ffi": ("call", "module", "library", "needs"),
}
FOREIGN = (
    "aten",
    "python",
    "tvm_ffi",
)  # they run when routed to, or when nothing better takes a call
_PRIORITIES = {"aten": -100, "python": -200, "tvm_ffi": -50}
_TRITON = -50
_SPECIAL = 10  # "cuda_sm90": before the backend that it is a special case of
_MOST_CHOICES = 1000  # that the core takes
_UNFIT = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")


@dataclass(frozen=True)
class Kernel:
    """One implementation; the first file is the operator's, others may be a family's.

    form: "source": compiled (objects may stand beside sources); "object": ready objects and archives;
    "image": CUDA's cubin, fatbin or PTX, HIP's hsaco, OpenCL C; "module": a library of tvm-ffi; "library": a call of
    a vendor's library; "triton": a Triton kernel in images that are made when needed, or ahead; those of FOREIGN:
    a text.
    """

    backend: str
    files: tuple[Path, ...]
    function: str
    arch: str | None = None
    priority: int = 0
    form: str = "source"
    ready: Image | Module | LibraryCall | None = None
    foreign: Foreign | None = None
    device: str = "any"  # one of DEVICES
    name: str | None = None  # its own in the operator; None: the backend's
    when: str | None = None
    deterministic: bool = False
    choices: int = 0  # ways it can be told to go, AnyopCall::choice
    launch: Launch | None = None  # of the form "triton"

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that a compiler takes."""
        return tuple(file for file in self.files if file.suffix not in _FORMS)

    @property
    def is_compiled(self) -> bool:
        """Whether it is machine code of the library."""
        return self.form not in FOREIGN

    @property
    def linked(self) -> tuple[Path, ...]:
        """The objects and archives."""
        return tuple(file for file in self.files if _FORMS.get(file.suffix) == "object")


def read_kernels(
    source: Source, symbol: str, name: str, params: list[Param], binding: Binding
) -> list[Kernel]:
    """[kernels]; where it is missing, the files of the operator's name that lie beside it."""
    table = section(source, "kernels")
    if "kernels" not in source.data:
        table = defaults.kernels(source.path, name)
        with source.at("kernels"):
            _check_found(table, name)
    with source.at(None, "deterministic"):
        certain = texts_of(source.data.get("deterministic", []), "deterministic")
        check_keys(dict.fromkeys(certain), table, "backend of deterministic")
    kernels: list[Kernel] = []
    launches = section(source, "launch")
    with source.at("launch"):
        check_keys(launches, table, "backend of [launch]")
    for backend, value in table.items():
        with source.at("kernels", backend):
            entry = dict(value) if isinstance(value, dict) else _plain_entry(backend, value)
            entry.setdefault("deterministic", backend in certain)
            reader = _Reader(source, symbol, name, params, binding)
            plain = reader.kernel(backend, entry, kernels)
        if backend not in launches:
            kernels.append(plain)
            continue
        with source.at("launch", backend):
            kernels += reader.launched(plain, launches[backend], kernels)
    return kernels


def _plain_entry(backend: str, value: object) -> dict[str, Any]:
    """`cpu = "scale.cc"`, `aten = "relu(x)"`."""
    return {"call" if _is_aten(backend) or is_library(backend) else "file": value}


def _is_aten(backend: str) -> bool:
    """Also the aten_grouped_mm of an operator: a text for calls that its `when` names."""
    return backend == "aten" or backend.startswith("aten_")


def _called_form(backend: str) -> str:
    if is_library(backend):
        return "library"
    return "aten" if _is_aten(backend) else "tvm_ffi"


def _check_found(table: dict[str, str], name: str) -> None:
    if not table:
        files = listed(f"{name}{suffix}" for suffix in defaults.SUFFIXES.values())
        raise Mistake(
            f"no section [kernels], and no {files} beside the file",
            "a kernel",
            f"write {name}.cc, name other files in [kernels], or write [kernels] alone for none",
        )


@dataclass(frozen=True)
class _Reader:
    """Reads one kernel of an operator."""

    source: Source
    symbol: str
    operator: str
    params: list[Param]
    binding: Binding

    def launched(self, plain: Kernel, table: object, others: list[Kernel]) -> list[Kernel]:
        """A Triton kernel's images, then its function in Python for what they do not take, where it has one."""
        if plain.form != "python" or plain.device != "cuda":
            raise Mistake(f"launch of the backend {plain.backend}", "a Triton kernel", "remove it")
        launch = check_launch(table)
        source, name = plain.foreign.hidden["source"], plain.name or plain.backend
        made = read_launch(
            plain.function, plain.files[0], source, launch, plain.when, self.params, self.binding
        )
        text = {"file": plain.files[0].name, "kernel": made.kernel}
        choices = len(made.configs) if len(made.configs) > 1 else 0
        if choices > _MOST_CHOICES:
            raise Mistake(f"{choices} configurations", f"at most {_MOST_CHOICES}", "keep the best")
        image = replace(
            plain, form="triton", launch=made, foreign=Foreign(text, made.text), choices=choices
        )
        fallback = _name(plain.backend, {"name": f"{name}.python"}, others)
        slower = replace(plain, name=fallback, priority=max(plain.priority - 1, -1000))
        return [image, slower] if plain.foreign.text["function"] != made.kernel else [image]

    def kernel(self, backend: str, entry: dict[str, Any], others: list[Kernel]) -> Kernel:
        keys = dict.fromkeys(_EVERY) | {key: 0 for keys in _KEYS.values() for key in keys}
        check_keys(entry, keys, "key of a kernel")
        files = [] if "call" in entry else _kernel_files(self.source, backend, entry.get("file"))
        form = _form(files) if files else _called_form(backend)
        check_keys(entry, (*_KEYS[form], *_EVERY), f"key of a kernel in the form of {form}")
        if form == "python" and len(files) > 1:
            raise Mistake(f"{len(files)} Python files", "one", "import the others from it")
        device = _device(backend, form, entry)
        function, foreign = f"{self.symbol}_{backend}", None
        ready: Image | Module | LibraryCall | None = None
        if form in FOREIGN:
            foreign = self._foreign(form, backend, files, entry)
        elif form == "library":
            ready = read_library_call(entry, self.params, self.binding)
        else:
            ready = _read_ready(form, device, files, function, entry, self.params, self.binding)
        if form == "image":  # the driver takes the first that fits
            files = sorted(
                files, key=lambda file: (file.suffix == ".ptx", -binaries.cuda_arch(file))
            )
        arch = _arch(device, entry)
        when = read_when(entry["when"], self.params, self.binding) if "when" in entry else ""
        if arch and device == "cuda" and "capability" not in when:
            when = f"{when} {_capability(arch)}".strip()
        return Kernel(
            backend, tuple(files), function, arch, _priority(backend, form, entry), form,
            ready, foreign, device, _name(backend, entry, others), when or None,
            _deterministic(entry), _choices(entry),
        )  # fmt: skip

    def _foreign(
        self, form: str, backend: str, files: list[Path], entry: dict[str, Any]
    ) -> Foreign:
        if form == "aten":
            return read_aten(entry, self.params, self.binding)
        if form == "python":
            return read_python(backend, self.operator, files[0], entry, self.params)
        return read_call(entry, self.params, self.binding)


def _device(backend: str, form: str, entry: dict[str, Any]) -> str:
    """The kind of tensors that a kernel takes."""
    if not (backend.isascii() and backend.isidentifier()):
        raise Mistake(f"backend '{backend}'", "letters, digits and _", "rename it")
    devices = [*BACKENDS, "any"] if form in FOREIGN else [*BACKENDS]
    if form == "library":
        if entry.get("device", DEVICE) != DEVICE:
            raise Mistake(f"device '{entry['device']}' of {backend}", DEVICE, "remove it")
        return DEVICE
    if "device" in entry:
        check_keys({str(entry["device"]): 0}, devices, "device", "use one of these")
        own = backend if backend in BACKENDS or form in FOREIGN else _special_of(backend)
        if own in BACKENDS and entry["device"] != own:
            raise Mistake(f"device '{entry['device']}' of the backend {backend}", own, "remove it")
        return entry["device"]
    if form == "image" and (_special_of(backend, DEVICES) or backend) in DEVICES:
        return _special_of(backend, DEVICES) or backend
    if backend in COMPILED or (form not in FOREIGN and _special_of(backend, COMPILED)):
        return _special_of(backend, COMPILED) or backend
    if form not in FOREIGN:
        fix = 'write cpu = ..., or say what it runs on: device = "cpu"'
        check_keys({backend: 0}, COMPILED, "backend", fix)
    framework = entry.get("framework", "torch" if backend == "triton" else "numpy")
    if form == "python" and framework in ("numpy", "jax"):
        return "cpu"
    return "cuda" if backend == "triton" or framework == "cupy" else "any"


def _special_of(backend: str, devices: Collection[str] = BACKENDS) -> str | None:
    """The cuda of cuda_sm90."""
    head, _, rest = backend.partition("_")
    return head if rest and head in devices else None


def _arch(device: str, entry: dict[str, Any]) -> str | None:
    arch = entry.get("arch")
    wanted = r"[1-9]\d{1,2}[af+*]?" if device == "cuda" else r"\d+\w*\+?"
    if arch is not None and not (isinstance(arch, str) and re.fullmatch(wanted, arch, re.ASCII)):
        raise Mistake(f"arch {arch!r}", 'text such as "80+" or "90a"', "quote it")
    return arch


def _capability(arch: str) -> str:
    """The GPUs that code for an architecture of CUDA's runs on, for `when`; no PTX is made for one that is named."""
    number = int(arch.rstrip("af+*"))
    least = f"capability>={number // 10}.{number % 10}"
    if arch.endswith(("+", "*")):
        return least
    if arch.endswith("a"):
        return least.replace(">=", "=")
    return f"{least} capability<{number // 10 + 1}.0"


def _choices(entry: dict[str, Any]) -> int:
    choices = entry.get("choices", 0)
    if type(choices) is not int or not (choices == 0 or 2 <= choices <= _MOST_CHOICES):
        raise Mistake(f"choices {choices!r}", f"a number from 2 to {_MOST_CHOICES}", "correct it")
    return choices


def _priority(backend: str, form: str, entry: dict[str, Any]) -> int:
    special = _SPECIAL if _special_of(backend) else 0
    default = _TRITON if backend == "triton" else _PRIORITIES.get(form, special)
    priority = entry.get("priority", default)
    if type(priority) is not int or not -1000 <= priority <= 1000:
        raise Mistake(f"priority {priority!r}", "an integer from -1000 to 1000", "correct it")
    return priority


def _name(backend: str, entry: dict[str, Any], others: list[Kernel]) -> str | None:
    name = entry.get("name", backend)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        raise Mistake(f"name {name!r}", "letters, digits, _, - and .", "rename it")
    if name in [other.name or other.backend for other in others]:
        raise Mistake(f"two kernels called '{name}'", "names that differ", "rename one")
    return None if name == backend else name


def _deterministic(entry: dict[str, Any]) -> bool:
    if type(entry["deterministic"]) is not bool:
        raise Mistake(f"deterministic {entry['deterministic']!r}", "true or false", "correct it")
    return entry["deterministic"]


def _read_ready(
    form: str,
    device: str,
    files: list[Path],
    function: str,
    entry: dict[str, Any],
    params: list[Param],
    binding: Binding,
) -> Image | Module | None:
    """How files that no compiler takes are called, checked against what is in them."""
    if form == "object":
        for file in files:
            if not binaries.machine(file):
                raise Mistake(f"{file.name} is no object file (ELF)", "one", "compile it anew")
        if not any(binaries.has_name(file, function) for file in files):
            raise Mistake(
                f"{listed((file.name for file in files), 'and')} without the function {function}",
                "the kernel",
                f'define extern "C" int32_t {function}(const ...Args*, AnyopCall*)',
            )
    if form == "image":
        return read_image(device, files, entry, params, binding)
    return read_module(files, entry, params, binding) if form == "module" else None


def _form(files: list[Path]) -> str:
    forms = [_FORMS.get(file.suffix, "source") for file in files]
    if set(forms) == {"source", "object"}:
        return "source"
    if len(set(forms)) > 1 or (forms[0] == "module" and len(files) > 1):
        raise Mistake(
            f"kernel files {listed((file.name for file in files), 'and')}",
            "sources and objects, images, one library of tvm-ffi, or one Python file",
            "name the others in a kernel of their own",
        )
    return forms[0]


def _kernel_files(source: Source, backend: str, names: object) -> list[Path]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise Mistake(
            f"kernel file {names!r}",
            "a file name or a list of them",
            f'write {backend} = "<op>.cc"',
        )
    return [_kernel_file(source, name) for name in names]


def _kernel_file(source: Source, name: str) -> Path:
    folder = source.path.resolve().parent
    if not (folder / name).is_file():
        suffix = Path(name).suffix
        beside = sorted(path.name for path in folder.iterdir() if path.suffix == suffix)
        raise Mistake(
            f"kernel file '{name}' is missing",
            f"it in {folder}",
            nearest(name, beside, "write it, or correct the name"),
        )
    path = (folder / name).resolve()
    if _UNFIT.search(path.name):  # it stands in tables, texts and messages
        found = (
            f"kernel file {path.name!r} with a line break, a control character or bytes of no UTF-8"
        )
        raise Mistake(found, "a name of one line", "rename it")
    return path
