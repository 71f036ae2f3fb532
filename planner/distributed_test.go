package planner

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/liveness/alloc"
)

// A distTruth is one measured run on several GPUs.
type distTruth struct {
	Name, Strategy string
	Batch          int64
	World, Micro   int
	Blocks         []string
	Err            string
	Reserved       int64
	Ranks          [][3]int64 // allocated and reserved peak, the driver's bytes
	First          distStep   `json:"first_step"`
	Steady         distStep
}

type distStep struct {
	Before       int64
	AfterForward int64 `json:"after_fwd"`
	AfterBack    int64 `json:"after_bwd"`
	AfterStep    int64 `json:"after_opt"`
	Forward      int64 `json:"fwd_peak"`
	Backward     int64 `json:"bwd_peak"`
	Update       int64 `json:"opt_peak"`
}

// rank builds the step of a rank of a measured run.
func (r *distTruth) rank(m *Model, rank int, late bool) (*train.Build, *job, error) {
	c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200"}
	if r.Strategy == "tp" {
		c.Optimizer = "adamw-loop"
	}
	if r.Strategy == "fsdp-bf16" {
		c.Precision = "bf16"
	}
	batch := r.Batch
	if r.Micro > 0 {
		c.Accumulate = r.Micro
		batch /= int64(r.Micro)
	}
	j, err := c.resolve()
	if err != nil {
		return nil, nil, err
	}
	var segs []train.Segment
	if strings.HasSuffix(r.Strategy, "-ckpt") {
		for _, name := range r.Blocks {
			segs = append(segs, train.Segment{Modules: []string{name}})
		}
	}
	b, err := m.build(j, batch, segs)
	if err != nil {
		return nil, nil, err
	}
	o, err := m.options(j, nil)
	if err != nil {
		return nil, nil, err
	}
	w := shard.World{Size: r.World, Rank: rank}
	switch r.Strategy {
	case "ddp", "ddp-view", "ddp-ckpt", "zero1":
		b, err = shard.DDP{World: w, BucketViews: r.Strategy == "ddp-view", ZeRO: r.Strategy == "zero1", LateFree: late, Update: o.Update}.Apply(b)
	case "pp-gpipe", "pp-1f1b":
		b, err = shard.Pipeline{Stage: rank, Splits: pipelineSplits[r.Name][r.World], Micros: r.Micro, Schedule: strings.TrimPrefix(r.Strategy, "pp-"), Update: o.Update}.Apply(b)
	case "tp", "fsdp_tp":
		if r.Strategy == "fsdp_tp" {
			w.Size /= 2
			w.Rank /= 2
		}
		f := shard.FSDP{World: w, Device: shard.Device{SMs: o.Config.SMs, ThreadsPerSM: o.Config.ThreadsPerSM}, Units: r.Blocks, Update: o.Update}
		if r.Strategy == "fsdp_tp" {
			w.Rank = rank % 2
		}
		plan := tensorPlans[r.Name]
		b, err = shard.TP{World: w, Colwise: plan[0], Rowwise: plan[1], Update: o.Update}.Apply(b)
		if r.Strategy == "fsdp_tp" && err == nil {
			b, err = f.Apply(b)
		}
	default:
		f := shard.FSDP{World: w, Device: shard.Device{SMs: o.Config.SMs, ThreadsPerSM: o.Config.ThreadsPerSM}, Units: r.Blocks, Update: o.Update,
			Keep: r.Strategy == "fsdp-keep", Offload: r.Strategy == "fsdp-offload"}
		if r.Strategy == "fsdp-bf16" {
			f.Stored, f.Reduced = graph.Float32, graph.Float32
		}
		b, err = f.Apply(b)
	}
	return b, j, err
}

// tensorPlans are the modules that runs with tensor parallelism split by outputs
// and by inputs.
var tensorPlans = map[string][2][]string{
	"qwen2": {{"m.model.layers.*.self_attn.[qkv]_proj", "m.model.layers.*.mlp.gate_proj", "m.model.layers.*.mlp.up_proj"},
		{"m.model.layers.*.self_attn.o_proj", "m.model.layers.*.mlp.down_proj"}},
	"roberta_sdpa": {{"m.roberta.encoder.layer.*.attention.self.*", "m.roberta.encoder.layer.*.intermediate.dense"},
		{"m.roberta.encoder.layer.*.attention.output.dense", "m.roberta.encoder.layer.*.output.dense"}},
	"distilbert": {{"m.distilbert.transformer.layer.*.attention.[qkv]_lin", "m.distilbert.transformer.layer.*.ffn.lin1"},
		{"m.distilbert.transformer.layer.*.attention.out_lin", "m.distilbert.transformer.layer.*.ffn.lin2"}},
	"llama_250m": {{"m.model.layers.*.self_attn.[qkv]_proj", "m.model.layers.*.mlp.gate_proj", "m.model.layers.*.mlp.up_proj"},
		{"m.model.layers.*.self_attn.o_proj", "m.model.layers.*.mlp.down_proj"}},
	"bert_base_mlm": {{"m.bert.encoder.layer.*.attention.self.*", "m.bert.encoder.layer.*.intermediate.dense"},
		{"m.bert.encoder.layer.*.attention.output.dense", "m.bert.encoder.layer.*.output.dense"}},
}

// pipelineSplits are the modules that stages begin with, by the number of stages.
var pipelineSplits = map[string]map[int][]string{
	"mlp":      {2: {"net.8"}, 4: {"net.4", "net.8", "net.12"}},
	"resnet50": {2: {"layer3.0"}, 4: {"layer2.0", "layer3.0", "layer4.0"}},
}

func TestDistributed(t *testing.T) {
	path := testdata.Shared(t, "truth/distributed.jsonl")
	models := map[string]*Model{}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var r distTruth
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Err != "" {
			continue
		}
		m := models[r.Name]
		if m == nil {
			if m, err = Open(filepath.Join(testdata.Shared(t, "models"), r.Name+".dyn-train.onnx")); err != nil {
				t.Error(err)
				continue
			}
			models[r.Name] = m
		}
		b, j, err := r.rank(m, 0, os.Getenv("LATE") != "")
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			continue
		}
		if err := b.Check(); err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
		}
		res, err := liveness.Replay[alloc.Handle](b.Program, alloc.NewCaching(j.conf, 0), steps)
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			continue
		}
		t.Logf("%-12s %-12s %d %d/%d allocated %+.3f%% reserved %+.2f%%", r.Name, r.Strategy, res.Reserved>>20, r.Ranks[0][1]>>20, r.Ranks[1][1]>>20, 100*relative(res.Allocated, r.Ranks[0][0]), 100*relative(res.Reserved, r.Ranks[0][1]))
		if os.Getenv("SHOW") != "" && strings.HasPrefix(r.Name+" "+r.Strategy, os.Getenv("SHOW")) {
			for i, st := range []struct {
				liveness.StepStats
				distStep
			}{{res.Steps[0], r.First}, {res.Steps[len(res.Steps)-1], r.Steady}} {
				t.Logf("step %d: start %d/%d fwd %d/%d bwd %d/%d after %d/%d peaks %d/%d %d/%d %d/%d", i, st.Start, st.Before, st.StepStats.AfterForward, st.distStep.AfterForward, st.AfterBackward, st.AfterBack,
					st.StepStats.AfterStep, st.distStep.AfterStep, st.ForwardPeak, st.Forward, st.BackwardPeak, st.Backward, st.OptimizerPeak, st.Update)
			}
		}
	}
}

// TestMesh replays the ranks of runs on two and four GPUs.
func TestMesh(t *testing.T) {
	raw, err := os.ReadFile(testdata.Shared(t, "truth/mesh.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	one, err := os.ReadFile(testdata.Shared(t, "truth/distributed.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSpace(string(one)), "\n") {
		var r distTruth
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		blocks[r.Name] = r.Blocks
	}
	for _, l := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var r distTruth
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		kind := r.Strategy
		switch r.Blocks = blocks[r.Name]; kind {
		case "hsdp":
			r.Strategy, r.World = "fsdp", 2
		case "fsdp", "ddp", "tp", "fsdp_tp", "pp-gpipe", "pp-1f1b":
		default:
			continue
		}
		m, err := Open(filepath.Join(testdata.Shared(t, "models"), r.Name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		for rank, want := range r.Ranks {
			for _, late := range []bool{false, true} {
				if late && kind != "ddp" {
					continue
				}
				b, j, err := r.rank(m, rank%r.World, late)
				if err != nil {
					t.Fatal(err)
				}
				res, err := liveness.Replay[alloc.Handle](b.Program, alloc.NewCaching(j.conf, 0), steps)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%-14s %-8s rank %d late %v: allocated %d %+.3f%% reserved %+.2f%%", r.Name, kind, rank, late, want[0]>>20, 100*relative(res.Allocated, want[0]), 100*relative(res.Reserved, want[1]))
			}
		}
	}
}

// TestDistributedTraces compares a rank's timeline with the allocations and frees of a real one.
func TestDistributedTraces(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(testdata.Shared(t, "truth/traces/distributed"), "*.trace.xz"))
	if len(files) == 0 {
		t.Fatal("no traces")
	}
	rows := map[string]distTruth{}
	raw, err := os.ReadFile(testdata.Shared(t, "truth/distributed.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var r distTruth
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		rows[fmt.Sprint(r.Name, ".b", r.Batch, ".", r.Strategy)] = r
	}
	var events, matched, bytes, matchedBytes int64
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".trace.xz")
		r := rows[name]
		m, err := Open(filepath.Join(testdata.Shared(t, "models"), r.Name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := distEvents(f)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := r.rank(m, 0, os.Getenv("LATE") != "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, steady := liveness.Steps(b.Program)
		letters := [...]byte{program.ZeroGrad: 'Z', program.Forward: 'F', program.Loss: 'F', program.Backward: 'B', program.Update: 'O'}
		var got []ev
		for _, e := range steady.Events {
			n := &b.Nodes[e.Node]
			if n.Phase == program.ZeroGrad || n.Op == "del" {
				continue
			}
			got = append(got, ev{letters[n.Phase], e.Free, b.Storages[e.Storage].Bytes, fmt.Sprint("s", b.Storages[e.Storage].Stream, " ", n.Op, " ", n.Autograd, " ", n.Name, " ", n.Module)})
		}
		n, nb, total, diff := align(want, got)
		t.Logf("%-32s %5d events, matched %6.2f%% of events %6.2f%% of bytes; rise %+.3f%%", name, len(want), pct(n, int64(len(want))), pct(nb, total), 100*relative(highest(got), highest(want)))
		if s := os.Getenv("SHOW"); s != "" && strings.HasPrefix(name, s) {
			t.Log(diff)
		}
		events, matched, bytes, matchedBytes = events+int64(len(want)), matched+n, bytes+total, matchedBytes+nb
	}
	t.Logf("%.2f%% of events, %.2f%% of bytes", pct(matched, events), pct(matchedBytes, bytes))
}

// distEvents reads a trace whose lines name the stream before the operator.
func distEvents(path string) (out []ev, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := xz.NewReader(f)
	if err != nil {
		return nil, err
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<24)
	made := map[string]ev{}
	for s.Scan() {
		w := strings.Fields(s.Text())
		if len(w) < 3 || w[0] == "Z" || w[0] == "E" || w[2] == "old" {
			continue
		}
		switch w[1] {
		case "+":
			n, err := strconv.ParseInt(w[3], 10, 64)
			if err != nil {
				return nil, err
			}
			made[w[2]] = ev{w[0][0], false, n, strings.Join(w[4:], " ")}
			out = append(out, made[w[2]])
		case "-":
			e := made[w[2]]
			e.phase, e.free = w[0][0], true
			out = append(out, e)
		}
	}
	return out, s.Err()
}

// A parallelRun is a measured run of testdata/distributed: ranks, each with the
// peaks of its steps.
type parallelRun struct {
	distTruth
	Ranks []struct {
		Base   int64
		Steps  [][2]int64 // allocated and reserved
		Driver int64
		MS     []float64
	}
}

func TestParallelRuns(t *testing.T) {
	zoo := collections(t)[0]
	var worst []float64
	for _, l := range strings.Split(strings.TrimSpace(string(testdata.Unpacked(t, "testdata/distributed/steps.jsonl.xz"))), "\n") {
		var r parallelRun
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		if r.Name == "" || r.Err != "" {
			continue
		}
		m := zoo.open(t, r.Name)
		for rank, g := range r.Ranks {
			var line []string
			for _, late := range []bool{false, true} {
				if late && !strings.HasPrefix(r.Strategy, "ddp") && r.Strategy != "zero1" {
					continue
				}
				b, j, err := r.rank(m, rank, late)
				if err != nil {
					t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
					continue
				}
				res, err := liveness.Replay[alloc.Handle](b.Program, alloc.NewCaching(j.conf, 0), 3)
				if err != nil {
					t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
					continue
				}
				for i := range 3 {
					line = append(line, fmt.Sprintf("%+.3f", 100*relative(res.Steps[i].Peak(), g.Steps[i][0]-g.Base)))
				}
				line = append(line, fmt.Sprintf("r %+.2f", 100*relative(res.Steps[2].Reserved, g.Steps[2][1])))
				worst = append(worst, math.Abs(100*relative(res.Steps[2].Peak(), g.Steps[2][0]-g.Base)))
			}
			t.Logf("%-14s %-12s %d %s", r.Name, r.Strategy, rank, strings.Join(line, " "))
		}
	}
	slices.Sort(worst)
	if n := len(worst); n > 0 {
		t.Logf("%d: median %.4f%% 95%% %.3f%% worst %.3f%%", n, worst[n/2], worst[n*95/100], worst[n-1])
	}
}
