"""Small models as torch.onnx.export writes them, with its optimizer and without (planner/testdata/optimized). Run it in that folder.

The optimizer stores the weights of linear layers transposed and without their names, once for each call."""
import torch,torch.nn as nn,onnx,warnings
warnings.filterwarnings('ignore')
class Positions(nn.Module):
    """A table of positions is cut to the sequence's length."""
    def __init__(s): super().__init__(); s.e=nn.Embedding(50,16); s.p=nn.Parameter(torch.randn(1,32,16)); s.l=nn.Linear(16,50)
    def forward(s,x): return s.l(s.e(x)+s.p[:,:x.shape[1]])
class Tied(nn.Module):
    """A layer runs twice, and the last shares its weight with the embedding."""
    def __init__(s): super().__init__(); s.e=nn.Embedding(50,16); s.a=nn.Linear(16,16); s.l=nn.Linear(16,50,bias=False); s.l.weight=s.e.weight
    def forward(s,x): return s.l(s.a(s.a(s.e(x))))
class Layers(nn.Module):
    def __init__(s,d=16): super().__init__(); s.a=nn.Linear(d,4*d); s.l=nn.Linear(4*d,d)
    def forward(s,x): return s.l(torch.relu(s.a(x)))
B=torch.export.Dim('batch')
for o in (True,False):
    for name,m,x,dims in (('positions',Positions(),torch.randint(0,50,(2,8)),{0:B,1:torch.export.Dim('seq')}),('tied',Tied(),torch.randint(0,50,(2,8)),{0:B}),('layers',Layers(),torch.randn(2,8,16),{0:B})):
        p=torch.onnx.export(m,(x,),dynamo=True,optimize=o,dynamic_shapes=(dims,),verbose=False)
        f=f'{name}{".optimized" if o else ""}.onnx'; p.save(f); q=onnx.load(f)
        for n in q.graph.node: # paths of this machine
            for i in reversed(range(len(n.metadata_props))):
                if n.metadata_props[i].key.endswith('stack_trace'): del n.metadata_props[i]
        onnx.save(q,f)
