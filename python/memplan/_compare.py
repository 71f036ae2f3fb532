"""Compares a plan with a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from ._estimate import Estimate, size
from ._meter import Measurement


@dataclass(frozen=True)
class Row:
    """One number, as predicted and as measured."""

    name: str
    predicted: float
    measured: float
    unit: str  # "bytes" or "ms"

    @property
    def off(self) -> float:
        """The prediction's relative error."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured numbers. print() it for a table."""

    rows: tuple[Row, ...]
    within: bool  # whether reserved memory stayed under the printed upper bound

    def __str__(self) -> str:
        show = {"bytes": lambda x: size(int(x)), "ms": lambda x: f"{x:.4g} ms"}
        cells = [("", "predicted", "measured", "off")] + [(r.name, show[r.unit](r.predicted), show[r.unit](r.measured), f"{100 * r.off:+.1f}%") for r in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        lines = [row[0].ljust(widths[0]) + "".join("  " + row[i].rjust(widths[i]) for i in range(1, 4)) for row in cells]
        return "\n".join(lines + ["reserved memory stayed under the upper bound" if self.within else "reserved memory went over the upper bound of the prediction"])


def compare(plan: Estimate, measured: Measurement) -> Comparison:
    """Compares a plan, or an estimate, with what memplan.measure() returned."""
    phases = {p.name: p for p in measured.phases}
    predicted = {"forward": plan.phases.forward_peak, "backward": plan.phases.backward_peak, "optimizer": plan.phases.optimizer_peak}
    rows = [Row("allocated", plan.peak.allocated_bytes, measured.allocated_bytes, "bytes"), Row("reserved", plan.peak.reserved_bytes, measured.reserved_bytes, "bytes")]
    if measured.context_bytes:
        rows.append(Row("process", plan.peak.process_bytes, measured.process_bytes, "bytes"))
    steady = measured.warm[-1]
    rows += [Row(f"{p.name} peak", predicted[p.name], p.allocated_bytes, "bytes") for p in steady.phases]
    rows += [Row(f"{p} time", getattr(plan.time, f"{p}_ms"), phases[p].ms, "ms") for p in phases]
    return Comparison((*rows, Row("step time", plan.time.step_ms, measured.step_ms, "ms")), measured.reserved_bytes <= plan.peak.upper_bound_bytes)
