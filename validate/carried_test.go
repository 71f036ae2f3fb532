package validate_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// A file is an ONNX file without PyTorch's metadata: one operator of inputs x, y, z
// and of int64 constants.
type file struct {
	op     string
	attrs  []byte  // of attrFloat and attrInts
	consts []int64 // a constant input after the others, none if nil
	scalar bool    // the constant has no dims
	shapes [][]int64
	index  [][]int64 // the elements of int64 inputs after those of shapes, rows of equal length
	out    []int64
}

// The numbers of fields are those of onnx.proto.
func field(num uint64, body ...[]byte) []byte {
	var b []byte
	for _, p := range body {
		b = append(b, p...)
	}
	out := binary.AppendUvarint(nil, num<<3|2)
	return append(binary.AppendUvarint(out, uint64(len(b))), b...)
}

func number(num uint64, v int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, num<<3), uint64(v))
}

func attrFloat(name string, f float32) []byte {
	return field(5, field(1, []byte(name)), binary.LittleEndian.AppendUint32([]byte{2<<3 | 5}, math.Float32bits(f)), number(20, 1))
}

func attrInt(name string, v int64) []byte {
	return field(5, field(1, []byte(name)), number(3, v), number(20, 2))
}

func attrString(name, s string) []byte {
	return field(5, field(1, []byte(name)), field(4, []byte(s)), number(20, 3))
}

func attrInts(name string, vs ...int64) []byte {
	b := field(1, []byte(name))
	for _, v := range vs {
		b = append(b, number(8, v)...)
	}
	return field(5, b, number(20, 7))
}

func valueInfo(num uint64, name string, elem int64, shape []int64) []byte {
	var dims []byte
	for _, d := range shape {
		dims = append(dims, field(1, number(1, d))...)
	}
	return field(num, field(1, []byte(name)), field(2, field(1, number(1, elem), field(2, dims))))
}

// write puts the file into a directory of the test.
func (f *file) write(t *testing.T) string {
	t.Helper()
	var node, rest []byte
	for i, s := range f.shapes {
		node = append(node, field(1, []byte{byte('x' + i)})...)
		rest = append(rest, valueInfo(11, string(byte('x'+i)), 1, s)...)
	}
	if f.index != nil {
		node = append(node, field(1, []byte("i"))...)
		rest = append(rest, valueInfo(11, "i", 7, []int64{int64(len(f.index)), int64(len(f.index[0]))})...)
	}
	if f.consts != nil {
		node = append(node, field(1, []byte("c"))...)
		dims, raw := number(1, int64(len(f.consts))), []byte(nil)
		if f.scalar {
			dims = nil
		}
		for _, v := range f.consts {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
		}
		rest = append(rest, field(5, dims, number(2, 7), field(8, []byte("c")), field(9, raw))...)
	}
	node = append(node, field(2, []byte("out"))...)
	node = append(node, field(4, []byte(f.op))...)
	g := field(7, field(1, node, f.attrs), field(2, []byte("g")), rest, valueInfo(12, "out", 1, f.out))
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, append(append(number(1, 10), g...), field(8, field(1, nil), number(2, 23))...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run validates an inference of the file with the given inputs and output.
func (f *file) run(t *testing.T, path string, in [][]float32, want []float32) string {
	t.Helper()
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	reader := func(s []int64, v []float32) validate.Reader {
		return func() (*validate.Array, error) { return &validate.Array{Shape: s, Values: v}, nil }
	}
	q := &validate.Question{Model: m, Config: planner.Config{Mode: "infer"}, Open: func() (validate.Device, error) { return cpu.New(), nil }, Steps: 1, Tolerance: 1e-5,
		Inputs: map[string]validate.Reader{}, Expect: map[string]validate.Reader{"out": reader(f.out, want)}}
	for i, s := range f.shapes {
		q.Inputs[string(byte('x'+i))] = reader(s, in[i])
	}
	if f.index != nil {
		var v []float32
		for _, row := range f.index {
			for _, x := range row {
				v = append(v, float32(x))
			}
		}
		q.Inputs["i"] = reader([]int64{int64(len(f.index)), int64(len(f.index[0]))}, v)
	}
	r, err := validate.Validate(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r.Verdict
}

// TestCarried: attributes of operators in files without PyTorch's metadata come out
// in the numbers, which are computed here by the operators' specification.
func TestCarried(t *testing.T) {
	for name, c := range map[string]struct {
		file
		at func(in [][]float32, i int) float64 // element i of the output
	}{
		"CumSum": {file{op: "CumSum", consts: []int64{-2}, scalar: true, shapes: [][]int64{{2, 3, 4}}, out: []int64{2, 3, 4}}, func(in [][]float32, i int) (s float64) {
			for j := i % 4; j <= i%12; j += 4 {
				s += float64(in[0][i/12*12+j])
			}
			return s
		}},
		"Gemm": {file{op: "Gemm", attrs: cat(attrInt("transA", 1), attrFloat("alpha", 0.5), attrFloat("beta", -2)), shapes: [][]int64{{5, 3}, {5, 4}, {3, 1}}, out: []int64{3, 4}},
			func(in [][]float32, i int) float64 {
				s := -2 * float64(in[2][i/4])
				for k := range 5 {
					s += 0.5 * float64(in[0][k*3+i/4]) * float64(in[1][k*4+i%4])
				}
				return s
			}},
		"InstanceNormalization": {file{op: "InstanceNormalization", attrs: attrFloat("epsilon", 0.5), shapes: [][]int64{{2, 3, 5}, {3}, {3}}, out: []int64{2, 3, 5}},
			func(in [][]float32, i int) float64 {
				mean, sq := 0.0, 0.0
				for _, x := range in[0][i/5*5 : i/5*5+5] {
					mean, sq = mean+float64(x)/5, sq+float64(x)*float64(x)/5
				}
				return (float64(in[0][i])-mean)/math.Sqrt(sq-mean*mean+0.5)*float64(in[1][i/5%3]) + float64(in[2][i/5%3])
			}},
		"Selu": {file{op: "Selu", attrs: cat(attrFloat("alpha", 2), attrFloat("gamma", 0.75)), shapes: [][]int64{{4, 5}}, out: []int64{4, 5}}, func(in [][]float32, i int) float64 {
			x := float64(in[0][i])
			if x > 0 {
				return 0.75 * x
			}
			return 0.75 * 2 * (math.Exp(x) - 1)
		}},
		"MaxPool": {file{op: "MaxPool", attrs: cat(attrInts("kernel_shape", 2, 2), attrInts("pads", 1, 0, 0, 1)), shapes: [][]int64{{1, 1, 4, 5}}, out: []int64{1, 1, 4, 5}},
			func(in [][]float32, i int) float64 {
				most := math.Inf(-1)
				for y := max(i/5-1, 0); y <= i/5; y++ {
					for x := i % 5; x <= min(i%5+1, 4); x++ {
						most = max(most, float64(in[0][5*y+x]))
					}
				}
				return most
			}},
		"AveragePool": {file{op: "AveragePool", attrs: cat(attrInts("kernel_shape", 3), attrString("auto_pad", "SAME_UPPER")), shapes: [][]int64{{1, 2, 6}}, out: []int64{1, 2, 6}},
			func(in [][]float32, i int) float64 {
				s, n := 0.0, 0.0
				for x := max(i%6-1, 0); x <= min(i%6+1, 5); x++ {
					s, n = s+float64(in[0][i/6*6+x]), n+1
				}
				return s / n
			}},
		"Attention": {file{op: "Attention", attrs: attrFloat("scale", 1.5), shapes: [][]int64{{1, 1, 2, 4}, {1, 1, 3, 4}, {1, 1, 3, 4}}, out: []int64{1, 1, 2, 4}},
			func(in [][]float32, i int) float64 {
				sum, of := 0.0, 0.0
				for k := range 3 {
					dot := 0.0
					for d := range 4 {
						dot += float64(in[0][i/4*4+d]) * float64(in[1][4*k+d])
					}
					e := math.Exp(1.5 * dot)
					sum, of = sum+e*float64(in[2][4*k+i%4]), of+e
				}
				return sum / of
			}},
		"Pad": {file{op: "Pad", attrs: attrString("mode", "constant"), shapes: [][]int64{{2, 3}}, consts: []int64{0, 1, 2, 0}, out: []int64{4, 4}},
			func(in [][]float32, i int) float64 {
				if i/4 >= 2 || i%4 == 0 {
					return 0
				}
				return float64(in[0][i/4*3+i%4-1])
			}},
		"GatherND": {file{op: "GatherND", shapes: [][]int64{{4, 3}}, index: [][]int64{{3}, {0}}, out: []int64{2, 3}}, func(in [][]float32, i int) float64 {
			return float64(in[0][9*(1-i/3)+i%3])
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			var in [][]float32
			for _, s := range c.shapes {
				v := make([]float32, validate.Elems(s))
				for i := range v {
					v[i] = float32(rng.NormFloat64()) - 1
				}
				in = append(in, v)
			}
			want := make([]float32, validate.Elems(c.out))
			for i := range want {
				want[i] = float32(c.at(in, i))
			}
			path := c.write(t)
			if v := c.run(t, path, in, want); v != validate.Validated {
				t.Errorf("the right numbers: %s", v)
			}
			want[len(want)/2] += 0.01
			if v := c.run(t, path, in, want); v != validate.Refuted {
				t.Errorf("a wrong number: %s", v)
			}
		})
	}
}

func cat(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}
