package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/files"
)

const wholeConfig = `# what CI holds the models to
version: 1
models:
  - path: models/a.onnx
    batch: 64
    dims: {seq: 512, heads: 12}
    mode: train
    precision: amp-bf16
    optimizer: sgd-momentum
    checkpoint: auto
    gpu: t4
    vram: 12G
    rules:
      max-peak: 11.5GiB
      min-batch: 32
  - {path: /abs/b.onnx, batch: max, vram: 16GB}
rules: {max-increase: 2%, max-peak: 8G, max-overhead: 20 %, max-parameters: 1.5B}
baseline: ci/base.json
`

func TestConfigFile(t *testing.T) {
	path := filepath.Join("some", "where", ConfigFileName)
	f, err := ParseConfigFile(path, []byte(wholeConfig))
	if err != nil {
		t.Fatal(err)
	}
	a, b := &f.Entries[0], &f.Entries[1]
	if want := filepath.Join("some", "where", "models", "a.onnx"); a.File != want || a.Path != "models/a.onnx" || a.Line != 4 {
		t.Errorf("entry 0: %s at %s, line %d", a.Path, a.File, a.Line)
	}
	if b.File != "/abs/b.onnx" || b.Line != 16 || !b.Config.BatchMax || b.Config.VRAM != 16e9 {
		t.Errorf("entry 1: %+v", b)
	}
	if want := filepath.Join("some", "where", "ci", "base.json"); f.Baseline != want {
		t.Errorf("baseline %s, want %s", f.Baseline, want)
	}
	c := a.Config
	if c.Batch != 64 || c.Dims["seq"] != 512 || c.Dims["heads"] != 12 || c.Mode != "train" || c.Precision != "amp-bf16" || c.Optimizer != "sgd-momentum" ||
		c.Checkpoint != "auto" || c.GPU != "t4" || c.VRAM != 12<<30 {
		t.Errorf("configuration %+v", c)
	}
	if want := "batch=64 heads=12 seq=512 mode=train precision=amp-bf16 optimizer=sgd-momentum checkpoint=auto gpu=t4 vram=12G"; a.Settings() != want {
		t.Errorf("settings %q, want %q", a.Settings(), want)
	}
	// The entry's own max-peak stands before the file's; the rest is inherited.
	checkLimits(t, a.Limits, "max-peak 11.5GiB 1.2348030976e+10 14; max-increase 2% 2 17; min-batch 32 32 15; max-overhead 20 % 20 17; max-parameters 1.5B 1.5e+09 17")
	checkLimits(t, b.Limits, "max-peak 8G 8.589934592e+09 17; max-increase 2% 2 17; max-overhead 20 % 20 17; max-parameters 1.5B 1.5e+09 17")
}

func checkLimits(t *testing.T, limits []Limit, want string) {
	t.Helper()
	var parts []string
	for _, l := range limits {
		parts = append(parts, strings.Join([]string{l.Rule.Name, l.Text, fmt.Sprint(l.Value), wholeText(float64(l.Line))}, " "))
	}
	if got := strings.Join(parts, "; "); got != want {
		t.Errorf("limits %s\nwant   %s", got, want)
	}
}

// Anchors, aliases and merges are YAML's way to share settings.
func TestConfigFileShares(t *testing.T) {
	f, err := ParseConfigFile(ConfigFileName, []byte("models:\n- &a {path: a.onnx, batch: &n 8, rules: &r {max-peak: 1G}}\n- {<<: *a, path: b.onnx}\n- path: c.onnx\n  batch: *n\n  rules: *r\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a.onnx", "b.onnx", "c.onnx"} {
		e := &f.Entries[i]
		if e.Path != want || e.Config.Batch != 8 || len(e.Limits) != 1 || e.Limits[0].Value != 1<<30 {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
}

func TestConfigFileErrors(t *testing.T) {
	const ok = "models: [{path: a.onnx}]\n"
	for _, tt := range []struct{ text, want string }{
		{"", "1: the file is empty"},
		{"# nothing\n", "1: the file is empty"},
		{"rules: {max-peak: 1G}\n", "1: no models"},
		{"models: []\n", "1: no models"},
		{"models: a.onnx\n", "1: models: want a list"},
		{"models: [a.onnx]\n", "1: want a mapping in models[0]"},
		{"a\n", "1: want a mapping in the configuration"},
		{"models:\n  - batch: 8\n", "2: models[0]: no path"},
		{"models:\n  - path:\n", "2: path: no value"},
		{"models:\n  - path: [a]\n", "2: path: want a single value, not a sequence"},
		{ok + "model: x\n", `2: unknown key "model" in the configuration: did you mean models?`},
		{ok + "zzz: x\n", `2: unknown key "zzz" in the configuration: want one of version, models, rules, fail-on, baseline`},
		{ok + "rules:\n  max-peek: 1G\n", `3: unknown key "max-peek" in rules: did you mean max-peak?`},
		{"models:\n  - path: a.onnx\n    max-peak: 1G\n", `3: unknown key "max-peak" in models[0]: it is a rule: write it under rules`},
		{ok + "rules:\n  fits: 1\n", `3: unknown key "fits" in rules`},
		{"models:\n  - path: a.onnx\n    optimiser: sgd\n", `3: unknown key "optimiser" in models[0]: did you mean optimizer?`},
		{"models:\n  - path: a.onnx\n    rules: {max-pek: 1G}\n", `3: unknown key "max-pek" in rules`},
		{ok + "version: 2\n", "2: version 2: this memplan reads version 1"},
		{ok + "rules: {max-peak: lots}\n", `2: max-peak: size "lots"`},
		{ok + "rules: {max-increase: 2}\n", `2: max-increase: "2": want a percentage`},
		{ok + "rules: {max-increase: NaN%}\n", `2: max-increase: "NaN%": want a percentage`},
		{ok + "rules: {min-batch: 0}\n", `2: min-batch: "0": want a whole number`},
		{ok + "rules: {max-parameters: many}\n", `2: max-parameters: "many": want a number`},
		{ok + "rules: {max-parameters: 1e30}\n", `2: max-parameters: "1e30": want a number`},
		{"models: [{path: a.onnx, batch: -1}]\n", `1: batch "-1": want a positive integer, max or best`},
		{"models: [{path: a.onnx, gpu: h20}]\n", `1: unknown gpu "h20": did you mean h200?`},
		{"models: [{path: a.onnx, mode: learn}]\n", `1: unknown mode "learn" (known: train, infer)`},
		{"models: [{path: a.onnx, precision: int8}]\n", `1: unknown precision "int8"`},
		{"models: [{path: a.onnx, optimizer: adamv}]\n", `1: unknown optimizer "adamv"`},
		{"models: [{path: a.onnx, vram: 1X}]\n", `1: vram: size "1X"`},
		{"models: [{path: a.onnx, vram: 0}]\n", "1: vram 0: want a positive size"},
		{"models: [{path: a.onnx, dims: {seq: x}}]\n", `1: dims: seq: want a non-negative integer, not "x"`},
		{"models: [{path: a.onnx, checkpoint: nowhere.json}]\n", "1: models[0]: checkpoint: "},
		{"models: [{path: a.onnx, path: b.onnx}]\n", `mapping key "path" already defined`},
		{"models: [{path: a.onnx, batch: 8}, {path: a.onnx, batch: 8}]\n", "1: models[1] repeats models[0]"},
		{"models:\n- path: a.onnx\n- &x {<<: *x}\n", "3: "},
		{ok + "---\n" + ok, "3: a second document"},
		{"models: [\n", ": not YAML"},
		{"models:\n\t- path: a\n", ": not YAML"},
	} {
		_, err := ParseConfigFile("c.yaml", []byte(tt.text))
		if err == nil || !strings.HasPrefix(err.Error(), "c.yaml:") || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s", tt.text, err, tt.want)
		}
	}
}

func TestReadConfigFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadConfigFile(dir, false); err == nil {
		t.Error("a directory was read")
	}
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, files.Config.Limit+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfigFile(large, false); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(dir, ConfigFileName)
	if err := os.WriteFile(want, []byte(wholeConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := FindConfigFile(below); err != nil || got != want {
		t.Errorf("found %s, %v, want %s", got, err, want)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"max-peak", "max-increase", "min-batch"}
	for name, want := range map[string]string{"max-peek": "max-peak", "max-inc": "max-increase", "min_batch": "min-batch", "mni-batch": "min-batch", "zzz": "", "": "", strings.Repeat("m", 99): ""} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

// Whatever the text, reading it ends, and with an error that is one line.
func FuzzConfigFile(f *testing.F) {
	for _, s := range []string{wholeConfig, "models: [{path: a.onnx}]", "a: &a [*a]", "<<: {<<: {}}", "models:\n- &x {<<: *x}", "\x00", "? [a]\n: b", "- !!map {}\n--- 1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfigFile("c.yaml", []byte(text))
		switch {
		case err == nil && len(c.Entries) == 0:
			t.Error("no models, and no error")
		case err != nil && !strings.HasPrefix(err.Error(), "c.yaml:"):
			t.Errorf("error without a place: %v", err)
		}
	})
}
