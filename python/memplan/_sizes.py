"""Free sizes of inputs: which there are, at which values to run, and all other sizes as expressions of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Sequence

import torch
from torch.utils._pytree import tree_map

from ._record import Id

Point = dict[str, int]


def found(named: Sequence[tuple[str, torch.Tensor]]) -> dict[str, dict[int, str]]:
    """The free axes of inputs: axis 0 of all inputs with equal size there is the batch, axis 1 of integer inputs the sequence."""
    heads = [t.shape[0] for _, t in named if t.dim() > 0]
    if not heads:
        return {}
    whole = [t for _, t in named if t.dim() == 2 and not t.is_floating_point()]
    batch = next((t.shape[0] for t in whole), max(set(heads), key=heads.count))
    lengths = [t.shape[1] for t in whole if t.shape[0] == batch and t.shape[1] > 2]
    seq = max(set(lengths), key=lengths.count) if lengths else None
    out: dict[str, dict[int, str]] = {}
    for name, t in named:
        axes: dict[int, str] = {}
        if t.dim() > 0 and t.shape[0] == batch:
            axes[0] = "batch"
            if seq is not None and t.dim() > 1 and t.shape[1] == seq and (t.dim() == 2 or not t.is_floating_point()):
                axes[1] = "seq"
                for i in range(2, t.dim()):
                    if t.shape[i] == seq:
                        axes[i] = "seq"
        if axes:
            out[name] = axes
    return out


def traced(named: Sequence[tuple[str, torch.Tensor]], axes: dict[str, dict[int, str]]) -> Point:
    """The sizes that the inputs have."""
    out: Point = {}
    for name, t in named:
        for axis, dim in axes.get(name, {}).items():
            if out.setdefault(dim, t.shape[axis]) != t.shape[axis]:
                raise ValueError(f"{dim} is {out[dim]} and, in {name}, {t.shape[axis]}")
    return out


def points(at: Point) -> list[Point]:
    """The sizes at which to run: enough to tell sums and products apart, and one to verify. Lengths do not grow: positions may end."""
    sizes = {d: [max(n, 2), max(n, 2) + 1, max(n, 2) + 3] if d == "batch" or n < 8 else [n, n // 2, 3 * n // 4] for d, n in at.items()}
    out = [{d: s[0] for d, s in sizes.items()}]
    for d in sizes:
        for i in (1, 2):
            out.append({e: s[i if e == d else 0] for e, s in sizes.items()})
    if len(sizes) > 1:
        out.append({d: s[1] for d, s in sizes.items()})
        out.append({d: s[2] for d, s in sizes.items()})
    return out if at else [{}]


def fewer(where: Sequence[Point]) -> list[Point]:
    """The sizes for another precision: the first point, and those where every varying size differs."""
    free = [d for d in where[0] if any(p[d] != where[0][d] for p in where)]
    return [where[0], *(p for p in where[1:] if free and all(p[d] != where[0][d] for d in free))][:3]


def resized(tree: Any, axes: dict[int, dict[int, str]], point: Point) -> Any:
    """The arguments at other sizes: tensors (by their ids) cut, or repeated."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or id(t) not in axes:
            return t
        out = t.detach()
        for axis, dim in axes[id(t)].items():
            n = point[dim]
            if n != out.shape[axis]:
                out = out.index_select(axis, torch.arange(n, device=out.device) % out.shape[axis])
        return out.requires_grad_(t.requires_grad) if out.is_floating_point() else out

    return tree_map(one, tree)


class Differs(Exception):
    """Two runs that differ in more than numbers, and where."""


def merged(docs: Sequence[Any], solver: Solver) -> Any:
    """One document for runs at the solver's sizes: numbers that change become expressions."""
    return _merge(docs, solver, "")


def _merge(docs: Sequence[Any], solver: Solver, at: str) -> Any:
    a = docs[0]
    if isinstance(a, (Id, bool, str, type(None))):
        if any(d != a or type(d) is not type(a) for d in docs):
            raise Differs(at)
        return a
    if isinstance(a, int):
        if any(not isinstance(d, int) or isinstance(d, bool) for d in docs):
            raise Differs(at)
        return solver.expression(tuple(docs), at)
    if isinstance(a, dict):
        if any(not isinstance(d, dict) or d.keys() != a.keys() for d in docs):
            raise Differs(at)
        return {k: _merge([d[k] for d in docs], solver, _at(at, a, k)) for k in a}
    if isinstance(a, list):
        if any(not isinstance(d, list) or len(d) != len(a) for d in docs):
            raise Differs(at)
        return [_merge([d[i] for d in docs], solver, at) for i in range(len(a))]
    return a  # floating-point numbers, such as a loss's scale, are those of the first run


def _at(at: str, a: dict[Any, Any], k: Any) -> str:
    return f"{a['op']} at {a['at']}" if "op" in a and "at" in a else at or str(k)


class Solver:
    """Finds expressions of sizes from a number's values at several points; those of an earlier solver with more points come first."""

    def __init__(self, where: Sequence[Point], other: Solver | None = None) -> None:
        self.where = where
        self.dims = list(where[0])
        self.known: dict[tuple[int, ...], str | None] = {}
        if other is not None and all(p in other.where for p in where):
            at = [other.where.index(p) for p in where]
            for values, e in other.known.items():
                self.known.setdefault(tuple(values[i] for i in at), e)
        one: tuple[str, ...] = ()
        d = self.dims
        pairs = [tuple(sorted((a, b))) for i, a in enumerate(d) for b in d[i + 1 :]]
        # Sums and products, the simplest first; each needs fewer terms than there are points, so that the others verify it.
        self.bases = [[(x,)] for x in d] + [[p] for p in pairs] + [[one, (x,)] for x in d]
        self.bases += [[(x,), p] for p in pairs for x in p] + [[one, *((x,) for x in d)], [one, *((x,) for x in d), *pairs]] + [[p, tuple(sorted((*p, x)))] for p in pairs for x in p]
        self.bases += [[one, (x,), (x, x)] for x in d] + [[tuple(sorted((*p, x)))] for p in pairs for x in p] + [[one, (x,), p, tuple(sorted((*p, x)))] for p in pairs for x in p]

    def expression(self, values: tuple[int, ...], at: str) -> Any:
        if all(v == values[0] for v in values):
            return values[0]
        if values not in self.known:
            self.known[values] = self.solve(values)
        if self.known[values] is None:
            raise Differs(f"{at}: {', '.join(map(str, values))}")
        return {"e": self.known[values]}

    def solve(self, values: tuple[int, ...]) -> str | None:
        for basis in self.bases:
            if len(basis) >= len(self.where):
                continue
            c = _solved([[_product(m, p) for m in basis] for p in self.where], values)
            if c is not None:
                return _text(basis, c)
        return self.rounded(values)

    def rounded(self, values: tuple[int, ...]) -> str | None:
        """(x + b) // c times a, as strides make of a length."""
        for x in self.dims:
            for c in (2, 4, 8, 16, 32, 64, 128, 256):
                for b in range(-c, c + 1):
                    q = [(p[x] + b) // c for p in self.where]
                    if q[0] and values[0] % q[0] == 0 and all(v == n * (values[0] // q[0]) for v, n in zip(values, q)):
                        a = values[0] // q[0]
                        return f"{a}*(({x}{b:+d})//{c})" if b else f"{a}*({x}//{c})"
        return None


def _product(monomial: Sequence[str], p: Point) -> int:
    n = 1
    for d in monomial:
        n *= p[d]
    return n


def _solved(rows: list[list[int]], values: Sequence[int]) -> list[Fraction] | None:
    """Coefficients that give all values, by elimination; None if there are none."""
    m = [[Fraction(x) for x in r] + [Fraction(v)] for r, v in zip(rows, values)]
    width, at = len(rows[0]), 0
    for col in range(width):
        pivot = next((r for r in range(at, len(m)) if m[r][col]), None)
        if pivot is None:
            return None
        m[at], m[pivot] = m[pivot], m[at]
        m[at] = [x / m[at][col] for x in m[at]]
        for r in range(len(m)):
            if r != at and m[r][col]:
                m[r] = [x - m[r][col] * y for x, y in zip(m[r], m[at])]
        at += 1
    if any(r[-1] for r in m[at:]):
        return None
    c = [m[i][-1] for i in range(width)]
    return c if all(x.denominator == 1 for x in c) else None


def _text(basis: Sequence[Sequence[str]], c: Sequence[Fraction]) -> str:
    terms = []
    for m, x in zip(basis, c):
        if x == 0:
            continue
        n = int(x)
        body = "*".join(m)
        terms.append(str(n) if not body else body if n == 1 else f"{n}*{body}")
    return "+".join(terms).replace("+-", "-")
