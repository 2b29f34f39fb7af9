# SPDX-License-Identifier: Apache-2.0
"""The device of torch in tests: marks that say where a test runs, the platform, and programs of their own.

Select by `-m`: anyplatform, cpu (tensors of torch's CPU, no device), host and cuda (that platform alone), triton.
ANYOP_DEVICE_PLATFORM chooses the platform, as for users.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path

import prepared
import pytest

HERE = Path(__file__).parent
sys.path[:0] = map(str, (HERE, HERE / "distributed", HERE / "opinfo"))
import slow_stream  # noqa: E402
from reference import RESULTS, Notebook, Reference  # noqa: E402

MARKS = {"anyplatform", "cpu", "host", "cuda", "triton"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """They are known where this folder is named: pytest tests/device/training/qwen3_test.py --model DIR."""
    parser.addoption("--model", metavar="DIR", help="a Qwen3 for the tests of examples/qwen3")
    parser.addoption("--steps", metavar="N", type=int, default=5, help="they train it for")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests come last, so that the device, which stays in the process, meets no test of other folders.

    Those that need no device are the last of them: torch's engine counts devices once, at the first backward.
    """
    for item in items:
        if HERE in item.path.parents and not MARKS & {mark.name for mark in item.iter_markers()}:
            raise pytest.UsageError(
                f"{item.nodeid}: mark it with one of {', '.join(sorted(MARKS))}"
            )
    items.sort(
        key=lambda item: (HERE in item.path.parents, item.get_closest_marker("cpu") is not None)
    )


@pytest.fixture(scope="session")
def loaded() -> str:
    """Loads the device into this process, unless that is the one for references; the platform's name."""
    pytest.importorskip("torch", reason="torch is not installed")
    if RESULTS in os.environ:
        return os.environ["ANYOP_DEVICE_PLATFORM"]
    import anyop.torch.device

    return anyop.torch.device.platform()


@pytest.fixture
def platform(request: pytest.FixtureRequest) -> str:
    """The platform below the device; a test for another one is skipped."""
    found = request.getfixturevalue("loaded")
    wanted = {mark.name for mark in request.node.iter_markers()} & {"host", "cuda"}
    if wanted and found not in wanted:
        pytest.skip(f"the platform is {found}, the test is for {' and '.join(sorted(wanted))}")
    return found


@pytest.fixture
def inner(platform) -> str:
    """The device of torch that lends its kernels and its results."""
    return "cuda" if platform == "cuda" else "cpu"


@pytest.fixture(scope="session")
def reference(loaded, request: pytest.FixtureRequest):
    """The process without the device."""
    other = Reference(loaded, request.config.rootpath)
    yield other
    other.close()


@pytest.fixture
def apart(platform) -> bool:
    """Whether torch's own device computes in a process without anyop's: on CUDA it must, for its backward.

    ANYOP_TEST_APART=1 asks for it on any platform.
    """
    return platform == "cuda" or os.environ.get("ANYOP_TEST_APART") == "1"


@pytest.fixture
def same(inner, apart, request: pytest.FixtureRequest):
    """Calls function(device) on both devices, equally seeded: the same bits, or nearly, each on its device."""
    import torch
    from opinfo_tensors import NEAR, difference

    count = itertools.count()
    notebook = Notebook() if RESULTS in os.environ else None

    def expect(function):
        if notebook is None and apart:
            return request.getfixturevalue("reference").result(request.node.nodeid, next(count))
        torch.manual_seed(0)
        return function(inner)

    def check(function, near: bool = False):
        expected = expect(function)
        if notebook is not None:
            notebook.note(expected)
            return expected
        torch.manual_seed(0)
        found = function("anyop")
        text = difference(expected, found, inner, "anyop")
        assert text is None or (near and text == NEAR), text
        return found

    return check


@pytest.fixture
def inductor(platform) -> None:
    """What inductor generates code for: C++ on host, Triton on CUDA."""
    if platform == "cuda":
        pytest.importorskip("triton", reason="inductor needs triton on CUDA")
    elif not (shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")


@pytest.fixture
def two_devices(platform) -> None:
    import torch

    if torch.anyop.device_count() < 2:
        pytest.skip(f"platform {platform} has one device here")


@pytest.fixture
def while_it_sleeps(platform):
    """slow_stream.while_it_sleeps, on the platform."""
    return slow_stream.while_it_sleeps


@pytest.fixture
def program(platform):
    """Runs text in a process of its own that has loaded the device; its output, or its process when told."""

    def run(text: str, whole: bool = False, seconds: float = 120, **variables: str):
        process = prepared.run(
            "torch",
            [sys.executable, "-c", f"import anyop.torch.device, torch\n{text}"],
            timeout=seconds,
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",  # slow_stream
                "ANYOP_DEVICE_PLATFORM": platform,
                **variables,
            },
        )
        if whole:
            return process
        assert process.returncode == 0, process.stdout + process.stderr[-3000:]
        return process.stdout

    return run
