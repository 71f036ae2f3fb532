// Package dl opens shared libraries at run time, whichever major version is
// installed: NVIDIA's, which no build needs. Opening is behind the build tag
// cuda, since it needs cgo; finding is not.
package dl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Library is a library that is opened at run time, in whichever major version
// is installed.
type Library struct {
	Name   string // "cublas"
	Majors []int  // newest first
	Env    string // environment variable that names a file or folder to try first
	Hint   string // what to install
}

// Libraries lists the libraries that are opened at run time.
var Libraries = []Library{
	{"cublas", []int{13, 12, 11}, "MEMPLAN_CUBLAS", "install the CUDA toolkit, or pip install nvidia-cublas"},
	{"cudnn", []int{9, 8}, "MEMPLAN_CUDNN", "install cuDNN, or pip install nvidia-cudnn-cu13"},
	{"nvidia-ml", []int{1}, "MEMPLAN_NVML", "install the NVIDIA driver"},
}

// find returns the library of that name.
func find(name string) *Library {
	for i := range Libraries {
		if Libraries[i].Name == name {
			return &Libraries[i]
		}
	}
	panic("dl: no library " + name)
}

// candidates lists the files to try, in order: that of the environment
// variable, what the loader finds by itself, CUDA's own folder, and Python's
// wheels.
func (l *Library) candidates(getenv func(string) string) []string {
	var out []string
	if v := getenv(l.Env); v != "" {
		if info, err := os.Stat(v); err == nil && info.IsDir() {
			for _, m := range l.Majors {
				out = append(out, filepath.Join(v, l.file(m)))
			}
			return out
		}
		return []string{v}
	}
	for _, m := range l.Majors {
		out = append(out, l.file(m))
	}
	roots := []string{"/usr/local/cuda/lib64"}
	for _, base := range pythonBases(getenv) {
		for _, pattern := range []string{"lib/python3*/site-packages/nvidia/*/lib", "lib/python3*/dist-packages/nvidia/*/lib", "lib/python3/dist-packages/nvidia/*/lib"} {
			found, err := filepath.Glob(filepath.Join(base, pattern))
			if err == nil { // the only error is that of a malformed pattern: a folder with brackets in its name
				roots = append(roots, found...)
			}
		}
	}
	for _, m := range l.Majors {
		for _, r := range roots {
			if f := filepath.Join(r, l.file(m)); exists(f) {
				out = append(out, f)
			}
		}
	}
	return out
}

func (l *Library) file(major int) string { return fmt.Sprintf("lib%s.so.%d", l.Name, major) }

// missing returns the error of a library of which no file could be opened.
func (l *Library) missing(last string) error {
	majors := make([]string, len(l.Majors))
	for i, m := range l.Majors {
		majors[i] = fmt.Sprint(m)
	}
	return fmt.Errorf("no lib%s.so of version %s (%s): %s, or set %s to its file", l.Name, strings.Join(majors, ", "), last, l.Hint, l.Env)
}

// pythonBases lists folders below which Python keeps its packages.
func pythonBases(getenv func(string) string) []string {
	var out []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	add(getenv("VIRTUAL_ENV"))
	add(getenv("CONDA_PREFIX"))
	if py, err := exec.LookPath("python3"); err == nil {
		add(filepath.Dir(filepath.Dir(py)))
	}
	if home := getenv("HOME"); home != "" {
		add(filepath.Join(home, ".local"))
	}
	add("/usr/local")
	add("/usr")
	return out
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
