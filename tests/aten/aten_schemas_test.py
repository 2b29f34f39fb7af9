# SPDX-License-Identifier: Apache-2.0
"""ATen's table and metadata say what the installed torch says of its operators."""

import ctypes
import json
import os
import re
from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.codegen.aten import facts, overload, registry, table_text  # noqa: E402

C = torch._C


@pytest.fixture(scope="module")
def read():
    return registry.read_registry(torch)


@pytest.fixture(scope="module")
def made(read):
    return json.loads(facts.facts_text(read))


def test_every_overload_of_the_dispatcher_is_there_and_most_can_be_called(made):
    known = {name[6:] for name in C._dispatch_get_all_op_names() if name.startswith("aten::")}
    assert set(made["overloads"]) == known
    named = [each for each in made["overloads"].values() if "names of dim" in _why_not(each)]
    refused = [each for each in made["overloads"].values() if _why_not(each) and each not in named]
    reasons = Counter(re.sub(r"it has a |, .*| \w+,.*", "", _why_not(each)) for each in refused)
    print(f"\n{len(known):,} overloads, {len(refused)} cannot be called: {dict(reasons)}")
    print(f"{len(named)} more take names of dimensions, which torch 2.13 no longer has")
    is_new = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    assert len(known) - len(refused) - len(named) >= (3080 if is_new else 3000)
    assert len(refused) <= 0.01 * len(known) and not (is_new and named)
    for each in refused:
        assert re.search("Storage|Stream|Dict|QScheme|torch.classes", each["why_not"]), each
    for each in named:
        assert re.search(r"name|^align_to", each["schema"].partition("(")[0], re.I), each


def _why_not(each):
    assert each["callable"] == ("why_not" not in each)
    return each.get("why_not", "")


def test_schemas_are_read_as_torch_reads_them(made):
    for full, each in made["overloads"].items():
        schema = C._get_schema(*f"aten::{full}".partition(".")[::2])
        assert each["schema"] == str(schema).removeprefix("aten::")
        assert len(each["params"]) == len(schema.arguments), full
        for param, argument in zip(each["params"], schema.arguments):
            assert param["name"] == argument.name
            assert param.get("keyword_only", False) == argument.kwarg_only, (full, param)
            alias = argument.alias_info
            assert param.get("mutable", False) == bool(alias and alias.is_write), (full, param)
            assert bool(param.get("alias")) == bool(alias), (full, param)
            assert ("default" in param) == argument.has_default_value(), (full, param)
            assert _type(param) == str(argument.real_type), (full, param)
            assert param.get("fixed_count") == argument.N, (full, param)
            if param["kind"] not in ("dtype", "format"):
                assert param.get("default") == argument.default_value, (full, param)
        types = [_type(result) for result in each["results"]]
        assert types == [str(result.real_type) for result in schema.returns], full


def _type(value):
    """As torch's own objects write it."""
    kinds = {"Scalar": "number", "dtype": "ScalarType", "format": "MemoryFormat"}
    base = re.sub(r"[?\[].*", "", value["type"])
    text = base if value["kind"] == "other" else kinds.get(value["kind"], value["kind"])
    text = {"layout": "Layout", "device": "Device", "generator": "Generator"}.get(text, text)
    text = re.sub(r"^Dict\((.*)\)$", r"Dict[\1]", text)
    text = f"Optional[{text}]" if value.get("optional_elements") else text
    text = f"List[{text}]" if value.get("list") else text
    return f"Optional[{text}]" if value.get("optional") else text


def test_kinds_are_those_of_torchs_tags(made):
    kinds = Counter(each["kind"] for each in made["overloads"].values())
    print("\n" + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    for full, each in made["overloads"].items():
        if "out" in each["tags"]:  # torch 2.13 has these tags
            assert each["kind"] == "out", full
        if "inplace" in each["tags"]:
            assert each["kind"] == "in-place", full
    named = {"view": "expand", "factory": "zeros", "functional": "relu", "out": "add.out"}
    for kind, name in {**named, "in-place": "relu_", "mutable": "_cummax_helper"}.items():
        assert made["overloads"][name]["kind"] == kind


def test_codes_are_those_of_torchs_c_shim(made):
    shim = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    words = {
        "dtype": "dtype",
        "layout": "layout",
        "format": "memory_format",
        "device": "device_type",
    }
    checked = Counter()
    for word, function in words.items():
        codes = dict(made["codes"][word])
        assert len({code for code in codes.values() if word == "device"}) in (0, len(codes))
        for name, code in codes.items():
            say = getattr(shim, f"aoti_torch_{function}_{name.strip('_')}", None)
            if say is not None:
                assert say() == code, (word, name)
                checked[word] += 1
    print(f"\ncompared with the shim: {dict(checked)}")
    assert checked["dtype"] > 15 and checked["layout"] > 3
    assert checked["format"] > 2 and checked["device"] > 2
    for name, code in made["codes"]["dtype"]:  # those that the shim does not name too
        dtype = getattr(torch, name)
        if not dtype.is_complex and "q" not in name:
            assert torch.ops.prim.dtype(torch.empty(0, dtype=dtype, device="meta")) == code, name


def test_torchs_own_name_of_a_code_comes_first(made):
    first = {}
    for name, code in made["codes"]["dtype"]:
        first.setdefault(code, name)
    assert all(f"torch.{name}" == str(getattr(torch, name)) for name in first.values())
    assert {"half", "float", "long"} <= {name for name, _ in made["codes"]["dtype"]}


def test_the_table_holds_overloads_in_the_order_in_which_torch_tries_them(read):
    text = table_text.table_text(read)
    assert text.startswith(f"anyop-aten 1\ntorch {torch.__version__} ") and text.endswith("\n\n")
    lines = text[:-2].split("\n")
    assert "" not in lines
    names, known = [], {}
    for line in lines:
        head, tab, schema = line.partition("\t")
        if tab:
            known[names[-1]].append(schema)
            full = schema[: schema.index("(")]
            assert full == (names[-1] if head[0] == "-" else f"{names[-1]}.{head.split('!')[0]}")
        elif head.startswith("op "):
            names.append(head.split(" ")[1])
            known[names[-1]] = []
    assert names == sorted(names, key=str.encode)
    for name, schemas in known.items():
        tried = [name + f".{o}" * bool(o) for o in C._jit_get_operation(f"aten::{name}")[1]]
        found = [schema[: schema.index("(")] for schema in schemas]
        assert found == [full for full in tried if full in set(found)] and found, name
        flags = "n" * (name in read.numbers) + "a" * (name == "_weight_int8pack_mm")
        assert f"op {name} {flags or '-'}" in lines
    assert read.numbers == {name for name in names if C._should_allow_numbers_as_tensors(name)}


def test_what_is_written_unsaid_is_known(made):
    """Kernels tell: every overload with running statistics is run, as far as the CPU has it."""
    ran = 0
    for full, each in made["overloads"].items():
        params = {param["name"]: param for param in each["params"]}
        if "running_mean" not in params or "backward" in full:
            continue
        for training in (True, False):
            changed = _running_changed(full, each["params"], training)
            if changed is None:
                continue
            ran += 1
            mark = params["running_mean"].get("written_unmarked", "")
            said = params["running_mean"].get("mutable") or mark == "always" or (mark and training)
            assert not changed or said, (full, training)
            assert changed or not mark or not training, (full, training)
    print(f"\n{ran} calls")
    assert ran >= 16


def _running_changed(full, params, training):
    """None where this torch has no kernel for it on the CPU."""
    given = {"running_mean": torch.full((3,), 0.5), "running_var": torch.full((3,), 2.0)}
    before = [value.clone() for value in given.values()]
    for param in params:
        if param["name"] in given or "default" in param:
            continue
        choices = {"bool": training, "float": 0.1, "Tensor": torch.ones(3), "int": 1}
        given[param["name"]] = choices[param["kind"]]
    given |= {"input": torch.randn(2, 3, 5)} | (
        {"cudnn_enabled": False} if "cudnn_enabled" in given else {}
    )
    name, _, of = full.partition(".")
    given |= {
        p["name"]: torch.empty(0) for p in params if p["kind"] == "Tensor" and p.get("keyword_only")
    }
    try:
        getattr(getattr(torch.ops.aten, name), of or "default")(**given)
    except (NotImplementedError, RuntimeError):
        return None
    after = given["running_mean"], given["running_var"]
    return not all(map(torch.equal, before, after))


def test_a_text_that_is_no_schema_is_refused():
    for text in ("", "add", "add(Tensor self)", "add(Tensor) -> !", "f(Tensor[ x) -> Tensor"):
        with pytest.raises(ValueError):
            print(overload.read_overload(text))


def test_a_schema_of_a_later_torch_spoils_no_other(read):
    odd = ["f(Tensor[ x) -> Tensor", "f.a(int x=later) -> Tensor", "f.b(float p=-inf) -> Tensor"]
    operators = {"f": odd, "relu": read.operators["relu"]}
    tags = {"f": [], "f.a": [], "f.b": [], **read.tags}
    found = facts.facts(replace(read, operators=operators, tags=tags))["overloads"]
    for name in ("f", "f.a"):
        assert not found[name]["callable"] and "is not understood" in found[name]["why_not"]
    assert found["f.b"]["params"][0]["default"] == -float("inf")
    assert found["relu"]["callable"] and found["relu"]["params"][0]["name"] == "self"
