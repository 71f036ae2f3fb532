package main

import "github.com/memplan/memplan/python"

// topics are the help texts that belong to no command.
var topics = []struct{ name, short, text string }{
	{"config-file", "The configuration file .memplan.yaml", configTopic},
	{"exit-codes", "What memplan's exit codes mean", `0  yes: it fits, no regression, validated
1  no: it does not fit, a rule failed, a prediction was refuted
2  could not tell: usage, an unreadable model, an unbound dimension, no GPU

The same for every command and every --format. On 2 nothing goes to stdout.
`},
	{"formats", "Output formats", `text      for people: the verdict, tables, the largest tensors, a timeline
json      for scripts; fields are added within schemaVersion, never renamed
markdown  for pull requests; begins with a hidden line so that a comment can be updated
sarif     for code scanning: what fails, and the warnings
junit     check, for Jenkins, GitLab and others: a suite a model, a case a rule
gitlab    check, for GitLab's code quality report
github    check, as annotations of GitHub Actions beside the configuration's lines
html      one page that loads nothing
csv       merge and solve, for tables and solvers
svg, png  solve remat, a drawing of the frontier

Each command has those that make sense for it: see its --format. --timeline FILE takes
the form of its ending: .json, .csv, .svg, .png, .pickle (PyTorch's memory_viz) or
.trace (Perfetto); docs/timeline.md has more.

The result alone goes to stdout; progress and warnings go to stderr.
`},
	{"environment", "Environment variables", `NO_COLOR        any value turns colour off
CLICOLOR=0      turns colour off
CLICOLOR_FORCE  any value but 0 turns colour on
COLUMNS         width of the text where the output is no terminal (80)
MEMPLAN_PYTHON  the Python that has PyTorch, for validate --engine torch (python3)
`},
	{"export", "How a PyTorch model becomes a file that needs no guesses", exportTopic},
	{"chunked-loss", "A cross-entropy that never holds all scores at once", `--loss chunked-cross-entropy predicts this loop, in which the model returns what
its last linear layer, the head, was called with, and the scores of one eighth of
the rows (tokens) exist at a time. Backward computes each part once more.

  import torch.nn.functional as F
  from torch.utils.checkpoint import checkpoint

  def part(h, y):
      return F.cross_entropy(F.linear(h, head.weight, head.bias).float(), y, reduction="sum")

  def loss(hidden, target):                      # [.., width], [..]
      hidden, target = hidden.view(-1, hidden.shape[-1]), target.view(-1)
      total = None
      for h, y in zip(hidden.chunk(8), target.chunk(8)):
          one = checkpoint(part, h, y, use_reentrant=False)
          total = one if total is None else total + one
      return total / target.numel()

The loss is the same, up to rounding. memplan analyze --allow loss says what it
saves.

--loss liger-cross-entropy predicts the fused kernel of liger-kernel 0.8, which runs
nothing again: the forward pass makes the gradients of the hidden states and of the
head's weight, which wait for backward.

  from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

  loss = LigerFusedLinearCrossEntropyLoss()
  loss(head.weight, hidden.view(-1, hidden.shape[-1]), target.view(-1))

Versions before 0.8 take more in half precision. cut-cross-entropy is not predicted.
`},
	{"in-backward", "Parameters that are updated in backward", `--in-backward predicts a step in which each parameter has an optimizer of its own,
that a hook of backward calls as soon as the parameter's gradient is there. The
gradient is freed at once, so that never all gradients exist:

  optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}

  def update(p):
      optimizers[p].step()
      optimizers[p].zero_grad()

  for p in model.parameters():
      p.register_post_accumulate_grad_hook(update)

  for x, y in batches:
      loss_of(model(x), y).backward()            # no step, no zero_grad

The parameters are the same, to the bit. Their gradients cannot be clipped, added
up over micro-batches or unscaled, and DDP and FSDP reduce them later: memplan
refuses these together. memplan analyze --allow in-backward says what it saves, and
what the host takes longer: about 80 us for each parameter.
`},
	{"offload", "Activations and the optimizer in the host's memory", `--offload activations lets a plan send what autograd saves of whole modules, those
that the model repeats, to pinned memory of the host and back; each is kept,
computed again or sent, whatever costs the least time under the budget. With
--checkpoint none nothing is computed again. memplan.checkpoint applies the plan:

  memplan plan model.onnx --batch 8 --vram 24G --offload activations -o plan.json
  import memplan; memplan.checkpoint(model, "plan.json")

Copies run on a stream of their own. A module's tensors leave the card when the
next region's forward has ended, and come back when backward reaches that region.
Tensors under 1 MiB, weights, buffers and inputs stay. Gradients are the same, to
the bit. The overhead is the recomputation and the time that the card waits for
copies, at --host-bandwidth bytes a second each way (calibrate measures it).

--offload optimizer counts torchao.optim.CPUOffloadOptimizer with AdamW: state and
update of parameters of 4096 elements and more are on the host:

  CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=..)

The host's memory stands in the report (host) and in JSON (offload): pinned as
PyTorch's allocator takes it, in powers of two, and not pinned.
`},
	{"torch", "How a training script applies a plan", torchTopic},
	{"checkpoint.py", "The Python that applies a plan, for those who do not install it", python.Checkpoint},
	{"frameworks", "Configurations of training frameworks, written and read", frameworksTopic()},
	{"memory", "The four memory numbers", `requested  bytes of live tensors
allocated  what torch.cuda.max_memory_allocated shows: block sizes after rounding and splitting
reserved   what torch.cuda.max_memory_reserved shows: segments held by the caching allocator
process    reserved and the CUDA context: what the card must have free

Whether a step fits is decided by replaying the allocator under the cap, not by
comparing a peak with it.
`},
}

const configTopic = `memplan check and memplan baseline read .memplan.yaml, from the working directory
or the nearest folder above it; memplan sweep reads a file of the same form. Paths in it are relative to its own folder.

  models:
    - path: models/resnet50.onnx
      batch: 64                   # or max
      dims: {seq: 512}            # other symbolic dimensions
      mode: train                 # or infer
      precision: amp-bf16
      optimizer: sgd-momentum
      checkpoint: auto            # none, segments, all, sqrt, schedule, ops, FILE
      gpu: t4                     # or vram: 16G
      headroom: auto              # what stays free of it: auto, 0, 2G, 5%
      rules: {max-peak: 12G}      # this model's, before those of the file
    - path: "exports/**/*.onnx"   # a pattern: each file that it matches
      batch: 8
    - path: models/gpt2.onnx      # a matrix: one case for each combination
      matrix: {batch: [8, 16], precision: [fp32, amp-bf16]}
  rules:
    max-increase: 2%
    no-new-warnings: true         # that the baseline does not have
    max-overhead: {limit: 20%, severity: warning}    # reported, but no failure
  fail-on: [cannot-tell]          # or warnings: of any kind
  baseline: .memplan-baseline.json

Paths lie in that folder or below it: one that leads out, by ../, as an absolute path
or through a symbolic link, is an error unless --allow-outside is given, which is
for files that you trust. memplan baseline replaces nothing but a baseline, and
does not write through a link.

Only path is needed. memplan list rules says what each rule limits; a model with a
card must fit it, whatever the rules. All models are looked at, several at a time,
even where one cannot be read; the answer is 2 then. max-peak and max-increase look
at reserved bytes. A key that is not known is an error, with its line. Editors that
know JSON schemas take docs/memplan.schema.json.
`

const exportTopic = `The Python package memplan writes the file that memplan reads:

    import memplan
    print(memplan.export(model, (x,), path="model.onnx"))
    print(memplan.export(model, kwargs={"input_ids": ids, "labels": ids}))

args and kwargs are what the model is called with; a batch of 2 will do, since memplan
asks for the batch later. Axis 0 of the inputs becomes the dimension batch, axis 1 of
those of whole numbers seq; dims={"x": {0: "batch", 2: "time"}} says otherwise. A size
with which the model makes other calls is fixed, and the report says so.

The file holds the graph, without weights, and a capture: what the real module calls,
recorded while it runs on tensors that have no elements, on a machine that needs no
GPU, in float32, under autocast, in half precision and in inference: every call with
its types, what Python keeps and for how long, what autograd saves, dropout rates and
the kernels of attention. Nothing of the model is copied or changed; one in evaluation
mode is exported as model.train() makes it, modules that a training model has in
evaluation mode stay in it.

    def step(model, ids):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()

    memplan.export(model, (ids,), step=step)

With step, called as step(model, *args) or step(), the capture is of that: its loss,
casts, accumulation and optimizer. It runs up to the optimizer's step, and nothing of
it has an effect: weights, gradients, optimizer and schedule stay as they were.

PyTorch's dynamo exporter is asked first, then the older one; the report says which
wrote the graph. Where neither can, the graph is a placeholder and the capture stands
alone. What cannot be captured is an error that names the line: a branch or a size that
depends on weights or on random numbers, and calls without a fake kernel
(torch.library.register_fake gives them one).

It needs onnx and onnxscript, and is tested with PyTorch 2.11 and 2.15.
`

const torchTopic = `The Python package memplan applies a plan; python/wheels.py builds its wheels:

    pip install memplan

    import memplan
    memplan.checkpoint(model, "plan.json")    # before the first step
    memplan.remove(model)                     # takes the checkpoints off again

or in one call, which exports the model and plans, too:

    print(memplan.fit(model, inputs, vram="16G", batch=64))

memplan.estimate and memplan.plan answer as analyze and plan do, with objects;
memplan.measure(model, inputs, plan=plan) runs steps on the GPU, and
memplan.compare(plan, measured) prints them beside the plan. A whole training script
is measured by memplan validate plan.json --engine torch --script train.py.

Without it, the same functions are one file that needs PyTorch 2.4 or newer alone:

    memplan help checkpoint.py > memplan_checkpoint.py  # then import it

The plan is a file of memplan plan or memplan config, or its content as a dictionary.
Modules may take and return anything: tuples, keywords, sizes, None, caches. Copies
and pickles of the model have checkpoints of their own; the names in its state_dict
stay. Apply the plan before torch.compile, DDP and fully_shard wrap the model, or
after: names are matched by the module tree, so that a plan made for the model in a
wrapper applies to it bare, and the other way. strip_prefix="m." says what to take off
the plan's names where that is not clear. A plan for a model with other modules is
refused, and so are regions that cannot run twice: those that write to what they are
given, or to their buffers.

memplan config plan.json --to torch writes what a plan checkpoints. Each entry of
checkpoint is one region, its modules run one after the other. An entry whose modules
all lie in those of one before it is nested in that, as layer1.0 in layer1, or blocks.2
with blocks.3 in blocks.0 to blocks.5: the outer one is run again first, and keeps what
the inner one is called with; each of ops names calls of one operator in one region,
counted from 0, whose results are kept (create_selective_checkpoint_contexts); the
region runs all others again in the backward pass. Its random numbers are those of the
first run, and running statistics that it keeps are not updated again.

Under torch.compile the modules of a region are checkpointed one by one, and only
regions of one module keep results.
`
