#!/usr/bin/env python3
"""Which activations update in place, from PyTorch's modules: the reference of graph/lift's TestSeries.

    python3 scripts/pytorch/inplace_reference.py OUT [--pack FILE.tar.xz] [--models N]

Random networks of convolutions, normalisations, activations, pools, dropouts and sums, of blocks of a few classes; the activations of a class are
all in place or all are not. Each is exported as a user would (dynamo exporter, train mode, optimize=False, symbolic batch) to OUT/VERSION-K.onnx;
OUT/VERSION-K.json says of each activation's module whether it is in place. --pack puts all of OUT, of all versions that wrote to it, into one archive.
"""
import argparse
import contextlib
import io
import json
import os
import random
import tarfile

import torch
import torch.nn as nn

ACTS = [nn.ReLU, nn.ReLU, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.ELU, nn.Hardswish]
NORMS = [nn.BatchNorm2d, nn.BatchNorm2d, nn.InstanceNorm2d, lambda c: nn.GroupNorm(2, c), None]


def styles(r):
    """Classes of blocks: each with activations of its own."""
    for k in range(r.randint(1, 3)):
        act, inplace, norm, drop, adds, twice = r.choice(ACTS), r.random() < 0.5, r.choice(NORMS), r.random() < 0.3, r.random() < 0.6, r.random() < 0.5

        def init(self, c, act=act, inplace=inplace, norm=norm, drop=drop, twice=twice):
            nn.Module.__init__(self)
            layers = []
            for _ in range(1 + twice):
                layers += [nn.Conv2d(c, c, 3, 1, 1)] + ([norm(c)] if norm else []) + [act(inplace=inplace)]
            self.body = nn.Sequential(*layers, *([nn.Dropout(0.1)] if drop else []))

        def forward(self, x, adds=adds):
            return x + self.body(x) if adds else self.body(x)
        yield type(f'Block{k}', (nn.Module,), dict(__init__=init, forward=forward))


class Net(nn.Module):
    def __init__(self, r, c=8):
        super().__init__()
        kinds = list(styles(r))
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.blocks = nn.ModuleList([r.choice(kinds)(c) for _ in range(r.randint(2, 5))])
        self.pool = nn.MaxPool2d(2) if r.random() < 0.5 else nn.AvgPool2d(2)
        self.act = nn.ReLU(inplace=r.random() < 0.5)
        self.head = nn.Linear(c, 4)
        self.wide = r.random() < 0.5

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        x = self.pool(x)
        if self.wide:
            x = x * 2 + 1
        x = self.act(x)
        x = x.mean((2, 3))
        return self.head(x) + 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument('out')
    p.add_argument('--pack')
    p.add_argument('--models', type=int, default=20)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    version = '.'.join(torch.__version__.split('.')[:2])
    for k in range(a.models):
        net = Net(random.Random(k)).train()
        with torch.no_grad():
            for w in net.parameters():
                w.zero_()  # packs well
        with contextlib.redirect_stdout(io.StringIO()):
            e = torch.onnx.export(net, (torch.randn(2, 3, 16, 16),), dynamo=True, optimize=False, dynamic_shapes=({0: torch.export.Dim('batch')},))
        for n in e.model.graph:
            if 'pkg.torch.onnx.stack_trace' in n.metadata_props:
                n.metadata_props['pkg.torch.onnx.stack_trace'] = '\n'.join('File "net.py"' + s[s.index('", line') + 1:] if (s := t.strip()).startswith('File "') else t for t in n.metadata_props['pkg.torch.onnx.stack_trace'].split('\n'))
        e.save(f'{a.out}/{version}-{k}.onnx')
        with open(f'{a.out}/{version}-{k}.json', 'w') as f:
            json.dump({n: m.inplace for n, m in net.named_modules() if hasattr(m, 'inplace') and not isinstance(m, nn.Dropout)}, f)
    if a.pack:
        with tarfile.open(a.pack, 'w:xz') as t:
            for n in sorted(os.listdir(a.out)):
                info = t.gettarinfo(f'{a.out}/{n}', n)
                info.mtime = info.uid = info.gid = 0
                info.uname = info.gname = ''
                with open(f'{a.out}/{n}', 'rb') as f:
                    t.addfile(info, f)


if __name__ == '__main__':
    main()
