package cpu_test

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/validate/calls"
	"github.com/memplan/memplan/validate/cpu"
)

var update = flag.Bool("update", false, "write docs/kernels.md")

// TestMissing: docs/kernels.md says what the device refuses of the models there are, and
// of every operator.
func TestMissing(t *testing.T) {
	files, err := calls.Files(filepath.Join("..", ".."), testdata.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	models, err := calls.Models(t.TempDir(), files)
	if err != nil {
		t.Fatal(err)
	}
	samples, err := calls.All()
	if err != nil {
		t.Fatal(err)
	}
	const heading = "On the processor"
	page := calls.Page{Path: filepath.Join("..", "..", "docs", "kernels.md")}
	want := "Written by `go test ./validate/cpu -run Missing -update`.\n\n" + calls.Section(calls.Find(cpu.New(), models, samples), len(models), len(samples))
	if *update {
		if err := page.Write(heading, want); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := page.Section(heading); err != nil || got != want {
		t.Errorf("docs/kernels.md is stale (%v); run go test ./validate/cpu -run Missing -update", err)
	}
}
