# SPDX-License-Identifier: Apache-2.0
"""Storages on the device: identity, sharing, resizing, copies between devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def test_a_storage_says_its_device():
    x = torch.arange(6.0, device="anyop")
    storage = x.untyped_storage()
    assert storage.device == torch.device("anyop:0") and storage.nbytes() == 24
    assert storage.data_ptr() == x.data_ptr() == x[1:].untyped_storage().data_ptr()
    assert storage.is_anyop and not storage.is_cuda and not storage.is_pinned()
    assert bytes(storage.cpu().tolist()) == x.cpu().numpy().tobytes()


def test_storages_are_made_and_copied():
    storage = torch.UntypedStorage(16, device="anyop")
    assert storage.device.type == "anyop" and storage.nbytes() == 16
    source = torch.arange(4.0).untyped_storage()
    storage.copy_(source)
    x = torch.empty(0, device="anyop").set_(storage)
    assert x.tolist() == [0, 1, 2, 3]
    for other in (source.anyop(), storage.clone(), storage.cpu().anyop()):
        assert other.device.type == "anyop" and other.data_ptr() != storage.data_ptr()
        assert other.cpu().tolist() == source.tolist()
    source.copy_(torch.full((4,), 5.0, device="anyop").untyped_storage())
    assert torch.empty(0).set_(source).tolist() == [5] * 4


def test_resizing_keeps_what_fits():
    x = torch.arange(4.0, device="anyop")
    storage, view = x.untyped_storage(), x[:2]
    storage.resize_(64)
    assert storage.nbytes() == 64 and x.tolist() == [0, 1, 2, 3] and view.tolist() == [0, 1]
    assert view.untyped_storage().data_ptr() == storage.data_ptr()
    storage.resize_(0)
    assert storage.nbytes() == 0 and torch.anyop.memory_allocated() >= 0
    storage.resize_(16)
    x.fill_(2)  # as FSDP frees and refills parameters
    assert view.tolist() == [2, 2]


def test_fills_and_bytes():
    x = torch.zeros(2, dtype=torch.int32, device="anyop")
    x.untyped_storage().fill_(1)
    assert x.tolist() == [0x01010101] * 2
    x.untyped_storage()[0] = 7
    assert x.untyped_storage()[0] == 7 and x[0].item() == 0x01010107


def test_a_tensor_is_set_on_a_storage():
    base = torch.arange(10.0, device="anyop")
    x = torch.empty(0, device="anyop").set_(base.untyped_storage(), 2, (2, 3), (1, 2))
    assert x.tolist() == [[2, 4, 6], [3, 5, 7]]
    x[0, 0] = -1
    assert base[2].item() == -1
    with pytest.raises(RuntimeError):
        torch.empty(0).set_(base.untyped_storage())
    x.data = torch.ones(3, device="anyop")
    assert x.tolist() == [1, 1, 1]


def test_memory_lives_as_long_as_its_storage():
    before = torch.anyop.memory_allocated()
    storage = torch.ones(1000, device="anyop").untyped_storage()
    assert torch.anyop.memory_allocated() >= before + 4000
    assert torch.empty(0, device="anyop").set_(storage).sum().item() == 1000
    del storage
    assert torch.anyop.memory_allocated() == before


IMPOSSIBLE = """
import sys
def of(*size, **more):
    return torch.ones(size, device=device, **more)
huge, wide, line = 2**62, 2**31, lambda: of(4)
calls = {
    "ones": lambda: of(wide, wide), "zeros": lambda: torch.zeros(huge + 2, device=device),
    "empty": lambda: torch.empty(2**61, device=device, dtype=torch.float64),
    "full": lambda: torch.full((huge,), 1.0, device=device),
    "new_empty": lambda: of(1).new_empty(huge),
    "empty_strided": lambda: torch.empty_strided((2,), (huge,), device=device),
    "negative stride": lambda: torch.empty_strided((2,), (-1,), device=device),
    "negative size": lambda: torch.empty(-1, device=device),
    "two negative sizes": lambda: line().resize_(-2, -3),
    "contiguous": lambda: of(2).expand(2**61, 2).contiguous(),
    "clone": lambda: of(2).expand(2**61, 2).clone(),
    "linspace": lambda: torch.linspace(0, 1, huge, device=device),
    "repeat_interleave": lambda: of(2).repeat_interleave(2**61),
    "resize_": lambda: kept.resize_(huge),
    "resize_ to too many": lambda: kept.resize_(2**32, 2**32, 0 + 2**32),
    "set_ offset": lambda: kept.set_(line().untyped_storage(), huge, (4,), (1,)),
    "set_ last offset": lambda: kept.set_(line().untyped_storage(), 2**63 - 1, (2,), (1,)),
    "set_ negative offset": lambda: kept.set_(line().untyped_storage(), -1, (2,), (1,)),
    "set_ size": lambda: kept.set_(line().untyped_storage(), 0, (huge + 1,), (4,)),
    "set_ negative stride": lambda: kept.set_(line().untyped_storage(), 2, (2,), (-1,)),
    "set_ elements": lambda: kept.set_(line().untyped_storage(), 0, (2**32, 2**32), (0, 0)),
    "as_strided offset": lambda: line().as_strided((2,), (1,), huge),
    "as_strided stride": lambda: line().as_strided((5,), (huge,)),
    "as_strided elements": lambda: line().as_strided((huge, huge), (0, 0)),
    "view": lambda: line().view(2**32, 2**32),
    "storage": lambda: kept.untyped_storage().resize_(-1),
}
for device in (sys.argv[1], "anyop"):
    kept = of(4)
    for name, call in calls.items():
        try:
            found = call()
        except (RuntimeError, ValueError, IndexError) as error:
            assert str(error), name
        else:
            sys.exit(f"{device}: {name} gave {tuple(found.shape)}")
        whole = kept.shape == (4,) and kept.stride() == (1,) and kept.storage_offset() == 0
        assert device != "anyop" or whole and kept.tolist() == [1] * 4, name
print(len(calls))
"""


def test_sizes_that_no_memory_has_are_refused_and_change_nothing(program, inner):
    """Those of a tensor and of its storage, where 64 bits do not hold the bytes: as torch's own device refuses them."""
    assert int(program(IMPOSSIBLE.replace("sys.argv[1]", repr(inner)))) == 26


def test_what_does_not_fit_leaves_a_tensor_as_it_was(program):
    """Torch's own tensors keep the new sizes then, over the old memory."""
    program("""
x = torch.ones(4, device="anyop")
for change in (lambda: x.resize_(2**48), lambda: x.set_(x.untyped_storage(), 0, (2**48,), (1,))):
    try:
        change()
    except RuntimeError:
        assert x.shape == (4,) and x.tolist() == [1] * 4
    else:
        raise SystemExit("no error")
""")
