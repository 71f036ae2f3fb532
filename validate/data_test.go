package validate

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// TestHalves compares the rounding to half types with a search for the nearest
// of all of their numbers, the one with the even code of two.
func TestHalves(t *testing.T) {
	for name, c := range map[string]struct {
		decode func(uint16) float64
		encode func(float64) uint16
	}{
		"float16":  {func(h uint16) float64 { return graph.Float16.Float(uint64(h)) }, f16},
		"bfloat16": {func(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }, func(v float64) uint16 { return BF16(float32(v)) }},
	} {
		var all []float64 // not negative, finite, in the order of their codes
		for code := range uint16(0x8000) {
			v := c.decode(code)
			if v-v != 0 {
				continue
			}
			all = append(all, v)
			if got := c.encode(v); got != code {
				t.Fatalf("%s: %v is %04x and becomes %04x", name, v, code, got)
			}
			if got := c.encode(-v); got != code|0x8000 {
				t.Fatalf("%s: %v becomes %04x", name, -v, got)
			}
		}
		for i := 1; i < len(all); i++ {
			mid := (all[i-1] + all[i]) / 2 // exact in float64
			even := uint16(i-1) + uint16((i-1)&1)
			if got := c.encode(mid); float64(float32(mid)) == mid && got != even {
				t.Fatalf("%s: %v, between %04x and %04x, becomes %04x", name, mid, i-1, i, got)
			}
			if got := c.encode(all[i-1] + (all[i]-all[i-1])*0.75); got != uint16(i) {
				t.Fatalf("%s: more than the middle of %04x and %04x becomes %04x", name, i-1, i, got)
			}
		}
		if !math.IsNaN(c.decode(c.encode(math.NaN()))) || !math.IsInf(c.decode(c.encode(math.Inf(1))), 1) {
			t.Errorf("%s: NaN or infinity is lost", name)
		}
	}
}

// npy writes an array as NumPy does.
func npy(descr, shape string, order string, body []byte) []byte {
	head := "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }"
	head += strings.Repeat(" ", 63-(len(head)+10)%64) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), byte(len(head)>>8))
	return append(append(b, head...), body...)
}

func TestReadNPY(t *testing.T) {
	body := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.5))
	body = binary.LittleEndian.AppendUint32(body, math.Float32bits(-2))
	a, err := ReadNPY(bytes.NewReader(npy("<f4", "(2, 1)", "False", body)))
	if err != nil || !slices.Equal(a.Shape, []int64{2, 1}) || !slices.Equal(a.Values, []float32{1.5, -2}) {
		t.Errorf("%v, %v", a, err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"no header":     {[]byte("PK\x03\x04 something else"), "not a .npy"},
		"other type":    {npy("<c8", "(1,)", "False", make([]byte, 8)), "NumPy's type"},
		"columns first": {npy("<f4", "(2, 2)", "True", make([]byte, 16)), "C-contiguous"},
		"short":         {npy("<f4", "(3,)", "False", make([]byte, 8)), "EOF"},
		"huge":          {npy("<f4", "(4294967296, 4294967296)", "False", nil), "an array of"},
		"negative":      {npy("<f4", "(-1,)", "False", nil), "shape"},
	} {
		if _, err := ReadNPY(bytes.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadPB(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pb")
	head := func() []byte {
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)
		return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(graph.Float32))
	}
	raw := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(3)), math.Float32bits(4))
	for name, field := range map[string]protowire.Number{"float_data": 4, "raw_data": 9} {
		data := protowire.AppendBytes(protowire.AppendTag(head(), field, protowire.BytesType), raw)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := ReadArray(file, 0); err != nil || !slices.Equal(a.Values, []float32{3, 4}) {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	if err := os.WriteFile(file, head(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadArray(file, 0); err == nil || !strings.Contains(err.Error(), "0 elements") {
		t.Errorf("no elements: %v", err)
	}
}

// TestReadPBElements: elements that do not lie in the file as they are, as many as a
// model's tensors may not have decoded.
func TestReadPBElements(t *testing.T) {
	const n = 5000
	typed := func(d graph.DType, field protowire.Number, packed bool) []byte {
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), n)
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(d))
		var list []byte
		for i := range uint64(n) {
			switch {
			case packed:
				list = protowire.AppendVarint(list, i)
			case field == 4:
				b = protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), math.Float32bits(float32(i)))
			default:
				b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), i)
			}
		}
		if packed {
			b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), list)
		}
		return b
	}
	for name, data := range map[string][]byte{
		"int64_data": typed(graph.Int64, 7, true), "int64_data, not packed": typed(graph.Int64, 7, false),
		"int32_data": typed(graph.Uint16, 5, true), "float_data, not packed": typed(graph.Float32, 4, false),
	} {
		a, err := readPB(bytes.NewReader(data), int64(len(data)), "x.pb", arrayMemory)
		if err != nil || len(a.Values) != n || a.Values[n-1] != n-1 {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := readPB(bytes.NewReader(data), int64(len(data)), "x.pb", 100*n/4); err == nil || !strings.Contains(err.Error(), "--max-memory") {
			t.Errorf("%s in too little memory: %v", name, err)
		}
	}
}

func FuzzReadPB(f *testing.F) {
	f.Add([]byte{8, 2, 16, 1, 34, 8, 0, 0, 128, 63, 0, 0, 0, 64})
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := readPB(bytes.NewReader(data), int64(len(data)), "x.pb", arrayMemory); err == nil && int64(len(a.Values)) != Elems(a.Shape) {
			t.Errorf("%d elements of %v", len(a.Values), a.Shape)
		}
	})
}

func FuzzReadNPY(f *testing.F) {
	f.Add(npy("<f4", "(2,)", "False", make([]byte, 8)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<12 {
			return
		}
		if a, err := ReadNPY(bytes.NewReader(data)); err == nil && int64(len(a.Values)) != Elems(a.Shape) {
			t.Errorf("%d elements of %v", len(a.Values), a.Shape)
		}
	})
}

// TestComplete: a node that does not say what it computes is refused.
func TestComplete(t *testing.T) {
	tensor := program.View{DType: graph.Float32, Shape: []int64{2}, Strides: []int64{1}}
	for name, n := range map[string]program.Node{
		"no such kernel": {Op: "eye"},
		"1 operands":     {Op: "mul", In: []program.View{tensor}},
		"several":        {Op: "mul", In: []program.View{tensor, tensor}, Attrs: &program.Attrs{Inexact: "stands for several kernels"}},
		"does not show":  {Op: "mul", In: []program.View{tensor}, Attrs: &program.Attrs{Args: []program.Arg{{In: 0}, {In: program.Unknown}}}},
	} {
		if err := Complete(&n); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := program.Node{Op: "mul", In: []program.View{tensor, tensor}}
	if err := Complete(&n); err != nil {
		t.Error(err)
	}
}

// TestModelSource: initializers come from the model's file, or from one beside
// it; what is not there is to be made from the seed.
func TestModelSource(t *testing.T) {
	dir := t.TempDir()
	raw := binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0}, math.Float32bits(2.5))
	if err := os.WriteFile(filepath.Join(dir, "weights.bin"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	beside := func(location string, offset int64) *graph.Constant {
		return &graph.Constant{Type: graph.Float32, Dims: []int64{1}, Ref: &graph.DataRef{Location: location, Offset: offset, Length: 4}}
	}
	g := &graph.Graph{}
	for name, c := range map[string]*graph.Constant{
		"held": {Type: graph.Int64, Dims: []int64{2}, Ints: []int64{3, 4}}, "beside": beside("weights.bin", 4), "missing": beside("other.bin", 0), "short": beside("weights.bin", 6), "outside": beside("../weights.bin", 0),
	} {
		g.Values = append(g.Values, graph.Value{Name: name, Kind: graph.Initializer, Const: c})
	}
	model := filepath.Join(dir, "model.onnx")
	if err := os.WriteFile(model, []byte("graph"), 0o600); err != nil {
		t.Fatal(err)
	}
	src := ModelSource(g, func() (*files.File, error) { return files.Door{}.Open(model, files.Model) })
	for name, want := range map[string][]float32{"held": {3, 4}, "beside": {2.5}, "missing": nil, "unknown": nil} {
		a, err := src(name)
		if err != nil || (a == nil) != (want == nil) || a != nil && !slices.Equal(a.Values, want) {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	for _, name := range []string{"short", "outside"} {
		if _, err := src(name); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestSpread: every element is in one part, and only in one.
func TestSpread(t *testing.T) {
	for _, n := range []int{0, 1, spreadLeast - 1, 2 * spreadLeast, 5*spreadLeast + 7} {
		seen := make([]int8, n)
		spread(n, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				seen[i]++
			}
		})
		if i := slices.IndexFunc(seen, func(k int8) bool { return k != 1 }); i >= 0 {
			t.Errorf("of %d elements number %d is in %d parts", n, i, seen[i])
		}
	}
}

// TestFinite: the last element counts as the first does.
func TestFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, at := range []int{0, 3*spreadLeast - 1} {
			a := &Array{Values: make([]float32, 3*spreadLeast)}
			if !a.finite() {
				t.Fatal("zeros are finite")
			}
			b := &Array{Values: slices.Clone(a.Values)}
			b.Values[at] = float32(bad)
			if b.finite() || equalBits(a, b) || !equalBits(a, a) {
				t.Errorf("%v at %d is not seen", bad, at)
			}
		}
	}
}
