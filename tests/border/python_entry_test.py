# SPDX-License-Identifier: Apache-2.0
"""Python's entry: the package's names, signatures and help, out= in all its forms, errors and their classes."""

from __future__ import annotations

import _ctypes
import inspect
import os
import pydoc
import re
import shutil

import anyop
import numpy as np
import pytest

X = np.array([[-2.0, 3.0, 0.5], [1.0, -1.0, 4.0]], np.float32)
NAMES = anyop.list_ops("anyop")
operators = pytest.mark.parametrize("name", NAMES)


# ---- names ----


def test_the_packages_names():
    assert len(NAMES) >= 18 and sorted(NAMES) == NAMES == sorted(set(NAMES))
    assert set(NAMES) <= set(anyop.list_ops()) and set(NAMES) <= set(anyop.__all__) <= set(
        dir(anyop)
    )
    with pytest.raises(
        ValueError, match="no operators of a namespace 'nobody' are loaded; there are"
    ):
        anyop.list_ops("nobody")
    assert re.fullmatch(r"\d+\.\d+\.\d+", anyop.__version__)
    for name in NAMES:
        assert getattr(anyop, name) is getattr(anyop.ops.anyop, name)
        found = [n for n in anyop.backends(name) if n != "cudnn_sm100"]  # of other GPUs than ours
        assert found[0].partition("_")[0] in ("cpu", "cuda", "opencl") and "cpu" in found
    for folder in (anyop.include_dir(), anyop.cmake_dir()):
        assert os.path.isabs(folder)


@operators
def test_metadata_says_what_the_schema_says(name):
    schema, metadata = anyop.schema(name), anyop.metadata(name)
    assert (
        schema == metadata["schema"] and schema.startswith(f"{name}(") and metadata["name"] == name
    )
    assert anyop.schema(f"anyop.{name}") == schema == anyop.schema(f"anyop::{name}")
    assert len(metadata["inputs"]) == schema[: schema.index("->")].count(",") + 1 - schema.count(
        "*,"
    )
    metadata["name"] = "changed"
    assert anyop.metadata(name)["name"] == name


@pytest.mark.parametrize("function", [anyop.schema, anyop.metadata, anyop.backends])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", ValueError),
        ("", ValueError),
        ("acme.relu", ValueError),
        (3, TypeError),
        (None, TypeError),
        (b"relu", TypeError),
    ],
)
def test_unknown_operators(function, name, error):
    with pytest.raises(error, match="operator"):
        function(name)


@operators
def test_signatures(name):
    function, metadata = getattr(anyop, name), anyop.metadata(name)
    parameters = inspect.signature(function).parameters
    wanted = [p["name"] for p in metadata["inputs"] + metadata["results"]]
    assert list(parameters) == wanted
    for param in metadata["inputs"]:
        found = parameters[param["name"]]
        default = param["default"] if param["has_default"] else inspect.Parameter.empty
        assert found.default == default or (default is None and found.default is None)
        keyword_only = found.kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword_only == param["keyword_only"]
    for param in metadata["results"]:
        assert parameters[param["name"]].default is None
    with pytest.raises(TypeError):
        inspect.signature(function).bind()


@operators
def test_help(name):
    function, metadata = getattr(anyop, name), anyop.metadata(name)
    text = inspect.getdoc(function)
    assert text.splitlines()[0] == metadata["brief"] and "$module" not in text
    for param in metadata["inputs"]:
        assert re.search(rf"^{param['name']}: ", text, re.MULTILINE), param["name"]
    for word in ("Returns", "Raises", "ValueError", "TypeError", metadata["source"].split()[0]):
        assert word in text
    assert function.__name__ == name and function.__module__ == "anyop"
    assert metadata["brief"] in pydoc.render_doc(function, renderer=pydoc.plaintext)


# ---- arguments ----


def test_keywords_in_any_order_and_not_interned():
    weight = np.linspace(1, 2, 3, dtype=np.float32)
    expected = anyop.rms_norm(X, weight, 0.25)
    keywords = {"".join(("e", "ps")): 0.25, "".join(("weig", "ht")): weight, "".join(("", "x")): X}
    assert np.array_equal(anyop.rms_norm(**keywords), expected)
    assert np.array_equal(anyop.rms_norm(X, eps=0.25, weight=weight), expected)
    assert np.array_equal(anyop.rms_norm(X, weight, 0.25, out=None), expected)
    out = np.empty_like(X)
    assert anyop.rms_norm(X, weight, 0.25, out=out) is out and np.array_equal(out, expected)


def test_out_of_one_result():
    out = np.empty_like(X)
    assert anyop.relu(X, out=out) is out and np.array_equal(out, np.maximum(X, 0))
    assert anyop.relu(X, out=None) is not None
    assert anyop.relu(out, out=out) is out


def test_out_of_several_results():
    values, indices = anyop.topk(X, 2)
    v, i = np.empty_like(values), np.empty_like(indices)
    for given in (
        {"out": (v, i)},
        {"values": v, "indices": i},
        {"out": (v, None)},
        {"out": (None, i)},
        {"values": v},
        {"indices": i},
        {"out": None},
        {"out": (None, None)},
        {"values": v, "out": None},
    ):
        v[...], i[...] = 0, 0
        found = anyop.topk(X, 2, **given)
        assert type(found) is tuple and len(found) == 2
        assert np.array_equal(found[0], values) and np.array_equal(found[1], indices)
        flat = (
            [*given["out"], given.get("values")]
            if isinstance(given.get("out"), tuple)
            else list(given.values())
        )
        assert (found[0] is v) == any(a is v for a in flat)
        assert (found[1] is i) == any(a is i for a in flat)
    found = (
        anyop.topk(X, 2, True, True, v, i)
        if "sorted" in anyop.schema("topk")
        else anyop.topk(X, 2, True, v, i)
    )
    assert found[0] is v and found[1] is i


def test_a_kernels_own_refusal():
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    for wrong in (3, -1, 2**31 - 1, -(2**31)):
        with pytest.raises(ValueError, match=rf"^embedding: indices.*{wrong}"):
            anyop.embedding(np.array([0, wrong], np.int32), table)
    assert np.array_equal(anyop.embedding(np.array([2]), table), table[2:])


class Evil:
    """A number whose conversion fails with an error of its own."""

    def __float__(self):
        raise KeyError("mine")

    __index__ = __float__


def test_errors_of_the_callers_own_arrive():
    with pytest.raises(KeyError, match="mine"):
        anyop.rms_norm(X, np.ones(3, np.float32), Evil())
    with pytest.raises(KeyError, match="mine"):
        anyop.topk(X, Evil())


def test_a_number_may_say_what_it_is():
    class Half:
        def __float__(self):
            return 0.5

    class Two:
        def __index__(self):
            return 2

    assert np.array_equal(
        anyop.rms_norm(X, np.ones(3, np.float32), Half()),
        anyop.rms_norm(X, np.ones(3, np.float32), 0.5),
    )
    assert anyop.topk(X, Two())[0].shape == (2, 2)


def test_dtypes_by_many_names():
    for dtype in ("float64", np.float64, np.dtype("float64"), "torch.float64", "numpy.float64"):
        assert anyop.cast(X, dtype).dtype == np.float64
    assert anyop.cast(X, bool).dtype == bool


# ---- errors ----


def test_exception_classes():
    for error in (anyop.InternalError, anyop.DeviceError):
        assert issubclass(error, RuntimeError) and error.__module__ == "anyop" and error.__doc__
        assert getattr(anyop, error.__name__) is error
    assert anyop.InternalError is not anyop.DeviceError
    assert issubclass(anyop.DeclinedError, NotImplementedError) and anyop.DeclinedError.__doc__


@pytest.mark.parametrize(
    "count", [0, -1, 1025, 2**31, 2**63, -(2**70), 1.5, "2", None, True and 1.0, [2], 1j]
)
def test_bad_numbers_of_threads(count):
    before = anyop.get_num_threads()
    with pytest.raises(
        (ValueError, TypeError), match=r"set_num_threads: got .*expected an int from 1 to 1024"
    ):
        anyop.set_num_threads(count)
    assert anyop.get_num_threads() == before


def test_good_numbers_of_threads():
    before = anyop.get_num_threads()
    try:
        for count in (1, 2, 3, 1024):
            anyop.set_num_threads(count)
            assert anyop.get_num_threads() == count
    finally:
        anyop.set_num_threads(before)


# ---- loading ----


def test_load_says_what_is_wrong(tmp_path):
    before = anyop.list_ops()
    with pytest.raises(FileNotFoundError, match=r"missing\.so"):
        anyop.load(tmp_path / "missing.so")
    with pytest.raises(ValueError, match="holds no library of operators"):
        anyop.load(tmp_path)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ValueError, match=r"text\.so"):
        anyop.load(tmp_path / "text.so")
    with pytest.raises(ValueError, match=r"text\.so"):
        anyop.load(tmp_path)
    (tmp_path / "text.so").unlink()
    (tmp_path / "empty.so").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.so"):
        anyop.load(str(tmp_path / "empty.so"))
    shutil.copy(_ctypes.__file__, tmp_path / "empty.so")
    with pytest.raises(ValueError, match="exports no AnyopLibraryEntry"):
        anyop.load(tmp_path / "empty.so")
    for wrong in (None, 3, ["x.so"]):
        with pytest.raises(TypeError):
            anyop.load(wrong)
    with pytest.raises((ValueError, FileNotFoundError)):
        anyop.load("a\0b.so")
    assert anyop.list_ops() == before
