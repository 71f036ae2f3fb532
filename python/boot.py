"""Begins a run in a Python process that has no memplan installed: reads a job with the package's sources from standard input.

It is the text of `python3 -c`, and stays short for that.
"""
import importlib.abc
import importlib.util
import json
import os
import sys

job = json.load(sys.stdin)
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the script prints is no answer


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        file = "/".join(["memplan", *name.split(".")[1:]] + ["__init__"] * (name == "memplan")) + ".py"
        if name.split(".")[0] == "memplan" and file in job["sources"]:
            return importlib.util.spec_from_loader(name, self, origin=file, is_package=name == "memplan")

    def get_source(self, name):
        return job["sources"][importlib.util.find_spec(name).origin]

    def is_package(self, name):
        return name == "memplan"


sys.meta_path.insert(0, Sources())
try:
    import torch
except ImportError as e:
    out = {"error": f"{sys.executable} has no PyTorch ({e}): name the interpreter that has it in MEMPLAN_PYTHON"}
else:
    from memplan._runner import run

    out = run(job)
json.dump(out, answer)
answer.flush()
os._exit(0)  # without what the script would do at its end
