package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"memplan": func() { os.Exit(int(run(os.Args[1:], os.Stdout, os.Stderr))) },
	})
}

// TestScripts pins exit codes, streams and formats; the sample models lie in
// $MODELS, small ones with weights in $SMALL, a calibration in $PROFILE,
// a plan of the version before plans had arenas in $OLDPLAN, a model in evaluation
// mode in $EVAL.
func TestScripts(t *testing.T) {
	models, err := filepath.Abs(filepath.Join("..", "..", "models"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("MODELS", models)
			e.Setenv("SMALL", filepath.Join(filepath.Dir(models), "validate", "testdata", "golden"))
			e.Setenv("OLDPLAN", filepath.Join(filepath.Dir(models), "cmd", "memplan", "testdata", "plan_without_arena.json"))
			e.Setenv("EVAL", filepath.Join(filepath.Dir(models), "cmd", "memplan", "testdata", "eval.onnx"))
			e.Setenv("PROFILE", filepath.Join(filepath.Dir(models), "planner", "profile", "testdata", "calibration-h200.json"))
			return nil
		},
	})
}
