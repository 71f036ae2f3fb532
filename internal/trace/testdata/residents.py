"""What a training run puts on the GPU before its first step, in PyTorch's order: python residents.py ZOO_DIR > residents.json

ZOO_DIR holds zoo.py, which builds the models of the traces. module.to(device) visits children before the module's own parameters and
buffers; a tensor that several modules share moves once. Inputs come after, made on the device; their bytes are given for one sample."""
import sys, json, torch
sys.path.insert(0, sys.argv[1])
from zoo import ZOO

def tensors(m, seen, prefix=''):
    for n, c in m.named_children(): yield from tensors(c, seen, prefix + n + '.')
    for kind, own in (('param', m._parameters), ('buffer', m._buffers)):
        for n, t in own.items():
            if t is not None and id(t) not in seen:
                seen.add(id(t)); yield [kind, prefix + n, t.numel() * t.element_size()]

out = {}
for name, z in ZOO.items():
    torch.manual_seed(0)
    model = z['build']()
    x2, x1 = z['inputs'](2, 'cpu'), z['inputs'](1, 'cpu')
    assert all(a.numel() == 2 * b.numel() for a, b in zip(x2, x1))
    out[name] = dict(tensors=list(tensors(model, set())), inputs=[t.numel() * t.element_size() for t in x1])
    del model
print('{')
print(',\n'.join(json.dumps(k) + ': ' + json.dumps(v, separators=(',', ':')) for k, v in out.items()))
print('}')
