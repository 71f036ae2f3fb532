package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// onnxFile writes a model of opset 20 with input x of the given dims (0 is the
// symbol N), int64 constants, and nodes as "name domain op in,in out".
func onnxFile(t *testing.T, dims []int64, constants map[string][]int64, nodes ...string) string {
	t.Helper()
	var g pb
	for _, text := range nodes {
		f := strings.Fields(text)
		n := pb{}.str(1, strings.Split(f[3], ",")...).str(2, f[4]).str(3, f[0]).str(4, f[2])
		if f[1] != "-" {
			n = n.str(7, f[1])
		}
		g = g.str(1, string(n))
	}
	for name, list := range constants {
		g = g.str(5, string(pb{}.int(1, int64(len(list))).int(2, 7).int(7, list...).str(8, name)))
	}
	var shape pb
	for _, d := range dims {
		dim := pb{}.int(1, d)
		if d == 0 {
			dim = pb{}.str(2, "N")
		}
		shape = shape.str(1, string(dim))
	}
	info := func(name string, shape pb) string {
		tensor := pb{}.int(1, 1)
		if shape != nil {
			tensor = tensor.str(2, string(shape))
		}
		return string(pb{}.str(1, name).str(2, string(pb{}.str(1, string(tensor)))))
	}
	g = g.str(11, info("x", shape)).str(12, info("y", nil))
	m := pb{}.int(1, 10).str(8, string(pb{}.int(2, 20)), string(pb{}.str(1, "my.ops").int(2, 1))).str(7, string(g))
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, m, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// An operator that nothing is known of is warned of, and the file is still
// shown; a plan needs the shape of its result, from --shape.
func TestUnknownOperator(t *testing.T) {
	path := onnxFile(t, []int64{0, 4}, nil, "first - Relu x a", "odd my.ops Foo a b", "last - Add a,b y")
	code, out, errw := memplan("show", path)
	if code != exitYes || !strings.Contains(errw, `odd`) || !strings.Contains(errw, "unknown-op") || !strings.Contains(out, "a = Relu (x)  # float[N,4] 16*N B") {
		t.Errorf("show: code %d\n%s%s", code, out, errw)
	}
	code, out, errw = memplan("show", path, "--shape", "b=N,4")
	if code != exitYes || !strings.Contains(out, "y = Add (a, b)  # float[N,4] 16*N B") || strings.Contains(errw, "unknown-op") {
		t.Errorf("show --shape: code %d\n%s%s", code, out, errw)
	}
	if code, out, errw = memplan("analyze", path, "--mode", "infer", "--batch", "2"); code != exitUnknown || out != "" || !strings.Contains(errw, "my.ops.Foo") || !strings.Contains(errw, "--shape") {
		t.Errorf("analyze: code %d\n%s%s", code, out, errw)
	}
	if code, out, errw = memplan("analyze", path, "--mode", "infer", "--batch", "2", "--shape", "b=2,4"); code != exitYes || out == "" {
		t.Errorf("analyze --shape: code %d\n%s%s", code, out, errw)
	}
	code, out, errw = memplan("list", "ops", "--model", path, "--format", "json")
	var doc struct {
		Ops []struct {
			Op    string
			Known bool
			Node  string
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitYes || len(doc.Ops) != 3 {
		t.Fatalf("list ops: code %d, %v\n%s%s", code, err, out, errw)
	}
	for _, o := range doc.Ops {
		if o.Known != (o.Op != "my.ops.Foo") || o.Op == "my.ops.Foo" && !strings.Contains(o.Node, "odd") {
			t.Errorf("list ops: %+v", o)
		}
	}
}

// What a function of the model calls is listed, too, and refused where nothing is known of it.
func TestUnknownInFunction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.onnx")
	call := func(name, domain, op, in, out string) string {
		return string(pb{}.str(1, in).str(2, out).str(3, name).str(4, op).str(7, domain))
	}
	f := pb{}.str(1, "F").str(4, "a").str(5, "b").str(7, call("deep", "my.other", "Foo", "a", "b")).str(10, "my.ops")
	g := pb{}.str(1, call("outer", "my.ops", "F", "x", "y")).str(1, call("again", "my.ops", "F", "y", "z")).str(2, "g")
	dims := pb{}.msg(1, pb{}.str(2, "N"), pb{}.int(1, 4))
	info := func(name string) pb { return pb{}.str(1, name).msg(2, pb{}.msg(1, pb{}.int(1, 1).msg(2, dims))) }
	g = g.msg(11, info("x")).msg(12, info("z"))
	m := pb{}.int(1, 10).str(8, string(pb{}.int(2, 20)), string(pb{}.str(1, "my.ops").int(2, 1)), string(pb{}.str(1, "my.other").int(2, 1))).str(7, string(g)).str(25, string(f))
	if err := os.WriteFile(path, m, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errw := memplan("list", "ops", "--model", path)
	if code != exitYes || !regexp.MustCompile(`(?m)^my.ops.F +2 +yes `).MatchString(out) || !regexp.MustCompile(`(?m)^my.other.Foo +1 +NO +Foo "deep"`).MatchString(out) {
		t.Errorf("list ops: code %d\n%s%s", code, out, errw)
	}
	if code, out, errw = memplan("analyze", path, "--batch", "2"); code != exitUnknown || out != "" || !strings.Contains(errw, "my.other.Foo") {
		t.Errorf("analyze: code %d\n%s%s", code, out, errw)
	}
}

// A batch that the file fixes is replaced where every node treats it as a
// batch, and else the first node that does not is named.
func TestFixedBatch(t *testing.T) {
	good := onnxFile(t, []int64{2, 6, 8}, map[string][]int64{"s": {0, -1}}, "act - Relu x a", "flat - Reshape a,s y")
	code, out, errw := memplan("show", good, "--batch", "5")
	if code != exitYes || !strings.Contains(out, "y = Reshape (a, s)  # float[5,48] 960 B") {
		t.Errorf("code %d\n%s%s", code, out, errw)
	}
	bad := onnxFile(t, []int64{2, 6, 8}, map[string][]int64{"s": {2, 48}}, "act - Relu x a", "baked - Reshape a,s y")
	for _, args := range [][]string{{"show", bad, "--batch", "5"}, {"analyze", bad, "--batch", "5", "--mode", "infer"}, {"analyze", bad, "--batch", "5"}} {
		if code, out, errw = memplan(args...); code != exitUnknown || out != "" || !strings.Contains(errw, `"baked"`) {
			t.Errorf("%s: code %d\n%s%s", args[0], code, out, errw)
		}
	}
	if code, out, errw = memplan("show", bad, "--batch", "2"); code != exitYes {
		t.Errorf("the file's own batch: code %d\n%s%s", code, out, errw)
	}
}

// Damaged copies of models end in a result or an error of one line, soon.
func TestDamagedFiles(t *testing.T) {
	testdata.Sequential(t)
	dir := testdata.Shared(t, "onnx", "backend", "models")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 4))
	path := filepath.Join(t.TempDir(), "m.onnx")
	shown := 0
	for i := range 400 {
		data, err := os.ReadFile(filepath.Join(dir, entries[r.IntN(len(entries))].Name()))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 100_000 {
			continue
		}
		for range 1 + r.IntN(2) {
			data[r.IntN(len(data))] = byte(r.IntN(256))
		}
		if r.IntN(20) == 0 {
			data = data[:r.IntN(len(data))]
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"show", path}, {"show", path, "--format", "json", "--batch", "3"}, {"analyze", path, "--mode", "infer", "--batch", "2"}, {"analyze", path, "--batch", "1"}} {
			code, out, errw := memplan(args...)
			if code > exitUnknown || code == exitUnknown && out != "" || strings.Contains(errw, "internal error") {
				t.Fatalf("copy %d, %s: code %d\n%s", i, args[0], code, errw)
			}
			if args[0] == "show" && code == exitYes {
				shown++
			}
		}
	}
	t.Logf("%d of the copies shown", shown/2)
	if shown < 100 {
		t.Error("too few copies can be shown")
	}
}
