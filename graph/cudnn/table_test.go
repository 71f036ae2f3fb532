package cudnn

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A measuredRow is a random convolution and the bytes that PyTorch took for
// each pass on an H200.
type measuredRow struct {
	N, C, H, W, K, R, S, Stride, Dil, Groups int64
	Pad                                      []int64
	Transposed, TF32                         bool
	DType                                    string
	Fwd, DGrad, WGrad                        *int64
}

func (r *measuredRow) conv() Conv {
	ty := map[string]Type{"bfloat16": BFloat16, "float16": Float16, "float32": Float32}[r.DType]
	if r.DType == "float32" && r.TF32 {
		ty = TF32
	}
	return Conv{N: r.N, C: r.C, H: r.H, W: r.W, K: r.K, R: r.R, S: r.S, StrideH: r.Stride, StrideW: r.Stride, PadH: r.Pad[0], PadW: r.Pad[1], DilH: r.Dil, DilW: r.Dil, Groups: r.Groups,
		Transposed: r.Transposed, Type: ty}
}

// unseen reports a geometry that the trees were not grown on, at any batch or
// type (held_out in scripts/conv/conv_workspace.py).
func (k *key) unseen() bool {
	h := uint64(0xcbf29ce484222325)
	for _, v := range k[1:] {
		for i := range 4 {
			h = (h ^ uint64(v)>>(8*i)&255) * 0x100000001b3
		}
	}
	return (h^h>>32)%10 == 0
}

// TestRandomConvolutions compares predictions with what PyTorch took: of
// convolutions that are in the table, and of those whose geometry neither the
// table nor the trees know, or as if the table did not.
func TestRandomConvolutions(t *testing.T) {
	var list []measuredRow
	sc := bufio.NewScanner(bytes.NewReader(testdata.Unpacked(t, testdata.Shared(t, "truth", "conv_workspace.jsonl.xz"))))
	for sc.Scan() {
		var row measuredRow
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		list = append(list, row)
	}
	for _, x := range []struct {
		name  string
		blind bool
		least int                // rows
		near  [numPasses]float64 // percent that must be within 1%
		low   float64            // percent of bounds that may be too low
	}{
		{"in the table", false, 1000, [numPasses]float64{99, 99, 98}, 1},
		{"held out", true, 1300, [numPasses]float64{95, 97, 92}, 0.5},
	} {
		pr := &Predictor{embedded(), x.blind}
		var rows, near, low [numPasses]int
		kinds := map[string]*score{}
		for i := range list {
			row := &list[i]
			c := row.conv()
			k := c.key()
			if x.blind && !k.unseen() || !x.blind && pr.t.find(&k) == nil {
				continue
			}
			for p, want := range []*int64{row.Fwd, row.DGrad, row.WGrad} {
				if want == nil || c.Type == Float32 {
					continue
				}
				e := pr.Workspace(c, Pass(p))
				if e.Source == Rule {
					continue
				}
				rows[p]++
				if d := e.Bytes - *want; d <= *want/100+512 && d >= -*want/100-512 {
					near[p]++
				}
				if e.Bound < *want {
					low[p]++
				}
				if x.blind {
					name := c.Type.String() + ", " + Pass(p).String() + ", " + c.class()
					if kinds[name] == nil {
						kinds[name] = &score{}
					}
					kinds[name].add(e, *want)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			kinds[name].log(t, name)
		}
		for p := range rows {
			n, l := 100*float64(near[p])/float64(rows[p]), 100*float64(low[p])/float64(rows[p])
			t.Logf("%-12s %-15v %6d convolutions: %.1f%% within 1%%, bound too low for %.1f%%", x.name, Pass(p), rows[p], n, l)
			if rows[p] < x.least || n < x.near[p] || l > x.low {
				t.Errorf("%s, %v: %d rows, %.1f%% within 1%%, bound too low for %.1f%%", x.name, Pass(p), rows[p], n, l)
			}
		}
	}
}

// groups returns all groups of the table, in the order of their keys.
func (t *table) groups() (all []groupReader) {
	for i := range t.numBlocks() {
		for r := t.block(i); r.next(); {
			all = append(all, r)
		}
	}
	return all
}

// TestTable finds every group by its key, in the order of keys, and none where
// there is none.
func TestTable(t *testing.T) {
	tb := embedded()
	all := tb.groups()
	for i, r := range all {
		if i > 0 && compare(&all[i-1].key, &r.key) >= 0 {
			t.Fatalf("%v after %v", r.key, all[i-1].key)
		}
		if b := tb.find(&r.key); len(b) == 0 || &b[0] != &r.samples[0] {
			t.Fatalf("%v is not found", r.key)
		}
		k := r.key
		k[15]++
		if next := i + 1; tb.find(&k) != nil && (next == len(all) || all[next].key != k) {
			t.Fatalf("%v is found, and not there", k)
		}
	}
	if tb.find(&key{}) != nil || len(all) < 100000 {
		t.Errorf("%d groups", len(all))
	}
}

// class names what sort of convolution c is.
func (c *Conv) class() string {
	switch {
	case c.Groups > 1:
		return "grouped"
	case c.Transposed:
		return "transposed"
	case c.R == 1 && c.S == 1:
		return "1x1"
	case c.DilH > 1:
		return "dilated"
	case c.R != c.S:
		return "rows or columns"
	case c.StrideH == c.R:
		return "patches"
	}
	return "square"
}
