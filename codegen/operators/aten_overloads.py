# SPDX-License-Identifier: Apache-2.0
"""Which overloads of ATen an operator can stand for: its aten text where that is one plain call, and `aten_overloads`.

    aten_overloads = ["_softmax(x, dim, False)", "bmm(a[B, M, K], b[B, K, N])", "embedding(weight, indices, _, _, _)"]

Read backwards: arguments of the overload are parameters of the operator, or must be what the text says. An argument
that the text leaves out must be the overload's default; _ may be anything. a[B, M, K] has three dimensions, of which
equal letters are equal, where the operator takes more than the overload; t(weight) is the matrix, or matrices,
transposed, [D] a list of sizes, dtype(out) the dtype of a tensor, ends(offsets) those behind the first, which is 0, and
when(True, mode='tanh', device='cuda') is True, by which the parameter mode is 'tanh', on tensors of CUDA alone.
"""

from __future__ import annotations

import ast
from typing import Any

from ..forms.calls import split_name
from ..forms.foreign import size_places
from ..forms.kernels import Kernel
from ..schema.binding import Binding
from ..schema.operator_sections import BACKENDS, text_of, texts_of
from ..schema.params import Param
from ..schema.source import Mistake, Source, check_one_of, listed

_ANY = "_"
_FORMS = {"t": "transposed", "dtype": "dtype", "ends": "ends"}  # word: form
_EXAMPLE = 'write it like "native_layer_norm(x, [D], weight, bias, eps)"'


def read_overloads(
    source: Source, params: list[Param], binding: Binding, kernels: list[Kernel]
) -> list[dict[str, Any]]:
    """Those of the key, then that of the aten text where it can be read backwards."""
    found = []
    with source.at(None, "aten_overloads"):
        texts = texts_of(source.data.get("aten_overloads", []), "aten_overloads")
    for text in texts:
        with source.at(None, "aten_overloads", text):
            found.append(_Reader(params, binding).read(text_of(text, "overload")))
    for kernel in kernels:
        if kernel.form == "aten" and kernel.when is None:
            try:
                found.append(_Reader(params, binding).read(kernel.foreign.text["call"]))
            except Mistake:  # it is more than one call: a kernel, and nothing backwards
                continue
    return found


class _Reader:
    """Reads one text into {"overload": name, "arguments": [...], "named": {...}}.

    Where the text says when(...), also "given": {parameter: value} and "device": one of BACKENDS.
    """

    def __init__(self, params: list[Param], binding: Binding) -> None:
        self.params = {param.name: param for param in params}
        self.places = {
            size: at for size, at in size_places(params).items() if size in binding.sizes
        }
        self.said: dict[str, Any] = {}  # what when(...) says

    def read(self, text: str) -> dict[str, Any]:
        try:
            call = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            call = None
        if not isinstance(call, ast.Call) or any(keyword.arg is None for keyword in call.keywords):
            raise Mistake(f"'{text}'", "a call of one overload of ATen", _EXAMPLE)
        parts = ast.unparse(call.func).split(".")
        if len(parts) > 2 or not all(part.isidentifier() for part in parts):
            raise Mistake(f"a call of '{'.'.join(parts)}'", "an overload of ATen", _EXAMPLE)
        name, overload = split_name(call.func)
        read = {
            "overload": f"{name}.{overload}" if overload else name,
            "arguments": [self._argument(node) for node in call.args],
            "named": {keyword.arg: self._argument(keyword.value) for keyword in call.keywords},
        }
        self._check_all_given([*read["arguments"], *read["named"].values()])
        return read | self.said

    def _argument(self, node: ast.expr) -> list[Any]:
        """A form and what it is of."""
        if isinstance(node, ast.Name):
            return ["any"] if node.id == _ANY else ["parameter", self._parameter(node, False)]
        if isinstance(node, ast.Subscript):
            return ["parameter", self._parameter(node.value, True), _letters(node)]
        if isinstance(node, ast.List) and all(isinstance(size, ast.Name) for size in node.elts):
            return ["sizes", [list(self._place(size.id)) for size in node.elts]]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            word, first = node.func.id, node.args[0]
            if word == "number" and len(node.args) == 2:
                return ["parameter", self._parameter(first, False)]
            if word in _FORMS and len(node.args) == 1:
                return [_FORMS[word], self._parameter(first, True)]
            if word == "when" and len(node.args) == 1 and node.keywords:
                return self._when(first, node.keywords)
        return ["value", _literal(node)]

    def _when(self, value: ast.expr, said: list[ast.keyword]) -> list[Any]:
        """The value, by which parameters of the operator are what the keywords say."""
        for keyword in said:
            if keyword.arg == "device":
                device = str(_literal(keyword.value))
                if device not in BACKENDS:
                    raise Mistake(f"device '{device}'", listed(BACKENDS), "use one of these")
                self.said["device"] = device
                continue
            name = self._parameter(ast.Name(keyword.arg or "**"), False)
            if self.params[name].is_tensor or name in self.said.setdefault("given", {}):
                raise Mistake(f"'{name}' in when(...)", "each number or text once", _EXAMPLE)
            self.said["given"][name] = _literal(keyword.value)
        return ["value", _literal(value)]

    def _parameter(self, node: ast.expr, is_tensor: bool) -> str:
        name = node.id if isinstance(node, ast.Name) else ast.unparse(node)
        known = [p.name for p in self.params.values() if p.is_tensor or not is_tensor]
        check_one_of(name, known, f"'{name}' in a call")
        return name

    def _place(self, size: str) -> tuple[str, int]:
        what = "a size that stands alone in a shape"
        check_one_of(size, self.places, f"the size '{size}'", what)
        return self.places[size]

    def _check_all_given(self, arguments: list[list[Any]]) -> None:
        given = [form[1] for form in arguments if form[0] in ("parameter", "transposed", "ends")]
        given += self.said.get("given", ())
        for name in given:
            if given.count(name) > 1 or self.params[name].output or self.params[name].is_list:
                raise Mistake(f"'{name}' in a call", "each input once, and no list", _EXAMPLE)
        for param in self.params.values():
            if not param.output and param.name not in given and not _may_be_missing(param):
                raise Mistake(f"a call without '{param.name}'", "all inputs", f"pass {param.name}")


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = ()
    if value is None or type(value) in (bool, int, float, str):
        return value
    expected = "a parameter, t(...), dtype(...), ends(...), when(...), [sizes], a literal or _"
    raise Mistake(f"the argument '{ast.unparse(node)}'", expected, _EXAMPLE)


def _letters(node: ast.Subscript) -> list[str]:
    letters = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not all(isinstance(letter, ast.Name) for letter in letters):
        raise Mistake(f"'{ast.unparse(node)}' in a call", "letters of sizes in [...]", _EXAMPLE)
    return [letter.id for letter in letters]


def _may_be_missing(param: Param) -> bool:
    return param.has_default or (param.is_tensor and param.optional)
