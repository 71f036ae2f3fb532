package remat

import (
	"os"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// load reads a file of data/remat.
func load(t testing.TB, name string) *Instance {
	t.Helper()
	f, err := os.Open(testdata.Shared(t, "remat", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in, err := ReadJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestPublishedPeaks compares the peaks without recomputation with those
// that the budgets printed for Moccasin (90% and 80%) come from.
func TestPublishedPeaks(t *testing.T) {
	for _, tt := range []struct {
		file        string
		nodes       int
		peak, total int64
	}{
		{"checkmate_fcn8_b32.json", 73, 13484795520, 10275337746048},
		{"checkmate_resnet50_b256.json", 353, 38059356160, 405670},
		{"checkmate_mobilenet_b512.json", 185, 34701056000, 162080},
		{"rl1_n100.json", 100, 46319, 47769},
		{"rl2_n250.json", 250, 146840, 125569},
		{"rl3_n500.json", 500, 284439, 255302},
	} {
		in := load(t, tt.file)
		if len(in.Nodes) != tt.nodes || in.Peak() != tt.peak || in.Total() != tt.total {
			t.Errorf("%s: %d nodes, peak %d, total %d; want %d, %d, %d", tt.file, len(in.Nodes), in.Peak(), in.Total(), tt.nodes, tt.peak, tt.total)
		}
	}
}

func TestReadJSONRejects(t *testing.T) {
	for _, tt := range []struct{ doc, want string }{
		{``, "EOF"},
		{`{`, "ends early"},
		{`[]`, "is a JSON array, want an object"},
		{`{"links":[]}`, `no "nodes"`},
		{`{"nodes":[{}]}`, "neither id nor name"},
		{`{"nodes":[{"id":1},{"id":"1"}]}`, "also that of nodes[0]"},
		{`{"nodes":[{"id":1}],"links":[{"source":1,"target":2}]}`, "no node"},
		{`{"nodes":[{"id":1}],"links":[{"source":1,"target":1}]}`, "does not come before"},
		{`{"nodes":[{"id":1},{"id":2}],"links":[{"source":2,"target":1}]}`, "does not come before"},
		{`{"nodes":[{"id":1,"cost_ram":-1}]}`, "not a whole number"},
		{`{"nodes":[{"id":1,"cost_ram":1.5}]}`, "not a whole number"},
		{`{"nodes":[{"id":1,"cost_cpu":1e400}]}`, "not a whole number"},
		{`{"nodes":[{"id":1,"cost_cpu":9e18}]}`, "not a whole number"},
		{`{"graph":{"order":[1]},"nodes":[{"id":1},{"id":2}]}`, "names 1 of 2"},
		{`{"graph":{"order":[1,1]},"nodes":[{"id":1},{"id":2}]}`, "repeated"},
	} {
		_, err := ReadJSON(strings.NewReader(tt.doc))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ReadJSON(%s): error %v, want one with %q", tt.doc, err, tt.want)
		}
	}
}

func TestReadJSONOrder(t *testing.T) {
	in, err := ReadJSON(strings.NewReader(`{"graph":{"name":"g","order":["b","a"],"fixed":7},
		"nodes":[{"name":"a","duration":2.0,"out_cost":3,"param_cost":4},{"name":"b","duration":5,"out_cost":1e2}],
		"edges":[{"0":"b","1":"a"},{"source":"b","target":"a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	b, a := in.Nodes[0], in.Nodes[1]
	if in.Fixed != 7 || b.Name != "b" || b.Cost != 5 || b.Size != 100 || a.Cost != 2 || a.Size != 3 || a.Work != 4 || len(a.Preds) != 1 {
		t.Errorf("got %+v", in)
	}
	if got := in.Peak(); got != 7+100+3+4 {
		t.Errorf("peak %d", got)
	}
}

func FuzzReadJSON(f *testing.F) {
	f.Add(`{"nodes":[{"id":1},{"id":2}],"links":[{"source":1,"target":2}]}`)
	f.Fuzz(func(t *testing.T, doc string) {
		in, err := ReadJSON(strings.NewReader(doc))
		if err != nil {
			return
		}
		if ws, _ := in.WorkingSet(); ws > in.Peak() {
			t.Fatalf("working set %d above the peak %d", ws, in.Peak())
		}
	})
}
