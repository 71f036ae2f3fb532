package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// What the README shows under a command is what the command prints, in that
// order, "..." standing for lines left out.
func TestReadme(t *testing.T) {
	testdata.Sequential(t)
	data, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		at := strings.Index(line, "memplan analyze models/")
		if at < 0 || i+3 >= len(lines) {
			continue
		}
		rest := lines[i+1:]
		indent := "    "
		if strings.HasPrefix(line, "go run") { // between fences
			rest, indent = lines[i+4:], ""
		} else if rest[0] != "" {
			continue
		} else {
			rest = rest[1:]
		}
		if !strings.HasPrefix(rest[0], indent+"fits ") {
			continue
		}
		args := strings.Fields(strings.Replace(line[at:], "models/", filepath.Join("..", "..", "models")+"/", 1))[1:]
		_, out, errw := memplan(args...)
		for _, want := range rest {
			if want == "" || want == "```" {
				break
			}
			want = strings.TrimPrefix(want, indent)
			if strings.TrimSpace(want) == "..." {
				continue
			}
			_, after, ok := strings.Cut(out, want+"\n")
			if !ok {
				t.Errorf("%s: no line %q after what was found before\n%s%s", strings.TrimSpace(line), want, out, errw)
				break
			}
			out = after
			shown++
		}
	}
	if shown < 12 {
		t.Errorf("%d lines of output found in the README", shown)
	}
}
