package planner

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// typeWarnings are the codes of warnings that say that types are guessed.
var typeWarnings = []string{"cast-assumed", "cast-unseen", "region-unknown"}

// A typesTally counts runs by whether types were warned of and saved bytes more than
// 2% off.
type typesTally struct{ WarnedRight, WarnedWrong, SilentRight, SilentWrong int }

func (c *typesTally) add(isWarned bool, off float64) {
	wrong := math.Abs(off) > 0.02
	switch {
	case isWarned && wrong:
		c.WarnedWrong++
	case isWarned:
		c.WarnedRight++
	case wrong:
		c.SilentWrong++
	default:
		c.SilentRight++
	}
}

// TestTypesStyles compares the bytes that plain modules with casts of many habits save
// with PyTorch's (scripts/pytorch/types_styles.py), in half precision and under autocast.
// testdata/types_styles.first.txt has what was said before anybody looked.
func TestTypesStyles(t *testing.T) {
	testdata.Sequential(t)
	want := map[string]map[string]int64{}
	models := savedModels(t, "types_styles.tar.xz", &want)
	var now typesTally
	for _, name := range slices.Sorted(maps.Keys(want)) {
		m, err := Open(models[name])
		if err != nil {
			t.Fatal(err)
		}
		for _, precision := range slices.Sorted(maps.Keys(want[name])) {
			rep, err := m.Analyze(t.Context(), Config{Precision: precision, Loss: "sum", Attention: "eager", Optimizer: "none", Checkpoint: "none", Runtime: measuredRelease})
			if err != nil {
				t.Errorf("%s %s: %v", name, precision, err)
				continue
			}
			off, width := relative(rep.SavedBytes, want[name][precision]), int64(0)
			for _, s := range rep.Uncertainty.Sources {
				if slices.Contains(typeWarnings, s.Code) {
					width += s.Bytes
				}
			}
			is := slices.ContainsFunc(typeWarnings, func(c string) bool { return warned(rep.Warnings, c) })
			t.Logf("%s %s %+.2f warned %v", name, precision, 100*off, is)
			if precision == "fp32" {
				if off != 0 || is {
					t.Errorf("%s %s: %+.2f%%, warned %v", name, precision, 100*off, is)
				}
				continue
			}
			now.add(is, off)
			if is && width < want[name][precision]-rep.SavedBytes {
				t.Errorf("%s %s: types widen the interval by %d bytes, PyTorch saves %d more", name, precision, width, want[name][precision]-rep.SavedBytes)
			}
		}
	}
	t.Logf("first %+v", firstTypes(t))
	t.Logf("now   %+v", now)
	if least := (typesTally{WarnedRight: 10, WarnedWrong: 7, SilentRight: 69}); now.SilentRight < least.SilentRight || now.SilentWrong > 0 || now.WarnedRight > least.WarnedRight {
		t.Errorf("it got worse: %+v, it was %+v", now, least)
	}
}

// savedModels writes the models of an archive to files, and reads what PyTorch saves.
func savedModels(t *testing.T, archive string, want any) map[string]string {
	dir, out := t.TempDir(), map[string]string{}
	for name, data := range testdata.Archived(t, filepath.Join("testdata", archive)) {
		var err error
		if name == "saved.json" {
			err = json.Unmarshal(data, want)
		} else {
			path := filepath.Join(dir, filepath.Base(name))
			out[strings.TrimSuffix(name, ".onnx")], err = path, os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// firstTypes counts what was said first.
func firstTypes(t *testing.T) (c typesTally) {
	data, err := os.ReadFile(filepath.Join("testdata", "types_styles.first.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 4 {
			off, err := strconv.ParseFloat(f[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			c.add(f[3] == "warned", off/100)
		}
	}
	return c
}
