# SPDX-License-Identifier: Apache-2.0
"""In which order processes of tests (pytest-xdist, --dist loadfile) take the files: those that take long first.

Each process takes one file after the other; with short ones last, all end together. xdist itself takes those with many
tests first, so that at the end a process may be alone with one test of half a minute.
"""

from __future__ import annotations

from collections import Counter

import pytest

SECONDS_A_TEST = 0.05  # of a file that is not named below
# CPU seconds of files that take long where they are drawn, as "CPU time" told them, or seconds of those that wait; a
# figure that is old does no harm.
SECONDS = {
    "tests/runtimes/runtimes_test.py": 110,
    "examples/cpp/embed/embed_test.py": 37,
    "tests/runtimes/runtimes_threads_test.py": 35,
    "tests/package/build_test.py": 27,
    "tests/device/distributed/distributed_test.py": 27,
    "tests/hostile/junk_calls_test.py": 25,
    "tests/cuda_on_cpu/cuda_on_cpu_attention_test.py": 25,
    "tests/aten/aten_header_test.py": 24,
    "tests/opencl/oclgrind_test.py": 22,
    "examples/porting/porting_test.py": 22,
    "tests/torch/torch_aot_test.py": 20,
    "tests/cuda_on_cpu/cuda_on_cpu_experts_test.py": 20,
    "tests/torch/torch_without_glue_test.py": 17,
    "tests/cuda_on_cpu/cudnn_test.py": 17,
    "tests/cuda_on_cpu/hopper_on_cpu_test.py": 16,
    "tests/operators/operators_test.py": 16,
    "examples/sentence_search/command_test.py": 15,
    "tests/frameworks/same_values_test.py": 14,
    "tests/torch/torch_compile_test.py": 14,
    "tests/torch/torch_export_test.py": 14,
    "tests/torch/torch_import_test.py": 14,
    "tests/models/torch_training_test.py": 14,
    "tests/jax/jax_transforms_test.py": 13,
    "tests/forms/triton_images_test.py": 13,
    "tests/cuda_on_cpu/cuda_on_cpu_test.py": 12,
    "tests/cache/cache_entries_test.py": 12,
    "tests/apex/apex_export_test.py": 12,
    "tests/routes/backend_triton_test.py": 12,
    "tests/device/plugins/entry_point_test.py": 12,
    "tests/paddle/paddle_without_glue_test.py": 12,
    "examples/frameworks/same_program_test.py": 11,
    "tests/aten/aten_table_test.py": 11,
    "tests/builder/builder_changes_test.py": 11,
    "tests/command/command_test_test.py": 11,
    "tests/cuda_on_cpu/ptxas_test.py": 11,
    "tests/models/model_test.py": 11,
    "codegen/hostile_text_test.py": 10,
    "examples/mla_decode/mla_decode_test.py": 10,
    "tests/aten/aten_jax_test.py": 10,
    "tests/command/command_test_folders_test.py": 10,
    "tests/conformance/aten/overlap_test.py": 10,
    "tests/cuda_on_cpu/cublaslt_test.py": 10,
    "tests/device/plugins/vendor_docs_test.py": 10,
    "tests/jax/jax_scope_test.py": 10,
    "tests/jax/jax_sharding_test.py": 10,
    "tests/torch/torch_scope_test.py": 10,
    "tests/routes/tune_test.py": 10,
    "tests/forms/tvm_ffi_test.py": 10,
    "tests/runtimes/runtimes_aclnn_test.py": 10,
    "tests/conformance/aten/hazards_test.py": 9,
    "tests/border/exit_threads_test.py": 9,
    "tests/jax/jax_third_party_test.py": 9,
    "tests/routes/outside_operator_test.py": 9,
    "tests/paddle/paddle_gradients_test.py": 9,
    "tests/third_party/third_party_test.py": 9,
    "tests/torch/torch_operators_test.py": 9,
    "tests/torch/torch_threads_test.py": 9,
    "tests/docs/tutorial_test.py": 9,
    "tests/conformance/aten/overloads_test.py": 8,
    "tests/hostile/failing_malloc_test.py": 8,
    "tests/conformance/aten/resolution_test.py": 8,
    "tests/cache/cache_kill_test.py": 7,
    "tests/device/opinfo/opinfo_test.py": 7,
    "tests/jax/jax_operators_test.py": 7,
}


def long_first(items: list[pytest.Item]) -> None:
    """Sorts the tests; those of one file stay as they are."""
    counts = Counter(map(file_of, items))

    def place(item: pytest.Item) -> tuple[float, str]:
        file = file_of(item)
        return -SECONDS.get(file, counts[file] * SECONDS_A_TEST), file

    items.sort(key=place)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
