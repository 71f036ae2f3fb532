package planner

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/internal/trace"
	"github.com/memplan/memplan/liveness"
)

// A convPass is one pass of one convolution of a step: what it allocates first,
// its result, tells which event of a trace it is.
type convPass struct {
	conv     cudnn.Conv
	pass     cudnn.Pass
	result   int64 // bytes
	phase    byte
	measured int64 // workspace
}

// marked is added to the number of a convolution's pass in place of its workspace.
const marked = 1 << 50

// convPasses are those of a steady step, in its order.
func convPasses(m *Model, r *roundRun) ([]convPass, error) {
	cfg := r.config()
	cfg.GPU = "" // the measured card, without its size as a budget
	j, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if err := m.bind(r.Batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, err
	}
	o, err := m.options(j, nil)
	if err != nil {
		return nil, err
	}
	var asked []convPass
	o.Config.ConvWorkspace = func(c cudnn.Conv, p cudnn.Pass) cudnn.Estimate {
		asked = append(asked, convPass{conv: c, pass: p})
		n := marked + int64(len(asked)-1)
		return cudnn.Estimate{Bytes: n, Bound: n}
	}
	b, err := train.New(m.lifted, o)
	if err != nil {
		return nil, err
	}
	_, steady := liveness.Steps(b.Program)
	return passesInOrder(b.Program, steady, asked), nil
}

func passesInOrder(p *program.Program, t *liveness.Timeline, asked []convPass) (out []convPass) {
	var result int64
	for _, e := range t.Events {
		s, n := &p.Storages[e.Storage], &p.Nodes[e.Node]
		switch {
		case e.Free:
		case s.Bytes >= marked:
			a := asked[s.Bytes-marked]
			a.result, a.phase = result, 'F'
			if n.Phase == program.Backward {
				a.phase = 'B'
			}
			out = append(out, a)
		case s.Category != program.Temporaries || n.Op == "convolution_backward":
			result = s.Bytes
		}
	}
	return out
}

// byConvolution reports an allocation of a convolution of cuDNN.
func byConvolution(e *trace.Event) bool {
	return e.Kind == trace.Alloc && (e.Inner == "cudnn_convolution" || e.Inner == "cudnn_convolution_transpose" || e.Inner == "convolution_backward" ||
		e.Op == "convolution_backward" && strings.HasPrefix(e.Inner, "empty"))
}

// measuredPasses are the results and workspaces of a trace's convolutions. A
// workspace is what is freed next.
func measuredPasses(tr *trace.Trace) (out []convPass) {
	freedNext := func(i int) bool {
		return i+1 < len(tr.Events) && tr.Events[i+1].Kind == trace.Free && tr.Events[i+1].ID == tr.Events[i].ID
	}
	for i := range tr.Events {
		if e := &tr.Events[i]; byConvolution(e) && !freedNext(i) {
			p := convPass{result: e.Bytes, phase: e.Phase}
			if i+1 < len(tr.Events) && byConvolution(&tr.Events[i+1]) && freedNext(i+1) {
				p.measured = tr.Events[i+1].Bytes
			}
			out = append(out, p)
		}
	}
	return out
}

// pairPasses gives the passes of a step the workspaces of a trace: those of the longest
// common subsequence of results, phase by phase.
func pairPasses(want, got []convPass) (out []convPass) {
	for _, phase := range []byte("FB") {
		other := func(p convPass) bool { return p.phase != phase }
		a, b := slices.DeleteFunc(slices.Clone(want), other), slices.DeleteFunc(slices.Clone(got), other)
		longest := make([][]int32, len(a)+1)
		for i := range longest {
			longest[i] = make([]int32, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if longest[i][j] = max(longest[i+1][j], longest[i][j+1]); a[i].result == b[j].result {
					longest[i][j] = longest[i+1][j+1] + 1
				}
			}
		}
		for i, j := 0, 0; i < len(a) && j < len(b); {
			switch {
			case a[i].result == b[j].result:
				b[j].measured = a[i].measured
				out = append(out, b[j])
				i, j = i+1, j+1
			case longest[i+1][j] >= longest[i][j+1]:
				i++
			default:
				j++
			}
		}
	}
	return out
}

// kind is what sort of convolution c is.
func (p *convPass) kind() string {
	c := &p.conv
	kind := "2-D"
	switch {
	case c.Depth.In > 0:
		kind = "3-D"
	case c.H == 1 && c.R == 1:
		kind = "1-D"
	}
	switch {
	case c.Groups > 1 && c.Groups == c.C:
		kind += " depthwise"
	case c.Groups > 1:
		kind += " grouped"
	}
	if c.Transposed {
		kind += " transposed"
	}
	if c.ChannelsLast {
		kind += " channels last"
	}
	return kind + ", " + p.pass.String()
}

// A workspaceScore counts passes of one kind.
type workspaceScore struct {
	n, near, low        int
	bytes, under, above float64
}

func (s *workspaceScore) add(p *convPass, e cudnn.Estimate) {
	miss := e.Bytes - p.measured
	s.n++
	s.bytes += float64(p.measured)
	s.under, s.above = s.under+float64(max(-miss, 0)), s.above+float64(max(miss, 0))
	if max(miss, -miss) <= p.measured/100+512 {
		s.near++
	}
	if e.Bound < p.measured {
		s.low++
	}
}

// TestWorkspaces compares the workspaces of all convolutions of the rounds' traces
// with what package cudnn says. No tree was grown on them, nor are they in its
// table, but for shapes that all networks have. With -update it writes them to
// graph/cudnn/testdata/libraries.jsonl.xz.
func TestWorkspaces(t *testing.T) {
	testdata.Sequential(t)
	scores := map[string]*workspaceScore{}
	taken := map[libraryConv]map[string]int64{}
	asked, pr := 0, cudnn.NewPredictor()
	for round := 1; round <= allRounds; round++ {
		c := roundOf(t, round)
		for _, r := range exportedRuns(t, round) {
			tr := traceOf(t, round, &r)
			if tr == nil {
				continue
			}
			got, err := convPasses(c.open(t, r.Name), &r)
			if err != nil {
				continue // TestRounds counts what is refused
			}
			asked += len(got)
			for _, p := range pairPasses(measuredPasses(tr), got) {
				e := pr.Workspace(p.conv, p.pass)
				for _, name := range []string{"all", e.Source.String(), p.kind()} {
					if scores[name] == nil {
						scores[name] = &workspaceScore{}
					}
					scores[name].add(&p, e)
				}
				take(taken, r.Library, &p)
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(scores), func(a, b string) int {
		return cmp.Compare(scores[b].under+scores[b].above, scores[a].under+scores[a].above)
	}) {
		s := scores[name]
		t.Logf("%-45s %5d passes, %5.1f%% within 1%%, bound too low %.2f%%; %7.1f GB, too little by %5.1f, too much by %5.1f", name, s.n, pct(int64(s.near), int64(s.n)), pct(int64(s.low), int64(s.n)), s.bytes/1e9, s.under/1e9, s.above/1e9)
	}
	if all := scores["all"]; all.n < asked*99/100 || all.near*1000 < all.n*930 || all.low*1000 > all.n*5 {
		t.Errorf("of %d passes %d were found in traces, %d within 1%%, bounds too low for %d", asked, all.n, all.near, all.low)
	}
	if *update {
		writeLibraries(t, taken)
	}
}

// traceOf is a run's trace, nil if it was not traced.
func traceOf(t *testing.T, round int, r *roundRun) *trace.Trace {
	t.Helper()
	dir, last := filepath.Join(roundsDir, "traces"), r.Opt
	if round == 4 {
		dir = filepath.Join(roundsDir, "round4", "traces")
	}
	if r.Mode != "train" {
		last = "infer"
	}
	file := filepath.Join(dir, fmt.Sprintf("%s.b%d.%s.%s.trace.xz", r.Name, r.Batch, r.Prec, last))
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	tr, err := trace.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// A libraryConv is a convolution of a library.
type libraryConv struct {
	library string
	conv    cudnn.Conv
}

// unclear is a workspace that one convolution takes and another of its shape does not.
const unclear = -1

func take(taken map[libraryConv]map[string]int64, library string, p *convPass) {
	k := libraryConv{library, p.conv}
	if taken[k] == nil {
		taken[k] = map[string]int64{}
	}
	if was, ok := taken[k][p.pass.String()]; ok && was != p.measured {
		p.measured = unclear
	}
	taken[k][p.pass.String()] = p.measured
}

// writeLibraries writes convolutions as package cudnn's tests read them.
func writeLibraries(t *testing.T, taken map[libraryConv]map[string]int64) {
	t.Helper()
	var lines []string
	for k, ws := range taken {
		c := k.conv
		last, tr := "", int64(0)
		if c.ChannelsLast {
			last = "n"
		}
		if c.Transposed {
			tr = 1
		}
		conv := []int64{c.C, c.H, c.W, c.K, c.R, c.S, c.StrideH, c.StrideW, c.PadH, c.PadW, c.DilH, c.DilW, c.Groups, tr, c.OutPadH, c.OutPadW}
		if d := c.Depth; d.In > 0 {
			conv = append(conv, d.In, d.Kernel, d.Stride, d.Pad, d.Dil, d.OutPad)
		}
		row := struct {
			Library string    `json:"library"`
			Conv    []int64   `json:"conv"`
			Type    string    `json:"type"`
			N       int64     `json:"n"`
			WS      [3]*int64 `json:"ws"`
		}{k.library, conv, map[cudnn.Type]string{cudnn.TF32: "tf32", cudnn.Float16: "fp16", cudnn.BFloat16: "bf16", cudnn.Float32: "fp32"}[c.Type] + last, c.N, [3]*int64{}}
		for p := range row.WS {
			if n, ok := ws[cudnn.Pass(p).String()]; ok && n != unclear {
				row.WS[p] = &n
			}
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	slices.Sort(lines)
	var b bytes.Buffer
	z, err := xz.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = z.Write([]byte(strings.Join(lines, "\n") + "\n")); err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join("..", "graph", "cudnn", "testdata", "libraries.jsonl.xz"), b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
