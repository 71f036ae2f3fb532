"""What a wheel holds, without compiling the program: its bytes are given."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import wheels


class Wheels(unittest.TestCase):
    def build(self, target: str, folder: str) -> Path:
        with mock.patch.object(wheels, "program", lambda target: b"\x7fELF" + target.encode()):
            return wheels.build(target, Path(folder))

    def test_every_platform(self) -> None:
        """Names, tags, modes and the list of files with their hashes."""
        with tempfile.TemporaryDirectory() as folder:
            for target, tags in wheels.PLATFORMS.items():
                path = self.build(target, folder)
                self.assertEqual(path.name, f"memplan-{wheels.project()['version']}-py3-none-{'.'.join(tags)}.whl")
                with zipfile.ZipFile(path) as z:
                    names = z.namelist()
                    info = names[-1].split("/")[0]
                    rows = list(csv.reader(io.StringIO(z.read(f"{info}/RECORD").decode())))
                    self.assertEqual([r[0] for r in rows], names)
                    for name, digest, size in rows[:-1]:
                        data = z.read(name)
                        self.assertEqual(digest, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode())
                        self.assertEqual(int(size), len(data))
                    program = "memplan/bin/memplan" + (".exe" if "windows" in target else "")
                    self.assertEqual(z.getinfo(program).external_attr >> 16, 0o100755)
                    self.assertEqual(z.read(program), b"\x7fELF" + target.encode())
                    self.assertIn("memplan/py.typed", names)
                    for t in tags:
                        self.assertIn(f"Tag: py3-none-{t}\n", z.read(f"{info}/WHEEL").decode())
                    self.assertIn("Requires-Python: >=3.10", z.read(f"{info}/METADATA").decode())
                    self.assertNotIn("Requires-Dist: torch\n", z.read(f"{info}/METADATA").decode())

    def test_same_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
            self.assertEqual(self.build("linux/arm64", a).read_bytes(), self.build("linux/arm64", b).read_bytes())


if __name__ == "__main__":
    unittest.main()
