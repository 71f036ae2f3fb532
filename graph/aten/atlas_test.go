package aten_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// An atlasCase is one measured call (scripts/gpu/atlas.py says what the fields are).
type atlasCase struct {
	Op     string              `json:"op"`
	Over   string              `json:"over"`
	Args   []any               `json:"a"`
	Kwargs map[string]any      `json:"k"`
	In     int                 `json:"in"`
	AC     string              `json:"ac"`
	Grad   string              `json:"g"`
	Flat   *int                `json:"flat"`
	Which  string              `json:"which"`
	Out    [][]json.RawMessage `json:"out"`
	F      string              `json:"f"`
	B      string              `json:"b"`
	Labels []int               `json:"l"`
	Label  *string             `json:"label"`
	Err    string              `json:"err"`

	Calls []*atlasCase `json:"calls"`

	line string
	uses []int // calls whose results it takes
}

var atlasTypes = map[string]graph.DType{"f32": graph.Float32, "f16": graph.Float16, "bf16": graph.BFloat16, "f64": graph.Float64, "i64": graph.Int64, "i32": graph.Int32, "u8": graph.Uint8, "b": graph.Bool}

// An atlas is the measured calls and the labels of their allocations.
type atlas struct {
	head   map[string]any
	cases  []*atlasCase
	labels []string
	failed int // calls that PyTorch refused
}

func readAtlas(t testing.TB, path string) *atlas {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(testdata.Unpacked(t, path)))
	sc.Buffer(nil, 1<<20)
	a := &atlas{}
	for sc.Scan() {
		if a.head == nil {
			if err := json.Unmarshal(sc.Bytes(), &a.head); err != nil {
				t.Fatal(err)
			}
			continue
		}
		c := &atlasCase{line: sc.Text()}
		d := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		d.UseNumber()
		if err := d.Decode(c); err != nil {
			t.Fatalf("%v in %s", err, sc.Text())
		}
		switch {
		case c.Label != nil:
			a.labels = append(a.labels, *c.Label)
		case c.Err != "":
			a.failed++
		default:
			a.cases = append(a.cases, c)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return a
}

// An atlasEvent is one allocation or free; what says what made it.
type atlasEvent struct {
	phase byte
	free  bool
	bytes int64
	what  string
}

// measured lists what the allocator saw.
func (c *atlasCase) measured(labels []string) []atlasEvent {
	var out []atlasEvent
	var made []atlasEvent
	for i, s := range []string{c.F, c.B} {
		for _, w := range strings.Fields(s) {
			n, _ := strconv.ParseInt(w[1:], 10, 64)
			e := atlasEvent{phase: "FB"[i], free: w[0] == '-', bytes: n}
			if e.free {
				e.bytes, e.what = made[n].bytes, made[n].what
			} else {
				e.what = labels[c.Labels[len(made)]]
				made = append(made, e)
			}
			out = append(out, e)
		}
	}
	return out
}

// hopper is the device of the atlas; the handles' workspaces exist before a case.
func hopper(scratch *cudnn.Predictor) aten.Config {
	return aten.Config{TF32: true, SMs: 132, ThreadsPerSM: 2048, Major: 9, Attention: []string{"cudnn", "flash", "efficient", "math"},
		ConvWorkspace: scratch.Workspace}
}

// arg turns a JSON value into an argument.
func (c *atlasCase) arg(e *aten.Eager, v any) aten.Arg {
	switch v := v.(type) {
	case nil:
		return aten.Arg{Kind: graph.ArgNone}
	case bool:
		n := int64(0)
		if v {
			n = 1
		}
		return aten.Arg{Kind: graph.ArgBool, Int: n}
	case string:
		return aten.Arg{Kind: graph.ArgString, S: v}
	case json.Number:
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return aten.Arg{Kind: graph.ArgInt, Int: n}
		}
		f, _ := v.Float64()
		return aten.Arg{Kind: graph.ArgFloat, F: f}
	case []any:
		a := aten.Arg{Kind: graph.ArgList}
		for _, x := range v {
			a.List = append(a.List, c.arg(e, x))
		}
		return a
	}
	m := v.(map[string]any)
	switch {
	case m["v"] != nil: // the result of an earlier call
		n := atlasInts(m["v"])[0]
		c.uses = append(c.uses, int(n))
		return aten.Arg{Kind: graph.ArgString, S: "value", Int: n}
	case m["dtype"] != nil:
		return aten.Arg{Kind: graph.ArgString, S: "torch." + m["dtype"].(string)}
	case m["mf"] != nil:
		return aten.Arg{Kind: graph.ArgString, S: m["mf"].(string)}
	case m["inf"] != nil:
		return aten.Arg{Kind: graph.ArgFloat, F: math.Inf(1)}
	case m["device"] != nil:
		return aten.Arg{Kind: graph.ArgString, S: "cuda"}
	}
	p := aten.Placed{DType: atlasTypes[m["d"].(string)], Shape: atlasInts(m["s"])}
	p.Strides, p.Elems = make([]int64, len(p.Shape)), 1
	for i := len(p.Shape) - 1; i >= 0; i-- {
		p.Strides[i] = p.Elems
		p.Elems *= max(p.Shape[i], 1)
	}
	if m["t"] != nil {
		p.Strides = atlasInts(m["t"])
	}
	if m["n"] != nil {
		p.Elems, _ = m["n"].(json.Number).Int64()
	}
	if m["o"] != nil {
		p.Offset, _ = m["o"].(json.Number).Int64()
	}
	t := e.Place(p, m["k"] == "p")
	if m["k"] == "a" {
		e.Head(t)
	}
	return aten.Arg{Kind: graph.ArgValue, T: t}
}

// call resolves the arguments of a call.
func (c *atlasCase) call(e *aten.Eager) (*aten.Call, error) {
	op := c.Op
	if op == "normal" { // its functional name is the table's
		op = "normal_functional"
	}
	call := &aten.Call{Op: op, Over: c.Over, Name: c.Op, InPlace: c.In == 1}
	for _, a := range c.Args {
		call.Args = append(call.Args, c.arg(e, a))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Kwargs)) {
		a := c.arg(e, c.Kwargs[name])
		a.Name = name
		call.Args = append(call.Args, a)
	}
	if c.Flat != nil && *c.Flat == 0 { // parameters that no module brought together
		call.Args = append(call.Args, aten.Arg{Name: "apart", Kind: graph.ArgBool, Int: 1})
	}
	for _, o := range c.Out {
		shape, d := []int64(nil), graph.Undefined
		if len(o) == 3 {
			shape, d = []int64{}, atlasTypes[strings.Trim(string(o[2]), `"`)]
			if err := json.Unmarshal(o[0], &shape); err != nil {
				return nil, err
			}
		}
		call.Shapes, call.Types = append(call.Shapes, shape), append(call.Types, d)
	}
	return call, nil
}

// prepared makes the operands and returns what runs the call, or the calls of a
// composition: a value goes after the last call that takes it.
func (c *atlasCase) prepared(e *aten.Eager) (func() ([]*aten.Tensor, error), error) {
	if c.Op != "compose" {
		call, err := c.call(e)
		return func() ([]*aten.Tensor, error) { return e.Run(call) }, err
	}
	var calls []*aten.Call
	last := map[int]int{len(c.Calls) - 1: len(c.Calls)}
	for i := range c.Calls {
		c.Calls[i].uses = nil
		call, err := c.Calls[i].call(e)
		if err != nil {
			return nil, err
		}
		call.Index = int32(i)
		calls = append(calls, call)
		for _, j := range c.Calls[i].uses {
			last[j] = i
		}
	}
	return func() ([]*aten.Tensor, error) { return runAll(e, calls, last) }, nil
}

// runAll runs calls whose arguments name results of earlier ones.
func runAll(e *aten.Eager, calls []*aten.Call, last map[int]int) ([]*aten.Tensor, error) {
	values := make([]*aten.Tensor, len(calls))
	var fill func(args []aten.Arg)
	fill = func(args []aten.Arg) {
		for j := range args {
			if a := &args[j]; a.Kind == graph.ArgList {
				fill(a.List)
			} else if a.S == "value" {
				a.Kind, a.S, a.T = graph.ArgValue, "", values[a.Int]
			}
		}
	}
	for i, call := range calls {
		fill(call.Args)
		if call.Op == "upsample_nearest2d" || call.Op == "upsample_bilinear2d" { // what shape inference knows
			in := call.Args[0].T
			call.Shapes, call.Types = [][]int64{{in.Shape[0], in.Shape[1], call.Args[1].List[0].Int, call.Args[1].List[1].Int}}, []graph.DType{in.DType}
		}
		outs, err := e.Run(call)
		if err != nil {
			return nil, fmt.Errorf("call %d: %w", i, err)
		}
		values[i] = outs[0]
		var gone []*aten.Tensor
		for j := range i + 1 {
			if l, ok := last[j]; values[j] != nil && (ok && l == i || !ok && j == i) {
				gone = append(gone, values[j])
			}
		}
		e.Hold(gone...)
	}
	return values[len(values)-1:], nil
}

func atlasInts(v any) []int64 {
	var out []int64
	for _, x := range v.([]any) {
		n, _ := x.(json.Number).Int64()
		out = append(out, n)
	}
	return out
}

// replayed runs the case on the operator table and lists its events. what says
// which results differ in shape or strides.
func (c *atlasCase) replayed(cfg aten.Config) (events []atlasEvent, what string, err error) {
	defer aten.Recover(&err)
	cfg.Autocast = atlasTypes[c.AC]
	e := aten.New(cfg)
	e.P.Train = true
	run, err := c.prepared(e)
	if err != nil {
		return nil, "", err
	}
	e.SetGrad(true)
	e.SetPhase(program.Forward)
	outs, err := run()
	if err != nil {
		return nil, "", err
	}
	e.ExitAutocast()
	what = c.differ(outs)
	var loose, taken []*aten.Tensor
	for _, o := range outs {
		if o != nil && o.RequiresGrad() && (len(taken) == 0 || c.Which != "first") {
			taken = append(taken, o)
		} else {
			loose = append(loose, o)
		}
	}
	e.Named("del", "")
	e.Drop(loose...)
	if len(taken) > 0 {
		loss := e.Tail(taken, c.Grad)
		held := slices.Clone(taken)
		slices.Reverse(held)
		e.Hold(held...)
		e.SetPhase(program.Backward)
		e.Backward(loss, aten.Host(graph.Float32, nil))
	}
	_, steady := liveness.Steps(e.P)
	if err := liveness.Check(steady); err != nil {
		return nil, "", err
	}
	for _, ev := range steady.Events {
		n := &e.P.Nodes[ev.Node]
		if b := e.P.Storages[ev.Storage].Bytes; b > 0 {
			events = append(events, atlasEvent{map[bool]byte{true: 'F', false: 'B'}[n.Phase == program.Forward], ev.Free, b, n.Op + " " + n.Autograd})
		}
	}
	return events, what, nil
}

// differ compares the layout of results with PyTorch's, where the latter are not of size 1.
func (c *atlasCase) differ(outs []*aten.Tensor) string {
	for i, o := range c.Out {
		if i >= len(outs) || outs[i] == nil || len(o) != 3 {
			continue
		}
		var shape, strides []int64
		_, _ = json.Unmarshal(o[0], &shape), json.Unmarshal(o[1], &strides)
		d := atlasTypes[strings.Trim(string(o[2]), `"`)]
		same := slices.Equal(shape, outs[i].Shape) && d == outs[i].DType
		for j := range shape {
			same = same && (shape[j] == 1 || len(outs[i].Strides) > j && outs[i].Strides[j] == strides[j])
		}
		if !same && !slices.Contains(shape, 0) {
			return fmt.Sprintf("result %d is %s %v %v, not %v %v %v", i, d, shape, strides, outs[i].DType, outs[i].Shape, outs[i].Strides)
		}
	}
	return ""
}

func atlasRound(n int64) int64 { return (n + 511) / 512 * 512 }

// atlasBytes are the highest sum and the last of each phase.
func atlasBytes(evs []atlasEvent) (out [4]int64) {
	var cur int64
	for _, e := range evs {
		if e.free {
			cur -= atlasRound(e.bytes)
		} else {
			cur += atlasRound(e.bytes)
		}
		at := 0
		if e.phase == 'B' {
			at = 2
		}
		if at == 0 {
			out[1] = cur
		}
		out[at] = max(out[at], cur)
	}
	out[3] = cur
	return out
}

// atlasAlign finds the longest common subsequence of the events, and shows the
// differences.
func atlasAlign(want, got []atlasEvent) (n int, diff string) {
	same := func(a, b atlasEvent) bool {
		return a.phase == b.phase && a.free == b.free && atlasRound(a.bytes) == atlasRound(b.bytes)
	}
	longest := make([][]int32, len(want)+1)
	for i := range longest {
		longest[i] = make([]int32, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if same(want[i], got[j]) {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	var sb strings.Builder
	show := func(who string, e atlasEvent) {
		fmt.Fprintf(&sb, "\n  %s %c %c%d %s", who, e.phase, "+-"[map[bool]int{true: 1}[e.free]], e.bytes, e.what)
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && same(want[i], got[j]):
			show("     ", want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && longest[i+1][j] >= longest[i][j+1]:
			show("truth", want[i])
			i++
		default:
			show(" mine", got[j])
			j++
		}
	}
	return int(longest[0][0]), sb.String()
}

// An atlasScore adds up the cases of one operator.
type atlasScore struct {
	cases, exact    int // cases; those whose four byte figures are PyTorch's
	events, matched int
	wrong           int64 // bytes by which the largest figures are off, summed over cases
	first           string
}

func (s *atlasScore) add(o *atlasScore) {
	s.cases, s.exact, s.events, s.matched, s.wrong = s.cases+o.cases, s.exact+o.exact, s.events+o.events, s.matched+o.matched, s.wrong+o.wrong
}

// score replays one case; diff says how it differs, if it does.
func (c *atlasCase) score(cfg aten.Config, labels []string) (s atlasScore, diff string) {
	want := c.measured(labels)
	got, what, err := c.replayed(cfg)
	if err != nil {
		what, got = err.Error(), nil
	}
	n, d := atlasAlign(want, got)
	s = atlasScore{cases: 1, events: max(len(want), len(got)), matched: n}
	w, g := atlasBytes(want), atlasBytes(got)
	for i := range w {
		s.wrong = max(s.wrong, w[i]-g[i], g[i]-w[i])
	}
	if s.wrong == 0 && err == nil {
		s.exact = 1
	}
	if s.exact == 1 && n == s.events {
		return s, ""
	}
	line, _, _ := strings.Cut(c.line, `,"f":`)
	return s, fmt.Sprintf("%s\n  %s %v %v%s", line, what, w, g, d)
}

var updateAtlas = flag.Bool("update", false, "write docs/atlas.md and testdata/atlas.tsv")

// atlasThresholds are what must not get worse: per cent of cases whose bytes are
// exact, and of events.
var atlasThresholds = []struct {
	file          string
	bytes, events float64
}{
	{"atlas.jsonl.xz", 89.4, 95.8},
	{"compositions.jsonl.xz", 95.4, 99.3},
}

// TestAtlas replays every measured call and composition. SHOW=operator prints
// the cases of an operator that differ, at most SHOWN of them.
func TestAtlas(t *testing.T) {
	scores := map[string]*atlasScore{}
	var page strings.Builder
	for _, th := range atlasThresholds {
		a := readAtlas(t, filepath.Join("testdata", th.file))
		total := atlasScore{}
		for op, s := range replayAtlas(t, a) {
			scores[op] = s
			total.add(s)
		}
		b, e := pct(total.exact, total.cases), pct(total.matched, total.events)
		t.Logf("%s: %d cases, bytes exact %.2f%%, %.2f%% of events", th.file, total.cases, b, e)
		if b < th.bytes || e < th.events {
			t.Errorf("%s got worse: bytes exact %.2f%% (least %.2f%%), %.2f%% of events (least %.2f%%)", th.file, b, th.bytes, e, th.events)
		}
		fmt.Fprintf(&page, "- `%s`: %d cases on an %s, torch %s, cuDNN %.0f, %s, `%s`. Bytes exact in %.1f%%, events %.1f%%.\n", th.file, total.cases, a.head["card"], a.head["torch"], a.head["cudnn"], a.head["date"], a.command(), b, e)
	}
	firstFigures(t, scores)
	checkPages(t, page.String(), scores)
}

// command is the one that measured, without where it wrote.
func (a *atlas) command() string {
	f := strings.Fields(fmt.Sprint(a.head["command"]))
	f[2] = filepath.Base(f[2])
	return strings.Join(f, " ")
}

func replayAtlas(t *testing.T, a *atlas) map[string]*atlasScore {
	scores, cfg := map[string]*atlasScore{}, hopper(cudnn.NewPredictor())
	show, shown := os.Getenv("SHOW"), 6
	if n, err := strconv.Atoi(os.Getenv("SHOWN")); err == nil {
		shown = n
	}
	for _, c := range a.cases {
		s, diff := c.score(cfg, a.labels)
		if scores[c.Op] == nil {
			scores[c.Op] = &atlasScore{}
		}
		scores[c.Op].add(&s)
		if diff != "" && show == c.Op && shown > 0 {
			shown--
			t.Log(diff)
		}
	}
	return scores
}

// firstFigures adds what the table gave before any operator was corrected by the
// measurements.
func firstFigures(t *testing.T, scores map[string]*atlasScore) {
	raw, err := os.ReadFile(filepath.Join("testdata", "atlas_first.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		f := strings.Split(l, "\t")
		if s := scores[f[0]]; s != nil && len(f) == 3 {
			s.first = f[1] + "% | " + f[2] + "%"
		}
	}
}

const atlasPage = `# Operator atlas

Generated by ` + "`go test ./graph/aten -run Atlas -update`" + `; the test fails when this page is stale. Every call of the operator table was run on a card,
forward and backward, by ` + "`scripts/gpu/atlas.py`" + `: shapes, types, autocast, memory formats, expanded, sliced and transposed operands, which of them
require gradients, options. The allocator's events of each case are compared with those that the table gives.

- **bytes**: cases in which the highest and the last sum of forward and of backward are PyTorch's, each tensor rounded to 512 bytes.
- **events**: allocations and frees that match, in order, of all.
- **off**: bytes by which the figures of the worst kind are off, summed over the operator's cases.
- **first**: both before any operator was corrected by the measurements.

%s
## Why not exact

| what | how often | why |
|---|---|---|
| convolutions | %s | The workspaces are what cuDNN's heuristic chooses for a shape; nothing in a file or in PyTorch's sources says it. Tables of measured shapes and trees over them estimate the others. What else a convolution allocates is PyTorch's. |
| all other operators | %s | By class below. |

- **Library workspaces**: cuDNN's batch normalisation with channels last works in a buffer of which only a few sizes were measured; in one of fifty recurrent networks in float16
  it takes kernels that were not told apart, and sizes that are within 112 bytes of the formula's can fall on the other side of a multiple of 512.
- **What tensors hold**: how many elements a mask shows (` + "`masked_fill`" + ` by a tensor that wants a gradient, smoothed labels with weights), and how many parts rows of an embedding
  fall into where gradients are scaled by frequency. A file does not say; the most is counted.
- **Compositions that are not spelled out**: ` + "`einsum`" + ` with an ellipsis, a diagonal or contracted dims of one element, circular padding of several dims and ` + "`scatter_reduce`" + `'s
  products are single nodes here where PyTorch makes many calls.
- **Layouts that one case in a hundred has**: products of operands that lie across each other, pooling of planes without a batch whose channels come last, paddings of single images.

| operator | cases | bytes | events | off | first: bytes | first: events |
|---|---|---|---|---|---|---|
%s`

// checkPages compares docs/atlas.md and testdata/atlas.tsv with the scores, or
// writes them.
func checkPages(t *testing.T, head string, scores map[string]*atlasScore) {
	var rows, data strings.Builder
	for _, op := range slices.Sorted(maps.Keys(scores)) {
		s := scores[op]
		first := s.first
		if first == "" {
			first = " | "
		}
		fmt.Fprintf(&rows, "| %s | %d | %.0f%% | %.0f%% | %d | %s |\n", op, s.cases, pct(s.exact, s.cases), pct(s.matched, s.events), s.wrong, first)
		fmt.Fprintf(&data, "%s\t%d\t%d\n", op, s.cases, s.exact)
	}
	convs, rest := inexact(scores, true), inexact(scores, false)
	for path, want := range map[string]string{filepath.Join("..", "..", "docs", "atlas.md"): fmt.Sprintf(atlasPage, head, convs, rest, rows.String()), filepath.Join("testdata", "atlas.tsv"): data.String()} {
		testdata.Generated(t, path, want, "go test ./graph/aten -run Atlas", *updateAtlas)
	}
}

// inexact counts the single calls whose bytes are not PyTorch's, of convolutions or of
// all others.
func inexact(scores map[string]*atlasScore, convs bool) string {
	sum := atlasScore{}
	for op, s := range scores {
		if op != "compose" && strings.HasPrefix(op, "conv") == convs {
			sum.add(s)
		}
	}
	return fmt.Sprintf("%d of %d", sum.cases-sum.exact, sum.cases)
}

func pct(a, b int) float64 { return 100 * float64(a) / float64(max(b, 1)) }
