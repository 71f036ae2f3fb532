package shard

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

func TestParseMesh(t *testing.T) {
	for _, c := range []struct {
		text  string
		ranks int
	}{{"ddp=8", 8}, {"zero1=2", 2}, {"fsdp=4,tp=2", 8}, {"hsdp=2x4", 8}, {"pp=4,ddp=2", 8}, {"zero2=4", 4}, {"zero3=8", 8}, {"pp=2,fsdp=2,tp=2", 8}, {"ep=8", 8}, {"fsdp=8,ep=4", 8}, {"hsdp=2x4,ep=2", 8}} {
		m, err := ParseMesh(c.text)
		if err != nil || m.Ranks() != c.ranks || m.String() != c.text {
			t.Errorf("%s: %v, %d ranks, %v", c.text, m, m.Ranks(), err)
		}
	}
	for _, text := range []string{"", "fsdp", "fsdp=1", "fsdp=0", "fsdp=-2", "fsdp=2x2", "hsdp=4", "fsdp=2,ddp=2", "fsdp=2,fsdp=2", "hsdp=2x2,ddp=2", "tp=99999999999", "xp=2", "fsdp=2,", "zero2=2,zero3=2", "zero3=2x2", "ep=1", "ep=0", "fsdp=4,ep=3", "fsdp=2,ep=4", "ep=2,ep=2", "fsdp=4,ep=1"} {
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
				s := w.sharded(train.Param{Tensor: program.View{Shape: []int64{rows, 3}}}, w.World)
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
		for rank := range 4 {
			var open, most int
			type at struct{ stage, micro int }
			state, last := map[at]int{}, map[at]int{}
			stages := s.stages(rank, 4, s.Each)
			for i, a := range s.Order(rank, 4, s.Each, 8) {
				k, want := at{a.Stage, a.Micro}, 0
				if a.Backward {
					want = 1
				}
				if a.Weights {
					if state[k] != 2 {
						t.Fatalf("%s, rank %d: %+v in state %d", s.Name, rank, a, state[k])
					}
					state[k]++
					continue
				}
				if state[k] != want || !slices.Contains(stages, a.Stage) {
					t.Fatalf("%s, rank %d: %+v in state %d", s.Name, rank, a, state[k])
				}
				if before, ok := last[at{a.Stage - 4, a.Micro}]; !a.Backward && a.Stage >= 4 && !s.V && (!ok || before > i) {
					t.Errorf("%s, rank %d: %+v before the rank's stage before", s.Name, rank, a)
				}
				state[k], last[k] = state[k]+1, i
				open += 1 - 2*want
				most = max(most, open)
			}
			for k, n := range state {
				if want := map[bool]int{false: 2, true: 3}[s.Split]; n != want {
					t.Errorf("%s, rank %d: %v runs %d times", s.Name, rank, k, n)
				}
			}
			if len(state) != 8*s.Each {
				t.Errorf("%s, rank %d: %d micro-batches of stages", s.Name, rank, len(state))
			}
			// A rank of interleaved stages has one forward more than its warmup has
			// (Narayanan et al., 2021, section 2.2), here one round of 4 and two a rank behind it.
			if want := map[string]int{"gpipe": 8, "1f1b": 4 - rank, "interleaved": 4 + 2*(3-rank) + 1, "bfs": 16, "zero-bubble": 4 + 3 - rank + 1, "zbv": 8}[s.Name]; most != want {
				t.Errorf("%s, rank %d: %d micro-batches at a time, want %d", s.Name, rank, most, want)
			}
		}
	}
}

// Orders of schedules with several stages a rank are PyTorch's (scripts/steps/pipelines.py --orders). What
// Looped BFS takes last is numbered first.
func TestOrders(t *testing.T) {
	text, err := os.ReadFile("testdata/orders.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var name string
		var ranks, each, micros, rank int
		if _, err := fmt.Sscan(line, &name, &ranks, &each, &micros, &rank); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range FindSchedule(name).Order(rank, ranks, each, micros) {
			what, m := "F", a.Micro
			switch {
			case a.Weights:
				what = "W"
			case a.Inputs:
				what = "I"
			case a.Backward:
				what = "B"
			}
			if name == "bfs" {
				m = micros - 1 - m
			}
			got = append(got, fmt.Sprint(a.Stage, what, m))
		}
		want := strings.Fields(line)[5:]
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], " ", "")
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, rank %d of %d, %d stages each, %d micro-batches:\n%v, PyTorch's\n%v", name, rank, ranks, each, micros, got, want)
		}
		seen[name]++
	}
	for _, s := range Schedules {
		if s.Each > 1 && seen[s.Name] < 10 {
			t.Errorf("%s: %d orders", s.Name, seen[s.Name])
		}
	}
}

// Parts of DeepSpeed's ranks cover the parameters, padded to a multiple of two elements a rank.
func TestDeepSpeedParts(t *testing.T) {
	for size := 2; size < 6; size++ {
		var params []train.Param
		var all, held int64
		for _, n := range []int64{7, 300, 2, 41} {
			params = append(params, train.Param{Tensor: program.View{DType: graph.Float32, Shape: []int64{n}}})
			all += n
		}
		var part int64
		for rank := range size {
			d := &deepSpeed{DeepSpeed: DeepSpeed{World: World{size, rank}, Stage: 2}, params: params}
			d.layout()
			part, held = d.part, held+d.mine
			if d.mine > all || d.largest > 300 {
				t.Errorf("rank %d of %d: parameters of %d elements, the largest %d", rank, size, d.mine, d.largest)
			}
		}
		if sum := part * int64(size); sum < all || sum >= all+2*int64(size) || held < all {
			t.Errorf("%d ranks hold %d elements of %d, parameters of %d", size, sum, all, held)
		}
	}
}
