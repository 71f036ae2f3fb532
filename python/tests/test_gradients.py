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


if __name__ == "__main__":
    unittest.main()
