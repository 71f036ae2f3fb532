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

// A sampled convolution is a line of scripts/conv_workspace.py or of
// scripts/conv_families.py.
type sampled struct {
	Held bool
	Conv []int32 // as a key has it; then, of three dims, the depth's
	Type string
	N    int64
	WS   [numPasses]*int64
}

// readSample reads a file of convolutions as rows of the kinds that kind gives.
func readSample(t *testing.T, path string, kind func(q *sampled, k *key) string) []row {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	codes := map[string]int32{"tf32": 0, "fp16": 1, "bf16": 2, "fp32": 3, "tf32n": 4, "fp16n": 5, "bf16n": 6}
	var rows []row
	for d := json.NewDecoder(f); ; {
		var q sampled
		if err := d.Decode(&q); err == io.EOF {
			return rows
		} else if err != nil {
			t.Fatal(err)
		}
		k := key{codes[q.Type]}
		copy(k[1:], q.Conv[:keyLen-1])
		r := row{conv: k.conv(q.N), ws: q.WS, kind: kind(&q, &k)}
		if e := q.Conv[keyLen-1:]; len(e) > 0 {
			r.conv.Depth = Extent{In: int64(e[0]), Kernel: int64(e[1]), Stride: int64(e[2]), Pad: int64(e[3]), Dil: int64(e[4]), OutPad: int64(e[5])}
		}
		rows = append(rows, r)
	}
}

// A target is what predictions of one kind must reach.
type target struct {
	kind      string
	near, low float64 // least share within 1 %, largest of bounds too low
}

// checkScores holds predictions against targets.
func checkScores(t *testing.T, rows []row, targets ...target) {
	t.Helper()
	all := scores(rows)
	for name, s := range all {
		s.log(t, name)
	}
	for _, c := range targets {
		s := all[c.kind]
		if s == nil || float64(s.near) < c.near*float64(s.n) || float64(s.low) > c.low*float64(s.n) {
			t.Errorf("%s: %+v, want %.3f of them within 1 %% and at most %.3f of the bounds too low", c.kind, s, c.near, c.low)
		}
	}
}

// TestSample compares with measured convolutions: held out ones, whose
// geometry the table has at no batch and type, and others
// (testdata/sample.jsonl, written by scripts/conv_workspace.py).
func TestSample(t *testing.T) {
	rows := readSample(t, "testdata/sample.jsonl", func(q *sampled, k *key) string {
		if !q.Held {
			return "in the table"
		}
		if loaded().find(k) >= 0 {
			t.Errorf("%+v is held out and in the table", k.conv(q.N))
		}
		return "held out"
	})
	checkScores(t, rows, target{"in the table", 0.99, 0.01}, target{"held out", 0.91, 0.005})
}

// TestRandomSample compares with random convolutions of three dims, and of one
// and two beyond the grid, on which no tree was grown (testdata/random.jsonl:
// 1,800 of the tenth that scripts/conv_families.py holds out).
func TestRandomSample(t *testing.T) {
	rows := readSample(t, "testdata/random.jsonl", func(q *sampled, _ *key) string {
		if len(q.Conv) >= keyLen {
			return "three dims"
		}
		return "two dims and one"
	})
	checkScores(t, rows, target{"three dims", 0.77, 0.01}, target{"two dims and one", 0.66, 0.025})
}
