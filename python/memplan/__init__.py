"""memplan plans GPU memory for PyTorch training: which modules to checkpoint so that a step fits a card.

The command memplan, also as `python -m memplan`, makes plans. Here: fit() makes a model fit a card in one call; export() writes the file that the
command reads; estimate() and plan() answer as the commands do, with objects; checkpoint() applies a plan to a model and remove() takes it
off; parallelize() spreads a model over several GPUs as a plan says; measure() runs steps on the GPU and compare() holds a plan against what they took. PyTorch is imported when one that needs it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._checkpoint import checkpoint as checkpoint
    from ._checkpoint import remove as remove
    from ._compare import Comparison as Comparison
    from ._compare import compare as compare
    from ._error import MemplanError as MemplanError
    from ._estimate import Estimate as Estimate
    from ._estimate import Plan as Plan
    from ._estimate import estimate as estimate
    from ._estimate import plan as plan
    from ._export import Export as Export
    from ._export import export as export
    from ._fit import DoesNotFit as DoesNotFit
    from ._fit import Fit as Fit
    from ._fit import fit as fit
    from ._measure import Measurement as Measurement
    from ._measure import measure as measure
    from ._parallel import parallelize as parallelize
    from ._parallel import sequences as sequences
    from ._pipeline import Pipeline as Pipeline

_FROM = {
    "MemplanError": "_error",
    "checkpoint": "_checkpoint",
    "remove": "_checkpoint",
    "Comparison": "_compare",
    "compare": "_compare",
    "Estimate": "_estimate",
    "Plan": "_estimate",
    "estimate": "_estimate",
    "plan": "_estimate",
    "Export": "_export",
    "export": "_export",
    "DoesNotFit": "_fit",
    "Fit": "_fit",
    "fit": "_fit",
    "Measurement": "_measure",
    "measure": "_measure",
    "parallelize": "_parallel",
    "Pipeline": "_pipeline",
    "sequences": "_parallel",
}

__all__ = ["Comparison", "DoesNotFit", "Estimate", "Export", "Fit", "Measurement", "MemplanError", "Pipeline", "Plan", "__version__", "checkpoint", "compare", "estimate", "export", "fit", "measure", "parallelize", "plan", "remove", "sequences"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("memplan")
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FROM[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
