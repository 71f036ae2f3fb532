"""Gradients, results and buffers of models with checkpoints are, to the bit, those of the models without."""

from __future__ import annotations

import copy
import os
import random
import sys
import time
import unittest
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import memplan
from memplan import _checkpoint as applied
from zoo import MODELS

SEEDS = int(os.environ.get("SEEDS", "2"))  # sets of regions for each model
ONLY = os.environ.get("MODEL", "")  # part of the names of the models to try
REFUSED = ("writes to", "written to", "modified by an inplace operation")  # how regions that cannot run again are refused


def step(model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """What one training step computes: results, gradients, buffers, and the random numbers after it."""
    args, kwargs = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, inputs)
    torch.manual_seed(7)
    random.seed(7)
    model.zero_grad()
    out = [x for x in tree_leaves(model(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    after = torch.rand(3)
    sum(x.float().square().mean() for x in out if x.grad_fn is not None).backward()
    return [*(x.detach() for x in out), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers()), after]


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y is None or x is not None and y is not None and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)) for x, y in zip(a, b))


def build(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    return make().train(), inputs()


def runs(m: nn.Module) -> bool:
    """Whether a module computes something itself."""
    return type(m).forward is not nn.Module.forward


def random_regions(model: nn.Module, rng: random.Random) -> list[dict[str, list[str]]]:
    """Regions from the module tree: runs of siblings, in the tree's order, and regions in them."""
    out: list[dict[str, list[str]]] = []

    def within(prefix: str, m: nn.Module) -> None:
        names = [(f"{prefix}.{n}".lstrip("."), c) for n, c in m.named_children()]
        i = 0
        while i < len(names):
            run = names[i : i + rng.choice([1, 1, 1, 2, 3, 5])]
            i += len(run)
            if rng.random() < 0.5 and all(runs(c) for _, c in run):
                out.append({"modules": [n for n, _ in run]})
            for n, c in run:
                if rng.random() < 0.6:
                    within(n, c)

    within("", model)
    return out


def random_hosts(model: nn.Module, rng: random.Random) -> list[dict[str, Any]]:
    """Modules side by side that are offloaded, keep what they save, or run again."""
    out: list[dict[str, Any]] = []

    def within(prefix: str, m: nn.Module) -> None:
        for n, c in m.named_children():
            name = f"{prefix}.{n}".lstrip(".")
            if runs(c) and rng.random() < 0.5:
                out.append({"modules": [name], **rng.choice([{"offload": True}, {"offload": True}, {"offload": True, "keep": True}, {}])})
            else:
                within(name, c)

    within("", model)
    return out


def named(region: dict[str, list[str]], message: str) -> bool:
    names = region["modules"]
    return message.startswith(f"checkpointed {names[0]}" + (f" to {names[-1]}:" if len(names) > 1 else ":"))


class Gradients(unittest.TestCase):
    def test_random_regions(self) -> None:
        """Any regions of the module tree: the same to the bit, or refused."""
        warnings.simplefilter("ignore")
        self.assertGreaterEqual(len(MODELS), 4)
        applied = refused = 0
        for name in [n for n in MODELS if ONLY in n]:
            start = time.process_time()
            model, inputs = build(name)
            want = step(copy.deepcopy(model), inputs)
            self.assertTrue(equal(want, step(copy.deepcopy(model), inputs)), f"{name} does not repeat itself")
            for seed in range(SEEDS):
                regions = random_regions(model, random.Random(f"{name} {seed}"))
                while True:
                    m = memplan.checkpoint(copy.deepcopy(model), {"checkpoint": regions})
                    try:
                        got = step(m, inputs)
                        break
                    except (memplan.MemplanError, RuntimeError) as e:
                        self.assertTrue(any(r in str(e) for r in REFUSED), f"{name} {regions}: {e}")
                        refused += 1
                        left = [r for r in regions if not named(r, str(e))]
                        regions = left if len(left) < len(regions) else regions[1::2]
                self.assertTrue(equal(want, got), f"{name} {seed}: {regions}")
                applied += len(regions)
            print(f"{name}: {time.process_time() - start:.1f} s", file=sys.stderr, flush=True)
        self.assertGreater(applied, refused)
        print(f"{len(MODELS)} models, {applied} regions gave the same gradients, {refused} were refused")

    def test_offloaded(self) -> None:
        """Offloaded modules, whatever they save: the same to the bit, and their buffers are used again."""
        warnings.simplefilter("ignore")
        least, applied._LEAST = applied._LEAST, 1
        self.addCleanup(setattr, applied, "_LEAST", least)
        sent = 0
        for name in [n for n in MODELS if ONLY in n]:
            model, inputs = build(name)
            want = step(copy.deepcopy(model), inputs)
            for seed in range(SEEDS):
                regions = random_hosts(model, random.Random(f"{name} {seed}"))
                m = memplan.checkpoint(copy.deepcopy(model), {"checkpoint": regions})
                hosts = {p.host for x in m.modules() if isinstance(p := x.__dict__.get("forward"), applied._Offloaded)}
                try:
                    got = step(m, inputs)
                except (memplan.MemplanError, RuntimeError) as e:
                    self.assertTrue(any(r in str(e) for r in REFUSED), f"{name} {regions}: {e}")
                    continue
                self.assertTrue(equal(want, got), f"{name} {seed}: {regions}")
                for host in hosts:
                    held = [c.bytes for c in host.now.copies.values()] if host.now is not None else []
                    host.now = None
                    self.assertGreaterEqual(sum(n * len(b) for (_, n), b in host.free.items()), sum(held), f"{name}: buffers that nothing holds are not free")
                    sent += len(held)
                memplan.remove(m)
                self.assertFalse([x for x in m.modules() if isinstance(x.__dict__.get("forward"), applied._Offloaded)] or m._forward_hooks or m._forward_pre_hooks)
        self.assertGreater(sent, 4 * len(MODELS))
        print(f"{sent} storages went to the host and back")

    def test_offload_again(self) -> None:
        """A graph that backward goes through twice, a result that is never used, evaluation, copies of the model."""
        least, applied._LEAST = applied._LEAST, 1
        self.addCleanup(setattr, applied, "_LEAST", least)
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)])
        x = torch.randn(5, 8)
        y = model(x).square().sum()
        want = [a + b for a, b in zip(torch.autograd.grad(y, list(model.parameters()), retain_graph=True), torch.autograd.grad(y, list(model.parameters())))]
        m = memplan.checkpoint(copy.deepcopy(model), {"checkpoint": [{"modules": [str(i)], "offload": True, "keep": i == 3} for i in range(4)]})
        for n in (m, copy.deepcopy(m)):
            y = n(x).square().sum()
            y.backward(retain_graph=True)
            y.backward()
            self.assertTrue(all(torch.equal(p.grad, g) for p, g in zip(n.parameters(), want)))  # type: ignore[arg-type]
            n(x)  # never used
            with torch.no_grad():
                self.assertTrue(torch.equal(n.eval()(x), model(x)))
            n.zero_grad()
        first, last = m(x), m(2 * x)  # two passes before their backward
        (first.sum() + last.sum()).backward()
        model.zero_grad()
        (model(x).sum() + model(2 * x).sum()).backward()
        for p, q in zip(m.parameters(), model.parameters()):
            assert p.grad is not None and q.grad is not None
            torch.testing.assert_close(p.grad, q.grad)

    def test_offload_written(self) -> None:
        """What is written to after it was saved is refused, as without hooks."""
        least, applied._LEAST = applied._LEAST, 1
        self.addCleanup(setattr, applied, "_LEAST", least)

        class Writes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Sigmoid(), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.a(self.b(x))
                return self.b(y.mul_(2)) if y is not None else y

        m = memplan.checkpoint(Writes(), {"checkpoint": [{"modules": ["a"], "offload": True}]})
        with self.assertRaisesRegex(memplan.MemplanError, "written to after"):
            m(torch.randn(2, 4)).sum().backward()


if __name__ == "__main__":
    unittest.main()
