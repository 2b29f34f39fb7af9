# SPDX-License-Identifier: Apache-2.0
"""What the adapter for torch does at an operator's first gradient, and not before: its overload and its metadata."""

from __future__ import annotations

import sys
import textwrap

import prepared
import pytest

torch = pytest.importorskip("torch")

COUNT = textwrap.dedent(
    """
    schema = "late::count(Tensor x) -> Tensor out"
    brief = "How many elements are above zero."
    [shapes]
    x = "N"
    out = "1"
    [dtypes]
    x = "float32"
    out = "int64"
    [kernels]
    cpu = "count.cc"
    """
)
KERNEL = textwrap.dedent(
    """
    #include "late/ops/count.h"
    extern "C" int32_t late_count_cpu(const CountArgs* args, AnyopCall*) {
      auto* out = static_cast<int64_t*>(args->out->data);
      *out = 0;
      for (int64_t n = 0; n < args->N; ++n) *out += static_cast<const float*>(args->x->data)[n] > 0;
      return kAnyopOk;
    }
    """
)


def run(program: str) -> str:
    """In a process where no operator had a gradient yet."""
    code = "import torch, anyop, anyop.torch\n" + textwrap.dedent(program)
    ran = prepared.run("torch", [sys.executable, "-c", code], timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_an_operator_is_read_at_its_first_use() -> None:
    run("""
        from anyop.torch.adapter.gradient import gradients
        assert not any(vars(op).get("is_read") for op in gradients.operators.values())
        assert torch.ops.anyop.rms_norm.overloads() == ["default", "out"], torch.ops.anyop.rms_norm.overloads()
        x = torch.ones(2, 4, requires_grad=True)
        known = {torch.ops.anyop.rms_norm: 1}
        torch.ops.anyop.rms_norm(x, torch.ones(4)).sum().backward()
        assert torch.ops.anyop.rms_norm in known  # its hash is not another
        read = {name for name, op in gradients.operators.items() if vars(op).get("is_read")}
        assert {"rms_norm", "rms_norm_backward"} <= read and len(read) < 5, read
    """)


def test_many_threads_take_the_first_gradient_at_once() -> None:
    run("""
        import threading
        start, errors = threading.Barrier(16), []
        def work(at):
            try:
                x = torch.full((2, 4), 1.0 + at, requires_grad=True)
                start.wait()
                y = torch.ops.anyop.softmax(x) if at % 2 else torch.ops.anyop.rms_norm(x, torch.ones(4))
                y[:, 0].sum().backward()
                fine = torch.autograd.grad(
                    (torch.softmax(x, 1) if at % 2 else torch.rms_norm(x, [4], eps=1e-6))[:, 0].sum(), x)
                torch.testing.assert_close(x.grad, fine[0], atol=1e-5, rtol=1e-4)
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(at,)) for at in range(16)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        assert not errors, errors
    """)


def test_an_error_on_the_way_arrives_and_the_next_call_works() -> None:
    run("""
        from anyop.torch.adapter import autograd
        register, tries = autograd._register, []
        def once(*args):
            tries.append(args)
            if len(tries) == 1:
                raise MemoryError("no room")
            register(*args)
        autograd._register = once
        x = torch.ones(2, 4, requires_grad=True)
        try:
            torch.ops.anyop.softmax(x)
            raise SystemExit("no error")
        except MemoryError as error:
            assert str(error) == "no room"
        torch.ops.anyop.softmax(x).sum().backward()
        assert len(tries) == 2 and x.grad is not None
    """)


@pytest.mark.parametrize("glue", ["", "0"])
def test_integers_alone_come_out_of_a_tensor_that_requires_a_gradient(
    tmp_path, monkeypatch, glue
) -> None:
    (tmp_path / "count.toml").write_text(COUNT)
    (tmp_path / "count.cc").write_text(KERNEL)
    monkeypatch.setenv("ANYOP_TORCH_GLUE", glue)
    run(f"""
        anyop.load({str(tmp_path)!r})
        x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
        for count in (torch.ops.late.count, anyop.ops.late.count):
            found = count(x)
            assert found.tolist() == [2] and not found.requires_grad
            out = torch.zeros(1, dtype=torch.int64)
            count(x, out=out)
            assert out.tolist() == [2]
            _, tangent = torch.func.jvp(lambda x: (x, count(x))[0], (x.detach(),), (x.detach(),))
            assert tangent.tolist() == [1.0, -2.0, 3.0]
    """)
