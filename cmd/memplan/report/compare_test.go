package report

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/planner"
)

// A comparison's page has every way in its picture, with titles and a legend, and in its table.
func TestComparisonPage(t *testing.T) {
	m, err := planner.Open(filepath.Join("..", "..", "..", "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.CompareCheckpoints(t.Context(), planner.Config{Batch: 4096, VRAM: 3600 << 20}, []string{"none", "sqrt", "blocks"})
	if err != nil {
		t.Fatal(err)
	}
	text := written(t, Comparisons, "html", c, Style{})
	drawn, listed := "", ""
	inside := ""
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if e.Name.Local == "svg" || e.Name.Local == "table" {
				inside = e.Name.Local
			}
		case xml.CharData:
			if inside == "svg" {
				drawn += string(e) + "\n"
			} else if inside == "table" {
				listed += string(e) + "\n"
			}
		}
	}
	for _, want := range []string{"none", "sqrt", "blocks", "memory of the process, GiB", "samples per second", "the card", "does not fit"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("the picture has no %q: %s", want, drawn)
		}
	}
	for _, want := range []string{"none", "sqrt", "blocks", "samples/s", "4096"} {
		if !strings.Contains(listed, want) {
			t.Errorf("the table has no %q: %s", want, listed)
		}
	}
}

// The report of the best batch says why, and draws speed and memory over the batch.
func TestBestReport(t *testing.T) {
	r := reports(t)["best"]
	text := written(t, Analyses, "text", &Analysis{Report: r}, Style{})
	for _, want := range []string{"most samples per second: batch ", "\nover the batch\n", "\n* "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	page := written(t, Analyses, "html", &Analysis{Report: r}, Style{})
	for _, want := range []string{"samples per second", "memory, GiB", ">batch<", "the card", "the most samples per second", "most samples per second: batch "} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	m, err := planner.Open(filepath.Join("..", "..", "..", "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Analyze(t.Context(), planner.Config{VRAM: 3600 << 20, Target: 300})
	if err != nil {
		t.Fatal(err)
	}
	if text := written(t, Analyses, "text", &Analysis{Report: a.Report}, Style{}); !strings.Contains(text, "least time for 300 samples: ") {
		t.Errorf("the target's report:\n%s", text)
	}
}
