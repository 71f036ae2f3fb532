"""A sweep as tasks of Ray: python sweep_ray.py CASES.yaml FOLDER JOBS (docs/sweep.md). The folder must be one that every node sees."""
import subprocess
import sys

import ray


@ray.remote(num_cpus=1)
def share(cases, folder, shard):
    done = subprocess.run(["memplan", "sweep", cases, "-o", folder, "--shard", shard], capture_output=True, text=True)
    return done.returncode, done.stderr


if __name__ == "__main__":
    cases, folder, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ray.init(address="auto" if "--cluster" in sys.argv else None, log_to_driver=False)
    results = ray.get([share.remote(cases, folder, f"{i}/{jobs}") for i in range(jobs)])
    for _, text in results:
        sys.stderr.write(text)
    sys.exit(max(code for code, _ in results))
