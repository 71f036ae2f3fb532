package planner

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph/train"

	"github.com/memplan/memplan/internal/testdata"
)

// tiny writes a model x[N,8] -> Tanh.. -> MatMul whose batches can be enormous.
func tiny(t *testing.T, layers int) string {
	t.Helper()
	field := func(m []byte, num protowire.Number, v string) []byte {
		return protowire.AppendString(protowire.AppendTag(m, num, protowire.BytesType), v)
	}
	number := func(m []byte, num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), v)
	}
	node := func(op, out string, in ...string) string {
		var n []byte
		for _, i := range in {
			n = field(n, 1, i)
		}
		return string(field(field(n, 2, out), 4, op))
	}
	names := []string{"x"}
	var g []byte
	for i := range layers {
		names = append(names, "v"+string(rune('a'+i)))
		g = field(g, 1, node("Tanh", names[i+1], names[i]))
	}
	g = field(g, 1, node("MatMul", "y", names[layers], "w"))
	g = field(g, 5, string(field(number(number(number(nil, 1, 8), 1, 8), 2, 1), 8, "w"))+string(field(nil, 9, string(make([]byte, 256)))))
	dims := field(field(nil, 1, string(field(nil, 2, "N"))), 1, string(number(nil, 1, 8)))
	x := field(nil, 1, string(field(number(nil, 1, 1), 2, string(dims))))
	g = field(field(g, 11, string(field(field(nil, 1, "x"), 2, string(x)))), 12, string(field(field(nil, 1, "y"), 2, string(x))))
	m := field(field(number(nil, 1, 10), 8, string(number(nil, 2, 20))), 7, string(g))
	path := filepath.Join(t.TempDir(), "tiny.onnx")
	if err := os.WriteFile(path, m, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Where millions of samples fit, the search ends soon, and says that it did not
// look further instead of calling its own end proved.
func TestEnormousBatch(t *testing.T) {
	m, err := Open(tiny(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(t.Context(), Config{VRAM: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if b := r.Batch; !*r.Fits || b.Max != mostBatch || b.UpperBound <= mostBatch || b.LimitedBy != "no larger one was tried" {
		t.Errorf("fits %v, %+v", *r.Fits, *r.Batch)
	}
	replays := 0
	a := &answer{}
	lo, hi, err := a.amongFitting(t.Context(), 900_000, 900_001, func(b int64) (bool, error) { replays++; return b%7 > 2, nil })
	if err != nil || hi <= lo || lo%7 <= 2 || replays > 20*neighbours {
		t.Errorf("batch %d below %d after %d replays, %v", lo, hi, replays, err)
	}
}

// What --timeout ends is answered with what is known by then, an interruption
// is an error.
func TestLate(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	m := sample(t, "mlp.onnx")
	r, err := m.Analyze(late, Config{VRAM: 4 << 30})
	if err != nil || !*r.Fits || r.Batch.Max < 1 || r.Batch.Max > r.Batch.UpperBound || r.Batch.LimitedBy != "timeout" {
		t.Errorf("%+v, %v", r, err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := m.Analyze(stopped, Config{VRAM: 4 << 30}); err == nil {
		t.Error("an interrupted search answers")
	}
}

// The largest batch with checkpoints fits, its upper bound holds for every
// selection, and neither is less than without.
func TestBatchWithCheckpoints(t *testing.T) {
	testdata.Sequential(t)
	m := sample(t, "resnet50.onnx")
	last := int64(0)
	for _, mode := range []string{"none", "sqrt", "all", "auto"} {
		r, err := m.Analyze(t.Context(), Config{VRAM: 6 << 30, Checkpoint: mode})
		if err != nil {
			t.Fatal(err)
		}
		b := r.Batch
		if !*r.Fits || b.Checkpoint != mode || b.Max > b.UpperBound || r.Config.Batch != b.Max || (mode != "none") != (len(r.Checkpoint.segments()) > 0) {
			t.Errorf("%s: fits %v, %+v", mode, *r.Fits, *b)
		}
		if b.Max < last && mode != "all" || b.Max < last/2 {
			t.Errorf("%s: batch %d, %d before", mode, b.Max, last)
		}
		last = b.Max
		over, err := m.Analyze(t.Context(), Config{VRAM: 6 << 30, Checkpoint: mode, Batch: b.UpperBound + 1})
		if err != nil || *over.Fits {
			t.Errorf("%s: batch %d above the bound: %v", mode, b.UpperBound+1, err)
		}
	}
}

func (c *CheckpointInfo) segments() []train.Segment {
	if c == nil {
		return nil
	}
	return c.Segments
}
