// Package files is the one door to the disk: every file that memplan reads or
// replaces goes through it. A path on the command line is the user's own and
// may lead anywhere. A path that a document names (a configuration, a plan, a
// model with external data) comes from a stranger: it stays in the document's
// folder, symbolic links included, unless the user gives --allow-outside.
// Whoever names it, a document is a regular file of a bounded size: a pipe is
// not waited for and a device is not read.
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

// A Kind is what a file is read as.
type Kind struct {
	Name  string // with its article, for messages
	Limit int64  // most bytes; 0: any, because the reader takes little of the file at a time
}

// The kinds of files. Limits are many times what memplan writes or what public
// collections hold; calibrations and configurations have some kilobytes.
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
)

// admits is an error for what is no regular file of at most the kind's size.
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

// A folder is where a door lets names lead: sub within root, each of which is
// opened as an os.Root, so that nothing on the way leads out.
type folder struct{ root, sub string }

func (f *folder) open() (*os.Root, error) {
	root, err := os.OpenRoot(f.root)
	if err != nil || f.sub == "." {
		return root, err
	}
	defer root.Close()
	return root.OpenRoot(f.sub)
}

// path is the folder's for messages, and the base of relative names.
func (f *folder) path() string { return filepath.Join(f.root, f.sub) }

// A Door opens files for one reader. The zero Door is the command line's: its
// paths are the user's own.
type Door struct {
	// Outside is --allow-outside: names may lead anywhere.
	Outside bool

	folders  []folder // that names are looked for in, in this order; empty: the user's own paths
	absolute bool     // whether a name may be absolute, within folders
}

// Beside is the door of what a document names: relative paths, read from the
// document's folder, that stay in it.
func Beside(document string, outside bool) Door {
	return Door{Outside: outside, folders: []folder{{filepath.Dir(document), "."}}}
}

// OfPlan is the door of what a plan names. A plan repeats paths that its user
// typed when it was made, so they are read from the working directory first,
// and then from the plan's folder; either may be absolute. What is opened lies
// in one of these two folders: a plan from a stranger can name what already
// lies beside it, or where the user works, and nothing else.
func OfPlan(plan string, outside bool) Door {
	return Door{Outside: outside, absolute: true, folders: []folder{{".", "."}, {filepath.Dir(plan), "."}}}
}

// A File is open for reading.
type File struct {
	*os.File
	Path string // where it is, for messages: relative to the working directory or absolute
	Size int64  // bytes

	kind    *Kind
	outside bool
	in      folder // that it was found in
}

// Beside is the door of what this file names: its own folder, within the folder
// that it was found in itself.
func (f *File) Beside() Door {
	return Door{Outside: f.outside, folders: []folder{f.in}}
}

// ReadAll reads the file, which may have grown beyond its kind's limit since.
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

// An OutsideError is a name in a document that leads out of where it may.
type OutsideError struct {
	Path   string
	Folder string // or folders, in words
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("%s: leads out of %s: move it there, or give --allow-outside if you trust what names it", e.Path, e.Folder)
}

// outside is the error of a path that leads out of the door's folders.
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

// Read reads a whole file. The user's own may be /dev/stdin, a pipe too.
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

// readStdin reads standard input, which may be a pipe but no device or folder.
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

// refused is an error for an absolute name where names are relative.
func (d Door) refused(name string) error {
	if filepath.IsAbs(name) && !d.free() && !d.absolute {
		return d.outside(name)
	}
	return nil
}

// candidates are the places that a name may mean.
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

// open opens a place through the first folder that has it.
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

// within returns a path relative to the folder, if it is written as one that lies
// in it. Links are not looked at.
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
// error for it.
func escaped(err error) bool { return strings.HasSuffix(err.Error(), "path escapes from parent") }

// regular opens a regular file by a name that look and open take; path names it in
// messages. It looks before it opens, for opening a device can have effects,
// opens without waiting, as a pipe would, and looks at what it then holds: the
// name may mean something else by then.
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

// named puts the path that was asked for before an error, once.
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
