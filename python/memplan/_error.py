"""The error of this package. Needs no PyTorch."""

from __future__ import annotations


class MemplanError(RuntimeError):
    """A model, a plan or a setting that cannot be used; the message says why and what to do."""
