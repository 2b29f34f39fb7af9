# SPDX-License-Identifier: Apache-2.0
"""All that a file states about its operator, as JSON: fakes, abstract evaluation and tests use it.

Expressions are nested lists, with the operations of codegen/schema/expressions.py: 3, "D", ["*", 2, "D"],
["rank", "X"], ["text", "mode", "sum"]; in flops also ["numel", ["X", "Y"]], a broadcast. What a list
means is told by its place, never by its form. The formulas of [tangent] are trees of codegen/operators/formulas.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ..forms.kernels import Kernel
from ..operators.operator_file import Operator
from ..schema.dtype_rules import DtypeRule
from ..schema.params import Param
from ..schema.shapes import Shape


def metadata(op: Operator) -> dict[str, Any]:
    """The metadata of one operator."""
    binding, backward = op.binding, op.backward
    return {
        "namespace": op.namespace,
        "name": op.name,
        "schema": op.schema,
        "brief": op.brief,
        "math": op.math,
        "source": op.source,
        "inputs": [_input(param) for param in op.inputs],
        "results": [_tensor(param) for param in op.outputs],
        "conditions": [
            {"text": text, "expression": expression} for text, expression in op.conditions
        ],
        "inplace": [param.name for param in op.inputs if param.inplace],
        "numbers": [param.name for param in op.inputs if param.number],
        "mutated": [param.name for param in op.inputs if param.mutated],
        "symbols": {
            "sizes": binding.sizes,
            "attributes": binding.attributes,
            "groups": binding.groups,
            "joins": binding.joins,
            "texts": binding.texts,
            "element_sizes": binding.element_sizes,
            "element_groups": binding.element_groups,
        },
        "kernels": [_kernel(kernel) for kernel in op.kernels],
        "backward": backward and vars(backward),
        "tangent": op.tangent,
        "autocast": op.autocast,
        "flops": op.flops and {"text": op.flops[0], "expression": op.flops[1]},
        "independent": op.independent,
        "aten_overloads": op.overloads,
        "tolerance": op.tolerance,
        "tolerance_on": op.tolerance_on,
        "test": op.test,
        "bench": op.bench,
    }


def metadata_json(op: Operator) -> str:
    """The metadata as the table holds it."""
    return json.dumps(metadata(op), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _kernel(kernel: Kernel) -> dict[str, Any]:
    """One implementation; foreign ones also say what they call."""
    entry = {
        "backend": kernel.backend,
        "name": kernel.name or kernel.backend,
        "device": kernel.device,
        "form": kernel.form,
        "file": kernel.files[0].name if kernel.files else None,
        "arch": kernel.arch,
        "priority": kernel.priority,
        "when": kernel.when,
        "deterministic": kernel.deterministic,
        "choices": kernel.choices,
    }
    return entry | (kernel.foreign.text if kernel.foreign else {})


def _input(param: Param) -> dict[str, Any]:
    entry = {
        "name": param.name,
        "kind": param.kind,
        "optional": param.optional,
        "list": param.is_list,
        "optional_elements": param.optional_elements,
        "fixed_count": param.fixed_count,
        "mutated": param.mutated,
        "keyword_only": param.keyword_only,
        "has_default": param.has_default,
        "default": _plain(param.default) if param.has_default else None,
        "about": param.about,
    }
    if param.kind == "ScalarType":
        entry["possible_dtypes"] = param.possible
    return {**entry, **_tensor(param), "inplace": param.inplace} if param.is_tensor else entry


def _tensor(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "kind": "Tensor",
        "optional": param.optional,
        "about": param.about,
        "shape": _shape(param.shape),
        "dtypes": _rule(param.dtypes),
        "possible_dtypes": param.possible,
        "alike": param.alike,
        "layout": param.layout,
        "copied": param.copied,
        "alignment": param.alignment,
        "expanded": param.expanded,
    }


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "text": shape.text,
        "length": shape.length,
        "expand": shape.expand,
        "before": shape.before,
        "group": shape.group,
        "after": shape.after,
    }


def _rule(rule: DtypeRule) -> dict[str, Any]:
    if rule.promote:
        second = (rule.with_dtype,) if rule.with_dtype else ()
        return {"rule": "promote", "of": (*rule.promote, *second)}
    if rule.attribute:
        return {"rule": "attribute", "attribute": rule.attribute, "otherwise": rule.otherwise}
    if rule.first_given:
        return {"rule": "first_given", "of": rule.first_given}
    return {"rule": "one_of", "names": rule.names, "same_as": rule.same_as}


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: they are written as text."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
