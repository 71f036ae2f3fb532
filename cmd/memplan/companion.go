package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/memplan/memplan/validate/device"
)

// companionName is the name of the build with CUDA. It needs the driver to start
// and so lies beside the build without, which runs it when a GPU is asked for.
const companionName = "memplan-cuda"

// companion returns the path of the build with CUDA that is installed with this
// one: in the same folder, or as Linux packages have it in ../lib/memplan. It is
// empty if there is none, or this build is it.
func companion() string {
	own, err := os.Executable()
	if device.CUDA || err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(own); err == nil {
		own = real
	}
	self, err := os.Stat(own)
	if err != nil {
		return ""
	}
	for _, folder := range []string{".", filepath.Join("..", "lib", "memplan")} {
		path := filepath.Join(filepath.Dir(own), folder, companionName)
		if f, err := os.Stat(path); err == nil && f.Mode().IsRegular() && f.Mode()&0o111 != 0 && !os.SameFile(f, self) {
			return path
		}
	}
	return ""
}

// withCUDA goes on in the build with CUDA, if this one is without and the device
// is a GPU; it returns only if that is not so, with an error if there is none.
func (s *streams) withCUDA(name string) error {
	if kind, _, _ := strings.Cut(name, ":"); kind != "cuda" || device.CUDA {
		return nil
	}
	path := companion()
	if path == "" {
		return fmt.Errorf("--device %s: %w, and %s", name, device.ErrNoCUDA, toInstall(runtime.GOOS, runtime.GOARCH, version()))
	}
	err := syscall.Exec(path, append([]string{path}, s.args...), os.Environ())
	return fmt.Errorf("--device %s: %s does not start: %w", name, path, err)
}

// toInstall says how a machine gets the build with CUDA.
func toInstall(system, machine, version string) string {
	if system != "linux" || machine != "amd64" {
		return fmt.Sprintf("there is none for %s/%s, only for linux/amd64; --device cpu runs small models here", system, machine)
	}
	release := "a release of memplan"
	if !strings.HasPrefix(version, "devel") {
		release = "memplan " + version
	}
	return fmt.Sprintf("no %s lies beside it: install %s from github.com/memplan/memplan/releases, whose package and archive for linux/amd64 have both, or build it there with go build -tags cuda -o %s ./cmd/memplan; --device cpu runs small models", companionName, release, companionName)
}
