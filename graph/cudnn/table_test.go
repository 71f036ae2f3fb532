package cudnn

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/ulikunitz/xz"

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

// TestRandomConvolutions compares predictions with what PyTorch took: of
// convolutions that are in the table, and of the same as if they were not.
func TestRandomConvolutions(t *testing.T) {
	f, err := os.Open(testdata.Shared(t, "truth", "conv_workspace.jsonl.xz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := xz.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []measuredRow
	sc := bufio.NewScanner(r)
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
		near  [numPasses]float64 // percent that must be within 1%
		low   float64            // percent of bounds that may be too low
	}{
		{"in the table", false, [numPasses]float64{99, 99, 98}, 1},
		{"as if it were not", true, [numPasses]float64{70, 70, 40}, 1},
	} {
		pr := NewPredictor()
		pr.blind = x.blind
		var rows, near, low [numPasses]int
		for i := range list {
			row := &list[i]
			c := row.conv()
			if k := c.key(); !x.blind && pr.t.find(&k) < 0 {
				continue // held out
			}
			for p, want := range []*int64{row.Fwd, row.DGrad, row.WGrad} {
				if want == nil || c.Type == Float32 || x.blind && i%4 > 0 {
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
			}
		}
		for p := range rows {
			n, l := 100*float64(near[p])/float64(rows[p]), 100*float64(low[p])/float64(rows[p])
			t.Logf("%-18s %-15v %6d convolutions: %.1f%% within 1%%, bound too low for %.1f%%", x.name, Pass(p), rows[p], n, l)
			if rows[p] < 1000 || n < x.near[p] || l > x.low {
				t.Errorf("%s, %v: %d rows, %.1f%% within 1%%, bound too low for %.1f%%", x.name, Pass(p), rows[p], n, l)
			}
		}
	}
}
