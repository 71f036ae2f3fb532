"""What onnxruntime's arena on the processor takes for a model: python3 arena.py OUT.jsonl LEVEL FILE...

LEVEL is none (the graph as it stands in the file) or all (onnxruntime's default optimizations). Weights that a file
names but lacks are filled with zeros and travel inside it, as in a file under 2 GiB. Inputs are zeros: a free first
dimension is --batch, others 32. Files are named by their path from --root. A session with one thread runs three times; its own log says what its arena reserves
(weights, packed weights) and how it grows. A line of OUT has, in bytes,

    reserved  weights and their packed forms, each
    extended  growths of the arena in the order of the log: [run, asked for, grown by]; run -1 is the session's creation

Needs onnx and onnxruntime; the committed file was written with onnxruntime 1.31.1 on Linux, x86-64.
"""

import argparse, json, os, re, subprocess, sys


def fill(model, onnx, np):
    """Weights in other files become zeros inside the model."""
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            kind = onnx.helper.tensor_dtype_to_np_dtype(t.data_type)
            t.raw_data = np.zeros(list(t.dims), kind).tobytes()
            t.data_location = onnx.TensorProto.DEFAULT
            del t.external_data[:]


def run(path, level, batch):
    """Prints, on stdout, the shapes fed; onnxruntime's log goes to stderr."""
    import numpy as np, onnx, onnxruntime as ort
    model = onnx.load(path, load_external_data=False)
    fill(model, onnx, np)
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.intra_op_num_threads = 1
    options.graph_optimization_level = {'none': ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 'all': ort.GraphOptimizationLevel.ORT_ENABLE_ALL}[level]
    ort.set_default_logger_severity(0)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
    kinds = {'tensor(float)': np.float32, 'tensor(double)': np.float64, 'tensor(float16)': np.float16, 'tensor(int64)': np.int64, 'tensor(int32)': np.int32, 'tensor(bool)': np.bool_, 'tensor(uint8)': np.uint8}
    feed = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else (batch if n == 0 else 32) for n, d in enumerate(i.shape)]
        feed[i.name] = np.zeros(shape, kinds[i.type])
    for n in range(3):
        sys.stderr.write('=== run %d\n' % n)
        sys.stderr.flush()
        session.run(None, feed)
    print(json.dumps({'version': ort.__version__, 'inputs': {k: list(v.shape) for k, v in feed.items()}}))


def measure(path, level, batch, root):
    """Runs a model in a process of its own."""
    p = subprocess.run([sys.executable, __file__, '--one', '--batch', str(batch), '-', level, path], capture_output=True, text=True, errors='replace', timeout=110)
    if p.returncode:
        raise RuntimeError(p.stderr.strip().splitlines()[-1][-200:])
    row = json.loads(p.stdout.splitlines()[-1])
    row.update(file=os.path.relpath(path, root), level=level, batch=batch, reserved=[], extended=[])
    at, asked = -1, 0
    for line in p.stderr.splitlines():
        if m := re.match(r'=== run (\d+)', line):
            at = int(m[1])
        elif m := re.search(r'Reserving memory in BFCArena for Cpu size: (\d+)', line):
            row['reserved'].append(int(m[1]))
        elif m := re.search(r'Extending BFCArena for Cpu\..*rounded_bytes:(\d+)', line):
            asked = int(m[1])
        elif m := re.search(r'Extended allocation by (\d+) bytes', line):
            row['extended'].append([at, asked, int(m[1])])
    return row


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--one', action='store_true')
    p.add_argument('--batch', type=int, default=4)
    p.add_argument('--root', default='.')
    p.add_argument('out')
    p.add_argument('level')
    p.add_argument('files', nargs='+')
    a = p.parse_args()
    if a.one:
        run(a.files[0], a.level, a.batch)
        return
    with open(a.out, 'a') as out:
        for path in a.files:
            try:
                row = measure(path, a.level, a.batch, a.root)
            except Exception as e:
                print(os.path.basename(path), str(e)[:300], file=sys.stderr)
                continue
            json.dump(row, out, separators=(',', ':'))
            out.write('\n')
            out.flush()
            print(row['file'], a.level, sum(row['reserved']), row['extended'], file=sys.stderr)


main()
