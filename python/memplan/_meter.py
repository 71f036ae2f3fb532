"""Reads PyTorch's allocator on a GPU while a training step runs: the peaks and the time of each phase."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Phase:
    """The peak bytes of a phase, and its time."""

    name: str
    allocated_bytes: int
    reserved_bytes: int
    ms: float


@dataclass(frozen=True)
class Step:
    """One training step: its phases in order."""

    phases: tuple[Phase, ...]

    @property
    def allocated_bytes(self) -> int:
        return max(p.allocated_bytes for p in self.phases)

    @property
    def reserved_bytes(self) -> int:
        return max(p.reserved_bytes for p in self.phases)

    @property
    def ms(self) -> float:
        return sum(p.ms for p in self.phases)


@dataclass(frozen=True)
class Measurement:
    """Memory and time of steps on a GPU."""

    device: str
    torch: str
    steps: tuple[Step, ...]
    context_bytes: int = 0  # of the card, used by this process beside what the allocator reserved; 0 where others use the card, too
    batch: int | None = None
    loss: tuple[float, ...] = field(default=())
    ranks: tuple[Measurement, ...] = field(default=())  # of every process, in the order of ranks, where there are several

    @property
    def worst(self) -> Measurement:
        """The rank that reserves most; this measurement if there is one process."""
        return max(self.ranks, key=lambda m: m.reserved_bytes, default=self)

    @property
    def allocated_bytes(self) -> int:
        return max(s.allocated_bytes for s in self.steps)

    @property
    def reserved_bytes(self) -> int:
        return max(s.reserved_bytes for s in self.steps)

    @property
    def process_bytes(self) -> int:
        return self.reserved_bytes + self.context_bytes

    @property
    def warm(self) -> tuple[Step, ...]:
        """The steps whose times count: if there are more than two, without the first two, which create state and choose kernels."""
        return self.steps[2:] or self.steps[-1:]

    @property
    def step_ms(self) -> float:
        """The median step after warm-up."""
        return statistics.median(s.ms for s in self.warm)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The peak of each phase over all steps, and its median time after warm-up."""
        return tuple(Phase(name, *(max(getattr(s.phases[i], of) for s in self.steps) for of in ("allocated_bytes", "reserved_bytes")), statistics.median(s.phases[i].ms for s in self.warm))
                     for i, name in enumerate(PHASES))

    def __str__(self) -> str:
        from ._estimate import size

        lines = [f"{len(self.steps)} steps on {self.device}: {size(self.allocated_bytes)} allocated, {size(self.reserved_bytes)} reserved, {self.step_ms:.4g} ms a step"]
        return "\n".join(lines + [f"  {p.name}: {size(p.allocated_bytes)} allocated, {size(p.reserved_bytes)} reserved, {p.ms:.4g} ms" for p in self.phases])


class Meter:
    """Marks the ends of phases. cuda is torch.cuda, or a substitute in a test."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self.cuda = cuda
        self.steps: list[Step] = []
        self.phases: list[Phase] = []
        self.began = 0.0

    def begin(self) -> None:
        """Begins a step."""
        self.cuda.synchronize()
        self.cuda.reset_peak_memory_stats()
        self.phases, self.began = [], time.perf_counter()

    def end_of_phase(self) -> None:
        """Ends the next phase of the step."""
        self.cuda.synchronize()
        now = time.perf_counter()
        self.phases.append(Phase(PHASES[len(self.phases)], self.cuda.max_memory_allocated(), self.cuda.max_memory_reserved(), 1e3 * (now - self.began)))
        self.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()
        if len(self.phases) == len(PHASES):
            self.steps.append(Step(tuple(self.phases)))

    def measurement(self, batch: int | None, loss: list[float]) -> Measurement:
        free, total = self.cuda.mem_get_info()
        used = total - free - self.cuda.memory_reserved()
        alone = used < 2 << 30  # a context takes 0.3 to 1 GiB: more is another process
        return Measurement(self.cuda.get_device_name(), torch.__version__, tuple(self.steps), used if alone else 0, batch, tuple(loss))
