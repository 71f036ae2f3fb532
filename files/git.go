package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// mostCommitted bounds a file that is taken out of a repository, in bytes.
const mostCommitted = 2 << 30

// Committed copies a file from a git repository into a folder of its own. spec
// is REF:PATH, as git cat-file takes it: PATH begins at the repository's root, or
// with "./" at the working directory. remove deletes the folder.
//
// Git runs no filters, hooks or programs of the repository for it, and asks no
// server.
func Committed(ctx context.Context, spec string) (file string, remove func(), err error) {
	ref, name, ok := strings.Cut(spec, ":")
	if !ok || ref == "" || name == "" || strings.HasPrefix(ref, "-") {
		return "", nil, fmt.Errorf("git:%s: want git:REF:PATH, such as git:main:model.onnx", spec)
	}
	text, err := git(ctx, "cat-file", "-s", spec)
	if err != nil {
		return "", nil, fmt.Errorf("git:%s: %w", spec, err)
	}
	if size, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil || size > mostCommitted {
		return "", nil, fmt.Errorf("git:%s: larger than a file from git may be, %d bytes: check it out instead", spec, int64(mostCommitted))
	}
	data, err := git(ctx, "cat-file", "blob", spec)
	if err != nil {
		return "", nil, fmt.Errorf("git:%s: %w", spec, err)
	}
	if bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/")) {
		return "", nil, fmt.Errorf("git:%s: is a pointer of Git LFS: write the model to a file (git show %s | git lfs smudge > old.onnx) and name that", spec, spec)
	}
	return temporary(path.Base(name), data)
}

// temporary writes a file into a new folder.
func temporary(name string, data []byte) (file string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "memplan-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) } //nolint:errcheck // what is left of a temporary folder is the system's to clear
	if !filepath.IsLocal(name) || filepath.Base(name) != name {
		name = "model.onnx"
	}
	file = filepath.Join(dir, name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return file, remove, nil
}

// git runs a command of git that only reads, and returns what it prints.
func git(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Env = append(os.Environ(), "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0")
	var problem bytes.Buffer
	c.Stderr = &problem
	out, err := c.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("needs git, which is not installed")
	}
	if err != nil && problem.Len() > 0 {
		line, _, _ := strings.Cut(problem.String(), "\n")
		return nil, errors.New(strings.TrimPrefix(line, "fatal: "))
	}
	return out, err
}
