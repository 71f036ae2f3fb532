package profile

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// measured is a document of scripts/gpu/measure_profile.py: the oracle of this
// package, made on a GPU by PyTorch itself.
type measured struct {
	Device struct {
		Name        string
		Capability  [2]int
		SMs         int   `json:"sms"`
		L2          int64 `json:"l2"`
		DriverTotal int64
		TF32        struct{ Conv, Matmul bool }
		Benchmark   bool
		CUDA        string
		CuDNN       int `json:"cudnn"`
	}
	Shapes                [][]int64
	Context               [][2]any
	Workspaces            map[string]json.RawMessage
	WorkspacesLinearFirst map[string]json.RawMessage `json:"workspaces_linear_first"`
	Attention             [][7]any                   // dtype, mask, dropout, head size, length, gradient, backend
	SDPPriority           []int                      `json:"sdpPriority"`
	Optimizers            map[string]map[string]json.RawMessage
}

func readMeasured(t *testing.T) *measured {
	t.Helper()
	data, err := os.ReadFile("testdata/torch-2.11-h200.json")
	if err != nil {
		t.Fatal(err)
	}
	m := new(measured)
	if err := json.Unmarshal(data, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// An eventList is a list of ["+", id, bytes], ["-", id, bytes] and ["S", bytes].
type eventList [][]any

func readEvents(t *testing.T, data json.RawMessage) eventList {
	t.Helper()
	var out eventList
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// allocs returns the bytes of the list's allocations in order.
func (tr eventList) allocs() []int64 {
	var out []int64
	for _, e := range tr {
		if e[0] == "+" {
			out = append(out, int64(e[2].(float64)))
		}
	}
	return out
}

// String writes one event a word: "+0:512 -0:512".
func (tr eventList) String() string {
	s := ""
	for _, e := range tr {
		if len(e) == 3 {
			s += fmt.Sprintf("%v%v:%.0f ", e[0], e[1], e[2])
		}
	}
	return s
}

// words writes events as eventList.String does.
func words(events []Event) string {
	s := ""
	for _, e := range events {
		sign := "+"
		if e.Free {
			sign = "-"
		}
		s += fmt.Sprintf("%s%d:%d ", sign, e.ID, e.Bytes)
	}
	return s
}

// large keeps of events those of more than 1 KiB, less a library's workspace,
// with ids counted anew: what is left out are the scalars and partial results of
// reductions, which live within one line of the optimizer.
func large(s string) string {
	ids := map[string]int{}
	out := ""
	for _, w := range strings.Fields(s) {
		id, size, _ := strings.Cut(w[1:], ":")
		if n, err := strconv.Atoi(size); err != nil || n <= 1024 || n == 32<<20 {
			continue
		}
		if w[0] == '+' {
			ids[id] = len(ids)
		}
		out += fmt.Sprintf("%c%d:%s ", w[0], ids[id], size)
	}
	return out
}

// measuredRow is an optimizer's events with parameters of some dtypes.
type measuredRow struct {
	First, Steady, Scale, Update eventList
	State                        [][][4]any // per parameter: name, device, dtype, shape
}

// dtypeCases are the labels of scripts/gpu/measure_profile.py: the i-th parameter
// has the dtype i modulo their number.
var dtypeCases = map[string][]graph.DType{
	"fp32":  {graph.Float32},
	"mixed": {graph.Float32, graph.BFloat16},
	"three": {graph.Float16, graph.Float32, graph.BFloat16},
}

func testParams(shapes [][]int64, dtypes []graph.DType) []Param {
	var out []Param
	for i, s := range shapes {
		p := Param{Elems: 1, DType: dtypes[i%len(dtypes)], Dims: s}
		for _, n := range s {
			p.Elems *= n
		}
		out = append(out, p)
	}
	return out
}

// Every optimizer of the table allocates and frees what PyTorch does, in the
// same order, and no measured optimizer lacks a row.
func TestOptimizersMeasured(t *testing.T) {
	m := readMeasured(t)
	for name := range m.Optimizers {
		if o, err := FindOptimizer(name); err != nil {
			t.Errorf("measured, not in the table: %s", name)
		} else if o.Name != name && len(o.Aliases) == 0 {
			t.Errorf("%s found as %s", name, o.Name)
		}
	}
	for i := range Optimizers {
		o := &Optimizers[i]
		rows, ok := m.Optimizers[o.Name]
		if !ok {
			if o.Name != "none" && o.Source == "" {
				t.Errorf("%s is in the table, neither measured nor with a source", o.Name)
			}
			continue
		}
		for label, dtypes := range dtypeCases {
			t.Run(o.Name+"/"+label, func(t *testing.T) {
				testMeasured(t, o, rows[label], testParams(m.Shapes, dtypes))
			})
		}
	}
}

func testMeasured(t *testing.T, o *Optimizer, data json.RawMessage, params []Param) {
	var row measuredRow
	if err := json.Unmarshal(data, &row); err != nil {
		t.Fatal(err)
	}
	form := func(s string) string { return s }
	if o.Name == "adafactor" {
		form = large
	}
	if got, want := form(words(o.Step(params, true))), form(row.First.String()); got != want {
		t.Errorf("first step\n got %s\nwant %s", got, want)
	}
	if got, want := form(words(o.Step(params, false))), form(row.Steady.String()); got != want {
		t.Errorf("steady step\n got %s\nwant %s", got, want)
	}
	if len(row.State) != len(params) {
		t.Fatalf("%d parameters measured, want %d", len(row.State), len(params))
	}
	for i, states := range row.State {
		testStates(t, o, params[i], states)
	}
}

func testStates(t *testing.T, o *Optimizer, p Param, states [][4]any) {
	t.Helper()
	own := slices.DeleteFunc(slices.Clone(o.States), func(s State) bool { return p.bytes(s.Of) == 0 })
	if len(states) != len(own) {
		t.Fatalf("states %v, want %v", states, own)
	}
	var bytes int64
	for i, s := range states {
		if s[0] != own[i].Name || (s[1] == "cpu") != own[i].CPU {
			t.Errorf("state %v, want %v", s, own[i])
		}
		if s[1] == "cpu" {
			continue
		}
		n := map[any]int64{"torch.float32": 4, "torch.float16": 2, "torch.bfloat16": 2}[s[2]]
		for _, d := range s[3].([]any) {
			n *= int64(d.(float64))
		}
		bytes += n
	}
	if got := o.StateBytes(p); got != bytes {
		t.Errorf("StateBytes(%v) = %d, want %d", p, got, bytes)
	}
}

func TestScalerMeasured(t *testing.T) {
	m := readMeasured(t)
	params := testParams(m.Shapes, dtypeCases["fp32"])
	for _, tt := range []struct {
		name                  string
		before, after, update []Event
	}{
		{"sgd", Scaler.Step, nil, Scaler.Update},
		{"adamw", Scaler.Step, nil, Scaler.Update},
		{"adamw-fused", Scaler.FusedBefore, Scaler.FusedAfter, Scaler.FusedUpdate},
	} {
		var row measuredRow
		if err := json.Unmarshal(m.Optimizers[tt.name]["scaler"], &row); err != nil {
			t.Fatal(err)
		}
		o, err := FindOptimizer(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, first := range []bool{true, false} {
			want := row.Steady.String()
			if first {
				want = row.First.String()
			}
			if got := words(join(tt.before, o.Step(params, first), tt.after)); got != want {
				t.Errorf("%s, first %v\n got %s\nwant %s", tt.name, first, got, want)
			}
		}
		// The loss is tensor 0, the scaled loss tensor 3.
		if got, want := row.Scale.String(), "+0:4 "+"+1:4 +2:4 "+"+3:4 -0:4 -3:4 "; got != want || len(Scaler.Init) != 2 {
			t.Errorf("%s: scale made %s, want %s", tt.name, got, want)
		}
		if got := row.Update.String(); got != "-old:4 " || len(tt.update) != 1 || tt.update[0].Bytes != 4 {
			t.Errorf("%s: update made %s", tt.name, got)
		}
	}
}

// join numbers the optimizer's allocations after those of before.
func join(before, step, after []Event) []Event {
	out := append([]Event(nil), before...)
	var base int32
	for _, e := range before {
		base = max(base, e.ID+1)
	}
	for _, e := range step {
		e.ID += base
		out = append(out, e)
	}
	return append(out, after...)
}

func TestDeviceMeasured(t *testing.T) {
	m := readMeasured(t)
	d, err := FindDevice("h200")
	if err != nil {
		t.Fatal(err)
	}
	if d.Memory != m.Device.DriverTotal || d.SMs != m.Device.SMs || d.L2 != m.Device.L2 || d.Compute != (Capability{m.Device.Capability[0], m.Device.Capability[1]}) {
		t.Errorf("table %+v, measured %+v", d, m.Device)
	}
	last := int64(m.Context[len(m.Context)-1][1].(float64))
	if d.Context < last || d.Context > last+last/10 {
		t.Errorf("context %d, measured %d", d.Context, last)
	}
}

func TestRuntimeMeasured(t *testing.T) {
	m, r := readMeasured(t), measuredRuntime(t)
	if r.ConvTF32 != m.Device.TF32.Conv || r.MatmulTF32 != m.Device.TF32.Matmul || r.Benchmark != m.Device.Benchmark || r.CUDA != m.Device.CUDA {
		t.Errorf("table %+v, measured %+v", r, m.Device)
	}
	// Allocation 0 is the product, the last one its sum.
	c := Capability{9, 0}
	for _, tt := range []struct {
		call string
		want []int64
	}{
		{"mm fp32", []int64{r.CuBLASBytes(c)}},
		{"mm fp32 again", nil},
		{"linear fp32", []int64{r.LtBytes}},
		{"linear fp32 again", nil},
		{"linear bf16", nil},
		{"mm other thread", []int64{r.CuBLASBytes(c)}},
		{"linear bf16 other thread", []int64{r.LtBytes}},
	} {
		got := readEvents(t, m.Workspaces[tt.call]).allocs()
		if len(got) != 2+len(tt.want) {
			t.Fatalf("%s allocated %v", tt.call, got)
		}
		for i, w := range tt.want {
			if got[1+i] != w {
				t.Errorf("%s: workspace %d, want %d", tt.call, got[1+i], w)
			}
		}
	}
	got := readEvents(t, m.WorkspacesLinearFirst["linear bf16 first"]).allocs()
	if len(got) != 4 || got[1] != r.CuBLASBytes(c) || got[2] != r.LtBytes {
		t.Errorf("first linear layer allocated %v", got)
	}
}

func TestAttentionMeasured(t *testing.T) {
	m, r, c := readMeasured(t), measuredRuntime(t), Capability{9, 0}
	names := []string{Math, Flash, Efficient, CuDNN} // torch.nn.attention.SDPBackend by number
	for i, k := range r.AttentionOrder(c) {
		if names[m.SDPPriority[i]] != k {
			t.Errorf("kernel %d of the order is %s, measured %s", i, k, names[m.SDPPriority[i]])
		}
	}
	dtypes := map[any]graph.DType{"float32": graph.Float32, "bfloat16": graph.BFloat16, "float16": graph.Float16}
	backends := map[any]string{"MATH": Math, "FLASH_ATTENTION": Flash, "EFFICIENT_ATTENTION": Efficient, "CUDNN_ATTENTION": CuDNN}
	for _, row := range m.Attention {
		call := AttentionCall{DType: dtypes[row[0]], HeadDim: int64(row[3].(float64)), Mask: row[1] == "bool" || row[1] == "float"}
		if got, want := r.Attention(c, call), backends[row[6]]; got != want {
			t.Errorf("%v: %s, want %s", row, got, want)
		}
	}
	if len(m.Attention) < 1000 {
		t.Errorf("only %d calls measured", len(m.Attention))
	}
}

// measuredRuntime is the row that the measurements are of.
func measuredRuntime(t *testing.T) *Runtime {
	t.Helper()
	r, err := FindRuntime("torch-2.11")
	if err != nil {
		t.Fatal(err)
	}
	return r
}
