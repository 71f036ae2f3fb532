package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
)

// TestCheck: a node that lacks something its row requires is found, and the message names
// it.
func TestCheck(t *testing.T) {
	in := func(n int) []program.View { return make([]program.View, n) }
	absent := []program.Arg{{In: program.Absent}, {In: 0}}
	for want, n := range map[string]program.Node{
		"":                                {Op: "mul", In: in(2)},
		nowhere:                           {Op: "aten_magic", In: in(1)},
		"1 operands, not 2 to 2":          {Op: "mul", In: in(1)},
		"0 operands, not 1 to 1073741824": {Op: "cat", Attrs: &program.Attrs{Dims: []int64{0}}},
		"operand 0, self, is absent":      {Op: "mul", In: in(1), Attrs: &program.Attrs{Args: absent}},
		"0 numbers, not 1 to 1":           {Op: "native_dropout", In: in(1)},
		"2 numbers, not 0 to 1":           {Op: "add", In: in(2), Attrs: &program.Attrs{Scalars: []float64{1, 1}}},
		`no mode "tanh"`:                  {Op: "div", In: in(2), Attrs: &program.Attrs{Mode: "tanh"}},
		"no dims":                         {Op: "softmax", In: in(1)},
		"no attributes":                   {Op: "x", Kernel: "convolution", In: in(2)},
	} {
		if err := Check(&n); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", n.Does(), err, want)
		}
	}
	if err := Check(&program.Node{Op: "aten_magic", Attrs: &program.Attrs{Inexact: "several"}}); err != nil {
		t.Errorf("an inexact node: %v", err)
	}
}

// TestNumbers: omitted scalars have the row's defaults, and modes follow them.
func TestNumbers(t *testing.T) {
	add, elu := Find("add"), Find("elu_backward")
	if v := add.Scalar(&program.Node{}, "alpha"); v != 1 {
		t.Errorf("alpha is %v where it is left out", v)
	}
	n := &program.Node{Attrs: &program.Attrs{Scalars: []float64{3, 4, 5}, Mode: "result"}}
	if got := elu.Numbers(n); !slices.Equal(got, []float64{3, 4, 5, 1}) {
		t.Errorf("elu_backward: %v", got)
	}
	attention := Find("_scaled_dot_product_flash_attention")
	for p, want := range map[float64]bool{0: false, 0.1: true} {
		if n.Attrs.Scalars[2] = p; attention.Draws(n) != want {
			t.Errorf("attention with dropout %v: draws %v", p, !want)
		}
	}
}

// TestTable: the words of each row are unique and well-formed, and each operator that a
// policy may keep has a name in PyTorch's dispatcher.
func TestTable(t *testing.T) {
	for i := range Table {
		k := &Table[i]
		for _, list := range [][]word{k.operands, k.scalars} {
			for j, w := range list {
				again := slices.ContainsFunc(list[:j], func(x word) bool { return x.name == w.name && w.name != unread })
				if again || strings.ContainsAny(w.name, "?.=") || w.more && j < len(list)-1 {
					t.Errorf("%s: %q", k.Name, w.name)
				}
			}
		}
		if op := Dispatched(k.Name); k.Selectable != Selectable(op) || op != k.Name && Selectable(k.Name) {
			t.Errorf("%s: selectable %v, as %s %v", k.Name, k.Selectable, op, Selectable(op))
		}
		if k.Refused != "" && k.Ways != nil {
			t.Errorf("%s has ways and is refused", k.Name)
		}
	}
	for op, want := range map[string]string{"cudnn_convolution": "convolution", "softmax": "_softmax", "pad": "constant_pad_nd", "gelu": "gelu"} {
		if got := Dispatched(op); got != want {
			t.Errorf("the dispatcher sees %s for %s", got, op)
		}
	}
}

// TestFamilies: the packages that issue and run kernels have a file for each family.
func TestFamilies(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		for _, dir := range []string{"../aten", "../../validate/cpu", "../../validate/cuda"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil && !strings.HasPrefix(name, "kernel") {
				t.Error(err)
			}
		}
	}
}
