"""Plans of several GPUs, applied by memplan.parallelize and measured by memplan.measure (planner/testdata/distributed/spread.jsonl).

    torchrun --nproc_per_node 2 spread.py OUT PLAN.json ...

PLAN is NAME.STRATEGY.json of a model of zoo.py. The allocator may reserve the plan's card less what the plan counts outside of it. Writes OUT/spread.jsonl, a line a plan: every rank's allocated and reserved peak in bytes beside the plan's, and the median step."""
import datetime, json, os, sys
import torch, torch.distributed as dist
import memplan
from zoo import ZOO
from measure import clear

if __name__ == '__main__':
    out, rank = sys.argv[1], int(os.environ['RANK'])
    torch.cuda.set_device(rank); dist.init_process_group('nccl', timeout=datetime.timedelta(seconds=60), device_id=torch.device('cuda', rank)); dist.all_reduce(torch.ones(1, device='cuda'))
    for path in sys.argv[2:]:
        name = os.path.basename(path).split('.')[0]; z = ZOO[name]
        with open(path) as f: plan = json.load(f)
        clear(); torch.manual_seed(0); batch = plan['config']['batch']; base = torch.cuda.memory_allocated(); rec = dict(name=name, plan=os.path.basename(path), batch=batch, parallel=plan['config']['parallel'], base=base, predicted=plan['parallel']['perRank'], predictedMs=plan['time']['stepMs'], regions=len(plan['selection']))
        try:
            model = memplan.parallelize(z['build']().train(), plan=plan)
            m = memplan.measure(model, z['inputs'](batch, torch.device('cuda', rank)), plan=plan, steps=5, vram_bytes=plan['config']['vramBytes'] - plan['peak']['processBytes'] + plan['peak']['reservedBytes'])
            rec['ranks'] = [dict(allocated=r.allocated_bytes, reserved=r.reserved_bytes, ms=r.step_ms) for r in m.ranks]; rec['worst'] = m.worst.reserved_bytes
            del model, m
        except Exception as e: rec['err'] = (type(e).__name__ + ': ' + str(e))[:400]
        if rank == 0:
            with open(out + '/spread.jsonl', 'a') as f: f.write(json.dumps(rec) + '\n')
            print(name, rec.get('err') or [(r['allocated'] >> 20, p['allocatedBytes'] >> 20, r['reserved'] >> 20, p['reservedBytes'] >> 20) for r, p in zip(rec['ranks'], rec['predicted'])], flush=True)
    dist.destroy_process_group()
