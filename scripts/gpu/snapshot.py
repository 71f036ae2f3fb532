"""Memory snapshots of real steps, as PyTorch writes them: what validate/snapshot reads and `memplan compare` explains.

    python snapshot.py models DIR [MEMPLAN]   without a GPU: NAME.onnx.xz of each model, and PLAN.json for those with checkpoints, by the command MEMPLAN
    python snapshot.py record DIR OUT [RUN]   on a GPU: OUT/RUN.pickle.xz of each run, or of that one and those whose names begin so, and a line in OUT/steps.jsonl

Both import memplan's Python package, and `models` onnx and onnxscript. A run takes three steps of AdamW, float32. `all` records from before the model
is made, `late` the last step alone, `kept` has a defect that people look for: a copy of the weights, and a hook that keeps what a module returns of every
step. A line of steps.jsonl has the versions, the run's model and batch, and the counters of the allocator of each step, in bytes: requested, allocated and
reserved peaks, and allocated bytes at the end. Folders of files in stacks are cut down to `site-packages` and the script's name.
"""
import copy, gc, json, lzma, os, pickle, subprocess, sys, time, traceback

import torch
from torch import nn

CHECKPOINTED = 'gpt2_checkpointed'


def cnn():
    def block(a, b): return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(nn.Sequential(*[block(a, b) for a, b in ((3, 32), (32, 64), (64, 128))]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=4000, n_positions=256, n_embd=192, n_layer=4, n_head=3, bos_token_id=0, eos_token_id=0))


# name: (makes the model, batch, its arguments, its keywords, its targets, the name of its input)
MODELS = {
    'cnn': (cnn, 32, lambda n: (torch.randn(n, 3, 96, 96),), {}, lambda n: torch.randint(0, 100, (n,)), 'input'),
    'gpt2': (gpt2, 8, lambda n: (torch.randint(0, 4000, (n, 256)),), dict(use_cache=False), lambda n: torch.randint(0, 4000, (n * 256,)), 'input_ids'),
}
RUNS = ['cnn_all', 'cnn_late', 'cnn_kept', 'gpt2_all', 'gpt2_late', 'gpt2_kept', CHECKPOINTED + '_all', CHECKPOINTED + '_late']


# ---- without a GPU ----

def models(out, command='memplan'):
    import memplan
    os.makedirs(out, exist_ok=True)
    for name, (make, batch, inputs, kwargs, _, of) in MODELS.items():
        torch.manual_seed(0)
        path = os.path.join(out, name + '.onnx')
        print(memplan.export(make(), inputs(batch), kwargs, path, dims={of: {0: 'batch'}}))
        if name == CHECKPOINTED.split('_')[0]:
            plan = subprocess.run([command, 'plan', name + '.onnx', '--batch', str(batch), '--checkpoint', 'all', '--gpu', 'h200', '-o', CHECKPOINTED + '.json'], cwd=out)
            if plan.returncode: raise SystemExit(f'memplan plan exits {plan.returncode}')
        with open(path, 'rb') as f, lzma.open(path + '.xz', 'wb', preset=9) as x: x.write(f.read())
        os.remove(path)


# ---- on a GPU ----

class Keeper:
    """Keeps a copy of the weights, and what a module returns in every step."""

    def __init__(self, model):
        self.copy, self.outputs = copy.deepcopy(model), []
        watched = [m for m in model.modules() if isinstance(m, nn.LayerNorm) or isinstance(m, nn.BatchNorm2d)][-1]
        watched.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.outputs.append(output.detach().clone())


def counters():
    s = torch.cuda.memory_stats()
    return dict(requested=s['requested_bytes.all.peak'], allocated=s['allocated_bytes.all.peak'], reserved=s['reserved_bytes.all.peak'], end=s['allocated_bytes.all.current'])


def step(model, optimizer, args, kwargs, targets):
    optimizer.zero_grad(set_to_none=True)
    out = model(*args, **kwargs)
    out = out if torch.is_tensor(out) else out.logits
    out = out.reshape(-1, out.shape[-1])
    loss = nn.functional.cross_entropy(out, targets)
    del out
    loss.backward()
    optimizer.step()


def start(context='all'): torch.cuda.memory._record_memory_history(max_entries=200_000, context=context, stacks='python')


def record(folder, out, only=''):
    import memplan
    os.makedirs(out, exist_ok=True)
    head = dict(torch=torch.__version__, card=torch.cuda.get_device_name(), date=time.strftime('%Y-%m-%d'), command='python ' + ' '.join([os.path.basename(sys.argv[0])] + sys.argv[1:2]))
    lines = [head]
    for run in RUNS:
        if not run.startswith(only): continue
        name, kind = run.rsplit('_', 1)
        model = name.split('_')[0]
        make, batch, inputs, kwargs, targets, _ = MODELS[model]
        gc.collect(); torch.cuda.empty_cache(); torch.manual_seed(0)
        base, i = torch.cuda.memory_allocated(), -1
        context = 'alloc' if name == CHECKPOINTED else 'all'  # with 'all' these steps end on PyTorch 2.11 in SystemError: "returned NULL without setting an exception"
        try:
            if kind != 'late': start(context)
            module = make().cuda().train()
            if name == CHECKPOINTED:
                with open(os.path.join(folder, name + '.json')) as f: memplan.checkpoint(module, json.load(f))
            keeper = Keeper(module) if kind == 'kept' else None
            args = tuple(a.cuda() for a in inputs(batch))
            target = targets(batch).cuda()
            optimizer, steps = torch.optim.AdamW(module.parameters()), []
            for i in range(3):
                if kind == 'late' and i == 2: start(context)
                torch.cuda.reset_peak_memory_stats()
                step(module, optimizer, args, kwargs, target)
                steps.append(counters())
            torch.cuda.synchronize()
            path = os.path.join(out, run + '.pickle')
            torch.cuda.memory._dump_snapshot(path)
            size = packed(path)
            lines.append(dict(run=run, model=model, batch=batch, kind=kind, base=base, steps=steps))
            print(run, steps[-1], f'{size} bytes', flush=True)
        except Exception as e:  # the others still run
            traceback.print_exc()
            lines.append(dict(run=run, error=f'step {i}: {type(e).__name__}: {e}'[:300]))
            print(run, lines[-1]['error'], flush=True)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
            module = optimizer = args = target = keeper = None
    with open(os.path.join(out, 'steps.jsonl'), 'w') as f:
        for line in lines: f.write(json.dumps(line) + '\n')


def packed(path):
    """Packs a snapshot with its files' folders cut down, as Python's pickle writes it by default. Returns its size."""
    with open(path, 'rb') as f: s = pickle.load(f)
    seen, names = set(), {}
    def visit(x):
        if id(x) in seen: return
        seen.add(id(x))
        if isinstance(x, dict):
            if 'filename' in x: x['filename'] = names.setdefault(x['filename'], short(x['filename']))
            for v in x.values(): visit(v)
        elif isinstance(x, (list, tuple)):
            for v in x: visit(v)
    visit(s)
    data = pickle.dumps(s)
    with lzma.open(path + '.xz', 'wb', preset=9) as x: x.write(data)
    os.remove(path)
    return len(data)


def short(name):
    for folder in ('site-packages', 'dist-packages'):
        if f'/{folder}/' in name: return 'site-packages/' + name.split(f'/{folder}/', 1)[1]
    if '/lib/python' in name: return 'lib/python' + name.split('/lib/python', 1)[1]
    if '/memplan/' in name: return 'memplan/' + name.split('/memplan/')[-1]
    return os.path.basename(name)


if __name__ == '__main__':
    if len(sys.argv) < 3 or sys.argv[1] not in ('models', 'record'): raise SystemExit(__doc__)
    dict(models=models, record=record)[sys.argv[1]](*sys.argv[2:])
