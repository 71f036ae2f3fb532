#!/usr/bin/env python3
"""Builds a release: all files that its page offers, and the manifests of package managers.

    python3 scripts/release/release.py --out dist [--version 1.2.3] [--platform linux/amd64 ...] [--no-cuda]

dist then has, for each platform, an archive with the program, manual pages and completions; for Linux a .deb and an image for
docker load, too; memplan.rb (Homebrew cask), winget/ (three manifests), memplan.spdx.json (SBOM) and checksums.txt. Those of
linux/amd64 have memplan-cuda beside memplan, compiled with cgo: that needs gcc, and the CUDA headers and driver stub that
CGO_CFLAGS and CGO_LDFLAGS name (`bash .ci/run release` fetches them).

The same sources, Go, gcc and zlib make the same bytes: times are those of the last commit, and nothing is signed. Needs Python 3.11, Go and
git. The version is python/pyproject.toml's unless --version says otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from wheels import PLATFORMS, project, this_platform  # noqa: E402

HOME = "https://github.com/memplan/memplan"
CUDA = "linux/amd64"  # the platform that has a build with CUDA
SHELLS = {"bash": "memplan.bash", "zsh": "_memplan", "fish": "memplan.fish", "powershell": "memplan.ps1"}
DEB_COMPLETIONS = {"bash": "usr/share/bash-completion/completions/memplan", "zsh": "usr/share/zsh/vendor-completions/_memplan", "fish": "usr/share/fish/vendor_completions.d/memplan.fish"}

Files = dict[str, tuple[bytes, int]]  # path in a package to content and mode


def output(*command: str, **kwargs: object) -> bytes:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, **kwargs).stdout  # type: ignore[call-overload,no-any-return]


def stamp() -> int:
    """When the last commit was made, in seconds: the time of every file in a release."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))


def compiled(target: str, version: str, out: Path, cuda: bool = False) -> bytes:
    """Compiles the program for a platform: static, or with CUDA linked with libc and the driver alone."""
    system, machine = target.split("/")
    name = "memplan-cuda" if cuda else "memplan.exe" if system == "windows" else "memplan"
    path = out / name
    flags = f"-s -w -buildid= -X main.release={version}" + (" -extldflags=-Wl,--build-id=none" if cuda else "")
    env = {**os.environ, "GOOS": system, "GOARCH": machine, "CGO_ENABLED": "1" if cuda else "0"}
    tags = ["-tags", "cuda"] if cuda else []
    path.parent.mkdir(parents=True, exist_ok=True)
    output("go", "build", "-trimpath", "-buildvcs=false", *tags, "-ldflags", flags, "-o", str(path), "./cmd/memplan", env=env)
    return path.read_bytes()


# ---- containers of files, in one order, with one time, owner and mode ----


def tarred(files: Files, when: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as t:
        folders = sorted({str(p) for name in files for p in Path(name).parents if str(p) != "."})
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, when
            t.addfile(entry)
        for name, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, when
            t.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def zipped(files: Files, when: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as z:
        for name, (data, mode) in sorted(files.items()):
            entry = zipfile.ZipInfo(name, datetime.fromtimestamp(when, timezone.utc).timetuple()[:6])
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED  # 3: Unix, whose modes follow
            entry.external_attr = (0o100000 | mode) << 16
            z.writestr(entry, data)
    return buffer.getvalue()


def deb(files: Files, machine: str, version: str, when: int) -> bytes:
    """A package of Debian: an ar archive of two tar archives (deb(5))."""
    size = sum(len(data) for data, _ in files.values()) // 1024
    control = (
        f"Package: memplan\nVersion: {version}\nArchitecture: {machine}\nMaintainer: memplan <memplan@users.noreply.github.com>\n"
        f"Installed-Size: {size}\nSection: science\nPriority: optional\nHomepage: {HOME}\nDescription: {project()['description']}\n"
    )
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": gzipped(tarred({"control": (control.encode(), 0o644)}, when)),
        "data.tar.gz": gzipped(tarred(files, when)),
    }
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{when:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def image(files: Files, machine: str, version: str, when: int) -> bytes:
    """A container image that docker load, podman load and skopeo read: one layer, the programs and the licence."""
    layer = tarred(files, when)
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "created": datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "config": {"Entrypoint": ["/usr/bin/memplan"], "WorkingDir": "/work", "Labels": {"org.opencontainers.image.source": HOME, "org.opencontainers.image.version": version}},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(layer)]},
        },
        sort_keys=True,
    ).encode()
    manifest = [{"Config": digest(config) + ".json", "RepoTags": [f"memplan:{version}"], "Layers": [digest(layer) + ".tar"]}]
    return gzipped(tarred({digest(config) + ".json": (config, 0o644), digest(layer) + ".tar": (layer, 0o644), "manifest.json": (json.dumps(manifest).encode(), 0o644)}, when))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- what stands beside the programs ----


def pages(program: Path) -> Files:
    """Manual pages of all commands, as the program writes them."""
    main = output(str(program), "man")
    names = [w.split("(")[0].replace("\\-", "-") for w in main.decode().rsplit(".SH SEE ALSO\n", 1)[1].strip().split(", ")]
    out = {"memplan.1": (main, 0o644)}
    for name in names:
        out[f"{name}.1"] = (output(str(program), "man", name.removeprefix("memplan-")), 0o644)
    return out


def completions(program: Path) -> dict[str, bytes]:
    return {shell: output(str(program), "completion", shell) for shell in SHELLS}


def archive(name: str, programs: Files, man: Files, shells: dict[str, bytes]) -> Files:
    out = {f"{name}/{path}": entry for path, entry in programs.items()}
    for doc in ("LICENSE", "README.md", "CHANGELOG.md"):
        out[f"{name}/{doc}"] = ((ROOT / doc).read_bytes(), 0o644)
    out |= {f"{name}/man/{page}": entry for page, entry in man.items()}
    return out | {f"{name}/completions/{SHELLS[shell]}": (data, 0o644) for shell, data in shells.items()}


def installed(programs: Files, man: Files, shells: dict[str, bytes]) -> Files:
    """Where a package of Linux puts the files: the build with CUDA is not on PATH."""
    out: Files = {}
    for path, entry in programs.items():
        out[("usr/lib/memplan/" if path == "memplan-cuda" else "usr/bin/") + path] = entry
    out["usr/share/doc/memplan/copyright"] = ((ROOT / "LICENSE").read_bytes(), 0o644)
    out |= {f"usr/share/man/man1/{page}.gz": (gzipped(data), mode) for page, (data, mode) in man.items()}
    return out | {path: (shells[shell], 0o644) for shell, path in DEB_COMPLETIONS.items()}


def modules(programs: list[Path]) -> list[tuple[str, str, str]]:
    """Path, version and checksum of all modules that are linked into programs, as the programs tell."""
    found = set()
    for p in programs:
        for line in output("go", "version", "-m", str(p)).decode().splitlines():
            kind, *rest = line.split()
            if kind == "dep":
                found.add((rest[0], rest[1], rest[2] if len(rest) > 2 else ""))
    return sorted(found)


def sbom(version: str, programs: list[Path], when: int) -> bytes:
    """The modules in the programs as an SPDX 2.3 document, with Go's checksums of them."""
    go = output("go", "env", "GOVERSION").decode().strip()
    packages = [{"SPDXID": "SPDXRef-memplan", "name": "memplan", "versionInfo": version, "downloadLocation": HOME, "licenseConcluded": "MIT", "licenseDeclared": "MIT", "copyrightText": "NOASSERTION", "filesAnalyzed": False}]
    packages.append({"SPDXID": "SPDXRef-go", "name": "stdlib", "versionInfo": go.removeprefix("go"), "downloadLocation": "https://go.dev", "licenseConcluded": "BSD-3-Clause", "licenseDeclared": "BSD-3-Clause", "copyrightText": "NOASSERTION", "filesAnalyzed": False})
    for i, (path, v, checksum) in enumerate(modules(programs)):
        packages.append({"SPDXID": f"SPDXRef-module-{i}", "name": path, "versionInfo": v, "downloadLocation": f"https://proxy.golang.org/{path}/@v/{v}.zip", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False, "comment": checksum, "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:golang/{path}@{v}"}]})
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"memplan-{version}",
        "documentNamespace": f"{HOME}/releases/download/v{version}/memplan.spdx.json",
        "creationInfo": {"created": datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: scripts/release/release.py"]},
        "packages": packages,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-memplan"}]
        + [{"spdxElementId": "SPDXRef-memplan", "relationshipType": "CONTAINS", "relatedSpdxElement": p["SPDXID"]} for p in packages[1:]],
    }  # fmt: skip
    return (json.dumps(document, indent=1) + "\n").encode()


def cask(version: str, sums: dict[str, str]) -> str:
    """Homebrew's cask, of the archives for macOS and Linux."""
    blocks = []
    for system, brew in (("darwin", "macos"), ("linux", "linux")):
        for machine, cpu in (("arm64", "arm"), ("amd64", "intel")):
            name = f"memplan_{version}_{system}_{machine}"
            if f"{name}.tar.gz" in sums:
                blocks.append(
                    f'  on_{brew} do\n    on_{cpu} do\n      sha256 "{sums[name + ".tar.gz"]}"\n'
                    f'      url "{HOME}/releases/download/v#{{version}}/memplan_#{{version}}_{system}_{machine}.tar.gz"\n'
                    f'      binary "memplan_#{{version}}_{system}_{machine}/memplan"\n'
                    f'      manpage "memplan_#{{version}}_{system}_{machine}/man/memplan.1"\n'
                    f'      bash_completion "memplan_#{{version}}_{system}_{machine}/completions/memplan.bash"\n'
                    f'      zsh_completion "memplan_#{{version}}_{system}_{machine}/completions/_memplan"\n'
                    f'      fish_completion "memplan_#{{version}}_{system}_{machine}/completions/memplan.fish"\n    end\n  end\n'
                )
    head = f'cask "memplan" do\n  version "{version}"\n\n  name "memplan"\n  desc "GPU memory of training steps, planned before anything runs"\n  homepage "{HOME}"\n\n'
    return head + "\n".join(blocks) + "end\n"


def winget(version: str, sums: dict[str, str]) -> dict[str, str]:
    """The three manifests of winget-pkgs, schema 1.6.0."""
    base = f"PackageIdentifier: memplan.memplan\nPackageVersion: {version}\n"

    def manifest(kind: str, body: str) -> str:
        return f"# yaml-language-server: $schema=https://aka.ms/winget-manifest.{kind}.1.6.0.schema.json\n{base}{body}ManifestType: {kind}\nManifestVersion: 1.6.0\n"

    installers = ""
    for machine, arch in (("amd64", "x64"), ("arm64", "arm64")):
        name = f"memplan_{version}_windows_{machine}"
        if f"{name}.zip" in sums:
            installers += (
                f"  - Architecture: {arch}\n    InstallerUrl: {HOME}/releases/download/v{version}/{name}.zip\n    InstallerSha256: {sums[name + '.zip'].upper()}\n"
                f"    NestedInstallerFiles:\n      - RelativeFilePath: {name}\\memplan.exe\n        PortableCommandAlias: memplan\n"
            )
    return {
        "memplan.memplan.yaml": manifest("version", "DefaultLocale: en-US\n"),
        "memplan.memplan.installer.yaml": manifest("installer", f"InstallerType: zip\nNestedInstallerType: portable\nInstallers:\n{installers}"),
        "memplan.memplan.locale.en-US.yaml": manifest("defaultLocale", f"PackageLocale: en-US\nPublisher: memplan\nPackageName: memplan\nPackageUrl: {HOME}\nLicense: MIT\nShortDescription: {project()['description']}\n"),
    }


def packed(target: str, work: Path, version: str, cuda: bool, beside: tuple[Files, dict[str, bytes]]) -> tuple[dict[str, bytes], list[Path]]:
    """Compiles a platform's programs; returns the files that it has in a release, and the programs."""
    (system, machine), (man, shells), when = target.split("/"), beside, stamp()
    folder, name = work / target.replace("/", "-"), f"memplan_{version}_{system}_{machine}"
    program = "memplan.exe" if system == "windows" else "memplan"
    programs: Files = {program: (compiled(target, version, folder), 0o755)}
    if cuda and target == CUDA:
        programs["memplan-cuda"] = (compiled(target, version, folder, cuda=True), 0o755)
    files = archive(name, programs, man, shells)
    if system == "windows":
        made = {f"{name}.zip": zipped(files, when)}
    else:
        made = {f"{name}.tar.gz": gzipped(tarred(files, when))}
    if system == "linux":
        made[f"memplan_{version}_{machine}.deb"] = deb(installed(programs, man, shells), machine, version, when)
        static = {"usr/bin/memplan": programs["memplan"], "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644)}
        made[f"memplan_{version}_image_{machine}.tar.gz"] = image(static, machine, version, when)
    return made, [folder / p for p in programs]


def build(out: Path, work: Path, version: str, targets: list[str], cuda: bool) -> None:
    """Writes the release to a folder; programs are compiled in another."""
    own = work / "this"
    compiled(this_platform(), version, own)
    runs = own / ("memplan.exe" if sys.platform == "win32" else "memplan")
    beside = (pages(runs), completions(runs))
    made: dict[str, bytes] = {}
    linked: list[Path] = []
    with ThreadPoolExecutor(2) as pool:  # Go compiles on all cores, but links and packs on one
        for files, programs in pool.map(lambda target: packed(target, work, version, cuda, beside), targets):
            made |= files
            linked += programs
    made["memplan.spdx.json"] = sbom(version, linked, stamp())
    sums = {name: digest(data) for name, data in made.items()}
    made["checksums.txt"] = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()
    made["memplan.rb"] = cask(version, sums).encode()
    made |= {f"winget/{name}": text.encode() for name, text in winget(version, sums).items()}
    for name, data in made.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{len(data) / 1e6:8.2f} MB  {name}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("dist"), help="folder for the files")
    p.add_argument("--work", type=Path, help="folder for the programs (OUT.programs)")
    p.add_argument("--version", default=project()["version"])
    p.add_argument("--platform", nargs="+", choices=list(PLATFORMS), default=list(PLATFORMS))
    p.add_argument("--no-cuda", action="store_true", help="without the build with CUDA")
    a = p.parse_args()
    build(a.out, a.work or a.out.with_name(a.out.name + ".programs"), a.version, a.platform, not a.no_cuda)


if __name__ == "__main__":
    main()
