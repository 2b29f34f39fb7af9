# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's modules of tvm-ffi functions, each compiled (or found compiled) when an operator first needs it."""

import anyop

HEAD = 128  # features of a head; FlashInfer compiles a module for each number


def norm():
    from flashinfer.jit.norm import gen_norm_module

    return gen_norm_module().build_and_load()


def rope():
    from flashinfer.jit.rope import gen_rope_module

    return gen_rope_module().build_and_load()


def sampling():
    from flashinfer.jit.sampling import gen_sampling_module

    return gen_sampling_module().build_and_load()


def silu():
    from flashinfer.jit.activation import gen_act_and_mul_module

    return gen_act_and_mul_module("silu").build_and_load()


def decode():
    import torch
    from flashinfer.jit import gen_single_decode_module

    dtypes = [torch.bfloat16] * 3
    return gen_single_decode_module(*dtypes, HEAD, HEAD, 0, False, False).build_and_load()


def batch_decode():
    import torch
    from flashinfer.jit import gen_batch_decode_module

    dtypes = [*[torch.bfloat16] * 3, torch.int32]
    return gen_batch_decode_module(*dtypes, HEAD, HEAD, 0, False, False).build_and_load()


def register() -> None:
    """FlashInfer for operators that anyop has."""
    fitting = {
        "backend": "flashinfer",
        "device": "cuda",
        "when": "dtype=float16|bfloat16",
        "needs": ["flashinfer-python"],
    }
    anyop.register_tvm_ffi(
        "rms_norm",
        "rmsnorm(rows(out), rows(x), weight, eps, False)",
        module="flashinfer_modules:norm",
        **fitting,
    )
    anyop.register_tvm_ffi(
        "silu_and_mul",
        "silu_and_mul(rows(out), rows(x), False)",
        module="flashinfer_modules:silu",
        **fitting,
    )


def plan(indptr, heads: int, groups: int, page_size: int, workspace_bytes: int = 1 << 27):
    """How fi.batch_decode divides the sequences among the device's blocks. indptr: torch, int32, on the CPU.

    Returns plan_data (torch.uint8, on the current CUDA device), plan and workspace_bytes.
    """
    import torch
    from anyop.backend.tvm_ffi import make

    data = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    staged = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
    workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device="cuda")
    empty = torch.empty(0, dtype=torch.bfloat16)
    batch = len(indptr) - 1
    made = make("flashinfer_modules:batch_decode").plan(
        workspace, data, staged, indptr, batch, heads, groups, page_size, False, -1, 0.0, HEAD, HEAD,
        empty, empty,
    )  # fmt: skip
    torch.cuda.current_stream().synchronize()  # staged may go once data is there
    return data, list(made), workspace_bytes
