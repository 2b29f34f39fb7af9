# SPDX-License-Identifier: Apache-2.0
"""DLPack in and out: the same memory, the same values, no copy; what another library cannot read is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def test_torch_to_torch():
    x = torch.arange(6.0, device="anyop").view(2, 3).T
    for found in (
        torch.from_dlpack(x),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    ):
        assert found.device == x.device and found.stride() == x.stride()
        assert found.data_ptr() == x.data_ptr() and torch.equal(found, x)
    found.mul_(2)
    assert x.sum().item() == 30


def test_memory_lives_as_long_as_its_borrower():
    import gc

    x = torch.arange(1000.0, device="anyop")
    found = torch.from_dlpack(x)
    del x
    gc.collect()
    others = [torch.zeros(1000, device="anyop") for _ in range(4)]
    assert found.sum().item() == 499500 and not any(o.any() for o in others)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int64", "bool", "complex64"])
def test_dtypes(dtype):
    x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype)).to("anyop")
    found = torch.from_dlpack(x)
    assert found.dtype == x.dtype and torch.equal(found, x)


def test_the_device_is_said():
    kind, index = torch.ones(2, device="anyop").__dlpack_device__()
    assert (int(kind), index) == (12, 0), "kDLExtDev"


@pytest.mark.usefixtures("two_devices")
def test_the_second_device():
    x = torch.arange(3.0, device="anyop:1")
    assert int(x.__dlpack_device__()[1]) == 1
    found = torch.from_dlpack(x)
    assert found.device == x.device and torch.equal(found, x)


def test_the_same_bytes_as_a_tensor_of_torchs_device(inner):
    x = torch.arange(4.0, device="anyop")
    theirs = torch.ops.anyop_device.inner(x)
    assert theirs.device.type == inner and theirs.data_ptr() == x.data_ptr()
    theirs.add_(1)
    assert x.tolist() == [1, 2, 3, 4]
    back = torch.ops.anyop_device.outer(theirs, 0)
    assert back.is_anyop and back.data_ptr() == x.data_ptr() and torch.equal(back, x)
    if inner == "cpu":
        assert torch.from_dlpack(theirs.numpy()).tolist() == [1, 2, 3, 4]


def test_numpy_cannot_read_it():
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    x = torch.ones(3, device="anyop")
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(x)
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        x.requires_grad_().__dlpack__()
    assert np.from_dlpack(x.detach().cpu()).tolist() == [1, 1, 1]


def test_arrays_come_in():
    np = pytest.importorskip("numpy", reason="NumPy is not installed")
    found = torch.from_dlpack(np.arange(4.0, dtype=np.float32)).to("anyop")
    assert found.is_anyop and found.tolist() == [0, 1, 2, 3]
    assert torch.tensor(np.arange(3), device="anyop").tolist() == [0, 1, 2]
    assert torch.as_tensor(np.arange(3), device="anyop").is_anyop
