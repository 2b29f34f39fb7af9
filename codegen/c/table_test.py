# SPDX-License-Identifier: Apache-2.0
"""The compiled table says what the operator file says."""

from __future__ import annotations

import ctypes as c
import json
import math
import random

import pytest

from ..conftest import compile_c
from ..sample_operators import SAMPLES
from ..schema.dtypes import DTYPES
from .c_table import (
    COPIED,
    EXPANDED,
    HAS_DEFAULT,
    INPLACE,
    KEYWORD_ONLY,
    LIST,
    MUTATED,
    OPTIONAL,
    OPTIONAL_ELEMENTS,
    OUTPUT,
    CString,
    load_tables,
)
from .header import args_hash

KINDS = ["Tensor", "int", "float", "bool", "str", "ScalarType"]


@pytest.fixture(scope="session")
def library(generated, operators, tmp_path_factory):
    """All tables in one shared object, with kernels that do nothing."""
    folder = tmp_path_factory.mktemp("library")
    stubs = [
        f"int32_t {k.function}(const void* args, AnyopCall* call);"
        for op in operators.values()
        for k in op.kernels
        if k.is_compiled
    ]
    bodies = [stub[:-1] + " { (void)args; (void)call; return 0; }" for stub in stubs]
    (folder / "kernels.c").write_text(
        '#include "anyop/kernel.h"\n' + "\n".join(stubs + bodies) + "\n"
    )
    sources = [*generated.rglob("*.c"), folder / "kernels.c"]
    flags = ["-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-DANYOP_WITH_CUDA=1"]
    compile_c(*flags, "-I", generated, *sources, "-o", folder / "samples.so")
    return load_tables(str(folder / "samples.so"))


@pytest.fixture(scope="session")
def tables(library):
    return library[1]


def test_library(library, operators):
    head, tables = library
    assert (head.size, head.abi_version, head.name) == (32, 1, b"samples")
    assert set(tables) == set(operators) and len(tables) == len(SAMPLES) >= 30


def test_headers_compile_as_c_and_as_cpp(generated, tmp_path):
    headers = sorted(generated.rglob("*.h"))
    for compiler, standard, name in (("gcc", "-std=c11", "all.c"), ("g++", "-std=c++17", "all.cc")):
        text = "".join(
            f'#include "{header.relative_to(generated)}"\n'
            for header in headers
            if header.parent.name == "ops"
        )
        (tmp_path / name).write_text(text)
        compile_c(standard, "-fsyntax-only", "-I", generated, tmp_path / name, compiler=compiler)
    assert len(headers) >= len(SAMPLES)


def params(table):
    return {p.name.decode(): p for p in table.params[: table.num_inputs + table.num_outputs]}


def test_heads(tables, operators):
    for name, table in tables.items():
        op = operators[name]
        assert (table.size, table.param_size, table.kernel_size) == (184, 56, 72)
        assert (table.name_space.decode(), table.schema.decode()) == (op.namespace, op.schema)
        assert (table.num_inputs, table.num_outputs) == (len(op.inputs), len(op.outputs))
        symbols = [s.decode() for s in table.symbols[: table.num_symbols]]
        assert symbols == op.binding.symbols and table.num_sizes == len(op.binding.sizes)
        attributes = [
            op.params[i].name for i in table.attributes[: table.num_symbols - table.num_sizes]
        ]
        assert attributes == op.binding.attributes
        assert table.args_hash == args_hash(op)
        assert json.loads(table.metadata.decode())["schema"] == op.schema
        assert table.doc.decode().startswith(f"{name}($module") and op.brief in table.doc.decode()


def test_offsets_follow_each_other(tables, operators):
    for name, table in tables.items():
        at = 8
        for param in operators[name].params:
            found = params(table)[param.name]
            assert found.offset == at, (name, param.name)
            pair = param.is_list or param.kind == "str" or (param.optional and not param.is_tensor)
            at += 16 if pair else 8
        assert table.sizes_offset == at
        assert table.args_size == at + 8 * (table.num_sizes + table.num_groups + table.num_joins)


def test_flags(tables, operators):
    for name, table in tables.items():
        for param in operators[name].params:
            flags = {
                OPTIONAL: param.optional or param.optional_elements,
                LIST: param.is_list,
                MUTATED: param.mutated,
                OUTPUT: param.output,
                HAS_DEFAULT: param.has_default,
                KEYWORD_ONLY: param.keyword_only,
                INPLACE: param.inplace,
                EXPANDED: param.expanded,
                OPTIONAL_ELEMENTS: param.optional_elements,
                COPIED: param.copied,
            }
            found = params(table)[param.name]
            assert found.flags == sum(flag for flag, on in flags.items() if on)
            assert KINDS[found.kind - 1] == param.kind


def test_flags_of_some(tables):
    add, adam = params(tables["add"]), params(tables["multi_tensor_adam"])
    assert add["x"].flags == EXPANDED and add["alpha"].flags == HAS_DEFAULT | KEYWORD_ONLY
    assert (
        adam["params"].flags == LIST | MUTATED
        and adam["max_exp_avg_sqs"].flags == LIST | MUTATED | OPTIONAL | HAS_DEFAULT
    )
    assert params(tables["index_put"])["indices"].flags == LIST | OPTIONAL | OPTIONAL_ELEMENTS
    assert params(tables["attention"])["mask"].flags == OPTIONAL | HAS_DEFAULT | EXPANDED
    assert params(tables["dropout_backward"])["dx"].flags == OUTPUT | OPTIONAL
    assert params(tables["rms_norm"])["x"].flags == INPLACE
    assert params(tables["matmul"])["b"].flags == EXPANDED


def test_defaults(tables):
    adam = params(tables["multi_tensor_adam"])
    assert adam["lr"].value.f == 1e-3 and adam["clip"].value.f == 1.0 and adam["step"].value.i == 1
    assert math.isnan(adam["decay"].value.f) and adam["seed"].value.i == -(2**63)  # None
    assert adam["betas"].value.list.contents.values(c.c_double) == [0.9, 0.999]
    assert not adam["steps"].value.list and adam["tag"].value.s is None
    assert adam["mode"].value.s == b'adam, "w"'
    assert adam["dtypes"].value.list.contents.values(c.c_int64) == [
        DTYPES.index("float32"),
        DTYPES.index("bfloat16"),
    ]
    assert (
        adam["mask"].value.list.contents.values(c.c_int64) == [1, 1, 1]
        and adam["mask"].fixed_count == 3
    )
    assert params(tables["odd"])["s"].value.s == b"/* */ \\"
    empty = adam["empty"].value.list.contents
    assert empty.count == 0 and empty.data
    notes = adam["notes"].value.list.contents.values(CString)
    assert [(s.data, s.count) for s in notes] == [(b"a", 1), (b"b'c", 3)]
    assert (
        params(tables["softmax"])["dim"].value.i == -1
        and params(tables["topk"])["largest"].value.i == 1
    )
    assert params(tables["conv_nhwc"])["stride"].value.list.contents.values(c.c_int64) == [1, 1]


def test_dtypes(tables):
    def rule(op, name):
        p = params(tables[op])[name]
        return (p.dtype_rule, p.dtype_a, p.dtype_b, p.dtype_set)

    floats = sum(1 << DTYPES.index(name) for name in ("float32", "float16", "bfloat16"))
    assert rule("rms_norm", "x") == (0, -1, -1, floats) and rule("rms_norm", "out") == (0, 0, -1, 0)
    assert rule("attention", "mask") == (0, 0, -1, 1) and rule("attention", "lse") == (
        0,
        -1,
        -1,
        1 << 8,
    )
    assert rule("add", "out") == (1, 0, 1, 0)
    assert rule("cast", "out") == (2, 1, -1, 0) and rule("cast", "dtype") == (0, -1, -1, floats)
    assert rule("softmax_as", "out") == (2, 1, 0, 0)


def test_memory(tables):
    linear = params(tables["linear"])
    assert linear["weight"].align_log2 == 4 and linear["x"].align_log2 == 0
    assert (
        params(tables["embedding"])["weight"].layout == 1
        and params(tables["l2_normalize"])["x"].layout == 2
    )
    copied = {(n, p) for n, t in tables.items() for p, v in params(t).items() if v.flags & COPIED}
    assert copied == {("embedding", "weight")}


def test_kernels(tables):
    kernels = tables["matmul"].kernels[: tables["matmul"].num_kernels]
    assert [(k.backend, k.source, k.device_type, k.priority) for k in kernels] == [
        (b"cpu", b"matmul.cc", 1, 0),
        (b"cuda", b"matmul.cu", 2, 2),
    ]
    assert all(k.run for k in kernels)


def test_lists(tables):
    adam = tables["multi_tensor_adam"]
    assert [s.decode() for s in adam.symbols[: adam.num_symbols]] == ["N", "step"]
    assert params(adam)["grads"].length == 0 and params(adam)["lr"].length == -1
    assert (adam.element_symbols, adam.element_groups) == (0, 1)
    put = tables["index_put"]
    assert put.element_groups == 4 and put.num_groups == 3  # X, V, then I: lists come last


# ---- the shape language: the words in the table against the expressions in the metadata ----


def evaluate(expr, env, groups):
    """An expression of the metadata."""
    if not isinstance(expr, list):
        return env[expr] if isinstance(expr, str) else expr
    if expr[0] == "text":
        return int(env[expr[1]] == expr[2])
    if expr[0] in ("rank", "numel"):
        sizes = groups[expr[1]]
        return len(sizes) if expr[0] == "rank" else math.prod(sizes)
    a, b = (evaluate(part, env, groups) for part in expr[1:])
    return apply(expr[0], a, b)


def apply(name, a, b):
    if name in ("//", "%", "ceildiv") and b == 0:
        raise ZeroDivisionError
    results = {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b,
        "%": lambda: a % b, "ceildiv": lambda: math.ceil(a / b), "min": lambda: min(a, b),
        "max": lambda: max(a, b), "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b,
        "<=": lambda: a <= b, "and": lambda: a and b, "or": lambda: a or b,
    }  # fmt: skip
    return int(results[name]())


# AnyopOpcode of anyop/table.h, stated a second time on purpose.
OPERATIONS = "+ - * // ceildiv % min max == != < <= and or"
NAMES = dict(enumerate(OPERATIONS.split(), 5))


def run(table, word, symbols, groups, texts):
    """An expression of the table; the stack never grows beyond the core's. texts: by parameter."""
    stack, code = [], table.code
    while code[word]:
        operation = code[word]
        word += 1
        if operation == 19:
            param, count = code[word : word + 2]
            words = code[word + 2 : word + 2 + (count + 3) // 4]
            text = b"".join(part.to_bytes(4, "little", signed=True) for part in words)
            assert not text[count:].strip(b"\0")
            stack.append(int(texts[param].encode() == text[:count]))
            word += 2 + (count + 3) // 4
        elif operation <= 4:
            value = code[word]
            word += 1
            sizes = groups[value] if operation in (3, 4) else []
            stack.append(
                {
                    1: value,
                    2: symbols[value] if operation == 2 else 0,
                    3: len(sizes),
                    4: math.prod(sizes),
                }[operation]
            )
            assert len(stack) <= 16
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(apply(NAMES[operation], a, b))
    assert len(stack) == 1
    return stack[0]


def term(table, value, symbols, groups, texts):
    if 0 <= value < 64:
        return symbols[value]
    if value >= 64:
        return run(table, value - 64, symbols, groups, texts)
    symbol, a, b = table.code[~value], table.code[~value + 1], table.code[~value + 2]
    assert a > 0
    return a * symbols[symbol] + b


def result_of(function, *arguments):
    try:
        return function(*arguments)
    except ZeroDivisionError:
        return "division by zero"


def random_case(table, rng):
    symbols = [rng.choice([0, 1, 2, 3, 7, 64, 99, 128, 129]) for _ in range(table.num_symbols)]
    groups = [
        [rng.choice([1, 2, 5]) for _ in range(rng.randrange(4))] for _ in range(table.num_groups)
    ]
    return symbols, groups


def random_texts(meta, rng):
    """A text for each parameter that is compared with some, and for each of them by its name."""
    names = [entry["name"] for entry in meta["inputs"]]
    by_name = {
        name: rng.choice(["rows", "columns", 'é"', "", "longer than a word", "int8", "é"])
        for name in meta["symbols"]["texts"]
    }
    return by_name, {
        names.index(name.removeprefix("dtype(").rstrip(")")): text for name, text in by_name.items()
    }


def check_shape(table, found, shape, symbols, groups, meta, texts):
    """One shape program against the metadata's terms."""
    before, after, group, mode = table.code[found.shape : found.shape + 4]
    assert (before, after, mode) == (
        len(shape["before"]),
        len(shape["after"]),
        int(shape["expand"]),
    )
    names = meta["symbols"]
    if shape["group"] is None:
        assert group == -1
    elif isinstance(shape["group"], str):
        assert group == names["groups"].index(shape["group"])
    else:
        word = table.joins[group - table.num_groups]
        joined = table.code[word + 1 : word + 1 + table.code[word]]
        assert [names["groups"][i] for i in joined] == shape["group"]
    env = dict(zip(names["sizes"] + names["attributes"], symbols, strict=True)) | texts[0]
    by_name = dict(zip(names["groups"], groups, strict=True))
    for i, expr in enumerate(shape["before"] + shape["after"]):
        want = result_of(evaluate, expr, env, by_name)
        word = table.code[found.shape + 4 + i]
        assert result_of(term, table, word, symbols, groups, texts[1]) == want, (
            shape["text"],
            env,
        )


def test_programs_agree_with_the_metadata(tables):
    rng, shapes, conditions = random.Random(3), 0, 0
    for table in tables.values():
        meta = json.loads(table.metadata.decode())
        for _ in range(50):
            symbols, groups = random_case(table, rng)
            texts = random_texts(meta, rng)
            for entry in meta["inputs"] + meta["results"]:
                if entry["kind"] == "Tensor":
                    found = params(table)[entry["name"]]
                    check_shape(table, found, entry["shape"], symbols, groups, meta, texts)
                    shapes += 1
            env = dict(
                zip(meta["symbols"]["sizes"] + meta["symbols"]["attributes"], symbols, strict=True)
            )
            env |= texts[0]
            by_name = dict(zip(meta["symbols"]["groups"], groups, strict=True))
            for i, condition in enumerate(meta["conditions"]):
                assert table.conditions[i].text.decode() == condition["text"]
                want = result_of(evaluate, condition["expression"], env, by_name)
                word = table.conditions[i].program
                assert result_of(run, table, word, symbols, groups, texts[1]) == want
                conditions += 1
    assert shapes >= 50 * 80 and conditions >= 50 * 12


def test_expressions_agree_with_python(tables):
    """The metadata's expressions against the text itself, which Python reads but for ceil."""
    rng, compared = random.Random(5), 0
    table = tables["shapes_of_all_kinds"]
    meta = json.loads(table.metadata.decode())
    for _ in range(200):
        symbols, groups = random_case(table, rng)
        env = dict(
            zip(meta["symbols"]["sizes"] + meta["symbols"]["attributes"], symbols, strict=True)
        )
        python = {"rank": len, "numel": math.prod, "G": groups[0], "min": min, "max": max}
        for condition in meta["conditions"]:
            want = eval(condition["text"], {**python, **env})
            assert evaluate(condition["expression"], env, {"G": groups[0]}) == want
            compared += 1
        for entry in meta["inputs"] + meta["results"]:
            shape = entry.get("shape") or {"text": ""}
            texts = [t for t in shape["text"].replace(", ", ",").split() if t[0] != "*"]
            for text, expr in zip(
                texts, shape.get("before", []) + shape.get("after", []), strict=True
            ):
                if "ceil" not in text:
                    want = result_of(eval, text, {**python, **env})
                    assert result_of(evaluate, expr, env, {"G": groups[0]}) == want, text
                    compared += 1
    assert compared >= 200 * 13
