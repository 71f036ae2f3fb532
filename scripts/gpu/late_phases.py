#!/usr/bin/env python3
"""Measures on a GPU what `memplan analyze --phases` predicts: phases between steps, and steps of drawn lengths in one process.

    memplan analyze planner/testdata/levers/lm.onnx --batch 16 --dim seq=lengths.csv --gpu h200 --format json -o phases.json
    python3 scripts/gpu/late_phases.py phases.json [--device cpu]    # with torch 2.11, onnx and onnxscript

Each part runs in a process of its own, on the model of export/lever_samples.py with fp32 AdamW; it prints predicted and measured bytes and their
difference. With --device cpu everything runs and nothing is measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "export"))

from lever_samples import LM  # noqa: E402

WARM = 4  # steps before a phase, as planner.steps


class Run:
    """A training process: its model, optimizer and current batch."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model = LM().train().to(device)
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.ids: Any = None

    def batch(self, n: int, seq: int) -> torch.Tensor:
        if self.ids is None or self.ids.shape != (n, seq):
            self.ids = torch.randint(0, 4096, (n, seq), device=self.device)
        return self.ids

    def step(self, n: int, seq: int) -> None:
        ids = self.batch(n, seq)
        self.opt.zero_grad()
        scores = self.model(ids)
        target = torch.randint(0, 4096, (n * seq,), device=self.device)
        loss = F.cross_entropy(scores.view(-1, 4096), target)
        del scores
        loss.backward()
        self.opt.step()

    def evaluate(self, n: int, seq: int) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(self.batch(n, seq))
        self.model.train()

    def memory(self) -> tuple[int, int]:
        if self.device == "cpu":
            return 0, 0
        return torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()

    def reset(self) -> None:
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()


def moment(r: Run, name: str, n: int, seq: int) -> tuple[int, int]:
    """What a phase allocates, and what is reserved after it and the next step."""
    for _ in range({"first step": 0, "steady step": WARM - 1}.get(name, WARM)):
        r.step(n, seq)
    r.reset()
    after = 1
    if name in ("first step", "steady step"):
        r.step(n, seq)
        after = 0
    elif name == "evaluation":
        r.evaluate(n, seq)
        r.evaluate(n, seq)
    elif name == "state dict on the GPU":
        kept = copy.deepcopy(r.model.state_dict())
        del kept
    elif name.startswith("last batch of "):
        r.step(int(name.split()[-1]), seq)
        after = 2
    else:
        after = 0
    allocated = r.memory()[0]
    for _ in range(after):
        r.step(n, seq)
    return allocated, r.memory()[1]


def part(doc: dict[str, Any], name: str, device: str) -> list[int]:
    r, n = Run(device), doc["config"]["batch"]
    if name != "lengths":
        return list(moment(r, name, n, doc["config"]["dims"]["seq"]))
    out = []
    for word in doc["lengths"]["drawn"]:
        r.step(n, int(word.removeprefix("seq=")))
        out.append(r.memory()[1])
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("document")
    p.add_argument("--device", default="cuda")
    p.add_argument("--part", help="run one part and print its numbers")
    a = p.parse_args()
    doc = json.loads(Path(a.document).read_text())
    if a.part:
        print(json.dumps(part(doc, a.part, a.device)))
        return

    def run(name: str) -> list[int]:
        out = subprocess.run([sys.executable, __file__, a.document, "--device", a.device, "--part", name], capture_output=True, text=True, check=True).stdout
        return list(json.loads(out))

    def line(name: str, predicted: int, measured: int) -> None:
        share = f"{100 * (predicted / measured - 1):+7.2f}%" if measured else "-"
        print(f"{name:36} {predicted:14} {measured:14} {share}")

    print(f"{'part':36} {'predicted':>14} {'measured':>14}")
    for x in doc["moments"]:
        if not x["why"] and x["hostBytes"] == 0:
            allocated, reserved = run(x["name"])
            line(x["name"] + ", allocated", x["allocatedBytes"], allocated)
            line(x["name"] + ", reserved then", x["reservedBytes"], reserved)
    if doc["lengths"]:
        measured = run("lengths")
        for i in sorted({0, 1, 3, 9, 29, 99, len(measured) - 1}):
            if i < len(measured):
                line(f"lengths, reserved after step {i + 1}", doc["lengths"]["reserved"][i], measured[i])


if __name__ == "__main__":
    main()
