package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/memplan/memplan/validate"
)

// validation is a report with everything in it that a page shows.
func validation(buffers int) *validate.Report {
	yes, no := true, false
	r := &validate.Report{Verdict: validate.Refuted, Model: validate.ModelInfo{Path: "a<b>.onnx"}, Device: validate.DeviceInfo{Name: "x", Kind: "cpu", Notes: []string{"a & b"}},
		Arena: validate.ArenaInfo{PlannedBytes: 1000},
		Checks: []validate.Check{
			{Name: "layout", OK: &yes}, {Name: "gradients", Detail: "not <made>"},
			{Name: "expected grad:module.with.a.name.longer.than.columns.of.text.weight", OK: &no, Value: math.MaxFloat64, Tolerance: 1e-4},
		},
		Time:   validate.TimeInfo{PredictedMs: 1, MeasuredMs: 2, StepMs: 3, PerOp: []validate.OpTime{{Op: "aten.mm", PredictedMs: 1, MeasuredMs: 2}}},
		Phases: []validate.PhaseSpan{{Name: "forward", First: 0, Last: 9}, {Name: "backward", First: 10, Last: 19}}}
	for i := range buffers {
		r.Buffers = append(r.Buffers, validate.Buffer{Name: "<b>", Category: "activations", At: int64(i % 10 * 100), Bytes: 100 - int64(i%7), First: int32(i % 20), Last: 20})
	}
	return r
}

// elements counts a page's elements; it must be well-formed, load and run nothing.
func elements(t *testing.T, page string) map[string]int {
	t.Helper()
	tags := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "wbr"}, xml.HTMLEntity
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return tags
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			tags[e.Name.Local]++
			for _, a := range e.Attr {
				if a.Name.Local == "src" || a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("<%s %s>", e.Name.Local, a.Name.Local)
				}
				if v := a.Value; e.Name.Local == "rect" && (strings.HasPrefix(v, "-") || strings.Contains(v, "N")) {
					t.Errorf("a buffer outside of the drawing: %s=%s", a.Name.Local, v)
				}
			}
		}
	}
}

// TestValidationHTML: the page shows the arena, up to a number of buffers.
func TestValidationHTML(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 300: 300, mostDrawn + 7: mostDrawn} {
		page := written(t, Validations, "html", validation(n), Style{})
		tags := elements(t, page)
		if tags["html"] != 1 || tags["table"] != 3 || tags["rect"] != want || tags["svg"] != min(n, 1) || tags["b"]+tags["made"]+tags["script"]+tags["link"]+tags["img"] != 0 {
			t.Errorf("%d buffers: elements %v", n, tags)
		}
		if left := n - want; strings.Contains(page, "not drawn") != (left > 0) || left > 0 && !strings.Contains(page, fmt.Sprintf("%d small buffers not drawn", left)) {
			t.Errorf("%d buffers: what is left out is not said", n)
		}
	}
	r := validation(3)
	r.Time, r.Buffers = validate.TimeInfo{}, nil // nothing was run
	if tags := elements(t, written(t, Validations, "html", r, Style{})); tags["table"] != 2 {
		t.Errorf("nothing run: elements %v", tags)
	}
}

// TestValidationText: names of checks and their figures stay apart.
func TestValidationText(t *testing.T) {
	text := written(t, Validations, "text", validation(0), Style{Width: 120})
	for _, want := range []string{"refuted: 1 of 3 checks failed", "not made", ".text.weight infinite (limit 0.0001)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
