# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load with map_location, between the device, its second one and the CPU; pickle."""

from __future__ import annotations

import io
import os
import pickle
import sys

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]


def round_trip(value, map_location=None, weights_only=True, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return torch.load(file, map_location=map_location, weights_only=weights_only)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_tensor_comes_back_to_its_device(weights_only, options):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = torch.arange(6).reshape(2, 3).to(dtype).to("anyop")
        found = round_trip(x, weights_only=weights_only, **options)
        assert found.device == x.device and found.dtype == dtype and torch.equal(found, x)


PLACES = {
    "cpu": "cpu",
    "anyop": "anyop:0",
    "anyop:0": "anyop:0",
    torch.device("cpu"): "cpu",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("origin", ["cpu", "anyop"])
def test_map_location(place, origin):
    x = torch.randn(5, 4, device=origin)
    found = round_trip({"x": x, "list": [x[1:]]}, place)
    assert found["x"].device == torch.device(PLACES[place])
    assert torch.equal(found["x"].cpu(), x.cpu())
    found["list"][0].fill_(3)
    assert torch.all(found["x"][1:] == 3), "views share their storage still"


@pytest.mark.usefixtures("two_devices")
def test_the_second_device():
    x = torch.randn(4, device="anyop:1")
    assert round_trip(x).device == x.device
    for place in ("anyop:1", {"anyop:0": "anyop:1"}, lambda storage, location: storage.anyop(1)):
        found = round_trip(torch.ones(4, device="anyop:0"), place, weights_only=True)
        assert found.device == torch.device("anyop:1") and found.sum().item() == 4
    assert round_trip(x, {"anyop:1": "cpu"}).is_cpu
    assert round_trip(x.cpu(), "anyop:1").device == x.device


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match="anyop"):
        round_trip(torch.ones(3, device="anyop"), "anyop:77")


def test_without_the_device(tmp_path):
    """A file written on the device is read where there is none, with map_location; else torch refuses."""
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3.0, device="anyop"), path)
    text = f"""
import torch
print(torch.load({str(path)!r}, map_location="cpu").tolist())
try:
    torch.load({str(path)!r})
except RuntimeError as error:
    print("refused", error)
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    found = prepared.run(
        "torch",
        [sys.executable, "-c", text],
        env=environment,
    )
    assert "[0.0, 1.0, 2.0]" in found.stdout and "refused" in found.stdout, found.stderr


def test_models_and_optimizers():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("anyop")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3, device="anyop")).sum().backward()
    optimizer.step()
    saved = round_trip({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "cpu")
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("anyop")
    other.load_state_dict(saved["model"])
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(saved["optimizer"])
    for a, b in zip(model.parameters(), other.parameters()):
        assert b.is_anyop and torch.equal(a, b)
        assert again.state[b]["exp_avg"].is_anyop
        assert torch.equal(again.state[b]["exp_avg"], optimizer.state[a]["exp_avg"])
    whole = round_trip(model, weights_only=False)
    assert whole[0].weight.is_anyop and torch.equal(whole[0].weight, model[0].weight)


def test_parameters_and_pickle():
    x = torch.nn.Parameter(torch.arange(4.0, device="anyop"))
    for found in (round_trip(x), pickle.loads(pickle.dumps(x))):
        assert isinstance(found, torch.nn.Parameter) and found.requires_grad
        assert found.device == x.device and torch.equal(found, x)
    strided = pickle.loads(pickle.dumps(torch.arange(6.0, device="anyop").view(2, 3).T))
    assert strided.stride() == (1, 3) and strided.is_anyop
    device = pickle.loads(pickle.dumps(torch.device("anyop:0")))
    assert device == torch.device("anyop:0")


def test_mapped_files(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"x": torch.arange(100.0)}, path)
    found = torch.load(path, map_location="anyop", mmap=True, weights_only=True)["x"]
    assert found.is_anyop and torch.equal(found.cpu(), torch.arange(100.0))


def test_safetensors():
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    x = {"x": torch.arange(4.0, device="anyop")}
    found = safetensors.load(safetensors.save(x))["x"].to("anyop")
    assert torch.equal(found, x["x"])
