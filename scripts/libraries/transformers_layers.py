#!/usr/bin/env python3
"""The classes that transformers' gradient checkpointing counts and runs again: section layers of graph/python/libraries.txt.

    python3 scripts/libraries/transformers_layers.py    # with transformers installed

They are the subclasses of GradientCheckpointingLayer (transformers/modeling_utils.py, _set_gradient_checkpointing). The sources are read, no
model is imported.
"""

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

import section

ROOT = "GradientCheckpointingLayer"


def main() -> None:
    spec = importlib.util.find_spec("transformers")
    bases: dict[tuple[str, str], list[str]] = {}  # of each class, by file and name
    for f in Path(spec.submodule_search_locations[0]).glob("models/*/modeling_*.py"):
        for n in ast.parse(f.read_text(encoding="utf-8")).body:
            if isinstance(n, ast.ClassDef):
                bases[f.stem, n.name] = [b.id for b in n.bases if isinstance(b, ast.Name)]
    layers: set[tuple[str, str]] = set()
    while more := {k for k, b in bases.items() if k not in layers and any(x == ROOT or (k[0], x) in layers for x in b)}:
        layers |= more
    names = {name for _, name in layers}
    if both := {name for f, name in bases if name in names and (f, name) not in layers}:
        raise SystemExit(f"classes of one name, of which some are layers: {both}")
    section.write("layers", sorted(names))
    print("transformers", importlib.metadata.version("transformers"))


if __name__ == "__main__":
    main()
