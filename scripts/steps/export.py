"""Exports models of zoo.py as planner/testdata/zoo/models holds them: dynamo exporter in training mode without optimisation, symbolic batch,
weights and stack traces stripped, compressed.

    python export.py OUT [NAME ...]"""
import lzma, os, sys, tempfile, warnings
warnings.filterwarnings('ignore')
os.environ['CUDA_VISIBLE_DEVICES'] = ''
import torch, onnx
from zoo import ZOO

def strip(m):
    """Initializers over 1 KiB become references to a file that does not exist."""
    offset = 0
    for t in m.graph.initializer:
        size = len(t.raw_data)
        if size > 1024:
            t.ClearField('raw_data')
            t.data_location = onnx.TensorProto.EXTERNAL
            for k, v in (('location', 'weights.bin'), ('offset', str(offset)), ('length', str(size))):
                e = t.external_data.add(); e.key = k; e.value = v
            offset += size
    for node in m.graph.node:
        for p in list(node.metadata_props):
            if p.key == 'pkg.torch.onnx.stack_trace': node.metadata_props.remove(p)
    return m

def export(name, out):
    torch.manual_seed(0)
    model = ZOO[name]['build']().train()
    args = ZOO[name]['inputs'](2, 'cpu')
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, 'model.onnx')
        torch.onnx.export(model, args, path, dynamo=True, external_data=False, optimize=False, input_names=[f'input{i}' for i in range(len(args))], output_names=['output'],
                          dynamic_shapes=tuple({0: torch.export.Dim('batch', min=1, max=4096)} for _ in args))
        m = strip(onnx.load(path))
    with lzma.open(f'{out}/{name}.onnx.xz', 'wb', preset=9 | lzma.PRESET_EXTREME) as f: f.write(m.SerializeToString())

if __name__ == '__main__':
    for name in sys.argv[2:] or ZOO: export(name, sys.argv[1]); print(name, flush=True)
