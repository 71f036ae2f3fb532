"""Random requests played to PyTorch's real caching allocator on a GPU: python record_requests.py OUT_DIR [NAME...]

Each entry of RUNS becomes OUT_DIR/NAME.requests.xz. First line: JSON with the options, the cap in bytes as PyTorch computes it from the
fraction, and every segment event: kind, address and size in MiB. Then a line a call:
    + SIZE ADDRESS ALLOCATED RESERVED    an allocation of SIZE bytes
    - LINE ALLOCATED RESERVED            the free of the allocation made LINE lines below the first
    ! SIZE ALLOCATED RESERVED            an allocation that failed
    e ALLOCATED RESERVED                 torch.cuda.empty_cache()
ADDRESS and ALLOCATED count 512 bytes, RESERVED MiB; addresses are relative to the first one. The last line, =, gives requested bytes,
retries and failures."""
import sys, os, json, random, lzma, subprocess

MiB = 1 << 20
RUNS = {  # name: (PYTORCH_ALLOC_CONF, cap in MiB or 0, seed)
    'default': ('', 0, 1), 'default-cap': ('', 700, 2), 'default-tight': ('', 300, 14),
    'expandable': ('expandable_segments:True', 0, 3), 'expandable-cap': ('expandable_segments:True', 700, 4),
    'split': ('max_split_size_mb:20', 0, 5), 'split-cap': ('max_split_size_mb:32,max_non_split_rounding_mb:24', 700, 6),
    'round': ('roundup_power2_divisions:8', 0, 7), 'round-list': ('roundup_power2_divisions:[1:8,4:4,16:2,>:1]', 900, 8),
    'garbage': ('garbage_collection_threshold:0.6', 900, 9), 'garbage-split': ('garbage_collection_threshold:0.7,max_split_size_mb:24', 800, 10),
    'expandable-round': ('expandable_segments:True,roundup_power2_divisions:[256:4,>:1]', 800, 11),
    'expandable-split': ('expandable_segments:True,max_split_size_mb:32', 600, 12),
    'expandable-garbage': ('expandable_segments:True,garbage_collection_threshold:0.6', 700, 13),
    'large-segment': ('large_segment_size_mb:40', 0, 15), 'expandable-large': ('expandable_segments:True,large_segment_size_mb:32', 800, 16),
}
CALLS = 2000

def size(rng):
    k = rng.random()
    if k < .35: return rng.randrange(1, 1 << rng.randrange(4, 21))
    if k < .70: return rng.randrange(1 << 20, 12 << 20)
    if k < .92: return rng.choice([1 << 20, (1 << 20) + 1, 3 << 20, 13 << 20, 20 << 20, 25 << 20, 33554432, 10 << 20, (10 << 20) - 512, 7077888, 9437184, 512, 1024])
    return rng.randrange(12 << 20, 90 << 20)

def record(name, out):
    import torch
    conf, cap, seed = RUNS[name]
    rng = random.Random(seed)
    torch.cuda.init(); total = torch.cuda.mem_get_info()[1]
    if cap:
        f = cap * MiB / total; torch.cuda.set_per_process_memory_fraction(f); cap = int(f * total)
    alloc, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    torch.cuda.empty_cache(); torch.cuda.memory._record_memory_history('all', context=None, max_entries=1000000)
    live, lines, base, grow = [], [], None, .62
    def stats():
        m = torch._C._cuda_memoryStats(0)
        return m['allocated_bytes']['all']['current'] // 512, m['reserved_bytes']['all']['current'] // MiB
    for i in range(CALLS):
        if i % 250 == 0: grow = rng.choice([.35, .5, .62, .7])
        if rng.random() < .002:
            torch.cuda.empty_cache(); lines.append(('e',) + stats()); continue
        if live and rng.random() > grow:
            p, j = live.pop(rng.randrange(len(live))); free(p); lines.append(('-', j) + stats()); continue
        n = size(rng)
        try: p = alloc(n, stream)
        except torch.OutOfMemoryError: lines.append(('!', n) + stats()); continue
        if base is None: base = p
        live.append((p, i)); lines.append(('+', n, (p - base) // 512) + stats())
    m = torch._C._cuda_memoryStats(0)
    lines.append(('=', m['requested_bytes']['all']['current'], m['num_alloc_retries'], m['num_ooms']))
    trace = torch.cuda.memory._snapshot(0)['device_traces'][0]
    seg = [(e['action'][8:], (e['addr'] - base) // MiB, e['size'] // MiB) for e in trace if e['action'].startswith('segment')]
    with lzma.open(f'{out}/{name}.requests.xz', 'wt', preset=9) as f:
        f.write(json.dumps(dict(name=name, conf=conf, cap=cap, seed=seed, torch=torch.__version__, device=torch.cuda.get_device_name(), segments=seg), separators=(',', ':')) + '\n')
        for l in lines: f.write(' '.join(map(str, l)) + '\n')
    print(name, len(lines), 'failed', sum(l[0] == '!' for l in lines), 'live', len(live), flush=True)

if __name__ == '__main__':
    out, names = sys.argv[1], sys.argv[2:]
    if len(names) == 1: record(names[0], out)
    else:  # options are read when a process starts
        todo = names or list(RUNS)
        for i in range(0, len(todo), 8):
            ps = [subprocess.Popen([sys.executable, __file__, out, n], env=dict(os.environ, PYTORCH_ALLOC_CONF=RUNS[n][0])) for n in todo[i:i + 8]]
            for p in ps: p.wait()
