package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that breaks ONNX's rules is answered with a warning that names the
// node, and under --strict with exit 2, by every command that reads a model.
func TestStrict(t *testing.T) {
	bad := onnxFile(t, []int64{2, 4}, nil, "twice - Relu x,x a", "last - Neg a y")
	good := onnxFile(t, []int64{2, 4}, nil, "once - Relu x a", "last - Neg a y")
	config := filepath.Join(filepath.Dir(bad), ".memplan.yaml")
	if err := os.WriteFile(config, []byte("models:\n  - path: m.onnx\n    mode: infer\nrules:\n  max-peak: 1G\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := filepath.Join(filepath.Dir(bad), "plan.json")
	if code, _, errw := memplan("plan", bad, "--mode", "infer", "-o", plan); code != exitYes {
		t.Fatalf("plan: code %d\n%s", code, errw)
	}
	for _, args := range [][]string{
		{"show", bad}, {"analyze", bad, "--mode", "infer"}, {"plan", bad, "--mode", "infer"}, {"diff", good, bad, "--mode", "infer"}, {"diff", plan, plan}, {"check", config},
		{"baseline", config, "-o", "-"}, {"validate", bad, "--mode", "infer", "--device", "cpu"}, {"validate", plan, "--device", "cpu"},
	} {
		name := strings.Join(args, " ")
		if code, out, errw := memplan(args...); code != exitYes {
			t.Errorf("%s: code %d\n%s%s", name, code, out, errw)
		}
		code, out, errw := memplan(append(args, "--strict")...)
		if code != exitUnknown || out != "" || !strings.Contains(errw, `--strict: Relu "twice": Relu has 2 inputs and takes 1 at most in version 14 [input-count]`) || strings.Count(errw, "\n") != 1 {
			t.Errorf("%s --strict: code %d\n%s%s", name, code, out, errw)
		}
	}
	if _, out, _ := memplan("analyze", bad, "--mode", "infer", "--format", "json"); !strings.Contains(out, `"code": "input-count"`) || !strings.Contains(out, `"node": "Relu \"twice\""`) {
		t.Errorf("analyze: no warning that names the node\n%s", out)
	}
	if _, _, errw := memplan("show", bad); !strings.Contains(errw, `Relu "twice"`) || !strings.Contains(errw, "[input-count]") {
		t.Errorf("show: no warning that names the node\n%s", errw)
	}
	model := filepath.Join("..", "..", "models", "mlp.onnx")
	for _, args := range [][]string{{"analyze", model, "--batch", "4"}, {"show", good}, {"analyze", good, "--mode", "infer"}, {"validate", good, "--mode", "infer", "--device", "cpu"}} {
		if code, out, errw := memplan(append(args, "--strict")...); code != exitYes {
			t.Errorf("%v --strict on a valid file: code %d\n%s%s", args, code, out, errw)
		}
	}
}
