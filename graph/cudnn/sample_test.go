package cudnn

import (
	"encoding/json"
	"io"
	"os"
	"testing"
)

// A row is a measured convolution: the bytes of the three passes, nil where
// cuDNN had no answer.
type row struct {
	conv Conv
	ws   [numPasses]*int64
	kind string
}

// A score counts predictions of one kind.
type score struct {
	n, exact, near, low int
	worst               int64 // largest underestimate, by Bytes
	worstBound          int64 // and by Bound
}

func (s *score) add(e Estimate, want int64) {
	s.n++
	diff := e.Bytes - want
	if diff == 0 {
		s.exact++
	}
	if max(diff, -diff) <= want/100+512 {
		s.near++
	}
	if e.Bound < want {
		s.low++
	}
	s.worst, s.worstBound = max(s.worst, -diff), max(s.worstBound, want-e.Bound)
}

func (s *score) log(t *testing.T, name string) {
	share := func(n int) float64 { return 100 * float64(n) / float64(max(s.n, 1)) }
	t.Logf("%-28s %6d passes: exact %5.1f %%, within 1 %% (or 512 bytes) %5.1f %%, worst underestimate %d MB, bound too low %.2f %% (worst by %d MB)",
		name, s.n, share(s.exact), share(s.near), s.worst>>20, share(s.low), s.worstBound>>20)
}

func scores(rows []row) map[string]*score {
	pr, out := NewPredictor(), map[string]*score{}
	for _, r := range rows {
		for p, want := range r.ws {
			if want == nil {
				continue
			}
			e := pr.Workspace(r.conv, Pass(p))
			for _, name := range []string{r.kind, r.kind + ", " + e.Source.String()} {
				if out[name] == nil {
					out[name] = &score{}
				}
				out[name].add(e, *want)
			}
		}
	}
	return out
}

// TestSample compares with measured convolutions: held out ones, whose
// geometry the table has at no batch and type, and others
// (testdata/sample.jsonl, written by scripts/conv_workspace.py).
func TestSample(t *testing.T) {
	f, err := os.Open("testdata/sample.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	codes := map[string]int32{"tf32": 0, "fp16": 1, "bf16": 2, "fp32": 3, "tf32n": 4, "fp16n": 5, "bf16n": 6}
	var rows []row
	for d := json.NewDecoder(f); ; {
		var q struct {
			Held bool
			Conv [keyLen - 1]int32
			Type string
			N    int64
			WS   [numPasses]*int64
		}
		if err := d.Decode(&q); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		k := key{codes[q.Type]}
		copy(k[1:], q.Conv[:])
		r := row{conv: k.conv(q.N), ws: q.WS, kind: "in the table"}
		if q.Held {
			r.kind = "held out"
			if loaded().find(&k) >= 0 {
				t.Errorf("%+v is held out and in the table", r.conv)
			}
		}
		rows = append(rows, r)
	}
	all := scores(rows)
	for name, s := range all {
		s.log(t, name)
	}
	for _, c := range []struct {
		kind      string
		near, low float64 // least share within 1 %, largest of bounds too low
	}{{"in the table", 0.99, 0.01}, {"held out", 0.91, 0.005}} {
		s := all[c.kind]
		if s == nil || float64(s.near) < c.near*float64(s.n) || float64(s.low) > c.low*float64(s.n) {
			t.Errorf("%s: %+v, want %.3f of them within 1 %% and at most %.3f of the bounds too low", c.kind, s, c.near, c.low)
		}
	}
}

// TestRandomSample compares with random convolutions of three dims, and of one
// and two beyond the grid, on which no tree was grown (testdata/random.jsonl:
// 1,800 of the tenth that scripts/conv_families.py holds out).
func TestRandomSample(t *testing.T) {
	f, err := os.Open("testdata/random.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	codes := map[string]int32{"tf32": 0, "fp16": 1, "bf16": 2, "fp32": 3, "tf32n": 4, "fp16n": 5, "bf16n": 6}
	var rows []row
	for d := json.NewDecoder(f); ; {
		var q struct {
			Conv []int32
			Type string
			N    int64
			WS   [numPasses]*int64
		}
		if err := d.Decode(&q); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		k := key{codes[q.Type]}
		copy(k[1:], q.Conv[:keyLen-1])
		r := row{conv: k.conv(q.N), ws: q.WS, kind: "two dims and one"}
		if e := q.Conv[keyLen-1:]; len(e) > 0 {
			r.kind = "three dims"
			r.conv.Depth = Extent{In: int64(e[0]), Kernel: int64(e[1]), Stride: int64(e[2]), Pad: int64(e[3]), Dil: int64(e[4]), OutPad: int64(e[5])}
		}
		rows = append(rows, r)
	}
	all := scores(rows)
	for name, s := range all {
		s.log(t, name)
	}
	for _, c := range []struct {
		kind      string
		near, low float64
	}{{"three dims", 0.77, 0.01}, {"two dims and one", 0.66, 0.025}} {
		s := all[c.kind]
		if s == nil || float64(s.near) < c.near*float64(s.n) || float64(s.low) > c.low*float64(s.n) {
			t.Errorf("%s: %+v, want %.2f of them within 1 %% and at most %.3f of the bounds too low", c.kind, s, c.near, c.low)
		}
	}
}
