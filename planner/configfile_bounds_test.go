package planner_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/planner"
)

// bombs are configurations whose nesting, entries or documents once took the
// parser quadratic time or memory: 40,000 brackets took 2.5 GB, 100,000 ended
// the process.
var bombs = []struct {
	name string
	text func(n int) string
	want string
}{
	{"brackets", func(n int) string { return "models: " + strings.Repeat("[", n) }, "nested more than 64 deep"},
	{"braces", func(n int) string { return "models: " + strings.Repeat("{a: ", n) }, "nested more than 64 deep"},
	{"dashes", func(n int) string { return "models:\n  " + strings.Repeat("- ", n) }, "nested more than 64 deep"},
	{"questions", func(n int) string { return strings.Repeat("? ", n) }, "nested more than 64 deep"},
	{"tags", func(n int) string { return "models: " + strings.Repeat("!a ", n) }, "nested more than 64 deep"},
	{"anchors", func(n int) string { return "models: " + strings.Repeat("&a ", n) }, "nested more than 64 deep"},
	{"indents", func(n int) string {
		var b strings.Builder
		for i := range min(n, 900) {
			fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
		}
		return b.String()
	}, "nested more than 64 deep"},
	{"quoted brackets", func(n int) string { return "models: " + strings.Repeat(`["]", `, n) }, "nested more than 64 deep"},
	{"entries", func(n int) string { return strings.Repeat("-\n", n) }, "more than 20000 words and signs"},
	{"documents", func(n int) string { return strings.Repeat("---\na\n", n) }, "more than 20000 words and signs"},
	{"keys", func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "k%x: 1\n", i)
		}
		return b.String()
	}, "more than 20000 words and signs"},
}

// What the parser would take too long for is refused before it is parsed.
func TestConfigBounds(t *testing.T) {
	for _, c := range bombs {
		t.Run(c.name, func(t *testing.T) {
			text := []byte(c.text(40_000))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now() // a generous limit on what once took minutes
			_, err := planner.ParseConfigFile("c.yaml", text)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			// The scanner makes some 300 bytes a token; what it made is counted, not what was held at once.
			if n := after.TotalAlloc - before.TotalAlloc; n > 200<<20 || took > 20*time.Second {
				t.Errorf("%d bytes of text made %d MiB in %v", len(text), n>>20, took)
			}
		})
	}
}

// Just below both bounds a document is read, or refused for what it says, in
// no more than some hundred megabytes.
func TestConfigWithinBounds(t *testing.T) {
	for _, c := range bombs {
		for _, n := range []int{50, 6_000, 19_000} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := planner.ParseConfigFile("c.yaml", []byte(c.text(n)))
			runtime.ReadMemStats(&after)
			if made := after.TotalAlloc - before.TotalAlloc; made > 500<<20 {
				t.Errorf("%s of %d: %d MiB, %v", c.name, n, made>>20, err)
			}
			if err == nil {
				t.Errorf("%s of %d is a configuration", c.name, n)
			}
		}
	}
	var models strings.Builder
	models.WriteString("models:\n")
	for i := range 700 {
		fmt.Fprintf(&models, "  - path: m%d.onnx\n    batch: 8\n    gpu: t4\n    dims: {seq: 128}\n", i)
	}
	models.WriteString("rules: {max-peak: 12G}\n")
	if f, err := planner.ParseConfigFile("c.yaml", []byte(models.String())); err != nil || len(f.Entries) != 700 {
		t.Errorf("700 models: %v", err)
	}
}
