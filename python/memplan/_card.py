"""What a model's code asks about the GPU, answered on a machine that may have none: as on one Hopper GPU, like _kernels."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from typing import Any, Iterator

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PROPERTIES = types.SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=85_014_347_776, multi_processor_count=132, max_threads_per_multi_processor=2048, warp_size=32, gcnArchName="")


def pretended() -> list[tuple[Any, str, Any]]:
    """Attributes of PyTorch and what stands in for them; none where there is a GPU."""
    if torch.cuda.is_available():
        return []
    cuda: Any = torch.cuda
    answers: dict[str, Any] = {
        "device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "get_device_name": _PROPERTIES.name, "get_device_properties": _PROPERTIES,
        "synchronize": None, "empty_cache": None, "set_device": None, "memory_allocated": 0, "memory_reserved": 0, "max_memory_allocated": 0, "mem_get_info": (_PROPERTIES.total_memory, _PROPERTIES.total_memory),
        "reset_peak_memory_stats": None, "_lazy_init": None,
    }
    return [*((cuda, name, _always(value)) for name, value in answers.items()), (torch.Tensor, "cuda", _moved), (cuda, "is_available", _available)]


def _always(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _available() -> bool:
    """Yes to a model; no to PyTorch itself, whose fake tensors would start CUDA."""
    return not sys._getframe(1).f_code.co_filename.startswith(_TORCH)


def _moved(t: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    """Tensor.cuda(), which would start CUDA."""
    return t.to("cuda", non_blocking=non_blocking, memory_format=memory_format)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """TorchScript runs its functions call by call: what compiles groups of them for a GPU would start CUDA."""
    c: Any = torch._C
    old = c._jit_set_profiling_executor(False), c._get_graph_executor_optimize()
    c._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        c._jit_set_profiling_executor(old[0])
        c._set_graph_executor_optimize(old[1])
