#!/usr/bin/env python3
"""Builds memplan's wheels: the package beside this script and the program, compiled by Go for each platform.

    python3 python/wheels.py [--out dist] [--platform linux/amd64 | all | this]

It is also the build backend of python/pyproject.toml, so that `pip install ./python` builds and installs a wheel of this platform. It
needs Python 3.11, Go and nothing else. The same sources, Go and zlib make the same bytes. The version is pyproject.toml's.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any, Iterator

HERE = Path(__file__).resolve().parent

# Go's platforms and the tags of their wheels. The program is static, so it runs with any C library: manylinux_2_17 and musllinux_1_1 are
# the oldest that installers know. Go 1.25 and newer need macOS 12 (their release notes, and LC_BUILD_VERSION of what they link).
PLATFORMS = {
    "linux/amd64": ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"),
    "linux/arm64": ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"),
    "darwin/amd64": ("macosx_12_0_x86_64",),
    "darwin/arm64": ("macosx_12_0_arm64",),
    "windows/amd64": ("win_amd64",),
    "windows/arm64": ("win_arm64",),
}
STAMP = (1980, 1, 1, 0, 0, 0)  # of every file: the oldest that zip knows


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    return tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def this_platform() -> str:
    """The platform that this script runs on, in Go's words."""
    machine = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower())
    system = {"linux": "linux", "darwin": "darwin", "win32": "windows"}.get(sys.platform)
    name = f"{system}/{machine}"
    if name not in PLATFORMS:
        raise SystemExit(f"there is no wheel for {platform.system()} on {platform.machine()}: want one of {', '.join(PLATFORMS)}")
    return name


def program(target: str) -> bytes:
    """The program for a platform: static, without paths and symbols of the machine that builds it."""
    system, machine = target.split("/")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "memplan"
        flags = f"-s -w -buildid= -X main.release={project()['version']}"
        env = {**os.environ, "GOOS": system, "GOARCH": machine, "CGO_ENABLED": "0"}
        subprocess.run(["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(out), "./cmd/memplan"], cwd=HERE.parent, env=env, check=True)
        return out.read_bytes()


def metadata() -> bytes:
    """METADATA, from pyproject.toml and README.md."""
    p, m = project(), Message()
    m["Metadata-Version"] = "2.1"
    m["Name"], m["Version"], m["Summary"] = p["name"], p["version"], p["description"]
    m["License"], m["Keywords"] = p["license"]["text"], ",".join(p["keywords"])
    for name, url in p["urls"].items():
        m["Project-URL"] = f"{name}, {url}"
    for c in p["classifiers"]:
        m["Classifier"] = c
    m["Requires-Python"] = p["requires-python"]
    for extra, needs in p["optional-dependencies"].items():
        m["Provides-Extra"] = extra
        for n in needs:
            m["Requires-Dist"] = f'{n} ; extra == "{extra}"'
    m["Description-Content-Type"] = "text/markdown"
    lines = "".join(f"{k}: {v}\n" for k, v in m.items())
    return (lines + "\n" + (HERE / p["readme"]).read_text(encoding="utf-8")).encode()


def contents(target: str, cuda: Path | None = None) -> Iterator[tuple[str, bytes, int]]:
    """The wheel's files but RECORD: path, content and mode."""
    p = project()
    info = f"{p['name']}-{p['version']}.dist-info"
    for f in sorted((HERE / "memplan").glob("*")):
        if f.suffix == ".py" or f.name == "py.typed":
            yield f"memplan/{f.name}", f.read_bytes(), 0o644
    yield "memplan/bin/memplan" + (".exe" if target.startswith("windows") else ""), program(target), 0o755
    if cuda and target == "linux/amd64":
        yield "memplan/bin/memplan-cuda", cuda.read_bytes(), 0o755
    yield f"{info}/METADATA", metadata(), 0o644
    tags = "".join(f"Tag: py3-none-{t}\n" for t in PLATFORMS[target])
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: memplan\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644
    scripts = "".join(f"{k} = {v}\n" for k, v in p["scripts"].items())
    yield f"{info}/entry_points.txt", f"[console_scripts]\n{scripts}".encode(), 0o644
    yield f"{info}/licenses/LICENSE", (HERE.parent / "LICENSE").read_bytes(), 0o644


def wheel_name(target: str) -> str:
    p = project()
    return f"{p['name']}-{p['version']}-py3-none-{'.'.join(PLATFORMS[target])}.whl"


def build(target: str, folder: Path, cuda: Path | None = None) -> Path:
    """Writes the wheel of a platform into a folder and returns its path; that of linux/amd64 has the build with CUDA, too, if there is one."""
    files = list(contents(target, cuda))
    record = f"{files[-1][0].split('/')[0]}/RECORD"
    lines = []
    for name, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files.append((record, ("".join(lines) + f"{record},,\n").encode(), 0o644))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel_name(target)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, STAMP)
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED  # 3: Unix, whose modes follow
            entry.external_attr = (0o100000 | mode) << 16
            z.writestr(entry, data)
    return path


# ---- what pip calls (PEP 517) ----


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return build(this_platform(), Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    raise SystemExit("memplan has wheels alone: the program is built from the whole repository, https://github.com/memplan/memplan")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("dist"), help="folder for the wheels")
    p.add_argument("--platform", default="all", choices=["all", "this", *PLATFORMS])
    p.add_argument("--cuda", type=Path, help="the program built with the tag cuda (scripts/release/release.py), for the wheel of linux/amd64")
    a = p.parse_args()
    for target in {"all": [*PLATFORMS], "this": [this_platform()]}.get(a.platform, [a.platform]):
        path = build(target, a.out, a.cuda)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
