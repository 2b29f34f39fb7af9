# SPDX-License-Identifier: Apache-2.0
"""What Dynamo asks of a device: streams, events, the current device, by torch.anyop."""

from __future__ import annotations

from typing import Any

import torch

from anyop.torch.device import management, memory, streams


def interface(module: Any) -> type:
    """The device's class of torch._dynamo.device_interface, which is module."""

    class Interface(module.DeviceInterface):
        device = management.device
        Event = streams.Event
        Stream = streams.Stream

        class Worker:
            set_device = staticmethod(management.set_device)
            current_device = staticmethod(management.current_device)
            get_device_properties = staticmethod(management.get_device_properties)

        current_device = staticmethod(management.current_device)
        set_device = staticmethod(management.set_device)
        exchange_device = staticmethod(management._exchange_device)
        maybe_exchange_device = staticmethod(management._maybe_exchange_device)
        device_count = staticmethod(management.device_count)
        is_available = staticmethod(management.is_available)
        synchronize = staticmethod(management.synchronize)
        get_compute_capability = staticmethod(management.get_device_capability)
        is_bf16_supported = staticmethod(management.is_bf16_supported)
        memory_allocated = staticmethod(memory.memory_allocated)
        stream = staticmethod(streams.stream)
        current_stream = staticmethod(streams.current_stream)
        set_stream = staticmethod(streams.set_stream)
        _set_stream_by_id = staticmethod(streams._set_stream_by_id)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return torch.accelerator.current_stream(device_idx).stream_id

        @staticmethod
        def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return True

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False  # code is generated for the inner device

    return Interface
