"""Peak memory of training steps of zoo.py under options: accumulated gradients, held outputs, frozen parameters, adapters, other optimizers,
allocator settings (planner/testdata/zoo/options.jsonl).

    [PYTORCH_ALLOC_CONF=CONF] python options.py OUT.jsonl

One JSON line a run: what was asked, in memplan's words, and the allocated bytes of the last step: before it, after the last forward, the
highest in any forward, in any backward, in the update; the highest of all steps, and reserved. Adapters are written as PEFT's lora.Linear runs them."""
import fnmatch, gc, json, os, sys
import torch, torch.nn as nn
from zoo import ZOO

class LoRA(nn.Module):
    def __init__(self, base, r, p):
        super().__init__()
        w = base.weight
        out, inn = w.shape if isinstance(base, nn.Linear) else w.shape[::-1]
        self.base_layer, self.lora_A, self.lora_B = base, nn.Linear(inn, r, bias=False), nn.Linear(r, out, bias=False)
        self.dropout = nn.Dropout(p) if p else nn.Identity()
    def forward(self, x):
        result = self.base_layer(x); dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(x))) * 2
        return result.to(dtype)

def adapt(model, text):
    keys, key = {}, None
    for item in text.split(','):
        if '=' in item: key, item = item.split('=')
        keys.setdefault(key, []).append(item)
    for p in model.parameters(): p.requires_grad_(False)
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == 'Conv1D']
    names = linear[:-1] if keys['target'] == ['all-linear'] else [n for n in linear if any(n == t or n.endswith('.' + t) for t in keys['target'])]
    assert names, text
    for n in names:
        owner, _, last = n.rpartition('.')
        setattr(model.get_submodule(owner), last, LoRA(model.get_submodule(n), int(keys['r'][0]), float(keys.get('dropout', [0])[0])))

OPTIMIZERS = {'adamw': lambda P: torch.optim.AdamW(P), 'adagrad': lambda P: torch.optim.Adagrad(P), 'rmsprop': lambda P: torch.optim.RMSprop(P), 'adafactor': lambda P: torch.optim.Adafactor(P),
              'sgd-momentum': lambda P: torch.optim.SGD(P, lr=1e-3, momentum=0.9), 'adamw-loop': lambda P: torch.optim.AdamW(P, foreach=False), 'adam-wd': lambda P: torch.optim.Adam(P, weight_decay=1e-2)}

def run(name, batch, precision='fp32', optimizer='adamw', accumulate=1, holdOutputs=False, freeze=(), lora=''):
    gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    rec = dict(name=name, batch=batch, precision=precision, optimizer=optimizer, accumulate=accumulate, holdOutputs=holdOutputs, freeze=list(freeze), lora=lora,
               allocConf=os.environ.get('PYTORCH_ALLOC_CONF', ''), base=torch.cuda.memory_allocated())
    z = ZOO[name]
    model = z['build']().cuda()
    if precision == 'bf16': model = model.to(torch.bfloat16)
    if lora: adapt(model, lora); model.cuda()
    for n, p in model.named_parameters():
        if any(fnmatch.fnmatchcase(n, pat) or n.startswith(pat + '.') for pat in freeze): p.requires_grad_(False)
    x = z['inputs'](batch, 'cuda')
    if precision == 'bf16': x = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in x)
    P = [p for p in model.parameters() if p.requires_grad]
    opt = OPTIMIZERS[optimizer](P)
    model.train()
    mem, top = torch.cuda.memory_allocated, torch.cuda.max_memory_allocated
    peaks = []
    def forward():
        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=precision == 'amp-bf16'):
            out = model(*x)
            return z['loss'](out, batch), out if holdOutputs else None
    for _ in range(4):
        torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
        opt.zero_grad(set_to_none=True)
        s = dict(start=mem(), forwardPeak=0, backwardPeak=0)
        for _ in range(accumulate):
            loss, out = forward()
            torch.cuda.synchronize(); s['afterForward'] = mem(); s['forwardPeak'] = max(s['forwardPeak'], top()); torch.cuda.reset_peak_memory_stats()
            loss.backward(); torch.cuda.synchronize(); s['backwardPeak'] = max(s['backwardPeak'], top()); del out; torch.cuda.reset_peak_memory_stats()
        opt.step(); torch.cuda.synchronize(); s['optimizerPeak'] = top()
        del loss
        peaks.append(max(s['forwardPeak'], s['backwardPeak'], s['optimizerPeak']))
    rec.update(s, peak=max(peaks), reserved=torch.cuda.max_memory_reserved())
    del model, opt, x, P
    return rec

MODELS = {'gpt2_sdpa': dict(lora='r=16,target=c_attn', freeze=['*.ln_?.*', '*.wpe.weight']), 'opt_125m': dict(lora='r=8,target=q_proj,v_proj,dropout=0.1', freeze=['*.bias']),
          'qwen2': dict(lora='r=8,target=all-linear', freeze=['*.mlp.*']), 'distilbert': dict(lora='r=4,target=q_lin,k_lin,v_lin,out_lin', freeze=['*.embeddings.*']),
          't5_small': dict(lora='r=8,target=q,v', freeze=['*.encoder.*']), 'vit_b_32': dict(lora='', freeze=['encoder.layers.encoder_layer_?.*']),
          'resnet34': dict(lora='', freeze=['layer1', 'layer2']), 'mobilenet_v3_large': dict(lora='', freeze=['features.?.*']), 'efficientnet_b0': dict(lora='', freeze=['*.weight']),
          'swin_t': dict(lora='', freeze=['features.1.*', 'features.3.*'])}

def jobs():
    for n, m in MODELS.items():
        b = ZOO[n]['batches'][0]
        if os.environ.get('PYTORCH_ALLOC_CONF'):
            yield dict(name=n, batch=b)
            yield dict(name=n, batch=b, precision='amp-bf16', accumulate=2)
            continue
        yield dict(name=n, batch=b, accumulate=2)
        yield dict(name=n, batch=b, accumulate=4, precision='amp-bf16')
        yield dict(name=n, batch=b, holdOutputs=True)
        yield dict(name=n, batch=b, accumulate=2, holdOutputs=True, optimizer='sgd-momentum')
        yield dict(name=n, batch=b, freeze=m['freeze'])
        yield dict(name=n, batch=b, freeze=m['freeze'], precision='bf16', accumulate=3)
        for o in ('adagrad', 'rmsprop', 'adafactor', 'adamw-loop', 'adam-wd'): yield dict(name=n, batch=b, optimizer=o)
        if m['lora']:
            for p in ('fp32', 'amp-bf16', 'bf16'): yield dict(name=n, batch=b, lora=m['lora'], precision=p)
            yield dict(name=n, batch=b, lora=m['lora'], accumulate=2, optimizer='sgd-momentum')

if __name__ == '__main__':
    for f in ('kaiming_uniform_', 'kaiming_normal_', 'xavier_uniform_', 'normal_', 'uniform_', 'trunc_normal_', 'orthogonal_'):
        setattr(nn.init, f, lambda t, *a, **kw: t)
    with open(sys.argv[1], 'a') as out:
        for j in jobs():
            try: r = run(**j)
            except Exception as e: r = dict(j, err=(type(e).__name__ + ': ' + str(e))[:300])
            out.write(json.dumps(r) + '\n'); out.flush()
