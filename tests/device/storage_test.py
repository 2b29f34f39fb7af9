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
