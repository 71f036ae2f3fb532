package shard

import (
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

func TestParseMesh(t *testing.T) {
	for _, c := range []struct {
		text  string
		ranks int
	}{{"ddp=8", 8}, {"zero1=2", 2}, {"fsdp=4,tp=2", 8}, {"hsdp=2x4", 8}, {"pp=4,ddp=2", 8}, {"pp=2,fsdp=2,tp=2", 8}} {
		m, err := ParseMesh(c.text)
		if err != nil || m.Ranks() != c.ranks || m.String() != c.text {
			t.Errorf("%s: %v, %d ranks, %v", c.text, m, m.Ranks(), err)
		}
	}
	for _, text := range []string{"", "fsdp", "fsdp=1", "fsdp=0", "fsdp=-2", "fsdp=2x2", "hsdp=4", "fsdp=2,ddp=2", "fsdp=2,fsdp=2", "hsdp=2x2,ddp=2", "tp=99999999999", "xp=2", "fsdp=2,"} {
		if m, err := ParseMesh(text); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
}

// TestTables compares the bytes of FSDP2's tables with those that an H200's traces
// show (Llama 250M in float32 on two ranks: a block, and what the root holds).
func TestTables(t *testing.T) {
	const mib = 1 << 20
	h200 := Device{SMs: 132, ThreadsPerSM: 2048}
	block := []int64{2 * mib, mib / 2, mib / 2, 2 * mib, 5767168, 5767168, 5767168, 2048, 2048} // of one rank
	root := []int64{65536000, 2048, 65536000}
	for _, c := range []struct {
		chunks     []int64
		split, cat int64
	}{{block, 29696, 88528}, {root, 32112, 512168}} {
		if s, k := h200.splitTable(c.chunks, 2), chunkCatTable(c.chunks); s != c.split || k != c.cat {
			t.Errorf("tables of %d and %d bytes, measured %d and %d", s, k, c.split, c.cat)
		}
	}
}

func TestFill(t *testing.T) {
	for _, c := range []struct{ sizes, limits, want []int64 }{
		{[]int64{1, 2, 3}, nil, []int64{6}},
		{[]int64{1, 2, 3, 4}, []int64{2, 5}, []int64{3, 7}},
		{[]int64{9, 1, 1}, []int64{2}, []int64{9, 2}},
		{nil, []int64{2}, nil},
	} {
		if got := fill(c.sizes, c.limits); !slices.Equal(got, c.want) {
			t.Errorf("%v under %v: %v, want %v", c.sizes, c.limits, got, c.want)
		}
	}
}

// Every parameter is updated by exactly one rank, and no rank has more than the
// largest parameter above another's.
func TestPart(t *testing.T) {
	var params []train.Param
	var most, all int64
	for i := range 23 {
		n := int64(1 + i*i%17*100)
		params = append(params, train.Param{Name: string(rune('a' + i)), Tensor: program.View{DType: graph.Float32, Shape: []int64{n}}})
		most, all = max(most, n), all+n
	}
	seen := map[string]int{}
	var lo, hi int64 = all, 0
	for rank := range 4 {
		var n int64
		for _, l := range (DDP{World: World{4, rank}}).part(params) {
			seen[l.name]++
			n += l.Elems
		}
		lo, hi = min(lo, n), max(hi, n)
	}
	if len(seen) != len(params) || hi-lo > most {
		t.Errorf("%d of %d parameters, ranks from %d to %d elements", len(seen), len(params), lo, hi)
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s is updated by %d ranks", name, n)
		}
	}
}

// Shards cover a parameter, whatever its first dim.
func TestSharded(t *testing.T) {
	for rows := int64(1); rows < 20; rows++ {
		for size := 2; size < 9; size++ {
			var sum int64
			for rank := range size {
				w := &fsdp{FSDP: FSDP{World: World{size, rank}}}
				s := w.sharded(train.Param{Tensor: program.View{Shape: []int64{rows, 3}}})
				if s.local[0]*3 > s.padded {
					t.Errorf("%d rows on %d: rank %d has %v of a padded shard of %d", rows, size, rank, s.local, s.padded)
				}
				sum += s.local[0]
			}
			if sum != rows {
				t.Errorf("%d rows on %d ranks: %d", rows, size, sum)
			}
		}
	}
}

// A stage runs each micro-batch's forward before its backward, once each, and at most
// as many at a time as stages follow under 1F1B.
func TestSchedules(t *testing.T) {
	for _, s := range Schedules {
		for stage := range 4 {
			var open, most int
			state := make([]int, 6)
			for _, a := range s.Order(stage, 4, len(state)) {
				want := 0
				if a.Backward {
					want = 1
				}
				if state[a.Micro] != want {
					t.Fatalf("%s, stage %d: %+v in state %d", s.Name, stage, a, state[a.Micro])
				}
				state[a.Micro]++
				open += 1 - 2*want
				most = max(most, open)
			}
			if slices.ContainsFunc(state, func(n int) bool { return n != 2 }) {
				t.Errorf("%s, stage %d: %v", s.Name, stage, state)
			}
			if s.Name == "1f1b" && most != 4-stage {
				t.Errorf("1f1b, stage %d: %d micro-batches at a time", stage, most)
			}
		}
	}
}
