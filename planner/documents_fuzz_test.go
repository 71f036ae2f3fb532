package planner

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/memplan/memplan/graph/train"
)

// The seeds of these targets lie in testdata/fuzz: whole documents as memplan
// writes them, parts of them, and values out of place.

// refused fails for an error without a word, and reports whether there is one.
func refused(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && err.Error() == "" {
		t.Errorf("an empty error %T", err)
	}
	return err != nil
}

// written is a document as JSON.
func written(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("what was read cannot be written: %v", err)
	}
	return data
}

// A plan that is read comes back as it was from what is written of it, asks a
// question, and is a configuration or not for a reason.
func FuzzPlan(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		if refused(t, checkVersion(data)) {
			return
		}
		p, err := parsePlan(data)
		if refused(t, err) {
			return
		}
		first := written(t, p)
		again, err := parsePlan(first)
		if err != nil {
			t.Fatalf("%s\n%v", first, err)
		}
		if second := written(t, again); !bytes.Equal(first, second) {
			t.Errorf("%s\nbecomes\n%s", first, second)
		}
		if q := p.Question(); q.Checkpoint != "none" {
			t.Errorf("asks for --checkpoint %q", q.Checkpoint)
		}
		_, err = p.ToTorch()
		refused(t, err)
	})
}

// A selection that is read, from a plan or a configuration, is whole, and comes
// back from the configuration that is written of it.
func FuzzSelection(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Config{}
		if refused(t, checkVersion(data)) || refused(t, parseSelection(data, c)) {
			return
		}
		if (c.Checkpoint == "none") != (len(c.Segments) == 0 && len(c.Schedule) == 0) {
			t.Errorf("--checkpoint %q for %v", c.Checkpoint, c.Segments)
		}
		p := &Plan{Selection: c.Segments}
		p.Model.SHA256 = c.Made.SHA256
		torch, err := p.ToTorch()
		if err != nil {
			t.Fatal(err)
		}
		again := &Config{}
		if err := parseSelection(written(t, torch), again); err != nil {
			t.Fatalf("%s\n%v", written(t, torch), err)
		}
		if !reflect.DeepEqual(plain(c.Segments), plain(again.Segments)) || c.Made.SHA256 != again.Made.SHA256 {
			t.Errorf("%+v\nbecomes\n%+v", c, again)
		}
	})
}

// plain has no empty list that is not nil.
func plain(list []train.Segment) []train.Segment {
	var out []train.Segment
	for _, s := range list {
		if len(s.Save) == 0 {
			s.Save = nil
		}
		out = append(out, s)
	}
	return out
}

// A baseline that is read comes back from what is written of it, which memplan
// takes for its own, and may so replace.
func FuzzBaseline(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		own := ownBaseline(data)
		if refused(t, checkVersion(data)) {
			return
		}
		b, err := parseBaseline(data)
		if refused(t, err) {
			if own == nil {
				t.Errorf("would be replaced, and is not read: %v", err)
			}
			return
		}
		first := written(t, b)
		again, err := parseBaseline(first)
		if err != nil || !reflect.DeepEqual(b, again) {
			t.Errorf("%s\n%+v, %v", first, again, err)
		}
		if err := ownBaseline(first); err != nil {
			t.Errorf("%s is not taken for memplan's own", first)
		}
	})
}

// Measured times that are read have rows, each of a kind, with times from 0; they
// come back from their rows.
func FuzzTimes(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		if refused(t, checkVersion(data)) {
			return
		}
		times, err := parseTimes(data)
		if refused(t, err) {
			return
		}
		var rows []MeasuredNode
		for k, list := range times.rows {
			for _, n := range list {
				if n.Op != k.op || n.DType != k.dtype || n.Kind == "" || !(n.MeasuredMs >= 0) {
					t.Errorf("%+v among %v", n, k)
				}
			}
			rows = append(rows, list...)
		}
		again, err := parseTimes(written(t, map[string]any{"device": map[string]string{"name": times.Device}, "nodes": rows}))
		if err != nil || again.Device != times.Device || len(again.exact) != len(times.exact) {
			t.Errorf("%d rows: %+v, %v", len(rows), again, err)
		}
	})
}
