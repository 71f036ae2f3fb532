package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
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
// mode in $EVAL, one of images of any size, halved and doubled within, in $SIDES.
func TestScripts(t *testing.T) {
	models, err := filepath.Abs(filepath.Join("..", "..", "models"))
	if err != nil {
		t.Fatal(err)
	}
	p := testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("MODELS", models)
			e.Setenv("ROOT", filepath.Dir(models))
			e.Setenv("SMALL", filepath.Join(filepath.Dir(models), "validate", "testdata", "golden"))
			e.Setenv("OLDPLAN", filepath.Join(filepath.Dir(models), "cmd", "memplan", "testdata", "plan_without_arena.json"))
			e.Setenv("EVAL", filepath.Join(filepath.Dir(models), "cmd", "memplan", "testdata", "eval.onnx"))
			e.Setenv("SIDES", filepath.Join(filepath.Dir(models), "cmd", "memplan", "testdata", "sides.onnx"))
			e.Setenv("PROFILE", filepath.Join(filepath.Dir(models), "planner", "profile", "testdata", "calibration-h200.json"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"cistep": ciStep},
	}
	if testing.Short() { // the race detector's run: commands that do things side by side
		p.Dir, p.Files = "", nil
		for _, name := range []string{"check", "ci", "files", "monitor", "solve", "streams", "sweep"} {
			p.Files = append(p.Files, filepath.Join("testdata", "script", name+".txtar"))
		}
	}
	testscript.Run(t, p)
}

// ciStep writes the commands of a step of a CI integration in the repository's
// root to a file: cistep action.yml STEP FILE for GitHub's action,
// cistep templates/memplan-check.yml script FILE for GitLab's template, in which
// inputs have their defaults.
func ciStep(ts *testscript.TestScript, _ bool, args []string) {
	data, err := os.ReadFile(filepath.Join(filepath.Dir(ts.Getenv("MODELS")), filepath.FromSlash(args[0])))
	ts.Check(err)
	var commands string
	if parts := strings.SplitN(string(data), "\n---\n", 2); len(parts) == 2 {
		var jobs map[string]map[string]any
		ts.Check(yaml.Unmarshal([]byte(parts[1]), &jobs))
		lines, _ := jobs["memplan-check"][args[1]].([]any)
		for _, l := range lines {
			commands += fmt.Sprintln(l)
		}
	} else {
		var action struct {
			Runs struct {
				Steps []struct{ Name, Run string }
			}
		}
		ts.Check(yaml.Unmarshal(data, &action))
		for _, s := range action.Runs.Steps {
			if s.Name == args[1] {
				commands = s.Run
			}
		}
	}
	if commands == "" {
		ts.Fatalf("%s has no step %s", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte("set -e\n"+commands), 0o600))
}
