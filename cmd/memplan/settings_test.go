package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// Each row of the table goes through all the forms in which a setting is
// written and read: a row is all that a new setting needs.
func TestSettings(t *testing.T) {
	for i := range planner.Settings {
		s := &planner.Settings[i]
		samples := s.Names
		if samples == nil {
			samples = []string{s.Sample}
		}
		for _, word := range samples {
			t.Run(s.Flag+"="+word, func(t *testing.T) {
				if word == "" || word == s.Default && s.Names == nil {
					t.Fatalf("want a sample other than the default, %q", s.Default)
				}
				asked := question(t, "--"+s.Flag+"="+word)
				holds(t, "the flag", s, &asked, word)
				holds(t, "a plan", s, inPlan(t, s, asked), word)
				holds(t, ".memplan.yaml", s, inConfigFile(t, s, word), word)
				holds(t, "the command that repeats it", s, repeated(t, s, asked, word), word)
				if s.Said != "" && (s.Always || word != s.Default) && !strings.Contains(asked.Line(), strings.ReplaceAll(s.Said, "%s", word)) {
					t.Errorf("the report's line is %q", asked.Line())
				}
			})
		}
	}
}

// holds checks that a question has a value of one setting, and of no other;
// nil is of a form that does not have the setting.
func holds(t *testing.T, where string, s *planner.Setting, c *planner.Config, word string) {
	t.Helper()
	for i := range planner.Settings {
		other := &planner.Settings[i]
		want := []string(nil)
		if other == s {
			want = []string{word}
		}
		if c != nil && !slices.Equal(other.Values(c), want) {
			t.Errorf("%s: --%s is %q, want %q", where, other.Flag, other.Values(c), want)
		}
	}
}

// question is what flags ask.
func question(t *testing.T, args ...string) planner.Config {
	t.Helper()
	var f modelFlags
	c := &cobra.Command{}
	f.add(c)
	f.limitFlags.add(c, boundedSearch)
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	asked, err := f.config()
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// inPlan writes a question as a plan and reads it. Plans do not hold shapes.
func inPlan(t *testing.T, s *planner.Setting, asked planner.Config) *planner.Config {
	t.Helper()
	data, err := json.Marshal(planner.Plan{Report: planner.Report{Config: asked}})
	if err != nil {
		t.Fatal(err)
	}
	p := &planner.Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		t.Fatal(err)
	}
	if s.Flag == "shape" {
		return nil
	}
	return &p.Config
}

// inConfigFile writes a setting into a configuration and reads it.
func inConfigFile(t *testing.T, s *planner.Setting, word string) *planner.Config {
	t.Helper()
	if s.Key == "" {
		return nil
	}
	value := word
	if _, mapping := s.At(&planner.Config{}).(*map[string]int64); mapping {
		name, n, _ := strings.Cut(word, "=")
		value = fmt.Sprintf("{%s: %s}", name, n)
	}
	f, err := planner.ParseConfigFile("c.yaml", fmt.Appendf(nil, "models: [{path: a.onnx, %s: %s}]", s.Key, value))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Entries[0].Settings(); !strings.HasSuffix(got, "="+strings.TrimPrefix(word, "seq=")) {
		t.Errorf("the entry asks for %q", got)
	}
	return &f.Entries[0].Config
}

// repeated is what the command asks that a report with the question suggests.
func repeated(t *testing.T, s *planner.Setting, asked planner.Config, word string) *planner.Config {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(report.PlanCommand(&planner.Report{Config: asked}), "'", ""))
	again := question(t, words[2:]...)
	if word == s.Default || s.Usual != nil && word == s.Usual(&planner.ModelInfo{}) || slices.Contains(s.Unsaid, word) {
		return nil
	}
	return &again
}

// Sizes are repeated exactly, and briefly.
func TestSizesRepeat(t *testing.T) {
	for _, n := range []int64{1, 1023, 1 << 20, 16 << 30, 16e9, 17179869183, 15843721216, 3 << 29} {
		args := (&planner.Config{VRAM: n}).Args(&planner.ModelInfo{})
		if back, err := profile.ParseSize(args[1]); err != nil || back != n || n == 16<<30 && args[1] != "16G" {
			t.Errorf("%d is written %s, which reads as %d, %v", n, args, back, err)
		}
	}
}
