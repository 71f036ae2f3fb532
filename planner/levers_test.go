package planner

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// leverModels are small models with a question of each under which the step does not fit,
// and levers that the best configuration is sought among.
var leverModels = []struct {
	path  string
	cfg   Config
	allow []string
}{
	{"../models/mlp.onnx", Config{Batch: 256, VRAM: 3 << 30, Headroom: "0"}, []string{"precision=bf16", "optimizer", "accumulate", "checkpoint"}},
	{"testdata/levers/lm.onnx", Config{Batch: 8, VRAM: 1100 << 20, Headroom: "0", Dims: map[string]int64{"seq": 256}}, []string{"precision=amp-bf16", "accumulate", "checkpoint", "input-size"}},
	{"testdata/levers/conv.onnx", Config{Batch: 32, VRAM: 1000 << 20, Headroom: "0", Dims: map[string]int64{"h8": 16, "w8": 16}}, []string{"optimizer=sgd", "batch", "accumulate", "checkpoint"}},
	{"../models/resnet50.onnx", Config{Batch: 8, VRAM: 1700 << 20, Headroom: "0"}, []string{"precision", "accumulate", "checkpoint"}},
}

func openLever(t *testing.T, path string) *Model {
	t.Helper()
	m, err := Open(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func withoutCheckpoints(c Config) Config {
	c.Checkpoint = "none"
	return c
}

// asked is a question with flags set as a command line would.
func asked(t *testing.T, c Config, args []string) Config {
	t.Helper()
	c.Dims = maps.Clone(c.Dims)
	for i := 0; i < len(args); i++ {
		flag, word := strings.TrimPrefix(args[i], "--"), "true"
		if !settingNamed(flag).bare(&c) {
			i++
			word = args[i]
		}
		if name, _, ok := strings.Cut(word, "="); ok && flag == "dim" {
			delete(c.Dims, name)
		}
		if err := settingNamed(flag).Read(&c, word); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Each row is the answer to the question with its flags.
func TestLeverRows(t *testing.T) {
	for _, x := range leverModels {
		m := openLever(t, x.path)
		allowed, err := ParseLevers([]string{"all"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.leverSearch(t.Context(), x.cfg, allowed)
		if err != nil {
			t.Fatal(x.path, err)
		}
		if err := s.alone(); err != nil {
			t.Fatal(x.path, err)
		}
		r := s.report
		for _, row := range r.Rows { // of the four, images have batch normalisations
			if images := strings.Contains(x.path, "conv") || strings.Contains(x.path, "resnet"); row.Lever == "accumulate" && images != (row.Changes != "") {
				t.Errorf("%s: %s changes %q", x.path, row.Setting, row.Changes)
			}
		}
		if *r.Base.Fits {
			t.Errorf("%s fits without a lever: nothing is tried", x.path)
		}
		if len(r.Rows) < 15 {
			t.Errorf("%s: %d rows", x.path, len(r.Rows))
		}
		plain := withoutCheckpoints(x.cfg)
		same := func(what string, p *LeverPoint, args []string) {
			a, err := m.Analyze(t.Context(), asked(t, plain, args))
			if err != nil {
				t.Errorf("%s %s %v: %v", x.path, what, args, err)
				return
			}
			if p.ProcessBytes != a.Peak.ProcessBytes || p.AllocatedBytes != a.Peak.AllocatedBytes || p.ReservedBytes != a.Peak.ReservedBytes || p.StepMs != a.Time.StepMs || *p.Fits != *a.Fits {
				t.Errorf("%s %s: %+v, alone %+v, %v ms", x.path, what, p, a.Peak, a.Time.StepMs)
			}
		}
		same("base", &r.Base, nil)
		last := -1.0
		for i := range r.Rows {
			row := &r.Rows[i]
			if row.Why != "" {
				continue
			}
			same(row.Lever+" "+row.Setting, &row.LeverPoint, row.Args)
			if row.SavedBytes != r.Base.ProcessBytes-row.ProcessBytes {
				t.Errorf("%s: %+v saves of %d", x.path, row, r.Base.ProcessBytes)
			}
			if row.MsPerGiB != nil {
				if *row.MsPerGiB < last {
					t.Errorf("%s: %+v after one of %v ms", x.path, row, last)
				}
				last = *row.MsPerGiB
			}
		}
	}
}

// leverChoices are the words of each lever that the brute force combines, written out
// here: flags to add to a question, with the batch after division by the last.
func leverChoices(x *Config, allow []string) [][][]string {
	var out [][][]string
	for _, name := range allow {
		list := [][]string{nil}
		switch name {
		case "precision":
			list = append(list, []string{"--precision", "amp-bf16"}, []string{"--precision", "bf16"})
		case "precision=bf16":
			list = append(list, []string{"--precision", "bf16"})
		case "precision=amp-bf16":
			list = append(list, []string{"--precision", "amp-bf16"})
		case "optimizer":
			list = append(list, []string{"--optimizer", "adamw-fused"}, []string{"--optimizer", "adamw-loop"}, []string{"--optimizer", "adamw-8bit"})
		case "optimizer=sgd":
			list = append(list, []string{"--optimizer", "sgd"})
		case "checkpoint":
			list = append(list, []string{"--checkpoint", "all"}, []string{"--checkpoint", "sqrt"}, []string{"--checkpoint", "auto"})
		case "batch":
			for n := x.Batch / 2; n > 0; n /= 2 {
				list = append(list, []string{"--batch", fmt.Sprint(n)})
			}
		case "input-size":
			list = append(list, []string{"--dim", "seq=192"}, []string{"--dim", "seq=128"}, []string{"--dim", "seq=64"})
		case "accumulate":
			for n := int64(2); n <= x.Batch && n <= 64; n *= 2 {
				list = append(list, []string{"--accumulate", fmt.Sprint(n)})
			}
		}
		out = append(out, list)
	}
	return out
}

// bruteLevers tries all combinations: the least time of a sample that fits, and the least
// memory without the checkpoints that the budget chooses.
func bruteLevers(t *testing.T, m *Model, cfg Config, choices [][][]string) (fastest float64, least int64) {
	t.Helper()
	cfg.Checkpoint = "none"
	fastest, least = math.Inf(1), math.MaxInt64
	var visit func(i int, args []string)
	visit = func(i int, args []string) {
		if i < len(choices) {
			for _, c := range choices[i] {
				visit(i+1, slices.Concat(args, c))
			}
			return
		}
		c := asked(t, cfg, args)
		n := int64(max(c.Accumulate, 1))
		if c.Batch%n != 0 {
			return
		}
		c.Batch /= n
		a, err := m.Analyze(t.Context(), c)
		if err != nil {
			t.Fatal(args, err)
		}
		if *a.Fits {
			fastest = min(fastest, a.Time.StepMs/float64(c.Batch*n))
		}
		if c.Checkpoint != "auto" {
			least = min(least, a.Peak.ProcessBytes)
		}
	}
	visit(0, nil)
	return fastest, least
}

// The best of the allowed levers is the best of all their combinations, whether these are
// all tried or the levers two at a time.
func TestLeverBest(t *testing.T) {
	for _, x := range leverModels {
		m := openLever(t, x.path)
		fastest, least := bruteLevers(t, m, x.cfg, leverChoices(&x.cfg, x.allow))
		for _, most := range []int{0, math.MaxInt} {
			allowed, err := ParseLevers(x.allow)
			if err != nil {
				t.Fatal(err)
			}
			s, err := m.leverSearch(t.Context(), x.cfg, allowed)
			if err != nil {
				t.Fatal(err)
			}
			s.most = most
			r, err := s.run()
			if err != nil {
				t.Fatal(err)
			}
			if r.Best == nil || !*r.Best.Fits || r.Best.sampleMs != fastest {
				t.Errorf("%s, %s: %+v, want %v ms a sample", x.path, r.Search, r.Best, fastest)
			}
			if r.Least.ProcessBytes != least {
				t.Errorf("%s, %s: %+v, want %d bytes", x.path, r.Search, r.Least, least)
			}
			if a, err := m.Analyze(t.Context(), asked(t, withoutCheckpoints(x.cfg), r.Best.Args)); err != nil || a.Peak.ProcessBytes != r.Best.ProcessBytes || a.Time.StepMs != r.Best.StepMs {
				t.Errorf("%s: %v: %+v, alone %+v", x.path, err, r.Best, a)
			}
			t.Logf("%s: %d steps, %s: %v", x.path, r.Replayed, r.Search, r.Best.Levers)
		}
	}
}

// leverFlags are the flags that a lever may set.
var leverFlags = map[string][]string{
	"precision": {"--precision"}, "optimizer": {"--optimizer"}, "accumulate": {"--batch", "--accumulate"}, "attention": {"--attention"},
	"checkpoint": {"--checkpoint"}, "loss": {"--loss"}, "batch": {"--batch"}, "input-size": {"--dim"}, "offload": {"--offload"}, "in-backward": {"--in-backward"}, "buckets": {"--ddp-views", "--ddp-bucket"},
}

// No lever is used that is not allowed, whatever it would save, and each lever has rows or
// a reason why not.
func TestLeversOnlyAllowed(t *testing.T) {
	x := leverModels[1]
	m := openLever(t, x.path)
	for _, l := range Levers {
		r, err := m.Allow(t.Context(), x.cfg, []string{l.Name})
		if err != nil {
			t.Fatal(l.Name, err)
		}
		if len(r.Rows) == 0 && len(r.Refused) == 0 {
			t.Errorf("%s is left out without a word", l.Name)
		}
		args := [][]string{r.Least.Args}
		if r.Best != nil {
			args = append(args, r.Best.Args)
		}
		for i := range r.Rows {
			if r.Rows[i].Lever != l.Name {
				t.Errorf("%s: a row of %s", l.Name, r.Rows[i].Lever)
			}
			args = append(args, r.Rows[i].Args)
		}
		for _, a := range args {
			for _, word := range a {
				if strings.HasPrefix(word, "--") && !slices.Contains(leverFlags[l.Name], word) {
					t.Errorf("%s: %v", l.Name, a)
				}
			}
		}
		for _, f := range r.Refused {
			if f.Lever != l.Name || f.Why == "" || f.What == "" {
				t.Errorf("%s: %+v", l.Name, f)
			}
		}
	}
	// SGD saves most, but is another algorithm.
	r, err := m.Allow(t.Context(), x.cfg, []string{"optimizer"})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(r.Least.Args, "sgd") || slices.Contains(r.Least.Args, "adafactor") {
		t.Errorf("chosen: %v", r.Least.Args)
	}
	if r, err = m.Allow(t.Context(), x.cfg, []string{"optimizer=sgd"}); err != nil || !slices.Equal(r.Least.Args, []string{"--optimizer", "sgd"}) {
		t.Errorf("%+v, %v", r.Least, err)
	}
}

// A cross-entropy in parts allocates and frees what PyTorch did on a processor: scores of a
// part, and gradients of the head's weight, in this order (scripts/pytorch/chunked_loss.py).
func TestChunkedLoss(t *testing.T) {
	data, err := os.ReadFile("testdata/levers/chunked.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := openLever(t, lmModel)
	a, err := m.Analyze(t.Context(), Config{Batch: 2, Dims: map[string]int64{"seq": 64}, Loss: train.ChunkedLoss, Optimizer: "sgd"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range a.ev.res.Steady.Events {
		bytes := a.ev.Storages[e.Storage].Bytes
		if a.ev.Nodes[e.Node].Phase <= program.Forward || bytes != 16*4096*4 && bytes != 4096*256*4 {
			continue
		}
		got = append(got, fmt.Sprintf("%s%d", map[bool]string{true: "-", false: "+"}[e.Free], bytes))
	}
	want := strings.Fields(string(data))
	if !slices.Equal(got, want) {
		t.Errorf("%d events, PyTorch's %d:\n%v\n%v", len(got), len(want), got, want)
	}
	for path, why := range map[string]string{"../models/mlp.onnx": "", "../validate/testdata/golden/unet.onnx": "is not that of a linear layer"} {
		_, err := openLever(t, path).Analyze(t.Context(), Config{Batch: 2, Loss: train.ChunkedLoss})
		if why == "" && err != nil || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v, want %q", path, err, why)
		}
	}
}

func TestLeverErrors(t *testing.T) {
	m := openLever(t, leverModels[1].path)
	for _, x := range []struct {
		cfg   Config
		allow string
		want  string
	}{
		{Config{Batch: 8}, "precison", "want all or some of precision"},
		{Config{Batch: 8}, "precision=fp8", "want one of amp-bf16, bf16"},
		{Config{Batch: 8, Mode: "infer"}, "precision", "training steps"},
		{Config{BatchMax: true, VRAM: 1 << 30}, "precision", "--batch N"},
		{Config{VRAM: 4 << 30}, "precision", "--batch N"},
	} {
		x.cfg.Dims = map[string]int64{"seq": 16}
		if _, err := m.Allow(t.Context(), x.cfg, []string{x.allow}); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.allow, err, x.want)
		}
	}
}
