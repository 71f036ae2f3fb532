"""Runs training steps on the GPU and measures memory and time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from ._checkpoint import Plan as PlanFile
from ._checkpoint import checkpoint, remove
from ._error import MemplanError
from ._estimate import Plan
from ._inputs import batch_of, listed, moved, resized
from ._losses import LOSSES
from ._meter import Measurement, Meter
from ._parallel import sequences, spread
from ._pipeline import Pipeline

Optimizer = Union[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]]
Loss = Union[str, Callable[[Any], torch.Tensor]]

_O = torch.optim
# The optimizers of `memplan list optimizers` that PyTorch has.
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": functools.partial(_O.AdamW, lr=1e-4),
    "adamw-fused": functools.partial(_O.AdamW, lr=1e-4, fused=True),
    "adamw-loop": functools.partial(_O.AdamW, lr=1e-4, foreach=False),
    "adamw-capturable": functools.partial(_O.AdamW, lr=1e-4, capturable=True),
    "adamw-amsgrad": functools.partial(_O.AdamW, lr=1e-4, amsgrad=True),
    "adam": functools.partial(_O.Adam, lr=1e-4),
    "adam-wd": functools.partial(_O.Adam, lr=1e-4, weight_decay=1e-2),
    "adam-fused": functools.partial(_O.Adam, lr=1e-4, fused=True),
    "adam-loop": functools.partial(_O.Adam, lr=1e-4, foreach=False),
    "adam-amsgrad": functools.partial(_O.Adam, lr=1e-4, amsgrad=True),
    "sgd": functools.partial(_O.SGD, lr=1e-3),
    "sgd-wd": functools.partial(_O.SGD, lr=1e-3, weight_decay=1e-4),
    "sgd-momentum": functools.partial(_O.SGD, lr=1e-3, momentum=0.9),
    "sgd-momentum-wd": functools.partial(_O.SGD, lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "sgd-nesterov": functools.partial(_O.SGD, lr=1e-3, momentum=0.9, nesterov=True),
    "sgd-loop": functools.partial(_O.SGD, lr=1e-3, foreach=False),
    "sgd-fused": functools.partial(_O.SGD, lr=1e-3, fused=True),
    "adagrad": functools.partial(_O.Adagrad, lr=1e-3),
    "rmsprop": functools.partial(_O.RMSprop, lr=1e-3),
    "rmsprop-momentum": functools.partial(_O.RMSprop, lr=1e-3, momentum=0.9),
    "rmsprop-centered": functools.partial(_O.RMSprop, lr=1e-3, centered=True),
    "adadelta": functools.partial(_O.Adadelta, lr=1.0),
    "adamax": functools.partial(_O.Adamax, lr=1e-3),
    "nadam": functools.partial(_O.NAdam, lr=1e-3),
    "radam": functools.partial(_O.RAdam, lr=1e-3),
}

# precision: the dtype of weights, that of autocast
PRECISIONS: dict[str, tuple[torch.dtype | None, torch.dtype | None]] = {
    "fp32": (None, None),
    "amp-bf16": (None, torch.bfloat16),
    "amp-fp16": (None, torch.float16),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
}


def measure(model: torch.nn.Module, args: Sequence[Any] | torch.Tensor = (), kwargs: Mapping[str, Any] | None = None, *, plan: Plan | PlanFile | None = None, loss: Loss | None = None,
            optimizer: Optimizer | None = None, precision: str | None = None, batch: int | None = None, steps: int = 5, vram_bytes: int | None = None) -> Measurement:
    """Runs training steps of a model on the GPU and returns their peaks and times, phase by phase.

    With a plan the steps run under its checkpoints, with its batch, precision, optimizer and loss unless others are given; without one
    the model runs as it is, by default with AdamW in float32. args and kwargs are repeated to fill the batch. loss is a name of
    `memplan list losses`, or a function of the model's output; optimizer a name of `memplan list optimizers`, or a function of a list of
    parameters. vram_bytes is what PyTorch's allocator may reserve, all of the GPU by default.

    A model that parallelize() has spread is measured as it is, and the measurement has those of every rank; of a pipeline batch is that of a micro-batch, the
    loss the one it was made with, and forward and backward are one phase.

    Weights, buffers and random numbers are afterwards what they were; a plan is taken off again. Raises MemplanError where there is no GPU.
    """
    if not torch.cuda.is_available():
        raise MemplanError("there is no GPU here (torch.cuda.is_available() is False): measure on a machine with one; memplan.estimate() says here what a step takes")
    document = plan.document if isinstance(plan, Plan) else plan
    config = plan.config if isinstance(plan, Plan) else plan.get("config", {}) if isinstance(plan, Mapping) else {}
    run = _Run(model, loss or config.get("loss") or "auto", optimizer or config.get("optimizer") or "adamw", precision or config.get("precision") or "fp32")
    now = batch_of(args, kwargs)
    inputs = resized((listed(args), dict(kwargs or {})), now, (batch or config.get("batch") or now) * (model.micros if isinstance(model, Pipeline) else 1))
    with _limited(vram_bytes), _restored(model), _plan_on(model, None if spread(model) else document):
        return _gathered(run.steps(inputs, steps, Meter(), torch.device("cuda", torch.cuda.current_device())))


def _gathered(mine: Measurement) -> Measurement:
    """A measurement combined with those of all processes."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return mine
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return dataclasses.replace(mine, ranks=tuple(ranks))


def _made(make: Callable[..., torch.optim.Optimizer], parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of PyTorch's; foreach kernels refuse parameters that tensor parallelism splits beside others."""
    mixed = len({isinstance(p, DTensor) for p in parameters}) > 1
    if mixed and isinstance(make, functools.partial) and not {"foreach", "fused"} & set(make.keywords):
        make = functools.partial(make, foreach=False)
    return make(parameters)


class _Run:
    """How a model is trained."""

    def __init__(self, model: torch.nn.Module, loss: Loss, optimizer: Optimizer, precision: str) -> None:
        if precision not in PRECISIONS:
            raise MemplanError(f"precision {precision!r}: want one of {', '.join(PRECISIONS)}")
        if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
            raise MemplanError(f"optimizer {optimizer!r} is not PyTorch's own: give a function that makes it of a list of parameters")
        if isinstance(loss, str) and loss not in LOSSES:
            raise MemplanError(f"loss {loss!r}: want one of {', '.join(LOSSES)}, or a function of the model's output")
        self.model, self.weights, self.autocast = model, *PRECISIONS[precision]
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer

    def steps(self, inputs: Any, steps: int, meter: Meter, device: torch.device = torch.device("cuda")) -> Measurement:
        """Runs steps under a meter."""
        if isinstance(self.model, Pipeline):
            return self.pipelined(self.model, inputs, steps, meter, device)
        self.model.to(device, self.weights).train()
        args, kwargs = moved(inputs, device, self.weights)
        optimizer = _made(self.make, [p for p in self.model.parameters() if p.requires_grad])
        scaler = torch.amp.GradScaler(device.type, enabled=self.autocast is torch.float16)
        losses = []
        for _ in range(steps):
            meter.begin()
            optimizer.zero_grad(set_to_none=True)
            with sequences(self.model, *(t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim() > 1)):
                with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
                    loss = self.loss(self.model(*args, **kwargs))
                meter.end_of_phase()
                scaler.scale(loss).backward()
                meter.end_of_phase()
            scaler.step(optimizer)
            scaler.update()
            meter.end_of_phase()
            losses.append(loss.detach())
            del loss
        return meter.measurement(batch_of(args, kwargs), [float(x) for x in losses])

    def pipelined(self, model: Pipeline, inputs: Any, steps: int, meter: Meter, device: torch.device) -> Measurement:
        """Runs steps of a pipeline, whose forward and backward are one phase: forward's."""
        args, _ = moved(inputs, device, None)
        optimizer = _made(self.make, list(model.parameters()))
        losses = []
        for _ in range(steps):
            meter.begin()
            optimizer.zero_grad(set_to_none=True)
            loss = model.step(*args)
            meter.end_of_phase()
            meter.end_of_phase()
            optimizer.step()
            meter.end_of_phase()
            losses += [] if loss is None else [loss]
        return meter.measurement(batch_of(args, {}), [float(x) for x in losses])


# ---- as it was ----


@contextlib.contextmanager
def _limited(vram_bytes: int | None) -> Iterator[None]:
    """Limits what PyTorch's allocator reserves, for a while."""
    torch.cuda.empty_cache()
    if vram_bytes is None:
        yield
        return
    torch.cuda.set_per_process_memory_fraction(min(1.0, vram_bytes / torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def _plan_on(model: torch.nn.Module, plan: PlanFile | None) -> Iterator[None]:
    if plan is None:
        yield
        return
    checkpoint(model, plan)
    try:
        yield
    finally:
        remove(model)


@contextlib.contextmanager
def _restored(model: torch.nn.Module) -> Iterator[None]:
    """Keeps weights, buffers, gradients, modes and random number states on the processor, and restores them afterwards."""
    sharded = [(p, p.to_local(), p.to_local().detach().cpu().clone(), p.grad) for p in model.parameters() if isinstance(p, DTensor)]
    parameters = [(p, p.detach().cpu().clone(), p.device, p.grad) for p in model.parameters() if not isinstance(p, DTensor)]
    buffers = [(m, name, b, b.detach().cpu().clone(), b.device) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    modes = [(m, m.training) for m in model.modules()]
    for p in model.parameters():
        p.grad = None
    with torch.random.fork_rng(device_type="cuda"):
        try:
            yield
        finally:
            with torch.no_grad():
                for p, local, data, grad in sharded:  # in place: FSDP2 gathers from this storage
                    local.copy_(data)
                    p.grad = grad
            for p, data, device, grad in parameters:
                p.data, p.grad = data.to(device), None
                p.grad = grad
            for m, name, b, data, device in buffers:
                b.data = data.to(device)
                m._buffers[name] = b
            for m, training in modes:
                m.training = training
