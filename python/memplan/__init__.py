"""memplan plans GPU memory for PyTorch training: which modules to checkpoint so that a step fits a card.

The command memplan, also as `python -m memplan`, makes plans; export() writes the file that it reads, checkpoint() applies plans to a model and
remove() takes them off. PyTorch is imported when one of these is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._checkpoint import MemplanError as MemplanError
    from ._checkpoint import checkpoint as checkpoint
    from ._checkpoint import remove as remove
    from ._export import Export as Export
    from ._export import export as export

__all__ = ["Export", "MemplanError", "__version__", "checkpoint", "export", "remove"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("memplan")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Export", "export"):
        from . import _export

        return getattr(_export, name)
    from . import _checkpoint

    return getattr(_checkpoint, name)


def __dir__() -> list[str]:
    return sorted(__all__)
