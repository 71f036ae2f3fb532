"""Every allocation of forward and backward of random LSTMs, GRUs and RNNs on the GPU: python rnn.py SEED OUT.jsonl SECONDS (graph/aten/testdata/rnn.csv.xz has their workspaces and reserves)."""
import torch, random, json, time, sys
T0=time.time(); rng=random.Random(int(sys.argv[1])); out=open(sys.argv[2],'w'); dev='cuda'
def events():
    snap=torch.cuda.memory._snapshot(0)['device_traces'][0]; ids={}; ev=[]; n=0
    for e in snap:
        if e['action']=='alloc': ids[e['addr']]=n; ev.append([e['size']]); n+=1
        elif e['action']=='free_completed':
            i=ids.pop(e['addr'],None)
            if i is not None: ev.append(-i-1)
            else: ev.append('old%d'%e['size'])
    return ev
def run(q):
    c={'lstm':torch.nn.LSTM,'gru':torch.nn.GRU,'rnn':torch.nn.RNN}[q['m']]; dt=getattr(torch,q['dt'])
    m=c(q['I'],q['H'],q['L'],bidirectional=q['bi'],dropout=q['do'],bias=q['b'],batch_first=q['bf']).to(dev,dt)
    x=torch.randn((q['B'],q['T'],q['I']) if q['bf'] else (q['T'],q['B'],q['I']),device=dev,dtype=dt)
    for _ in range(2):
        m.zero_grad(set_to_none=True); y=m(x)[0]; y.backward(torch.ones_like(y)); del y
    m.zero_grad(set_to_none=True); x.requires_grad_(q['xg'])
    torch.cuda.synchronize(); torch.cuda.memory._record_memory_history('all',context=None,stacks='python',max_entries=100000,clear_history=True)
    y=m(x)[0]; torch.cuda.synchronize(); q['fwd']=events()
    g=torch.ones_like(y); torch.cuda.synchronize(); torch.cuda.memory._record_memory_history('all',context=None,stacks='python',max_entries=100000,clear_history=True)
    y.backward(g); torch.cuda.synchronize(); q['bwd']=events()
    del y,g
    torch.cuda.memory._record_memory_history('all',context=None,stacks='python',max_entries=100000,clear_history=True)
    with torch.no_grad(): y=m(x.detach())[0]
    torch.cuda.synchronize(); q['inf']=events(); torch.cuda.memory._record_memory_history(enabled=None)
    q['w']=sum(p.numel() for p in m.parameters())
n=0
while time.time()-T0<float(sys.argv[3]):
    q=dict(m=rng.choice(['lstm','lstm','gru','rnn']),L=rng.choice([1,1,2,2,3,4]),H=rng.choice([32,64,100,128,200,256,512,650,1024]),I=rng.choice([32,64,100,128,256,512,1024]),T=rng.choice([1,2,16,35,64,128]),B=rng.choice([1,2,8,16,20,64,128]),bi=rng.random()<.3,do=rng.choice([0,0,.2]),b=rng.random()<.85,bf=rng.random()<.5,xg=rng.random()<.8,dt=rng.choice(['float32','float32','bfloat16','float16']))
    if q['L']==1: q['do']=0
    try: run(q)
    except Exception as e: q['err']=str(e)[:200]; torch.cuda.memory._record_memory_history(enabled=None)
    out.write(json.dumps(q,separators=(',',':'))+'\n'); n+=1
    if n%200==0: torch.cuda.empty_cache()
print(n, torch.backends.cudnn.version())
