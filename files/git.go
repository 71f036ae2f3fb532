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
	"slices"
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

// Limits of a folder that is taken out of a repository.
const mostCommittedFiles = 10_000

// CommittedFolder copies the files of a folder in a git repository whose names have one of the
// endings, in lower case, into a folder of their own. spec is REF:PATH as for Committed, PATH empty
// for the root. remove deletes the copy. Pointers of Git LFS are copied as they are.
func CommittedFolder(ctx context.Context, spec string, endings ...string) (dir string, remove func(), err error) {
	ref, folder, ok := strings.Cut(spec, ":")
	if !ok || ref == "" || strings.HasPrefix(ref, "-") {
		return "", nil, fmt.Errorf("git:%s: want git:REF:PATH, such as git:main:models", spec)
	}
	list, err := git(ctx, "ls-tree", "--full-tree", "-r", "-z", "-l", ref+":"+strings.TrimSuffix(folder, "/"))
	if err != nil {
		return "", nil, fmt.Errorf("git:%s: %w", spec, err)
	}
	if dir, err = os.MkdirTemp("", "memplan-"); err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) } //nolint:errcheck // what is left of a temporary folder is the system's to clear
	if err := copyCommitted(ctx, dir, string(list), endings); err != nil {
		remove()
		return "", nil, fmt.Errorf("git:%s: %w", spec, err)
	}
	return dir, remove, nil
}

// copyCommitted copies the files of a list of git ls-tree into a folder.
func copyCommitted(ctx context.Context, dir, list string, endings []string) error {
	var bytes, count int64
	for entry := range strings.SplitSeq(list, "\x00") {
		about, name, ok := strings.Cut(entry, "\t") // mode, type, object and size, then the path
		fields := strings.Fields(about)
		wanted := slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(strings.ToLower(name), e) })
		if !ok || len(fields) != 4 || fields[0] == "120000" || fields[1] != "blob" || !wanted || !filepath.IsLocal(filepath.FromSlash(name)) {
			continue // symbolic links name what may lie anywhere
		}
		size, err := strconv.ParseInt(fields[3], 10, 64)
		if bytes, count = bytes+size, count+1; err != nil || bytes > mostCommitted || count > mostCommittedFiles {
			return fmt.Errorf("more than %d files or %d bytes: check it out instead", mostCommittedFiles, int64(mostCommitted))
		}
		data, err := git(ctx, "cat-file", "blob", fields[2])
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// CommittedPlan copies a document and the model that it names into a folder of their own: model
// returns the name from the document. The model is sought from the document's folder and from the
// repository's root or, where PATH begins with "./", the working directory.
func CommittedPlan(ctx context.Context, spec string, model func(document []byte) (string, error)) (file string, remove func(), err error) {
	file, drop, err := Committed(ctx, spec)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			drop()
		}
	}()
	data, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	name, err := model(data)
	if err != nil {
		return "", nil, fmt.Errorf("git:%s: %w", spec, err)
	}
	if name = filepath.ToSlash(filepath.Clean(name)); !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", nil, fmt.Errorf("git:%s: its model %s: leads out of its folder: check the plan out and name its file", spec, name)
	}
	ref, document, _ := strings.Cut(spec, ":")
	root := ""
	if strings.HasPrefix(document, "./") {
		root = "./"
	}
	var blob []byte
	for _, at := range []string{root + path.Join(path.Dir(document), name), root + name} {
		if blob, err = git(ctx, "cat-file", "blob", ref+":"+at); err == nil {
			break
		}
	}
	if err != nil {
		return "", nil, fmt.Errorf("git:%s: its model: %w", spec, err)
	}
	to := filepath.Join(filepath.Dir(file), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return "", nil, err
	}
	if to == file {
		return "", nil, fmt.Errorf("git:%s: its model is the document itself", spec)
	}
	if err := os.WriteFile(to, blob, 0o600); err != nil {
		return "", nil, err
	}
	return file, drop, nil
}
