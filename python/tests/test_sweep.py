"""docs/sweep_ray.py runs a sweep's shares as tasks of Ray on this machine; every case is answered once."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@unittest.skipUnless(importlib.util.find_spec("ray"), "ray is not installed")
class Sweep(unittest.TestCase):
    def test_ray(self):
        with tempfile.TemporaryDirectory() as dir:
            model = pathlib.Path(dir) / "gpt2.onnx"
            model.write_bytes((ROOT / "models" / "gpt2.onnx").read_bytes())
            cases = pathlib.Path(dir) / "cases.yaml"
            cases.write_text("models:\n- path: gpt2.onnx\n  matrix: {batch: [1, 2, 4], precision: [fp32, amp-bf16]}\n")
            answers = pathlib.Path(dir) / "answers"
            env = dict(os.environ, PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]), RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=os.pathsep.join(sys.path))
            done = subprocess.run([sys.executable, str(ROOT / "docs" / "sweep_ray.py"), str(cases), str(answers), "3"], env=env, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stderr.count("2 cases of shard"), 3, done.stderr)
            merged = json.loads(subprocess.run(["memplan", "merge", str(answers), "--format", "json"], check=True, capture_output=True, text=True, env=env).stdout)
            self.assertEqual([c["settings"] for c in merged["cases"]], [f"batch={b} precision={p}" for b in (1, 2, 4) for p in ("fp32", "amp-bf16")])
            peaks = [c["answer"]["peak"]["allocatedBytes"] for c in merged["cases"]]
            self.assertTrue(all(a < b for a, b in zip(peaks, peaks[2:])), peaks)


if __name__ == "__main__":
    unittest.main()
