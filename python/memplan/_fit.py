"""Export, plan and checkpoints in one call."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import torch

from ._checkpoint import checkpoint
from ._error import MemplanError
from ._estimate import Plan, estimate, size
from ._estimate import plan as make_plan
from ._inputs import batch_of, exported


class DoesNotFit(MemplanError):
    """No choice of checkpoints fits. plan says what the step needs; batch is the largest that fits with checkpoints, None if not even one sample does."""

    def __init__(self, message: str, plan: Plan, batch: int | None) -> None:
        super().__init__(message)
        self.plan, self.batch = plan, batch


@dataclass(frozen=True)
class Fit:
    """A model that fits, and why. print() it for a report."""

    model: torch.nn.Module
    plan: Plan
    vram: str  # what was asked for

    @property
    def regions(self) -> tuple[tuple[str, ...], ...]:
        """The modules of each checkpointed region."""
        return tuple(s.modules for s in self.plan.checkpoint.segments) if self.plan.checkpoint else ()

    def __str__(self) -> str:
        p, c = self.plan.peak, self.plan.checkpoint
        takes = f"{size(p.allocated_bytes)} allocated, {size(p.reserved_bytes)} reserved, {size(p.process_bytes)} with the CUDA context"
        if not c or not c.segments:
            return f"fits {self.vram} at batch {self.plan.config.get('batch')} without checkpoints: {takes}"
        lines = [f"fits {self.vram} at batch {self.plan.config.get('batch')} with {len(c.segments)} checkpointed regions, for {100 * c.recompute_overhead:.1f}% more time: {takes}"]
        for s in c.segments:
            kept = ", ".join(f"{len(k.calls)} of {k.of} {k.op.removeprefix('aten.')}" for k in s.save)
            lines.append(f"  {', '.join(s.modules)}" + (f" (keeps {kept})" if kept else ""))
        return "\n".join(lines + [f"warning: {w.message} [{w.code}]" for w in self.plan.warnings if w.code != "checkpoints-needed"])


def fit(model: torch.nn.Module, args: Sequence[Any] | torch.Tensor = (), kwargs: Mapping[str, Any] | None = None, *, vram: str | int | None = None, batch: int | None = None,
        path: str | os.PathLike[str] | None = None, output: str | os.PathLike[str] | None = None, **settings: Any) -> Fit:
    """Makes a training step of a model fit a card: exports the model, plans, and applies the plan to it. Print the result for a report.

    vram is the card's whole memory, "16G" or bytes, by default that of the GPU in this machine; batch is by default that of args. path is
    a file for the ONNX model and output one for the plan, which are not kept otherwise. settings are those of estimate().

    Raises DoesNotFit, and leaves the model as it is, where no choice of checkpoints fits: it says what the step needs, and the largest batch that fits.
    """
    budget = vram if vram is not None or "gpu" in settings else _this_card()
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        file = os.fspath(path) if path is not None else os.path.join(folder, "model.onnx")
        exported(model, args, kwargs, file)
        settings = {"vram": budget, "batch": batch or batch_of(args, kwargs), **settings}
        plan = make_plan(file, output=output, **settings)
        if not plan.fits:
            raise _refusal(file, plan, settings)
    checkpoint(model, plan.document)
    return Fit(model, plan, _named(settings))


def _this_card() -> int:
    if not torch.cuda.is_available():
        raise MemplanError('there is no GPU here whose memory could be the budget: give vram="16G" or gpu="t4"')
    return int(torch.cuda.get_device_properties(0).total_memory)


def _named(settings: Mapping[str, Any]) -> str:
    v = settings["vram"]
    return size(v) if isinstance(v, int) else str(v if v is not None else settings["gpu"])


def _refusal(file: str, plan: Plan, settings: Mapping[str, Any]) -> DoesNotFit:
    """Why the step does not fit, and what would."""
    checkpoints = settings.get("checkpoint") or "auto"
    largest = estimate(file, **{**settings, "batch": "max", "checkpoint": checkpoints})
    batch = largest.batch.max if largest.batch and largest.batch.max > 0 else None
    lines = [f"batch {settings['batch']} does not fit {_named(settings)}: it takes {size(plan.peak.process_bytes)} ({size(plan.peak.reserved_bytes)} reserved and the CUDA context), "
             + (f"and the largest batch that fits is {batch}" if batch else "and not even one sample fits")]
    lines += [w.message for w in plan.warnings if w.code in ("no-selection", "no-schedule")]
    return DoesNotFit("\n".join(lines), plan, batch)
