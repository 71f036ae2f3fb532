"""Runs docs/tutorial.md: writes its files, runs its commands, compares what they print. UPDATE=1 writes what they print into the page.

Blocks `python NAME` are files, blocks `console` commands and their output, in which a line `...` stands for any lines. Blocks `sh`, and `python`
without a name, are not run: they install, or need a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import memplan
from memplan import _command
from test_fit import program_is_there

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
SHOWN = 14  # lines of an output that the page has at most


def matches(want: list[str], got: list[str]) -> bool:
    """Whether output is as the page has it; a line `...` stands for any lines."""
    if not want:
        return not got
    if want[0].strip() == "...":
        return any(matches(want[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and want[0].rstrip() == got[0].rstrip() and matches(want[1:], got[1:])


def shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[: SHOWN - 1], "..."]


class Tutorial(unittest.TestCase):
    @unittest.skipUnless(program_is_there(), "needs the program memplan, in the package or on the PATH")
    def test_page(self) -> None:
        sections = re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.M)
        with ThreadPoolExecutor() as pool:
            done = list(pool.map(self.section, sections))
        self.assertGreaterEqual(sum(ran for _, ran in done), 7)
        if os.environ.get("UPDATE"):
            PAGE.write_text("".join(text for text, _ in done), encoding="utf-8")

    def section(self, page: str) -> tuple[str, int]:
        """Runs a section in a folder of its own: its text with what the commands printed, and how many there were."""
        out, at, ran = [], 0, 0
        with tempfile.TemporaryDirectory() as folder:
            for block in BLOCK.finditer(page):
                kind, name, text = block.groups()
                if kind == "python" and name:
                    Path(folder, name).write_text(text, encoding="utf-8")
                if kind != "console":
                    continue
                new = ""
                for c in re.split(r"^\$ ", text, flags=re.M)[1:]:
                    line, _, want = c.partition("\n")
                    got = self.output(line, folder)
                    ran += 1
                    new += "\n".join([f"$ {line}", *shortened(got), ""])
                    if not os.environ.get("UPDATE") and not matches(want.splitlines(), got):
                        self.fail(f"$ {line}\nprinted\n" + "\n".join(got) + f"\nand docs/tutorial.md has\n{want}\nUPDATE=1 writes it there")
                out += [page[at : block.start(3)], new]
                at = block.end(3)
        return "".join(out) + page[at:], ran

    def output(self, line: str, folder: str) -> list[str]:
        """What a command prints; a command of memplan that has no result for stdout prints its answer to stderr."""
        words = line.split()
        self.assertIn(words[0], ("python", "memplan"))
        start = [sys.executable, "-W", "ignore"] if words[0] == "python" else [_command.path_of_program()]
        package = str(Path(memplan.__file__).resolve().parents[1])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])), "COLUMNS": "80", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
        done = subprocess.run([*start, *words[1:]], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=900)
        self.assertIn(done.returncode, (0, 1) if words[0] == "memplan" else (0,), f"$ {line}\n{done.stdout}\n{done.stderr}")
        said = done.stdout or (done.stderr if words[0] == "memplan" else "")
        return said.rstrip("\n").splitlines()


if __name__ == "__main__":
    unittest.main()
