package planner

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// Liger's loss allocates and frees what the library's own code does, in this order, and the peak of the
// step is the same, with or without what kernels allocate for themselves, which tensors do not show
// (scripts/pytorch/liger_loss.py).
func TestLigerLoss(t *testing.T) {
	const least = 4096
	data, err := os.ReadFile("testdata/levers/liger.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 12 {
		t.Fatalf("%d runs", len(lines))
	}
	m := openLever(t, lmModel)
	for _, line := range lines {
		words := strings.Fields(line)
		batch, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		precision, frozen := strings.CutSuffix(words[0], "+frozen")
		c := Config{Batch: int64(batch), Dims: map[string]int64{"seq": 64}, Precision: precision, Loss: train.LigerLoss, Runtime: measuredRelease, Mode: "train", Optimizer: "adamw"}
		if frozen {
			c.Freeze = []string{"head.weight"}
		}
		a, err := m.Analyze(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		made, own := map[program.StorageID]int32{}, map[program.StorageID]bool{} // in the loss; and freed by the node itself, which tensors do not show
		for _, e := range a.ev.res.Steady.Events {
			if n, ok := made[e.Storage]; ok && e.Free && n == e.Node {
				own[e.Storage] = true
			}
			if a.ev.Nodes[e.Node].Phase == program.Loss && !e.Free {
				made[e.Storage] = e.Node
			}
		}
		for _, e := range a.ev.res.Steady.Events {
			s := &a.ev.Storages[e.Storage]
			_, here := made[e.Storage]
			if bytes := liveness.Rounded(s.Bytes); a.ev.Nodes[e.Node].Phase == program.Loss && here && !own[e.Storage] && s.Category != program.Inputs && s.Category != program.Workspace && bytes >= least {
				got = append(got, fmt.Sprintf("%s%d", map[bool]string{true: "-", false: "+"}[e.Free], bytes))
			}
		}
		if strings.HasPrefix(precision, "amp") && !frozen { // the end of autocast, after the loss; it keeps copies of what is trained alone
			last := len(got) - 1
			if got[last] != fmt.Sprintf("-%d", 4096*256*2) {
				t.Errorf("%s %d: the weight's copy is not freed: %v", words[0], batch, got[last])
			}
			got = got[:last]
		}
		peak, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if least, most, err := recordedPeaks(m, c); err != nil || peak > most || peak < least || float64(peak-least) > 5e-5*float64(peak) && peak != most {
			t.Errorf("%s %d: the step's peak is %d, predicted from %d to %d: %v", words[0], batch, peak, least, most, err)
		}
		if want := words[3:]; !slices.Equal(got, want) {
			t.Errorf("%s %d: %d events, the library's %d:\n%v\n%v", words[0], batch, len(got), len(want), got, want)
		}
	}
}
