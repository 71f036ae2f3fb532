package planner

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
)

// Updates in backward allocate and free what PyTorch did on a processor, in this order: gradients
// and the optimizer's temporaries of the sizes of matrices, and the most bytes of the step above
// its beginning (scripts/pytorch/in_backward.py).
func TestInBackward(t *testing.T) {
	data, err := os.ReadFile("testdata/levers/in_backward.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d optimizers", len(lines))
	}
	m := openLever(t, lmModel)
	for _, line := range lines {
		words := strings.Fields(line)
		want := words[2:]
		a, err := m.Analyze(t.Context(), Config{Batch: 2, Dims: map[string]int64{"seq": 64}, Optimizer: words[0], InBackward: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range a.ev.res.Steady.Events {
			bytes := a.ev.Storages[e.Storage].Bytes
			if word := fmt.Sprintf("%s%d", map[bool]string{true: "-", false: "+"}[e.Free], bytes); slices.Contains(want, word) && a.ev.Storages[e.Storage].Life == program.Step {
				got = append(got, word)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d events, PyTorch's %d:\n%v\n%v", words[0], len(got), len(want), got, want)
		}
		most, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Peak.RequestedBytes - a.Phases.Start; got < most-64 || got > most { // on a processor, numbers of AdamW's are tensors for a moment
			t.Errorf("%s: %d bytes above the step's beginning, PyTorch's %d", words[0], got, most)
		}
	}
}
