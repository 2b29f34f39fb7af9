# SPDX-License-Identifier: Apache-2.0
"""Names that C, C++, Python or the package uses: no operator, argument or letter may have them."""

from __future__ import annotations

import keyword
import re

from .source import Mistake


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names in the Python package and the C++ namespace anyop: an operator would hide them.
PACKAGE_API = _words("""
    ops list_ops schema metadata backends explain use load_routes register build load jit aten torch
    jax paddle numpy cupy set_num_threads get_num_threads num_threads cmake_dir include_dir
    library_dir version testing Route internal
""")
C_KEYWORDS = _words("""
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using
    virtual void volatile wchar_t while xor xor_eq linux unix NULL EOF INFINITY NAN
""")
# Soft keywords, and types that the stubs name: a function so called would change what they mean.
_PYTHON_SOFT = _words("_ match case type bool bytes dict float int list object set str tuple")
_C_TYPE = re.compile(r"u?int\d+_t|u?intptr_t|u?intmax_t|size_t|ptrdiff_t|wchar_t|Anyop.*|kAnyop.*")
# Macros of kernel.h and of what it includes.
_C_MACRO = re.compile(r"ANYOP_.*|[A-Z]\w*_(MAX|MIN|WIDTH)")
# Soft keywords, and types that the stubs name: a function so called would change what they mean.
_PYTHON_SOFT = _words("_ match case type bool bytes dict float int list object set str tuple")
_C_TYPE = re.compile(r"u?int\d+_t|u?intptr_t|u?intmax_t|size_t|ptrdiff_t|wchar_t|Anyop.*|kAnyop.*")
# Macros of the headers that a table, a kernel or a caller includes.
_C_MACRO = re.compile(
    r"ANYOP_.*|U?(INT|CHAR|SHRT|LONG|LLONG|SCHAR|PTRDIFF|SIZE|WCHAR|WINT|SIG_ATOMIC)\w*_(MAX|MIN|C|BIT|WIDTH)"
    r"|(HUGE|FP|M|MATH|DBL|FLT|LDBL|EXIT|SEEK|RAND|MB_CUR|L_tmp|FILENAME|FOPEN|TMP|CLOCKS)_\w+|HUGE|DOMAIN|SING"
    r"|OVERFLOW|UNDERFLOW|PLOSS|TLOSS|BUFSIZ|stdin|stdout|stderr|errno|assert|offsetof|math_errhandling|[A-Z]_?OK"
)
_SHAPE_WORDS = _words("broadcast expand ceil min max rank numel promote")


def _reason(name: str) -> str | None:
    if name in C_KEYWORDS or _C_TYPE.fullmatch(name) or _C_MACRO.fullmatch(name):
        return "a word of C or C++"
    return "a Python keyword" if keyword.iskeyword(name) else None


def _check_lower(what: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name:
        raise Mistake(
            f"{what} '{name}'",
            "lower-case letters, digits and single underscores",
            "rename it, for example 'rms_norm'",
        )


def check_namespace(name: str) -> None:
    """Refuses what cannot be `anyop.ops.<name>`."""
    _check_lower("namespace", name)
    if reason := "a namespace of C++" if name == "std" else _reason(name):
        raise Mistake(f"namespace '{name}', {reason}", "another name", "rename it")


def check_operator_name(namespace: str, name: str) -> None:
    """Refuses what cannot be a function of the package."""
    if name.startswith("__"):
        raise Mistake(f"operator '{name}'", "no name of Python's own", "rename it")
    _check_lower("operator", name)
    reason = _reason(name) or ("a soft keyword or type of Python" if name in _PYTHON_SOFT else None)
    if namespace == "anyop" and name in PACKAGE_API:
        reason = "a name of the package anyop itself"
    if reason:
        raise Mistake(
            f"operator '{name}', {reason}", "another name", "rename the operator and its file"
        )


def check_argument_name(name: str) -> None:
    """Refuses what cannot be a field of the argument struct and a Python argument."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name:
        raise Mistake(f"argument '{name}'", "a name that begins with a letter", "rename it")
    reason = _reason(name)
    if name == "base":
        reason = "the first field of every argument struct"
    if name in _SHAPE_WORDS:
        reason = "a word of the shape language"
    if reason:
        raise Mistake(f"argument '{name}', {reason}", "another name", "rename it")


def check_letter(name: str) -> None:
    """Refuses a size or group letter that cannot be a field of the argument struct."""
    reason = "the first field of every argument struct" if name == "base" else _reason(name)
    if name in _SHAPE_WORDS:
        reason = "a word of the shape language"
    if name.startswith("_") or "__" in name or not (name.isascii() and name.isidentifier()):
        reason = "a reserved form"
    if reason:
        raise Mistake(f"letter '{name}', {reason}", "another letter", "rename it")
