//go:build cuda

package dnngraph

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate/dl"
)

// fake opens a library that the test compiles, and returns the file of its log.
func fake(t *testing.T, instant, fallback string) (*Backend, string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile the library with")
	}
	file, log := filepath.Join(t.TempDir(), "libcudnn.so.9"), filepath.Join(t.TempDir(), "log")
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", file, filepath.Join("testdata", "cudnn.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("MEMPLAN_CUDNN", file)
	t.Setenv("FAKE_CUDNN_LOG", log)
	t.Setenv("FAKE_CUDNN_INSTANT", instant)
	t.Setenv("FAKE_CUDNN_FALLBACK", fallback)
	lib, err := dl.Open("cudnn")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(lib, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.handle = 77
	return b, log
}

// lines are those of a log that begin with a word.
func lines(t *testing.T, log, word string) []string {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, word+" ") {
			out = append(out, strings.TrimSpace(l))
		}
	}
	return out
}

// grouped is a strided convolution of three groups whose operand lies with its
// channels innermost.
func grouped(p Pass, d graph.DType) *Conv {
	return &Conv{Pass: p, Type: d, X: Descriptor{[]int64{2, 6, 7, 5}, []int64{210, 1, 30, 6}, 16}, W: Descriptor{[]int64{9, 2, 3, 1}, []int64{6, 3, 1, 1}, 8},
		Y: Descriptor{[]int64{2, 9, 4, 9}, []int64{324, 36, 9, 1}, 4}, Pad: []int64{1, 2}, Stride: []int64{2, 1}, Dilation: []int64{1, 3}}
}

// TestGraph: the objects of a pass have the attributes that cudnn_graph.h asks
// for, under the numbers that it gives them.
func TestGraph(t *testing.T) {
	for _, c := range []struct {
		pass              Pass
		dtype             graph.DType
		number, compute   int
		operation, scales string
	}{
		{Forward, graph.BFloat16, 9, 0, "10", "700:4=1 701:4=0 702:15=#4 703:15=#2 704:15=#1 705:15=#3"},
		{Data, graph.Float16, 2, 0, "12", "706:4=1 707:4=0 708:15=#4 709:15=#2 710:15=#1 711:15=#3"},
		{Filter, graph.Float32, 0, 0, "11", "712:4=1 713:4=0 714:15=#4 715:15=#2 716:15=#1 717:15=#3"},
		{Forward, graph.Float64, 1, 1, "10", "700:5=1 701:5=0 702:15=#4 703:15=#2 704:15=#1 705:15=#3"},
	} {
		t.Run(fmt.Sprint(c.pass, c.dtype), func(t *testing.T) {
			b, log := fake(t, "3", "")
			if _, err := b.Plan(grouped(c.pass, c.dtype), 1<<30); err != nil {
				t.Fatal(err)
			}
			want := []string{
				fmt.Sprintf("finish 1 kind 17 901:1=%d 902:3=2,6,7,5 903:3=210,1,30,6 906:3=120 900:3=16", c.number),
				fmt.Sprintf("finish 2 kind 17 901:1=%d 902:3=9,2,3,1 903:3=6,3,1,1 906:3=119 900:3=8", c.number),
				fmt.Sprintf("finish 3 kind 17 901:1=%d 902:3=2,9,4,9 903:3=324,36,9,1 906:3=121 900:3=4", c.number),
				fmt.Sprintf("finish 4 kind 1 100:1=%d 101:7=1 106:3=2 103:3=2,1 105:3=1,2 104:3=1,2 102:3=1,3", c.compute),
				"finish 5 kind " + c.operation + " " + c.scales,
				"finish 6 kind 15 800:0=77 801:15=#5",
				"finish 7 kind 4 201:15=#6 200:8=0",
				"finish 10 kind 5 400:0=77 401:15=#8",
			}
			if got := lines(t, log, "finish"); !slices.Equal(got, want) {
				t.Errorf("finished\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestPlan: which engine runs a pass, in the order of cuDNN's lists.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name, instant, fallback string
		dtype                   graph.DType
		full                    bool
		engine                  int64 // -1: none
		compiled                bool
		why                     string
	}{
		{"the first", "5 6", "7", graph.BFloat16, false, 5, false, ""},
		{"compiled ones keep their place", "5c 6", "", graph.BFloat16, false, 5, true, ""},
		{"deterministic", "5n 6", "7", graph.BFloat16, false, 6, false, ""},
		{"one that can be made", "5f 6fn 7", "", graph.Float16, false, 7, false, ""},
		{"workspace", "5w 6", "", graph.Float16, false, 6, false, ""},
		{"the fallback's", "5n 6f", "7n 8 9", graph.BFloat16, false, 8, false, ""},
		{"only the fallback's", "", "4", graph.BFloat16, false, 4, false, ""},
		{"tensor cores for halves", "5t", "", graph.BFloat16, true, 5, false, ""},
		{"conversions for halves", "5td", "", graph.Float16, true, 5, false, ""},
		{"TF32", "5td 6t 7", "", graph.Float32, false, 6, false, ""},
		{"full precision", "5td 6t 7d 8", "", graph.Float32, true, 8, false, ""},
		{"none", "5n 6t", "7f 8w 9d", graph.Float32, true, -1, false,
			"engine 5 is not deterministic; engine 6 computes in TF32; engine 7: cuDNN: the plan: CUDNN_STATUS_NOT_SUPPORTED; engine 8: needs 2147483648 bytes; engine 9 converts"},
		{"nothing proposed", "", "", graph.Float32, true, -1, false, "no engine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, log := fake(t, c.instant, c.fallback)
			conv := grouped(Forward, c.dtype)
			conv.Full = c.full
			p, err := b.Plan(conv, 1<<30)
			switch {
			case c.engine < 0:
				if err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%v, want %q", err, c.why)
				}
			case err != nil:
				t.Fatal(err)
			case p.Engine != c.engine || p.Bytes != 256*c.engine || p.Compiled != c.compiled:
				t.Errorf("engine %d in %d bytes, compiled %v", p.Engine, p.Bytes, p.Compiled)
			}
			if err == nil {
				p.Free()
			}
			if made, gone := lines(t, log, "make"), lines(t, log, "destroy"); len(made) != len(gone) {
				t.Errorf("%d objects made, %d destroyed", len(made), len(gone))
			}
		})
	}
}

// TestRun: a plan runs on the addresses it is given, as often as it is asked to,
// and a failure has cuDNN's name.
func TestRun(t *testing.T) {
	b, log := fake(t, "5", "")
	p, err := b.Plan(grouped(Forward, graph.BFloat16), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	before := len(lines(t, log, "make")) - len(lines(t, log, "destroy"))
	for range 2 {
		if err := b.Run(p, 1000, 2000, 3000, 4000); err != nil {
			t.Fatal(err)
		}
	}
	if after := len(lines(t, log, "make")) - len(lines(t, log, "destroy")); after != before {
		t.Errorf("%d objects before, %d after", before, after)
	}
	got := lines(t, log, "run")
	for _, l := range got {
		if !strings.HasSuffix(l, " kind 16 1001:6=1000,3000,2000 1000:3=120,121,119 1003:6=4000") {
			t.Error(l)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d runs", len(got))
	}
	p.Free()
	b, _ = fake(t, "5x", "6")
	if p, err = b.Plan(grouped(Forward, graph.BFloat16), 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := b.Run(p, 1000, 2000, 3000, 4000); err == nil || !strings.Contains(err.Error(), "CUDNN_STATUS_EXECUTION_FAILED") {
		t.Errorf("a run that fails: %v", err)
	}
	p.Free()
}
