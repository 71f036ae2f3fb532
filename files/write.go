package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write replaces the file at a path of the user's own as a whole, or leaves it
// unchanged. It keeps the file's mode; anything but a regular file, such as
// /dev/stdout, is written to. A link is followed only within its own folder: a
// pull request can put a link where a workflow writes its results.
func Write(path string, data []byte) error {
	if err := write(path, data); err != nil {
		return named(path, err)
	}
	return nil
}

func write(path string, data []byte) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return os.WriteFile(path, data, 0o644)
	case err == nil:
		target, err := ownTarget(path)
		if err != nil {
			return err
		}
		return replaceAt(target, data, info.Mode().Perm())
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return errors.New("is a link to a file that does not exist: remove it, or name another file")
		}
		if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no folder %s: make it, or name another", filepath.Dir(path))
		}
	}
	return replaceAt(path, data, 0o644)
}

// ownTarget follows a link at path to a file within the link's own folder, and
// returns an error for one that leads out of it.
func ownTarget(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", err
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(folder, target); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("is a link that leads out of its folder, to %s: name that file, or remove the link", target)
	}
	return target, nil
}

// Folder creates a folder for results, and those above it, if missing. A link is
// followed as Write follows one.
func Folder(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil { //nolint:gosec // as mkdir does: the user's mask decides
		return named(path, err)
	}
	if _, err := ownTarget(path); err != nil {
		return named(path, err)
	}
	return nil
}

// Create opens a file of the user's own for writing as results come; its
// contents are lost.
func Create(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		if path, err = ownTarget(path); err != nil {
			return nil, named(path, err)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, named(path, err)
	}
	return f, nil
}

// Replace writes a file that a document names, as a whole, and returns its path.
// An existing file is replaced only if it is a regular file that ours recognises
// as written by memplan: a symbolic link is not followed, even within the
// folder. With --allow-outside the name may lead anywhere; the rest applies.
func (d Door) Replace(name string, data []byte, k *Kind, ours func(old []byte) error) (string, error) {
	path := d.candidates(name)[0]
	if err := d.refused(name); err != nil {
		return path, err
	}
	root, base, err := d.writable(path)
	if err != nil {
		return path, err
	}
	defer root.Close()
	mode, err := replaceable(root, base, path, k, ours)
	if err == nil {
		err = replaceIn(root, base, data, mode)
	}
	switch {
	case err != nil && escaped(err):
		err = d.outside(path)
	case err != nil:
		err = named(path, err)
	}
	return path, err
}

// writable opens the folder in which a name is written, and returns the name
// relative to it.
func (d Door) writable(path string) (*os.Root, string, error) {
	if d.free() {
		root, err := os.OpenRoot(filepath.Dir(path))
		if err != nil {
			return nil, "", named(path, err)
		}
		return root, filepath.Base(path), nil
	}
	f := &d.folders[0]
	rel, ok := f.within(path)
	if !ok {
		return nil, "", d.outside(path)
	}
	root, err := f.open()
	if err != nil {
		return nil, "", named(path, err)
	}
	return root, rel, nil
}

// replaceable returns the mode of the new file, or why the existing one must
// stay.
func replaceable(root *os.Root, base, path string, k *Kind, ours func([]byte) error) (fs.FileMode, error) {
	info, err := root.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0o644, nil
	case err != nil:
		return 0, err
	case info.Mode()&fs.ModeSymlink != 0:
		return 0, errors.New("is a symbolic link, which is not written through: remove it")
	}
	f, err := regular(base, path, k, root.Lstat, root.OpenFile)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	old, err := f.ReadAll()
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), ours(old)
}

// replaceAt replaces the file at a path.
func replaceAt(path string, data []byte, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	return replaceIn(root, filepath.Base(path), data, mode)
}

// replaceIn writes a temporary file beside the target and renames it.
func replaceIn(root *os.Root, name string, data []byte, mode fs.FileMode) (err error) {
	tmp := filepath.Join(filepath.Dir(name), fmt.Sprintf(".memplan-%016x.tmp", rand.Uint64()))
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(tmp) // the first error is reported
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(mode)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// TempDir makes a new folder for temporary files, which only the user may enter. The
// system removes it when it will.
func TempDir(prefix string) (string, error) { return os.MkdirTemp("", prefix) }
