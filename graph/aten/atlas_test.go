package aten_test

import (
	"bufio"
	"bytes"
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
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// An atlasCase is one measured call (scripts/atlas.py says what the fields are).
type atlasCase struct {
	Op     string              `json:"op"`
	Over   string              `json:"over"`
	Args   []any               `json:"a"`
	Kwargs map[string]any      `json:"k"`
	In     int                 `json:"in"`
	AC     string              `json:"ac"`
	Grad   string              `json:"g"`
	Which  string              `json:"which"`
	Out    [][]json.RawMessage `json:"out"`
	F      string              `json:"f"`
	B      string              `json:"b"`
	Labels []int               `json:"l"`
	Label  *string             `json:"label"`
	Err    string              `json:"err"`

	line string
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
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := xz.NewReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(z)
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
		ConvWorkspace: func(c cudnn.Conv, p cudnn.Pass) int64 { return scratch.Workspace(c, p).Bytes }}
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
	op := c.Op
	if op == "normal" { // its functional name is the table's
		op = "normal_functional"
	}
	call := &aten.Call{Op: op, Over: c.Over, Name: c.Op, InPlace: c.In == 1}
	for _, a := range c.Args {
		call.Args = append(call.Args, c.arg(e, a))
	}
	var names []string
	for name := range c.Kwargs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		a := c.arg(e, c.Kwargs[name])
		a.Name = name
		call.Args = append(call.Args, a)
	}
	for _, o := range c.Out {
		shape, d := []int64(nil), graph.Undefined
		if len(o) == 3 {
			shape, d = []int64{}, atlasTypes[strings.Trim(string(o[2]), `"`)]
			if err := json.Unmarshal(o[0], &shape); err != nil {
				return nil, "", err
			}
		}
		call.Shapes, call.Types = append(call.Shapes, shape), append(call.Types, d)
	}
	e.SetGrad(true)
	e.SetPhase(program.Forward)
	outs, err := e.Run(call)
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
	cases, exact     int // cases; those whose four byte figures are PyTorch's
	ordered          int // those whose events are
	events, matched  int
	wrong            int64 // bytes by which the largest figures are off, summed over cases
	refused, unknown int
}

// atlasRow is the table's name of a case's operator.
func atlasRow(op string) string {
	if o := aten.Lookup(op); o != nil {
		return o.Names[0]
	}
	return op
}

// TestAtlas replays every measured call. SHOW=operator prints the cases of an
// operator that differ, at most SHOWN of them.
func TestAtlas(t *testing.T) {
	path := filepath.Join("testdata", "atlas.jsonl.xz")
	if p := os.Getenv("ATLAS"); p != "" {
		path = p
	}
	a := readAtlas(t, path)
	scores := map[string]*atlasScore{}
	scratch := cudnn.NewPredictor()
	show, shown := os.Getenv("SHOW"), 6
	if n, err := strconv.Atoi(os.Getenv("SHOWN")); err == nil {
		shown = n
	}
	for _, c := range a.cases {
		s := scores[c.Op]
		if s == nil {
			s = &atlasScore{}
			scores[c.Op] = s
		}
		want := c.measured(a.labels)
		got, what, err := c.replayed(hopper(scratch))
		n, diff := 0, ""
		if err != nil {
			s.refused++
			diff = "\n  " + err.Error()
			got = nil
		}
		n, d := atlasAlign(want, got)
		diff += d
		s.cases, s.events, s.matched = s.cases+1, s.events+max(len(want), len(got)), s.matched+n
		w, g := atlasBytes(want), atlasBytes(got)
		off := int64(0)
		for i := range w {
			off = max(off, max(w[i]-g[i], g[i]-w[i]))
		}
		s.wrong += off
		if off == 0 && err == nil {
			s.exact++
		}
		if n == len(want) && n == len(got) && err == nil {
			s.ordered++
		}
		if (show == c.Op || show == "all") && (n != len(want) || n != len(got) || what != "" && os.Getenv("STRIDES") != "" || off != 0) && shown > 0 {
			shown--
			line := c.line
			if i := strings.Index(line, `,"f":`); i > 0 {
				line = line[:i]
			}
			t.Logf("%s\n  %s %v %v%s", line, what, w, g, diff)
		}
	}
	var ops []string
	total := atlasScore{}
	for op, s := range scores {
		ops = append(ops, op)
		total.cases, total.exact, total.ordered, total.events, total.matched = total.cases+s.cases, total.exact+s.exact, total.ordered+s.ordered, total.events+s.events, total.matched+s.matched
	}
	slices.SortFunc(ops, func(x, y string) int { return int(min(max(scores[y].wrong-scores[x].wrong, -1), 1)) })
	for _, op := range ops {
		if s := scores[op]; s.exact < s.cases || s.ordered < s.cases {
			t.Logf("%-36s %4d cases, bytes exact %5.1f%%, events exact %5.1f%%, %5.1f%% of events, off %12d, refused %d", op, s.cases, pct(s.exact, s.cases), pct(s.ordered, s.cases), pct(s.matched, s.events), s.wrong, s.refused)
		}
	}
	t.Logf("%d cases (%d refused by PyTorch), bytes exact %.2f%%, events exact in %.2f%%, %.2f%% of events", total.cases, a.failed, pct(total.exact, total.cases), pct(total.ordered, total.cases), pct(total.matched, total.events))
}

func pct(a, b int) float64 { return 100 * float64(a) / float64(max(b, 1)) }
