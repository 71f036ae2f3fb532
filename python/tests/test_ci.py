"""Runs what docs/ci.md says of how ONNX files reach CI, as written: its files, its commands, and the job's steps.

Blocks `python NAME` are files, blocks `console` commands and their output, in which a line `...` stands for any lines; of the job's
steps those that install are left out. whole.onnx, of another exporter, is made here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import memplan
import torch
from memplan import _command
from test_fit import program_is_there
from test_tutorial import BLOCK, matches

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ci.md"
SECTION = "## How ONNX files reach CI"
STEP = re.compile(r"^- run: (.*)$", re.M)


@unittest.skipUnless(program_is_there(), "needs the program memplan, in the package or on the PATH")
class Recipes(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        page = PAGE.read_text(encoding="utf-8")
        self.section = page[page.index(SECTION) :].split("\n## ")[0]
        (self.folder / ".memplan.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)[0], encoding="utf-8")
        for kind, name, text in BLOCK.findall(self.section):
            if kind == "python":
                self.assertTrue(name, "a block of Python without a name")
                (self.folder / name).write_text(text, encoding="utf-8")

    def run_line(self, line: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(line)
        start = {"python": [sys.executable, "-W", "ignore"], "memplan": [_command.path_of_program()]}.get(words[0], [words[0]])
        path = [str(Path(memplan.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        who = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env = {**os.environ, **who, "PYTHONPATH": os.pathsep.join(filter(None, path)), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
        return subprocess.run([*start, *words[1:]], cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=600)

    def must(self, line: str) -> list[str]:
        done = self.run_line(line)
        self.assertEqual(done.returncode, 0, f"$ {line}\n{done.stdout}\n{done.stderr}")
        return done.stdout.splitlines()

    def test_committed(self) -> None:
        self.must("git init -q .")
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Flatten(), torch.nn.Linear(28800, 10))
        whole = self.folder / "whole.onnx"
        torch.onnx.export(net, (torch.randn(2, 3, 32, 32),), whole, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}}, training=torch.onnx.TrainingMode.TRAINING)
        ran = 0
        for kind, _, text in BLOCK.findall(self.section):
            for c in re.split(r"^\$ ", text, flags=re.M)[1:] if kind == "console" else []:
                line, _, want = c.partition("\n")
                got = self.must(line)
                self.assertTrue(matches(want.splitlines(), got), f"$ {line}\nprinted\n" + "\n".join(got))
                ran += 1
        self.assertEqual(ran, 9)
        committed = self.must("git ls-files")
        self.assertEqual(committed, [".memplan-baseline.json", ".memplan.yaml", "exports/net.onnx"])
        for name in ("exports/net.onnx", "exports/stripped.onnx"):
            self.assertLess((self.folder / name).stat().st_size, 400_000, name)
        self.assertGreater(whole.stat().st_size, 1_000_000)
        # Stripped, it is the model that it was.
        both = [json.loads("".join(self.must(f"memplan analyze {name} --batch 64 --gpu t4 --format json"))) for name in ("whole.onnx", "exports/stripped.onnx")]
        for key in ("peak", "phases", "breakdown", "live", "warnings"):
            self.assertEqual(both[0][key], both[1][key], key)
        self.grows("committed")

    def test_no_folder(self) -> None:
        (self.folder / "exports").mkdir()
        text = (self.folder / "memory.py").read_text(encoding="utf-8").replace("exports/net.onnx", "nowhere/net.onnx")
        (self.folder / "memory.py").write_text(text, encoding="utf-8")
        done = self.run_line("python memory.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nowhere/net.onnx: there is no folder nowhere: make it, or name another", done.stderr)

    def grows(self, what: str) -> None:
        """The check that passed fails once the model takes more."""
        script = self.folder / "memory.py"
        script.write_text(script.read_text(encoding="utf-8").replace("nn.Flatten()", "nn.Conv2d(32, 32, 1), nn.Flatten()"), encoding="utf-8")
        self.must("python memory.py")
        done = self.run_line("memplan check")
        self.assertEqual(done.returncode, 1, what + done.stdout + done.stderr)
        self.assertIn("max-increase", done.stdout)

    def test_exported_in_the_job(self) -> None:
        steps = STEP.findall(self.section)
        self.assertEqual(len(steps), 3)
        self.must("python memory.py")
        self.must("memplan baseline")
        (self.folder / "exports" / "net.onnx").unlink()
        for line in (one for step in steps for one in step.split(" && ")):
            if not line.startswith("pip install "):
                self.must(line)
        self.grows("exported")


if __name__ == "__main__":
    unittest.main()
