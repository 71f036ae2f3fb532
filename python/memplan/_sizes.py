"""Free sizes of inputs: which there are, at which values to run, and all other sizes as expressions of them."""

from __future__ import annotations

import contextlib
import itertools
import math
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


def points(at: Point, round: bool = True) -> list[Point]:
    """Where to run: enough to tell sums and products of the sizes apart, and one to verify. Lengths do not grow: positions may end.

    round: at parts of a length; else at lengths that differ in what remains when they are divided, so that what pads them shows.
    """

    def lengths(n: int) -> list[int]:
        if n < 8:
            return [max(n, 2), max(n, 2) + 1, max(n, 2) + 3]
        if round:
            return [n, n // 2, 3 * n // 4]
        return [n, n // 2 + 2, 3 * n // 4 - n // 16, n // 4 + 3] if n >= 16 else [n, n // 2 + 1, n - 1]

    sizes = {d: [max(n, 2), max(n, 2) + 1, max(n, 2) + 3] if d == "batch" else lengths(n) for d, n in at.items()}
    out = [{d: s[0] for d, s in sizes.items()}]
    for d in sizes:
        for i in range(1, len(sizes[d])):
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

    done: dict[int, torch.Tensor] = {}

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or (id(t) not in axes and whole(t)):
            return t
        if id(t) not in done:
            done[id(t)] = _resized(t, axes.get(id(t), {}), point)
        return done[id(t)]

    return tree_map(one, tree)


def whole(t: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, each element once: not one that expand() or a slice made."""
    return t.layout != torch.strided or t.dim() == 0 or bool(torch.ops.aten.is_non_overlapping_and_dense(t))


def _resized(t: torch.Tensor, axes: dict[int, str], point: Point) -> torch.Tensor:
    """A tensor at other sizes, its dims in the same order in memory (channels last stay so); one that is not whole becomes it, as a batch of a loader is."""
    out = t.detach()
    for axis, dim in axes.items():
        n = point[dim]
        if n != out.shape[axis]:
            out = out.index_select(axis, torch.arange(n, device=out.device) % out.shape[axis])
    if out.shape != t.shape or not whole(t):
        order = sorted(range(t.dim()), key=lambda i: -t.stride(i)) if whole(t) else list(range(t.dim()))
        out = out.permute(order).contiguous().permute([order.index(i) for i in range(t.dim())])
    return out.requires_grad_(t.requires_grad) if out.is_floating_point() else out


class Differs(Exception):
    """Two runs that differ in more than numbers, and where."""


def merged(docs: Sequence[Any], solver: Solver) -> Any:
    """One document for runs at several sizes, those of the solver: numbers that change become expressions. Shapes come first: other numbers are products of theirs."""
    for t in docs[0].get("types", {}) if isinstance(docs[0], dict) else ():
        if all(t in d["types"] for d in docs):
            for each in zip(*(d["types"][t][1] for d in docs)):
                with contextlib.suppress(Differs):
                    solver.expression(each, t)
    for values in [v for v, e in solver.known.items() if e is None]:
        del solver.known[values]  # perhaps a product of lengths that came later
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
        self.lengths: dict[tuple[int, ...], str] = {}  # rounded ones that were found, by their values
        if other is not None and all(p in other.where for p in where):
            at = [other.where.index(p) for p in where]
            for values, e in other.lengths.items():
                self.lengths.setdefault(tuple(values[i] for i in at), e)
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
        """a*((x+b)//c), as strides make of a length; what padding adds up to a multiple; and products of such lengths with each other and with sizes."""
        for x in (d for d in self.dims if d != "batch"):  # samples are not rounded: numbers that look so are those of an example's values
            if (found := self._strided(x, values)) is not None:
                return found
            total = tuple(v + p[x] for v, p in zip(values, self.where))
            if (found := self._strided(x, total)) is not None:
                return f"{found}-{x}"
        return self._of_lengths(values)

    def _strided(self, x: str, values: tuple[int, ...]) -> str | None:
        for c in _STRIDES:
            for b in (0, c - 1, *range(-c, c + 1)):
                q = [(p[x] + b) // c for p in self.where]
                if len(set(q)) > 1 and q[0] and values[0] % q[0] == 0 and all(v == n * (values[0] // q[0]) for v, n in zip(values, q)):
                    one = f"(({x}{b:+d})//{c})" if b else f"({x}//{c})"
                    self.lengths.setdefault(tuple(q), one)
                    return _times(values[0] // q[0], one)
        return None

    def _of_lengths(self, values: tuple[int, ...]) -> str | None:
        """a times up to four factors, rounded lengths and sizes, and a few more or fewer, such as a class's token or what a kernel takes off."""
        sizes = {tuple(p[d] for p in self.where): d for d in self.dims}
        factors = [*self.lengths.items(), *sizes.items()]
        for n in (1, 2, 3, 4):
            for some in itertools.combinations_with_replacement(factors, n):
                q = [math.prod(f[0][i] for f in some) for i in range(len(self.where))]
                other = next((i for i, v in enumerate(q) if v != q[0]), None)
                if other is None or (values[other] - values[0]) % (q[other] - q[0]):
                    continue
                a = (values[other] - values[0]) // (q[other] - q[0])
                rest = values[0] - a * q[0]
                if a > 0 and abs(rest) <= 4 and all(v == a * m + rest for v, m in zip(values, q)):
                    text = _times(a, "*".join(f[1] for f in some)) + (f"{rest:+d}" if rest else "")
                    if n == 1:
                        self.lengths.setdefault(values, f"({text})")
                    return text
        return None


# Products of strides, and sides of patches and windows.
_STRIDES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 3, 5, 6, 7, 10, 12, 14, 20, 24, 28, 49, 56, 160, 320)


def _times(a: int, text: str) -> str:
    return text if a == 1 else f"{a}*{text}"


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
