"""The command memplan: runs the program in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys


def program() -> str:
    """The path of the program in this installation."""
    name = "memplan.exe" if sys.platform == "win32" else "memplan"
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def main() -> int:
    """Runs the program with this process's arguments and exits with its code."""
    path = program()
    if not os.path.exists(path):
        sys.stderr.write(f"memplan: {path} is missing: install a wheel, as python/wheels.py builds it, not the sources\n")
        return 2
    args = [path, *sys.argv[1:]]
    if sys.platform != "win32":
        os.execv(path, args)
    try:
        return subprocess.call(args)
    except KeyboardInterrupt:  # the program has had it, too
        return 2


if __name__ == "__main__":
    sys.exit(main())
