//go:build unix

package remat

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/internal/testdata"
)

var update = flag.Bool("update", false, "measure and write this package's sections of docs/selection.md")

// A published row says what others report for a budget: their overhead in
// percent, as printed.
type published struct {
	file  string
	ratio int // percent of the peak
	what  string
}

var publishedRows = []published{
	{"checkmate_fcn8_b32.json", 90, "Checkmate 0.0, 6.3 s; Moccasin 0.0, 3.1 s; FastSA 0.1, 9.7 s"},
	{"checkmate_fcn8_b32.json", 80, "Checkmate 0.1, 5.6 s; Moccasin 0.1, 3.1 s; FastSA 0.1, 9.7 s"},
	{"checkmate_fcn8_b32.json", 70, "FastSA 3.0, 9.7 s"},
	{"checkmate_resnet50_b256.json", 90, "Checkmate 0.1, 434 s; Moccasin 0.2, 65 s; FastSA 0.2, 11 s"},
	{"checkmate_resnet50_b256.json", 80, "Checkmate 0.3, 485 s; Moccasin 0.3, 69 s; FastSA 0.4, 11 s"},
	{"checkmate_resnet50_b256.json", 70, "FastSA 0.8, 11 s"},
	{"rl1_n100.json", 90, "Checkmate 0.8, 18.5 s; Moccasin 0.8, 9.3 s; FastSA 0.0, 12 s"},
	{"rl1_n100.json", 80, "Checkmate 2.3, 22.7 s; Moccasin 2.3, 9.5 s; FastSA 0.3, 12 s"},
	{"rl2_n250.json", 90, "Checkmate 0.9, 685 s; Moccasin 0.9, 55 s; FastSA 0.0, 15 s"},
	{"rl2_n250.json", 80, "Moccasin 4.9, 640 s; FastSA 0.0, 15 s"},
	{"rl3_n500.json", 90, "Moccasin 0.7, 1803 s; FastSA 0.03, 21 s"},
	{"rl3_n500.json", 80, "Moccasin 3.4, 1805 s; FastSA 2.3, 21 s"},
}

func publishedFor(file string, ratio int) string {
	for _, p := range publishedRows {
		if p.file == file && p.ratio == ratio {
			return p.what
		}
	}
	return ""
}

// selectionRow solves one instance at one budget and returns a line of the
// table. A ratio of 0 stands for the given budget.
func selectionRow(t *testing.T, in *Instance, file string, ratio int, budget int64, limit time.Duration) string {
	t.Helper()
	name := fmt.Sprintf("%d%%", ratio)
	if ratio == 0 {
		name = fmt.Sprintf("%.1f%%, least + 1%%", 100*float64(budget)/float64(in.Peak()))
	}
	ctx, cancel := testdata.WithinCPU(context.Background(), limit)
	defer cancel()
	start, cpu := time.Now(), testdata.CPU()
	r, err := Solve(ctx, in, Options{Budget: budget})
	took := min(time.Since(start), testdata.OnIdle(testdata.CPU()-cpu)).Seconds()
	switch {
	case errors.Is(err, ErrInfeasible):
		return ""
	case err != nil:
		bound := 100 * float64(r.LowerBound-in.Total()) / float64(in.Total())
		return fmt.Sprintf("| %s | - | %.4f | - | %.2f | |\n", name, bound, took)
	}
	if _, _, err := Check(in, r.Schedule, budget); err != nil {
		t.Errorf("%s at %s: %v", file, name, err)
	}
	gap := fmt.Sprintf("%.4f", 100*r.Gap)
	if r.Optimal {
		gap = "optimal"
	}
	bound := 100 * float64(r.LowerBound-in.Total()) / float64(in.Total())
	return fmt.Sprintf("| %s | %.4f | %.4f | %s | %.2f | %s |\n", name, 100*r.Overhead, bound, gap, took, publishedFor(file, ratio))
}

// TestSelectionDoc measures the solver on the instances of data/remat. Times
// are those of the machine that it runs on.
func TestSelectionDoc(t *testing.T) {
	if !*update {
		t.Skip("writes docs/selection.md; run with -update")
	}
	var networks, layered strings.Builder
	for _, file := range []string{"checkmate_vgg16_b256.json", "checkmate_vgg19_b256.json", "checkmate_fcn8_b32.json", "checkmate_mobilenet_b512.json", "checkmate_resnet50_b256.json"} {
		in := load(t, file)
		least := leastBudget(t, in)
		heading(&networks, in)
		for _, ratio := range []int{90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 12} {
			limit := 10 * time.Second
			if ratio >= 50 {
				limit = time.Second
			}
			if budget := in.Peak() * int64(ratio) / 100; budget >= least {
				networks.WriteString(selectionRow(t, in, file, ratio, budget, limit))
			}
		}
		networks.WriteString(selectionRow(t, in, file, 0, least+least/100, 10*time.Second))
	}
	for _, file := range []string{"rl1_n100.json", "rl2_n250.json", "rl3_n500.json"} {
		in := load(t, file)
		heading(&layered, in)
		for _, ratio := range []int{90, 80} {
			layered.WriteString(selectionRow(t, in, file, ratio, in.Peak()*int64(ratio)/100, 10*time.Second))
		}
	}
	testdata.WriteSection(t, "selection.md", "networks", networks.String())
	testdata.WriteSection(t, "selection.md", "layered", layered.String())
	testdata.WriteSection(t, "selection.md", "growth", growthTable(t))
}

// leastBudget returns the smallest budget that a search of five seconds finds
// a schedule for.
func leastBudget(t *testing.T, in *Instance) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	f, err := Least(ctx, in, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f.Budget
}

func heading(b *strings.Builder, in *Instance) {
	fmt.Fprintf(b, "\n### %s: %d nodes\n\n| budget | overhead, %% | bound, %% | gap, points | seconds | published: overhead in %%, time |\n|---|---|---|---|---|---|\n", in.Name, len(in.Nodes))
}

// vgg19 is the training step of VGG19 as Checkmate's artifact counts it,
// from the shapes of its layers: a node a layer and one for its gradient,
// float32, costs in multiply-adds, twice as many backward as forward.
func vgg19(batch int64) *Instance {
	type layer struct {
		name       string
		size, cost int64
	}
	var layers []layer
	side, channels := int64(224), int64(3)
	for b, block := range []struct{ convs, channels int64 }{{2, 64}, {2, 128}, {4, 256}, {4, 512}, {4, 512}} {
		for c := range block.convs {
			layers = append(layers, layer{fmt.Sprintf("block%d_conv%d", b+1, c+1), side * side * block.channels, side * side * block.channels * channels * 9})
			channels = block.channels
		}
		side /= 2
		layers = append(layers, layer{fmt.Sprintf("block%d_pool", b+1), side * side * channels, 0})
	}
	layers = append(layers, layer{"flatten", 25088, 0}, layer{"fc1", 4096, 25088 * 4096}, layer{"fc2", 4096, 4096 * 4096}, layer{"predictions", 1000, 4096 * 1000})
	in := &Instance{Name: "vgg19"}
	add := func(name string, size, cost int64, preds ...int) {
		in.Nodes = append(in.Nodes, Node{Name: name, Size: 4 * batch * size, Cost: batch * cost, Preds: preds})
	}
	for i, l := range layers {
		if i == 0 {
			add(l.name, l.size, l.cost)
			continue
		}
		add(l.name, l.size, l.cost, i-1)
	}
	n := len(layers)
	add("loss", 1, 0, n-1)
	for i := n - 1; i >= 0; i-- {
		add(layers[i].name+"_backward", layers[i].size, 2*layers[i].cost, i, i+1, 2*n-i-1)
		if v := &in.Nodes[len(in.Nodes)-1]; i == n-1 {
			v.Preds = []int{i, n}
		}
	}
	return in
}

// TestVGG19 reproduces two results that Checkmate's artifact reports after
// about ten minutes of Gurobi: the optimum of batch 1 at the least budget,
// and the largest batch in 16 GB.
func TestVGG19(t *testing.T) {
	const parameters = 143667240
	start := time.Now()
	in := vgg19(1)
	if len(in.Nodes) != 51 || in.Total() != 58896187392 {
		t.Fatalf("%d nodes, total %d", len(in.Nodes), in.Total())
	}
	r, err := Solve(context.Background(), in, Options{Budget: 51380224})
	if err != nil || r.Cost != 58982891520 || !r.Optimal || r.Peak != 51380224 {
		t.Errorf("at 51,380,224 bytes: %+v, %v", r, err)
	}
	for batch, fits := range map[int64]bool{289: true, 290: false} {
		in := vgg19(batch)
		in.Fixed = 8 * parameters
		r, err := Solve(context.Background(), in, Options{Budget: 16e9})
		if fits && (err != nil || r.Extra > in.Total()/3) || !fits && !errors.Is(err, ErrInfeasible) {
			t.Errorf("batch %d: %v", batch, err)
		}
	}
	t.Logf("%v", time.Since(start))
}
