package main

import (
	"strings"
	"testing"
)

// A machine is told of a package only where there is one.
func TestToInstall(t *testing.T) {
	if got := toInstall("linux", "amd64", "devel 0123"); !strings.Contains(got, "install a release of memplan from") {
		t.Errorf("of a development build: %q", got)
	}
	for _, tt := range []struct{ system, machine, want, never string }{
		{"linux", "amd64", "install memplan 1.2.3", "there is none"},
		{"linux", "arm64", "there is none for linux/arm64", "install memplan"},
		{"darwin", "arm64", "there is none for darwin/arm64", "install memplan"},
		{"windows", "amd64", "there is none for windows/amd64", "install memplan"},
	} {
		if got := toInstall(tt.system, tt.machine, "1.2.3"); !strings.Contains(got, tt.want) || strings.Contains(got, tt.never) || !strings.Contains(got, "--device cpu") {
			t.Errorf("%s/%s: %q", tt.system, tt.machine, got)
		}
	}
}
