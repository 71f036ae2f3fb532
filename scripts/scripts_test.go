// Package scripts holds the checks of the scripts' list and of the paths by which
// the repository names them.
package scripts

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// written are the endings of files whose paths of scripts people follow.
var written = []string{".go", ".md", ".py", ".c", ".txt", ".sh", ".yml", "run"}

// TestReadme: every script has a line in README.md, under its folder's heading, every
// line a script, and what they write and who reads it are there.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	folder := ""
	line := regexp.MustCompile("^\\| `([\\w.]+)` \\|")
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, "## "); ok {
			folder, _, _ = strings.Cut(rest, ":")
		}
		if m := line.FindStringSubmatch(l); m != nil {
			listed = append(listed, path.Join(folder, m[1]))
		}
	}
	for _, pattern := range []string{"*/*.py", "*/*.c", "steps/trainings"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, names...)
	}
	slices.Sort(listed)
	slices.Sort(there)
	for _, name := range there {
		if _, ok := slices.BinarySearch(listed, name); !ok {
			t.Errorf("README.md has no line for %s", name)
		}
	}
	for _, m := range regexp.MustCompile("`(\\w+/[^`* ]+)`").FindAllStringSubmatch(string(text), -1) {
		at := filepath.Join("..", m[1])
		if strings.HasPrefix(m[1], "ci/") {
			at = m[1]
		}
		if _, err := os.Stat(at); err != nil {
			t.Errorf("README.md names %s, which is not there", m[1])
		}
	}
	for _, name := range listed {
		if _, ok := slices.BinarySearch(there, name); !ok {
			t.Errorf("README.md has a line for %s, which is not there", name)
		}
	}
}

// TestPaths: where the repository names a script by its path, one is there. What
// was is for CHANGELOG.md.
func TestPaths(t *testing.T) {
	named := regexp.MustCompile(`\bscripts/[\w/]+(\.\w+)?`)
	paths := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "__pycache__"):
			return fs.SkipDir
		case d.IsDir() || d.Name() == "CHANGELOG.md" || !slices.ContainsFunc(written, func(end string) bool { return strings.HasSuffix(name, end) }):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, script := range named.FindAllString(string(text), -1) {
			paths++
			if _, err := os.Stat(filepath.Join("..", script)); err != nil {
				t.Errorf("%s names %s, which is not there", name, script)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if paths < 100 {
		t.Errorf("%d paths of scripts: those of the repository are more", paths)
	}
}
