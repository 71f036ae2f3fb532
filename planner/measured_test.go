package planner

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// made writes a profile of a step in which every operator takes as many
// milliseconds as its name has letters.
func made(t *testing.T, s *Step, change func(i int, n *MeasuredNode)) string {
	t.Helper()
	var d struct {
		SchemaVersion int `json:"schemaVersion"`
		Device        struct {
			Name string `json:"name"`
		} `json:"device"`
		Nodes []MeasuredNode `json:"nodes"`
	}
	d.SchemaVersion, d.Device.Name = SchemaVersion, "a card"
	for i := range s.Nodes {
		n := Measure(&s.Nodes[i], s.Runs(&s.Nodes[i]), 0, float64(s.Runs(&s.Nodes[i])*len(s.Nodes[i].Op)))
		if change != nil {
			change(i, &n)
		}
		d.Nodes = append(d.Nodes, n)
	}
	data, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "times.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func stepOf(t *testing.T, m *Model, cfg Config) *Step {
	t.Helper()
	s, err := m.Program(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTimesOverhead: with measured times of the step without checkpoints, the
// overhead of any checkpoints is the sum of what was measured for what runs
// again, counted here by operator name.
func TestTimesOverhead(t *testing.T) {
	for _, name := range []string{"resnet", "gpt"} {
		m, err := Open(filepath.Join("..", "validate", "testdata", "golden", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		path := made(t, stepOf(t, m, Config{Batch: 2, Checkpoint: "none"}), nil)
		for _, checkpoint := range []string{"all", "sqrt"} {
			cfg := Config{Batch: 2, Checkpoint: checkpoint, Times: path}
			s := stepOf(t, m, cfg)
			var redo, rest float64
			for i := range s.Nodes {
				n := &s.Nodes[i]
				switch ms := float64(len(n.Op)); {
				case n.Only == program.FirstStep || len(n.Out) == 0 && len(n.Events) == 0 && n.Traffic == 0:
				case n.Recompute:
					redo += ms
				default:
					rest += ms
				}
			}
			r, err := m.Analyze(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := r.Checkpoint.RecomputeOverhead, redo/rest; math.Abs(got-want) > 1e-6 || redo == 0 {
				t.Errorf("%s, %s: overhead %v, by hand %v", name, checkpoint, got, want)
			}
			if c := r.Time.Sources; c == nil || c.Device != "a card" || c.Measured == 0 || c.Nearest+c.Estimated > 0 {
				t.Errorf("%s, %s: sources %+v", name, checkpoint, c)
			}
			if q := (&Plan{Report: *r.Report}).Question(); q.Times != path {
				t.Errorf("the plan forgets its times: %q", q.Times)
			}
		}
	}
}

// TestTimesNearest: another batch takes the efficiency of the batch that was
// measured, and operators that were not measured take the roofline.
func TestTimesNearest(t *testing.T) {
	m, err := Open(filepath.Join("..", "validate", "testdata", "golden", "gpt.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	small := stepOf(t, m, Config{Batch: 2})
	path := made(t, small, func(i int, n *MeasuredNode) { // three times as slow as the roofline, batched products not measured
		n.MeasuredMs = 3e3 * float64(n.Runs) * small.Time.Seconds(&small.Nodes[i])
		if n.Op == "aten.bmm" {
			n.Op, n.Kind = "aten.other", "other"
		}
	})
	s := stepOf(t, m, Config{Batch: 64, Times: path})
	plain := stepOf(t, m, Config{Batch: 64})
	near := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		got, roof := s.Time.Seconds(n), plain.Time.Seconds(n)
		want := 3 * roof
		if n.Op == "bmm" {
			want = roof
		}
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s %s: %v s, want %v", n.Op, n.Name, got, want)
		}
		if want != roof {
			near++
		}
	}
	if c := s.Time.sources(s.Program); c.Nearest == 0 || c.Estimated == 0 || near == 0 {
		t.Errorf("sources %+v", c)
	}
}

// TestTimesNearestSize: of several sizes measured the nearest counts.
func TestTimesNearestSize(t *testing.T) {
	node := func(n int64) *program.Node {
		x := program.View{DType: graph.Float32, Shape: []int64{n}, Strides: []int64{1}}
		return &program.Node{Op: "neg", In: []program.View{x}, Out: []program.View{x}, Traffic: 8 * n}
	}
	j, err := Config{}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	slow, fast := node(1<<10), node(1<<28)
	data, err := json.Marshal(map[string]any{"nodes": []MeasuredNode{
		Measure(slow, 1, 0, 5e3*j.time.Seconds(slow)), Measure(fast, 2, 0, 2*2e3*j.time.Seconds(fast)), // twice a step
	}})
	if err != nil {
		t.Fatal(err)
	}
	if j.time.Times, err = parseTimes(data); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		n     int64
		times float64
	}{{1 << 10, 5}, {1 << 12, 5}, {1 << 27, 2}, {1 << 28, 2}, {1 << 30, 2}} {
		n := node(tt.n)
		if got, want := j.time.Seconds(n), tt.times*j.time.roofline(n); math.Abs(got-want) > 1e-12 {
			t.Errorf("%d elements: %v s, want %v", tt.n, got, want)
		}
	}
}

// TestTimesErrors: files that are no measured times say so.
func TestTimesErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`{"schemaVersion":1}`, "no measured nodes"},
		{`{"schemaVersion":1,"nodes":[{"op":"aten.add","node":"add_1","measuredMs":1}]}`, "an older memplan wrote it"},
		{`{"schemaVersion":1,"nodes":[{"kind":"k","runs":1,"measuredMs":-1}]}`, "negative"},
		{`[]`, "not a JSON document"},
	} {
		path := filepath.Join(t.TempDir(), "times.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTimes(path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
	if _, err := (Config{Times: "missing.json"}).resolve(); err == nil || !strings.Contains(err.Error(), "--times: no such file missing.json") {
		t.Errorf("a missing file: %v", err)
	}
}
