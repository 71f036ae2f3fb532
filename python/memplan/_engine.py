"""Peak live bytes of a training step, without a GPU.

PyTorch's engine asks a device for a stream, which a machine without a GPU does not have. Engine does its work here: nodes by sequence number,
accumulation in place where it may be, saved tensors let go after their node, gradients taken over by AccumulateGrad.
"""

from __future__ import annotations

import gc
import heapq
import sys
import weakref
from typing import Any, Callable, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import _fake
from ._record import tensors


def rounded(n: int) -> int:
    """The bytes that PyTorch's allocator gives for n."""
    return -(-n // 512) * 512


class Live(TorchDispatchMode):
    """Counts the storages on the GPU, from the call that makes one until its last reference is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.now = self.peak = 0

    def meet(self, t: Any) -> None:
        if not isinstance(t, torch.Tensor) or t.device.type != "cuda":
            return
        storage = t.untyped_storage()
        key, size = storage._cdata, rounded(storage.nbytes())
        if key in self.known or size == 0:
            return
        self.known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.known.pop(key, 0)

    def take(self) -> int:
        """The peak since the last call."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outs = tree_leaves(out)
        for t in outs:
            self.meet(t)
        if "scaled_dot_product_efficient" in str(func) and "backward" not in str(func):
            for t in outs[2:]:  # the state of its random numbers is on the CPU; the fake kernel says otherwise
                self._gone(t.untyped_storage()._cdata)
        return out


class _Packed:
    """A saved tensor that can be released."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t: torch.Tensor | None = t


class Engine:
    """torch::autograd::Engine for one device."""

    def __init__(self) -> None:
        self.unpacked: list[_Packed] = []

    def pack(self, t: torch.Tensor) -> _Packed:
        return _Packed(t.detach())

    def unpack(self, p: _Packed) -> torch.Tensor | None:
        self.unpacked.append(p)
        return p.t

    def backward(self, loss: torch.Tensor) -> None:
        root: Any = loss.grad_fn
        dependencies: dict[Any, int] = {}
        stack, seen = [root], {root}
        while stack:
            for n, _ in stack.pop().next_functions:
                if n is None:
                    continue
                dependencies[n] = dependencies.get(n, 0) + 1
                if n not in seen:
                    seen.add(n)
                    stack.append(n)
        buffers: dict[Any, dict[int, Any]] = {root: {0: torch.ones_like(loss)}}
        queue, count = [(-root._sequence_nr(), 0, root)], 0
        with torch.no_grad():
            while queue:
                _, _, node = heapq.heappop(queue)
                outs = self.call(node, buffers.pop(node))
                self.release(node)
                for i, (n, nr) in enumerate(node.next_functions):
                    if n is None:
                        continue
                    out = None
                    if i < len(outs):
                        out, outs[i] = outs[i], None
                    _accumulate(buffers.setdefault(n, {}), nr, out)
                    out = None
                    dependencies[n] -= 1
                    if dependencies[n] == 0:
                        count += 1
                        heapq.heappush(queue, (-n._sequence_nr(), count, n))

    def call(self, node: Any, grads: dict[int, Any]) -> list[Any]:
        """The node's outputs; its inputs are gone when it returns."""
        if type(node).__name__ == "AccumulateGrad":
            g = grads.pop(0, None)
            if g is not None:
                _keep(node.variable, g, sys.getrefcount(g) > 3)  # the name, the argument, the question
            return []
        args = [grads.pop(i, None) for i in range(max(grads, default=0) + 1)]
        if all(a is None for a in args):
            return [None] * len(node.next_functions)
        if hasattr(node, "apply"):
            outs = _python(node, args)
        else:
            outs = node(*args, *[None] * (len(node._input_metadata) - len(args)))
            outs = list(outs) if isinstance(outs, tuple) else [outs]
        _validate(node, outs)
        return outs

    def release(self, node: Any) -> None:
        for p in self.unpacked:
            p.t = None
        self.unpacked.clear()
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                saved = getattr(node, name)
                for s in saved if isinstance(saved, (tuple, list)) else [saved]:
                    p = getattr(s, "data", None)
                    if isinstance(p, _Packed):
                        p.t = None


def _validate(node: Any, outs: list[Any]) -> None:
    """validate_outputs: gradients get the shapes and types of their tensors."""
    for i, (n, nr) in enumerate(node.next_functions):
        if n is None or i >= len(outs) or outs[i] is None:
            continue
        meta = n.variable if type(n).__name__ == "AccumulateGrad" else n._input_metadata[nr]
        if outs[i].shape != meta.shape:
            outs[i] = outs[i].sum_to_size(meta.shape)
        if outs[i].dtype != meta.dtype:
            outs[i] = outs[i].to(meta.dtype)


def _python(node: Any, args: list[Any]) -> list[Any]:
    """Outputs of a torch.autograd.Function written in Python, one for each tensor of its inputs."""
    meta = node._input_metadata
    args += [None] * (len(meta) - len(args))
    if getattr(node, "materialize_grads", True):
        args = [torch.zeros(m.shape, dtype=m.dtype, device=m.device) if a is None else a for a, m in zip(args, meta)]
    outs = node.apply(*args)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    while len(outs) > len(node.next_functions) and None in outs:
        outs.remove(None)
    return outs


def _accumulate(buffer: dict[int, Any], nr: int, var: Any) -> None:
    """InputBuffer::add."""
    old = buffer.get(nr)
    if old is None or var is None:
        buffer[nr] = var if old is None else old
        return
    del buffer[nr]
    if _sole(old, 4):
        old.add_(var)
        buffer[nr] = old
    elif _sole(var, 5):
        var.add_(old)
        buffer[nr] = var
    else:
        buffer[nr] = old + var


def _sole(t: torch.Tensor, refs: int) -> bool:
    """Whether only the caller's buffer holds t and its storage."""
    storage = t.untyped_storage()
    return bool(sys.getrefcount(t) <= refs and torch._C._storage_Use_Count(storage._cdata) <= 2 and torch.ops.aten.is_non_overlapping_and_dense(t))  # type: ignore[attr-defined]


def _keep(variable: Any, g: torch.Tensor, shared: bool) -> None:
    """AccumulateGrad: takes over the gradient if nothing else holds it and its strides are the variable's."""
    if variable.grad is not None:
        variable.grad.add_(g)
        return
    fits = all(s == 1 or a == b for s, a, b in zip(g.shape, g.stride(), variable.stride())) and g.dtype == variable.dtype
    variable.grad = g.detach() if fits and not shared else torch.empty_like(variable).copy_(g)


def peaks(recorder: Any, call: Callable[[], Any], parameters: Sequence[torch.Tensor], resident: Sequence[torch.Tensor]) -> dict[str, int]:
    """Peak live bytes of each phase of a second step, and of the first step, with AdamW and the sum of the output as loss."""
    live, engine = Live(), Engine()
    recorder.on = False
    for t in resident:
        live.meet(t)
    out: dict[str, int] = {}
    steps = _fake.patched((sys.modules["torch.optim.adam"], "_get_value", lambda step: 1.0))  # steps are fake, too: they have no value
    with steps, recorder.active(engine.pack, engine.unpack), live:
        optimizer = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-4, foreach=True)
        for first in (True, False):
            optimizer.zero_grad(set_to_none=True)
            gc.collect()
            live.take()
            loss = _loss(call())
            out["forward"] = live.take()
            engine.backward(loss)
            out["backward"] = live.take()
            optimizer.step()
            out["update"] = live.take()
            if first:
                out["first"] = max(out.values())
            del loss
    return out


def _loss(out: Any) -> torch.Tensor:
    return next(t for t in tensors(out) if t.is_floating_point() and t.requires_grad).sum()
