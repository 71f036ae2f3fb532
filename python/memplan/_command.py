"""Runs the program memplan for the Python functions: settings become flags, answers become documents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from typing import Any, Mapping, Sequence

from .__main__ import program
from ._error import MemplanError


def path_of_program() -> str:
    """The program of this installation, or the one on the PATH if the package runs from its sources."""
    own = program()
    found = own if os.path.exists(own) else shutil.which("memplan")
    if not found:
        raise MemplanError(f"{own} is missing, and there is no memplan on the PATH: install a wheel, as python/wheels.py builds it")
    return found


def flags(settings: Mapping[str, Any]) -> list[str]:
    """The command line of settings, which have the names of memplan's flags with underscores; None omits a flag.

    A list repeats its flag, a mapping gives it once for each NAME=VALUE, True gives it alone.
    """
    out: list[str] = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            out += [f"{flag}={str(value).lower()}"]
        elif isinstance(value, Mapping):
            out += [f"{flag}={k}={v}" for k, v in value.items()]
        elif isinstance(value, (list, tuple)):
            out += [f"{flag}={v}" for v in value]
        elif value is not None:
            out += [f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
    return out


def ask(command: str, args: Sequence[str]) -> dict[str, Any]:
    """The JSON document that a command writes. Raises MemplanError with the program's message if it has no answer (exit 2)."""
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        out = os.path.join(folder, "answer.json")
        done = subprocess.run([path_of_program(), command, *args, "-o", out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
        if done.returncode not in (0, 1) or not os.path.exists(out):
            said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
            raise MemplanError("\n".join(said).removeprefix("memplan: ") or f"memplan {command} ended with exit code {done.returncode} and said nothing")
        with open(out, encoding="utf-8") as f:
            document: dict[str, Any] = json.load(f)
        return document
