package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// asked finds the names that a text sends its reader to help for.
var asked = regexp.MustCompile(`memplan help ([a-z.-]*[a-z])`)

// TestTopicNames: help texts, the README and the pages name topics and commands that there are.
func TestTopicNames(t *testing.T) {
	texts := map[string]string{}
	for _, pattern := range []string{"*.go", "../../README.md", "../../CONTRIBUTING.md", "../../docs/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, p := range paths {
			raw, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			texts[p] = string(raw)
		}
	}
	known, found := helpNames(newRootCmd(newStreams(&bytes.Buffer{}, &bytes.Buffer{}))), 0
	for p, text := range texts {
		for _, m := range asked.FindAllStringSubmatch(text, -1) {
			found++
			if name := m[1]; name != "lists" && !slices.Contains(known, name) {
				t.Errorf("%s sends readers to memplan help %s, which is not there", p, name)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d names found", found)
	}
}
