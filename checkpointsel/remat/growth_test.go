//go:build unix

package remat

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/internal/testdata"
)

// transformer is a training step of so many nodes or a few less, shaped like
// that of a transformer: blocks with two residual sums each, every gradient
// reading what it needs of the forward pass.
func transformer(nodes int) *Instance {
	type op struct {
		name       string
		cost, size int64
		reads      []int // how many ops back; 0 is the block's input, -1 the sum in its middle
		saves      bool  // the gradient reads the op's inputs
	}
	block := []op{
		{"norm", 4, 64, []int{0}, true}, {"qkv", 90, 192, []int{1}, true}, {"scores", 60, 256, []int{1}, true}, {"softmax", 12, 256, []int{1}, false},
		{"values", 60, 64, []int{1, 3}, true}, {"project", 30, 64, []int{1}, true}, {"add", 3, 64, []int{1, 0}, false},
		{"norm", 4, 64, []int{1}, true}, {"up", 120, 256, []int{1}, true}, {"gelu", 9, 256, []int{1}, true}, {"down", 120, 64, []int{1}, true}, {"add", 3, 64, []int{1, -1}, false},
	}
	rng := rand.New(rand.NewPCG(3, 3))
	in := &Instance{Name: "transformer"}
	add := func(name string, cost, size int64, preds ...int) int {
		in.Nodes = append(in.Nodes, Node{Name: name, Cost: cost*1000 + rng.Int64N(100), Size: size << 10, Preds: unique(preds)})
		return len(in.Nodes) - 1
	}
	last := add("embed", 5, 64)
	type done struct {
		op    op
		at    int
		reads []int
	}
	var tape []done
	for range nodes / 24 {
		input, middle := last, 0
		for _, o := range block {
			var reads []int
			for _, r := range o.reads {
				switch r {
				case 0:
					reads = append(reads, input)
				case -1:
					reads = append(reads, middle)
				default:
					reads = append(reads, last-r+1)
				}
			}
			last = add(o.name, o.cost, o.size, reads...)
			tape = append(tape, done{o, last, reads})
			if o.name == "add" {
				middle = last
			}
		}
	}
	grad := add("loss", 5, 1, last)
	for i := len(tape) - 1; i >= 0; i-- {
		d := tape[i]
		reads := []int{grad}
		if d.op.saves {
			reads = append(reads, d.reads...)
		} else if d.op.name == "softmax" {
			reads = append(reads, d.at)
		}
		grad = add(d.op.name+"_backward", 2*d.op.cost, in.Nodes[d.reads[0]].Size>>10, reads...)
		in.Nodes[grad].Backward = true
	}
	return in
}

func unique(list []int) []int {
	seen := map[int]bool{}
	var out []int
	for _, x := range list {
		if !seen[x] {
			seen[x] = true
			out = append(out, x)
		}
	}
	return out
}

// growth is the sizes that time and memory are measured at.
var growth = []int{1000, 2000, 4000, 8000}

// BenchmarkGrowth solves ever larger steps at half of their memory to a gap
// of one percent.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range growth {
		in := transformer(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Solve(context.Background(), in, Options{Budget: in.Peak() / 2, Gap: 0.01, Timeout: time.Minute}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// growthTable measures what BenchmarkGrowth does, with the memory in use.
func growthTable(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("\n| nodes | budget | overhead, % | gap, points | seconds | heap in use, MiB |\n|---|---|---|---|---|---|\n")
	for _, n := range growth {
		in := transformer(n)
		for _, part := range []int64{50, 25} {
			runtime.GC()
			stop, most := make(chan struct{}), make(chan uint64)
			go func() {
				var m runtime.MemStats
				var high uint64
				for {
					select {
					case <-stop:
						most <- high
						return
					case <-time.After(20 * time.Millisecond):
						runtime.ReadMemStats(&m)
						high = max(high, m.HeapInuse)
					}
				}
			}()
			start, cpu := time.Now(), testdata.CPU()
			r, err := Solve(context.Background(), in, Options{Budget: in.Peak() * part / 100, Gap: 0.01, Timeout: time.Minute})
			took := min(time.Since(start), testdata.OnIdle(testdata.CPU()-cpu)).Seconds()
			close(stop)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "| %d | %d%% | %.3f | %.3f | %.2f | %d |\n", len(in.Nodes), part, 100*r.Overhead, 100*r.Gap, took, <-most>>20)
		}
	}
	return out.String()
}
