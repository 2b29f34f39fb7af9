# SPDX-License-Identifier: Apache-2.0
"""torch.anyop: seeds and states of the devices' default generators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from anyop.torch.device._place import Place, index

__all__ = [
    "_get_generator",
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_ops = torch.ops.anyop_device


def _devices() -> range:
    return range(_ops.device_count.default())


def _signed(seed: int) -> int:
    """An operator's int has 64 bits with a sign; a seed may use all 64, as torch.manual_seed's."""
    seed = int(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"the seed {seed} does not fit into 64 bits")
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _ops.manual_seed.default(index(), _signed(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; torch.manual_seed does it too."""
    for device in _devices():
        _ops.manual_seed.default(device, _signed(seed))


def seed() -> None:
    """Seed the current device's generator with something random."""
    _ops.seed.default(index())


def seed_all() -> None:
    """The same random seed for all devices."""
    _ops.seed.default(0)
    manual_seed_all(_ops.initial_seed.default(0))


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _ops.initial_seed.default(index()) % (1 << 64)


def get_rng_state(device: Place = None) -> torch.Tensor:
    """The state of a device's generator, a tensor of bytes on the CPU."""
    return _ops.get_rng_state.default(index(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """Those of all devices."""
    return [_ops.get_rng_state.default(device) for device in _devices()]


def set_rng_state(new_state: torch.Tensor, device: Place = None) -> None:
    """Continue from a state that get_rng_state gave."""
    _ops.set_rng_state.default(index(device), new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Of all devices."""
    for device, state in enumerate(new_states):
        set_rng_state(state, device)


def _get_generator(device: Place) -> torch.Generator:
    """The default generator of a device; functorch asks for it."""
    return _ops.default_generator.default(index(device))


class _Generators(Sequence):
    """The default generator of each device, made when it is first asked for."""

    def __len__(self) -> int:
        return len(_devices())

    def __getitem__(self, device: int) -> torch.Generator:  # type: ignore[override]
        if not -len(self) <= device < len(self):
            raise IndexError(device)
        return _get_generator(device % len(self))


default_generators = _Generators()
