// Package files is the one door to the disk: every file that memplan reads or
// replaces goes through it. A path on the command line is the user's own and
// may lead anywhere. A path that a document names (a configuration, a plan, a
// model with external data) is not trusted: it must stay in the document's
// folder, even through symbolic links, unless the user gives --allow-outside.
// In either case a document is a regular file of a bounded size: pipes and
// devices are refused.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A Kind is the type of document that a file is read as.
type Kind struct {
	Name  string // with its article, for messages
	Limit int64  // largest size in bytes; 0: any, because the reader takes little of the file at a time
}

// The kinds of files. Limits are many times the size of what memplan writes or
// public collections hold; calibrations and configurations have a few
// kilobytes.
var (
	Model        = &Kind{Name: "an ONNX file"}
	ExternalData = &Kind{Name: "external data"}
	Config       = &Kind{"a memplan configuration", 512 << 10}
	Document     = &Kind{"a memplan document", 64 << 20}
	Calibration  = &Kind{"a calibration", 1 << 20}
	Instance     = &Kind{"an instance of a solver", 256 << 20}
	Certificate  = &Kind{"a certificate", 256 << 20}
	Array        = &Kind{"an array", 16 << 30}
	Archive      = &Kind{Name: "an archive of arrays"}
	Snapshot     = &Kind{"a memory snapshot", 2 << 30}
)

// admits returns an error for anything but a regular file of at most the kind's
// size.
func (k *Kind) admits(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("is a directory, not %s", k.Name)
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	}
	return k.bounds(info.Size())
}

func (k *Kind) bounds(size int64) error {
	if k.Limit > 0 && size > k.Limit {
		return fmt.Errorf("%d bytes are larger than %s may be, %d", size, k.Name, k.Limit)
	}
	return nil
}

// A folder bounds the names of a door: sub within root, each of which is opened
// as an os.Root, so that nothing on the way leads out.
type folder struct{ root, sub string }

func (f *folder) open() (*os.Root, error) {
	root, err := os.OpenRoot(f.root)
	if err != nil || f.sub == "." {
		return root, err
	}
	defer root.Close()
	return root.OpenRoot(f.sub)
}

// path returns the folder's path, for messages and as the base of relative
// names.
func (f *folder) path() string { return filepath.Join(f.root, f.sub) }

// A Door opens files for one reader. The zero Door is the command line's: its
// paths are the user's own.
type Door struct {
	// Outside is --allow-outside: names may lead anywhere.
	Outside bool

	folders  []folder // where names are sought, in this order; empty: the user's own paths
	absolute bool     // whether a name may be absolute, within folders
}

// Beside returns the door for names in a document: relative paths from the
// document's folder, which must stay in it.
func Beside(document string, outside bool) Door {
	return Door{Outside: outside, folders: []folder{{filepath.Dir(document), "."}}}
}

// OfPlan returns the door for names in a plan. A plan repeats paths that its
// user typed when it was made, so they are sought from the working directory
// first, and then from the plan's folder; either may be absolute. The opened
// file must be in one of these two folders: a plan from a stranger can name
// what is already beside it, or where the user works, and nothing else.
func OfPlan(plan string, outside bool) Door {
	return Door{Outside: outside, absolute: true, folders: []folder{{".", "."}, {filepath.Dir(plan), "."}}}
}

// A File is a file open for reading.
type File struct {
	*os.File
	Path string // for messages: relative to the working directory or absolute
	Size int64  // bytes

	kind    *Kind
	outside bool
	in      folder // where it was found
}

// Beside returns the door for names in this file: its own folder, within the
// folder in which it was found.
func (f *File) Beside() Door {
	return Door{Outside: f.outside, folders: []folder{f.in}}
}

// ReadAll reads the file, and fails if it has grown beyond its kind's limit.
func (f *File) ReadAll() ([]byte, error) {
	data, err := readAll(f.File, f.kind)
	if err != nil {
		return nil, named(f.Path, err)
	}
	return data, nil
}

func readAll(r io.Reader, k *Kind) ([]byte, error) {
	if k.Limit == 0 {
		return io.ReadAll(r)
	}
	data, err := io.ReadAll(io.LimitReader(r, k.Limit+1))
	if err == nil && int64(len(data)) > k.Limit {
		err = fmt.Errorf("larger than %s may be, %d bytes", k.Name, k.Limit)
	}
	return data, err
}

// An OutsideError is the error of a name in a document that leads out of its
// folder.
type OutsideError struct {
	Path   string
	Folder string // or folders, in words
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("%s: leads out of %s: move it there, or give --allow-outside if you trust what names it", e.Path, e.Folder)
}

// outside returns the error of a path that leads out of the door's folders.
func (d Door) outside(path string) error {
	var names []string
	for i := range d.folders {
		name := d.folders[i].path()
		if name == "." {
			name = "the working directory"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return &OutsideError{path, strings.Join(names, " and ")}
}

// Open opens a regular file for reading. Errors begin with its path.
func (d Door) Open(name string, k *Kind) (*File, error) {
	if err := d.refused(name); err != nil {
		return nil, err
	}
	var failed error
	for _, path := range d.candidates(name) {
		f, err := d.open(path, k)
		if err == nil {
			return f, nil
		}
		out := new(OutsideError)
		if !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &out) {
			return nil, err
		}
		if failed == nil || errors.Is(failed, fs.ErrNotExist) && errors.As(err, &out) {
			failed = err
		}
	}
	return nil, failed
}

// Read reads a whole file. The user's own may be /dev/stdin, even a pipe.
func (d Door) Read(name string, k *Kind) ([]byte, error) {
	if name == stdin && len(d.folders) == 0 {
		return readStdin(k)
	}
	f, err := d.Open(name, k)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadAll()
}

const stdin = "/dev/stdin"

// readStdin reads standard input, which may be a pipe but not a device or
// folder.
func readStdin(k *Kind) ([]byte, error) {
	info, err := os.Stdin.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		err = k.admits(info)
	}
	var data []byte
	if err == nil {
		data, err = readAll(os.Stdin, k)
	}
	if err != nil {
		return nil, named(stdin, err)
	}
	return data, nil
}

// refused returns an error for an absolute name where names must be relative.
func (d Door) refused(name string) error {
	if filepath.IsAbs(name) && !d.free() && !d.absolute {
		return d.outside(name)
	}
	return nil
}

// candidates returns the paths that a name may mean.
func (d Door) candidates(name string) []string {
	if len(d.folders) == 0 || filepath.IsAbs(name) {
		return []string{name}
	}
	var out []string
	for i := range d.folders {
		if p := filepath.Join(d.folders[i].path(), filepath.FromSlash(name)); len(out) == 0 || out[0] != p {
			out = append(out, p)
		}
	}
	return out
}

// open opens a path through the first folder that has it.
func (d Door) open(path string, k *Kind) (*File, error) {
	if d.free() {
		f, err := regular(path, path, k, os.Stat, os.OpenFile)
		if err != nil {
			return nil, err
		}
		f.outside, f.in = d.Outside, folder{filepath.Dir(path), "."}
		return f, nil
	}
	for i := range d.folders {
		rel, ok := d.folders[i].within(path)
		if !ok {
			continue
		}
		if f, err := d.folders[i].regular(rel, path, k); err == nil || !escaped(err) {
			return f, err
		}
	}
	return nil, d.outside(path)
}

// free reports whether names may lead anywhere.
func (d Door) free() bool { return d.Outside || len(d.folders) == 0 }

// within returns a path relative to the folder, if it lies in it as written.
// Links are not followed.
func (f *folder) within(path string) (string, bool) {
	base, err := filepath.Abs(f.path())
	if err != nil {
		return "", false
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", false
	}
	rel, err := filepath.Rel(base, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// regular opens a file of the folder.
func (f *folder) regular(rel, path string, k *Kind) (*File, error) {
	root, err := f.open()
	if err != nil {
		return nil, named(path, err)
	}
	defer root.Close()
	out, err := regular(rel, path, k, root.Stat, root.OpenFile)
	if err != nil {
		return nil, err
	}
	out.in = folder{f.root, filepath.Join(f.sub, filepath.Dir(rel))}
	return out, nil
}

// escaped reports whether an os.Root refused a name; package os exports no
// error for that.
func escaped(err error) bool { return strings.HasSuffix(err.Error(), "path escapes from parent") }

// regular opens a regular file by a name for look and open; path is for messages.
// It checks before it opens, because opening a device can have effects, opens
// without waiting for a pipe, and checks again what it opened, because the file
// may have been replaced.
func regular(name, path string, k *Kind, look func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File, error)) (*File, error) {
	info, err := look(name)
	if err == nil {
		err = k.admits(info)
	}
	if err != nil {
		return nil, named(path, err)
	}
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, named(path, err)
	}
	if info, err = f.Stat(); err == nil {
		err = k.admits(info)
	}
	if err != nil {
		f.Close()
		return nil, named(path, err)
	}
	return &File{File: f, Path: path, Size: info.Size(), kind: k}, nil
}

// named prefixes an error with the requested path, once.
func named(path string, err error) error {
	var p *fs.PathError
	var l *os.LinkError
	if errors.As(err, &p) {
		err = p.Err
	} else if errors.As(err, &l) {
		err = l.Err
	}
	if strings.HasPrefix(err.Error(), path+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Names returns the names of the files in a folder on the command line, of a
// large one some, and whether there is one; the current folder is ".".
func Names(folder string) (names []string, there bool) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, !errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = f.Close() }() // read, not written
	const most = 1000
	names, _ = f.Readdirnames(most) // none of what is not a folder
	slices.Sort(names)
	return names, true
}
