#!/usr/bin/env python3
"""Makes libraries that stand in for CUDA's, so that PyTorch's wheel loads without the gigabytes of them that it asks for.

    python3 scripts/ci/cuda_stubs.py SITE-PACKAGES/torch

Every function that PyTorch's libraries want of CUDA's returns 100, cudaErrorNoDevice: PyTorch runs on the processor, as on any machine
without a GPU. Needs gcc and binutils. The stubs are put into torch/lib, where PyTorch's libraries look first.
"""

import collections
import pathlib
import re
import subprocess
import sys

OURS = re.compile(r"lib(cu|nccl|nvshmem|nvrtc|nvToolsExt)[A-Za-z0-9_]*\.so")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def stub(name):
    """The C of a function. Texts of errors are texts; a stream that is not there captures nothing, as transformers asks."""
    if re.search(r"Get(Last)?Error(String|Name)|GetStatus(String|Name)", name):
        return f'const char *{name}(void) {{ return "no GPU: a stub of CUDA"; }}\n'
    if name.startswith("cudaStreamIsCapturing"):
        return f"int {name}(void *stream, int *status) {{ *status = 0; return 0; }}\n"
    return f"int {name}(void) {{ return 100; }}\n"


def main():
    lib = pathlib.Path(sys.argv[1]) / "lib"
    wanted, versioned = set(), collections.defaultdict(lambda: collections.defaultdict(set))
    loose, made = set(), set()
    for path in sorted(p for p in lib.glob("*.so*") if not OURS.match(p.name)):
        wanted |= {n for n in re.findall(r"Shared library: \[(.*)\]", output("readelf", "-dW", path)) if OURS.match(n)}
        origin, file = {}, None  # the library that each version is of
        for line in output("readelf", "-VW", path).splitlines():
            if m := re.search(r"File: (\S+)", line):
                file = m[1]
            elif (m := re.search(r"Name: (\S+)\s+Flags:", line)) and file:
                origin[m[1]] = file
        for line in output("nm", "-D", path).splitlines():
            kind, name = line.split()[-2:]
            name, _, version = name.partition("@")
            version = version.lstrip("@")
            if kind not in "Uw":
                made.add(name)
            elif OURS.match(origin.get(version, "")):
                versioned[origin[version]][version].add(name)
            elif not version and kind == "U":
                loose.add(name)
    # What has no version and is in none of PyTorch's libraries is looked for everywhere: one stub has it all.
    loose = {n for n in loose - made if re.match(r"(cu|nccl|nvshmem|nvrtc|nvtx|CUPTI|__cuda|_cu)", n, re.I)}
    for name in sorted(wanted):
        symbols = versioned[name]
        everything = set().union(*symbols.values()) | (loose if name == min(wanted) else set())
        code = "".join(stub(s) for s in sorted(everything))
        script = "".join(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in sorted(symbols.items()))
        (lib / "stub.map").write_text(script)
        flags = [f"-Wl,--version-script={lib / 'stub.map'}"] if script else []
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-O1", "-fno-builtin", "-x", "c", "-", f"-Wl,-soname,{name}", *flags, "-o", lib / name], input=code, text=True, check=True)
    (lib / "stub.map").unlink()
    print(f"{len(wanted)} libraries, {sum(len(s) for v in versioned.values() for s in v.values()) + len(loose)} functions")


if __name__ == "__main__":
    main()
