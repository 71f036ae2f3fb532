package planner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// selectiveTruth is what PyTorch keeps and runs again of a model with
// selective checkpoints (scripts/pytorch/selective_reference.py).
type selectiveTruth struct {
	Name, Prec string
	Batch      int64
	Regions    []struct {
		Modules   []string
		Calls     map[string]int
		Can, Save map[string][]int
	}
	Kept  int64
	Again []struct { // the last region first
		Ran       []string
		Peak, End int64
	}
}

func (w *selectiveTruth) segments() []train.Segment {
	var out []train.Segment
	for i := range w.Regions {
		r := &w.Regions[i]
		s := train.Segment{Modules: r.Modules}
		for _, op := range slices.Sorted(maps.Keys(r.Save)) {
			s.Save = append(s.Save, train.Saved{Op: "aten." + op, Calls: r.Save[op], Of: r.Calls[op]})
		}
		out = append(out, s)
	}
	return out
}

// TestSelectiveReference compares what selective checkpoints keep between forward
// and backward, which operators they run again and by how many bytes memory
// grows meanwhile with PyTorch's own run.
func TestSelectiveReference(t *testing.T) {
	testdata.Sequential(t)
	path := filepath.Join(t.TempDir(), "selective.jsonl")
	if err := os.WriteFile(path, testdata.Unpacked(t, filepath.Join("testdata", "selective.jsonl.xz")), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := readLines[selectiveTruth](t, path)
	byName := map[string][]selectiveTruth{}
	for _, w := range lines {
		byName[w.Name] = append(byName[w.Name], w)
	}
	n := selectiveCount{used: map[string]bool{}}
	eachArchived(t, func(name string) bool { return byName[name] != nil }, func(name string, m *Model) {
		for i := range byName[name] {
			n.compare(t, m, &byName[name][i])
		}
	})
	t.Logf("%d runs of %d models: kept bytes equal in %d; of %d regions the operators that run again are equal in %d, what they leave in %d, their peak within 10%% in %d",
		n.lines, len(byName), n.kept, n.regions, n.ran, n.end, n.peak)
	if n.kept < n.lines || n.ran*100 < n.regions*84 || n.end*100 < n.regions*86 || n.peak*100 < n.regions*88 {
		t.Error("it got worse")
	}
	for key := range unlike {
		if !n.used[key] {
			t.Errorf("%s is as PyTorch has it: it is no longer one of those that differ", key)
		}
	}
}

// unlike are models of which PyTorch runs other operators, or holds something
// more, than the file shows.
var unlike = map[string]string{
	"hf/bloom":                     "a GELU of its own, which is recognised as PyTorch's",
	"hf/llama_sdpa fp32":           "the mask of is_causal is one node",
	"hf/qwen2_sdpa fp32":           "the mask of is_causal is one node",
	"hf/t5_encoder":                "the mask is added where the file has it, not in the block",
	"net/transformer_encoder none": "a sum with a bias is in place unless a policy watches, which it does in all of the oracle's regions",
	"tv/vit_b_32 none":             "likewise",
}

// unread is the most that a region is called with and does not read: positions,
// which its frame holds all the same.
const unread = 4096

// selectiveCount is how many regions are as PyTorch has them.
type selectiveCount struct {
	regions, ran, end, peak, lines, kept int
	used                                 map[string]bool // what differs
}

func (n *selectiveCount) compare(t *testing.T, m *Model, w *selectiveTruth) {
	id := w.Name + " " + w.Prec
	j, err := Config{Batch: w.Batch, Precision: w.Prec, Optimizer: "none", Runtime: measuredRelease}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	key := w.Name
	if _, ok := unlike[id]; ok {
		key = id
	}
	_, differs := unlike[key]
	_, plain := unlike[w.Name+" none"]
	wrong := func(format string, args ...any) {
		if n.used[key] = true; !differs {
			t.Errorf(id+" "+format, args...)
		}
	}
	b, err := m.build(j, w.Batch, w.segments())
	if err == nil {
		err = b.Check()
	}
	if err != nil {
		wrong("%v", err)
		return
	}
	for i, r := range w.Regions {
		for op, k := range callsIn(b, b.Ranges[i]) {
			if kernel.Selectable(op) && r.Calls[op] != k {
				wrong("%s: %d calls of %s, PyTorch makes %d", r.Modules, k, op, r.Calls[op])
			}
		}
	}
	n.lines++
	if d := w.Kept - keptBytes(b.Program); d >= 0 && d <= unread {
		n.kept++
	} else {
		wrong("%d bytes kept, PyTorch %+d", w.Kept-d, d)
	}
	for i, a := range w.Again {
		si := len(w.Regions) - 1 - i
		ran, peak, end := again(b, si)
		n.regions++
		switch {
		case slices.Equal(ran, a.Ran):
			n.ran++
		case plain && len(w.Regions[si].Save) == 0:
			n.used[w.Name+" none"] = true
		default:
			wrong("%s runs again\n%v, PyTorch\n%v", w.Regions[si].Modules, ran, a.Ran)
		}
		if end == a.End {
			n.end++
		}
		if high := max(a.Peak, w.Kept/20); math.Abs(float64(max(peak, 0)-a.Peak)) <= 0.1*float64(high) {
			n.peak++
		}
	}
}

// callsIn counts the kernels of a range of calls by the operators they are of.
func callsIn(b *train.Build, r [2]int) map[string]int {
	out := map[string]int{}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Phase == program.Forward && !n.Recompute && int(n.Call) >= r[0] && int(n.Call) < r[1] {
			out[operatorOf(n)]++
		}
	}
	return out
}

// operatorOf is the operator that PyTorch's dispatcher sees, "" for a copy that
// another makes inside.
func operatorOf(n *program.Node) string {
	switch {
	case n.Kernel == "copy" && strings.HasSuffix(n.Op, "_norm"):
		return ""
	case n.Kernel == "copy" && slices.Contains([]string{"to", "type_as", "_to_copy"}, n.Op):
		return "_to_copy"
	case n.Kernel == "copy":
		return "clone"
	}
	return kernel.Dispatched(n.Op)
}

// counted reports a storage that the oracle counts.
func counted(s *program.Storage) bool {
	return s.Life != program.Static && s.Life != program.State && s.Category != program.Workspace
}

// keptBytes is what lives when the loss has been computed.
func keptBytes(p *program.Program) (sum int64) {
	last := int32(-1)
	for i := range p.Nodes {
		if p.Nodes[i].Phase == program.Loss {
			last = int32(i)
		}
	}
	r := liveness.NewRanges(p)
	for id := range p.Storages {
		if s := &p.Storages[id]; counted(s) && r.Start[id] >= 0 && r.Start[id] <= last && r.End[id] > last {
			sum += s.Bytes
		}
	}
	return sum
}

// again lists the operators that recompute a segment and make storage, and by
// how much memory grows at most and in the end.
func again(b *train.Build, seg int) (ran []string, peak, end int64) {
	p := b.Program
	ran = []string{}
	first, last := int32(-1), int32(-1)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.Recompute || int(n.Segment) != seg {
			continue
		}
		if first < 0 {
			first = int32(i)
		}
		last = int32(i)
		if slices.ContainsFunc(n.Events, func(ev program.Event) bool { return !ev.Free && counted(&p.Storages[ev.Storage]) }) {
			op := operatorOf(n)
			if strings.HasSuffix(op, "_") { // in place, it makes only the copy of its operand that backward needs
				op = "clone"
			}
			if op != "" {
				ran = append(ran, op)
			}
		}
	}
	_, steady := liveness.Steps(p)
	makers := liveness.NewRanges(p).Start
	kept := func(id program.StorageID) bool { // taken before the first node runs, and not needed
		n := &p.Nodes[max(makers[id], 0)]
		return n.Phase == program.Forward && int(n.Call) >= b.Ranges[seg][0] && int(n.Call) < b.Ranges[seg][1]
	}
	for _, ev := range steady.Events {
		if ev.Node < first && (ev.Node != first-1 || !ev.Free || !kept(ev.Storage)) || ev.Node > last || !counted(&p.Storages[ev.Storage]) {
			continue
		}
		if ev.Free {
			end -= steady.Bytes(ev)
		} else {
			end += steady.Bytes(ev)
			peak = max(peak, end)
		}
	}
	return ran, peak, end
}

// eachArchived opens the models of graph/train's archive that are wanted, by
// their names in saved_reference.py.
func eachArchived(t *testing.T, want func(string) bool, do func(string, *Model)) {
	t.Helper()
	for file, data := range testdata.Archived(t, filepath.Join("..", "graph", "train", "testdata", "saved.tar.xz")) {
		name := strings.Replace(strings.TrimSuffix(file, ".onnx"), "_", "/", 1)
		if !strings.HasSuffix(file, ".onnx") || !want(name) {
			continue
		}
		path := filepath.Join(t.TempDir(), "m.onnx")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		do(name, m)
	}
}

// TestApplied compares the bytes that live between forward and backward of
// steps to which memplan.checkpoint has applied a configuration,
// on the CPU, with those predicted. scripts/pytorch/selective_reference.py --apply ran
// them, and saw the gradients of the steps without checkpoints.
func TestApplied(t *testing.T) {
	dir := filepath.Join("testdata", "applied")
	models := map[string]*Model{}
	calls := 0
	for _, r := range readLines[struct {
		Name        string
		Batch, Kept int64
		Config      json.RawMessage
	}](t, filepath.Join(dir, "runs.jsonl")) {
		if models[r.Name] == nil {
			models[r.Name] = openPacked(t, filepath.Join(dir, r.Name+".onnx.xz"))
		}
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, r.Config, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := Config{Batch: r.Batch, Optimizer: "none", Runtime: measuredRelease, Checkpoint: path}
		if err := cfg.ReadCheckpoint(); err != nil {
			t.Fatal(err)
		}
		s, err := models[r.Name].Program(cfg)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		n := 0
		for _, seg := range cfg.Segments {
			for _, o := range seg.Save {
				n += len(o.Calls)
			}
		}
		calls += n
		if d := r.Kept - keptBytes(s.Program); d < 0 || d > unread {
			t.Errorf("%s: %d segments keep %d calls: %d bytes between forward and backward, PyTorch has %+d", r.Name, len(cfg.Segments), n, r.Kept-d, d)
		}
	}
	if len(models) < 3 || calls < 300 {
		t.Errorf("%d models, %d calls", len(models), calls)
	}
}

// openPacked opens a model that is compressed.
func openPacked(t *testing.T, path string) *Model {
	t.Helper()
	plain := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(plain, testdata.Unpacked(t, path), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(plain)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSelectivePlans asks for plans under falling budgets: each fits when it is
// replayed, costs no more than one of whole segments and no less than any
// bound, and none is faster under a smaller budget. Nor is any choice faster
// than the bound that fits.
func TestSelectivePlans(t *testing.T) {
	testdata.Sequential(t)
	keeping := 0
	for _, x := range []struct {
		name    string
		batch   int64
		budgets []int64 // MiB
	}{{"gpt2", 16, []int64{16000, 8400, 6000}}, {"gpt2", 48, []int64{16384}}, {"resnet50", 64, []int64{4500, 3500}}} {
		m, err := Open(testdata.Shared(t, "models", x.name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		before := -1.0
		for _, b := range x.budgets {
			cfg := Config{Batch: x.batch, Runtime: measuredRelease, Headroom: "0", VRAM: b << 20, Checkpoint: "auto"}
			p, err := m.Plan(context.Background(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			c := p.Checkpoint
			if c == nil || !*p.Fits || p.Peak.ProcessBytes > cfg.VRAM {
				t.Fatalf("%s in %d MiB: %+v, fits %v, notes %v", x.name, b, c, *p.Fits, p.Warnings)
			}
			whole := cfg
			whole.Checkpoint = "segments"
			w, err := m.Analyze(context.Background(), whole)
			if err != nil {
				t.Fatal(err)
			}
			o := c.RecomputeOverhead
			t.Logf("%s in %d MiB: overhead %.4f, bound %.4f, any schedule %.4f, whole segments %.4f", x.name, b, o, c.LowerBound, c.ScheduleBound, w.Checkpoint.RecomputeOverhead)
			if o < before || o > w.Checkpoint.RecomputeOverhead || o < c.LowerBound || c.LowerBound > w.Checkpoint.RecomputeOverhead || o < c.ScheduleBound {
				t.Errorf("%s in %d MiB: overhead %v, %v with more memory; %+v", x.name, b, o, before, w.Checkpoint)
			}
			before = o
			for _, s := range p.Selection {
				keeping += len(s.Save)
			}
			sameAsConfigured(t, m, p, cfg)
			noneBelow(t, m, cfg, c.LowerBound)
		}
	}
	if keeping == 0 {
		t.Error("no plan keeps anything")
	}
}

// sameAsConfigured checks that the configuration of a plan is read as the plan.
func sameAsConfigured(t *testing.T, m *Model, p *Plan, cfg Config) {
	t.Helper()
	torch, err := p.ToTorch()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(torch)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again := cfg
	again.Checkpoint = path
	if err := again.ReadCheckpoint(); err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(context.Background(), again)
	if err != nil || r.Peak != p.Peak || r.Time != p.Time {
		t.Errorf("the configuration has peak %+v, the plan %+v; %v", r.Peak, p.Peak, err)
	}
}

// noneBelow tries choices at random under the budget.
func noneBelow(t *testing.T, m *Model, cfg Config, bound float64) {
	t.Helper()
	j, err := cfg.resolve()
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.selector(j, cfg.Batch)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		segs := s.selective.Sample(rng)
		ev, err := m.evaluate(j, cfg.Batch, segs, true)
		if err != nil {
			t.Fatal(err)
		}
		if o := overhead(ev.Program, &j.time); ev.fail == nil && o < bound-1e-6 {
			t.Errorf("%v costs %v, less than the bound %v", segs, o, bound)
		}
	}
}

// TestReadCheckpointRefuses reads configurations that no region can follow.
func TestReadCheckpointRefuses(t *testing.T) {
	for ops, want := range map[string]string{
		`{"region": 1, "op": "aten.mm", "calls": [0], "of": 1}`:    "in region 1, of 1",
		`{"region": 0, "op": "mm", "calls": [0], "of": 1}`:         "named as aten.addmm",
		`{"region": 0, "op": "aten.mm", "calls": [], "of": 1}`:     "named as aten.addmm",
		`{"region": 0, "op": "aten.mm", "calls": [1], "of": 1}`:    "want distinct indices",
		`{"region": 0, "op": "aten.mm", "calls": [0, 0], "of": 2}`: "want distinct indices",
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		text := `{"schemaVersion": 1, "framework": "torch", "checkpoint": [{"modules": ["a"]}], "ops": [` + ops + `]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := (&Config{Checkpoint: path}).ReadCheckpoint(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ops, err, want)
		}
	}
}

// TestSelectiveDoc measures plans for PyTorch and writes their section of
// docs/selection.md.
func TestSelectiveDoc(t *testing.T) {
	if !*update {
		t.Skip("writes docs/selection.md; run with -update")
	}
	var text strings.Builder
	text.WriteString("\n| model, batch | activations left | segments: overhead, % | selective: overhead, % | bound, % | gap, points | any schedule: bound, % | seconds |\n|---|---|---|---|---|---|---|---|\n")
	for _, x := range []struct {
		name  string
		batch int64
	}{{"gpt2", 16}, {"bert_base_mlm", 16}, {"vit_b_16", 64}, {"llama_250m", 8}, {"resnet50", 64}, {"densenet121", 64}} {
		m, err := Open(testdata.Shared(t, "models", x.name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		free, err := m.Analyze(context.Background(), Config{Batch: x.batch, Checkpoint: "none", Runtime: measuredRelease})
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []int64{50, 25} {
			cfg := Config{Batch: x.batch, Runtime: measuredRelease, Headroom: "0", VRAM: free.Peak.ProcessBytes - free.SavedBytes*(100-part)/100}
			fmt.Fprintf(&text, "| %s, %d | %d%% | %s |\n", x.name, x.batch, part, strings.Join(planRow(t, m, cfg), " | "))
		}
	}
	testdata.WriteSection(t, "selection.md", "selective", text.String())
}

// planRow plans whole segments and selective ones, and returns their overheads,
// the bounds and the time of the second.
func planRow(t *testing.T, m *Model, cfg Config) []string {
	t.Helper()
	row := make([]string, 6)
	for i, mode := range []string{"segments", "auto"} {
		cfg.Checkpoint = mode
		start, cpu := time.Now(), testdata.CPU()
		r, err := m.Analyze(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		took := min(time.Since(start), testdata.CPU()-cpu)
		row[5] = fmt.Sprintf("%.1f", took.Seconds())
		c := r.Checkpoint
		if c == nil || !*r.Fits {
			row[i] = "none fits"
			continue
		}
		row[i] = fmt.Sprintf("%.2f", 100*c.RecomputeOverhead)
		if i == 1 {
			row[2], row[3], row[4] = fmt.Sprintf("%.2f", 100*c.LowerBound), fmt.Sprintf("%.2f", 100*c.Gap), fmt.Sprintf("%.2f", 100*c.ScheduleBound)
		}
	}
	return row
}
