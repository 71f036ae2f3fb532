"""Small models as torch.onnx.export writes them, with its optimizer and without (planner/testdata/optimized.tar.xz).

    python3 scripts/export/optimized_samples.py DIR [NAME ...]
    (cd DIR && tar --owner=0 --group=0 --mtime=@0 -cJ *) > planner/testdata/optimized.tar.xz

NAME.txt has the number of the model's parameters, as PyTorch counts them.

The optimizer stores the weights of linear layers transposed and without their names, once for each call; equal
tensors and equal calls once; results of calls on stored tensors in place of the calls; it leaves out copies and biases
of zeros, joins reshapes and folds batch normalisations. All models are exported in training mode, those of eval_
in evaluation mode. Numbers of more than 32 elements are written as zeros after the export: memplan does not read them.
Needs torch, onnx and onnxscript; transformers for those that begin with hf_."""
import os,sys
os.environ["CUDA_VISIBLE_DEVICES"]=""
import torch,torch.nn as nn,torch.nn.functional as F,onnx,warnings
from onnx import numpy_helper
import numpy as np
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
class Merged(nn.Module):
    """Normalisations with equal weights and linear layers with equal biases, two of them on one operand."""
    def __init__(s,d=16):
        super().__init__(); s.n=nn.ModuleList(nn.LayerNorm(d) for _ in range(4)); s.l=nn.ModuleList(nn.Linear(d,d) for _ in range(4)); s.drop=nn.Dropout(0.); s.w=nn.Parameter(torch.ones(d)); s.v=nn.Parameter(torch.ones(d))
        for l in s.l: nn.init.zeros_(l.bias)
    def forward(s,x):
        for n,l in zip(s.n[:2],s.l): x=x+s.drop(F.gelu(l(n(x))))
        return (s.l[2](s.n[2](x))*s.w+s.l[3](s.n[3](x))*s.v).tanh()
class Images(nn.Module):
    """Convolutions with batch and group normalisation, padding, and squeeze and excitation."""
    def __init__(s):
        super().__init__(); s.c=nn.Sequential(nn.Conv2d(3,8,3,padding=1,bias=False),nn.BatchNorm2d(8),nn.ReLU(),nn.Conv2d(8,8,3,padding=1),nn.BatchNorm2d(8),nn.SiLU(),nn.Conv2d(8,8,3),nn.GroupNorm(2,8),nn.ReLU())
        s.se=nn.Sequential(nn.AdaptiveAvgPool2d(1),nn.Conv2d(8,4,1),nn.ReLU(),nn.Conv2d(4,8,1),nn.Sigmoid()); s.g=nn.Parameter(torch.full((8,1,1),1e-6)); s.d=nn.Conv2d(8,8,3,2); s.f=nn.Linear(8,5)
        nn.init.zeros_(s.f.bias); nn.init.zeros_(s.d.bias)
    def forward(s,x): h=s.c(x); return s.f(F.relu(s.d(F.pad(h*s.se(h)*s.g,(0,1,0,1)))).mean((2,3)))
class Attention(nn.Module):
    """Attention with a causal mask, heads by permutation, and positions."""
    def __init__(s,d=16,h=2): super().__init__(); s.e=nn.Embedding(50,d); s.n=nn.LayerNorm(d); s.qkv=nn.Linear(d,3*d); s.o=nn.Linear(d,d); s.drop=nn.Dropout(.1); s.h=h; s.m=nn.LayerNorm(d)
    def forward(s,x):
        x=s.e(x); b,t,d=x.shape; q,k,v=s.qkv(s.n(x)).view(b,t,3,s.h,d//s.h).permute(2,0,3,1,4)
        x=x+s.drop(s.o(F.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(b,t,d)))
        a=(q@k.transpose(-2,-1)/4).masked_fill(torch.ones(t,t,dtype=torch.bool).triu(1),float('-inf')).softmax(-1)@v
        return s.m(x+a.transpose(1,2).reshape(b,t,d))
class Gates(nn.Module):
    """Parameters that functions are applied to, each once for all layers, and root mean square norms."""
    def __init__(s,d=16): super().__init__(); s.w=nn.ParameterList([nn.Parameter(torch.ones(d)) for _ in range(3)]); s.l=nn.ModuleList(nn.Linear(d,d,bias=False) for _ in range(3)); s.g=nn.Parameter(torch.zeros(1))
    def forward(s,x):
        for w,l in zip(s.w,s.l): x=x+s.g.tanh()*l(x*torch.rsqrt(x.pow(2).mean(-1,keepdim=True)+1e-6)*w)
        return x
class Recurrent(nn.Module):
    def __init__(s): super().__init__(); s.e=nn.Embedding(50,8); s.l=nn.LSTM(8,8,2,batch_first=True); s.g=nn.GRU(8,4,bidirectional=True,batch_first=True); s.h=nn.Linear(8,50)
    def forward(s,x): return s.h(s.g(s.l(s.e(x))[0])[0])
class Dropped(nn.Module):
    """Dropout as an attribute of a class that memplan does not know."""
    def __init__(s): super().__init__(); s.a=nn.Linear(64,256); s.l=nn.Linear(256,64); s.drop=nn.Dropout(.1)
    def forward(s,x): return s.l(s.drop(torch.relu(s.a(s.drop(x)))))
def hf(cls,cfg,**kw):
    import transformers
    return lambda: getattr(transformers,cls)(getattr(transformers,cfg)(**kw))
S=dict(hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32,vocab_size=50,max_position_embeddings=1024)
class First(nn.Module):
    """A model of transformers that returns one tensor."""
    def __init__(s,build,**kw): super().__init__(); s.m=build(); s.kw=kw
    def forward(s,x): return s.m(x,**s.kw)[0]
ids=lambda: torch.randint(0,50,(2,8))
B=torch.export.Dim('batch')
MODELS={
    'positions':(Positions,ids,{0:B,1:torch.export.Dim('seq')}),
    'tied':(Tied,ids,{0:B}),
    'layers':(Layers,lambda: torch.randn(2,8,16),{0:B}),
    'merged':(Merged,lambda: torch.randn(2,8,16),{0:B}),
    'images':(Images,lambda: torch.randn(2,3,16,16),{0:B}),
    'attention':(Attention,ids,{0:B}),
    'attention_dynamic':(Attention,ids,{0:B,1:torch.export.Dim('seq',min=4,max=512)}),
    'gates':(Gates,lambda: torch.randn(2,8,16),{0:B}),
    'recurrent':(Recurrent,ids,{0:B}),
    'eval_dropped':(Dropped,lambda: torch.randn(2,1024,64),{0:B}),
    'hf_bert':(lambda: First(hf('BertForMaskedLM','BertConfig',**S)),ids,{0:B}),
    'hf_vit':(lambda: First(hf('ViTForImageClassification','ViTConfig',hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32,image_size=16,patch_size=8)),lambda: torch.randn(2,3,16,16),{0:B}),
    'hf_gptneox':(lambda: First(hf('GPTNeoXForCausalLM','GPTNeoXConfig',use_cache=False,**S),use_cache=False),ids,{0:B}),
}
def export(name,optimize,out):
    build,example,dims=MODELS[name]; torch.manual_seed(0); m=build().train(not name.startswith('eval_'))
    p=torch.onnx.export(m,(example(),),dynamo=True,optimize=optimize,dynamic_shapes=(dims,),verbose=False)
    with open(os.path.join(out,name+'.txt'),'w') as w: print(sum(p.numel() for p in m.parameters()),file=w)
    f=os.path.join(out,f'{name}{".optimized" if optimize else ""}.onnx'); p.save(f); q=onnx.load(f)
    for n in q.graph.node: # paths of the machine
        for i in reversed(range(len(n.metadata_props))):
            if n.metadata_props[i].key.endswith('stack_trace'): del n.metadata_props[i]
    for t in q.graph.initializer:
        if t.data_type==onnx.TensorProto.FLOAT and np.prod(t.dims)>32: t.CopyFrom(numpy_helper.from_array(np.zeros(t.dims,np.float32),t.name))
    onnx.save(q,f)
for name in sys.argv[2:] or MODELS:
    for o in (True,False): export(name,o,sys.argv[1])
