package validate

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/graph/program"
)

// maxArray bounds the elements of an array that is read.
const maxArray = 1 << 31

// maxRank bounds the dimensions of an array: NumPy's own bound is 64.
const maxRank = 64

// arrayMemory is the default limit, in bytes, of the memory for reading one
// array.
const arrayMemory int64 = 4 << 30

// affordable returns an error if reading an array takes more than memory bytes: its bytes
// as stored and its numbers. It is called before either is allocated.
func affordable(t graph.DType, shape []int64, memory int64) error {
	if memory <= 0 {
		memory = arrayMemory
	}
	if n := Elems(shape); t.Bytes(n)+4*n > memory {
		return fmt.Errorf("an array of %v takes %d bytes to read, more than --max-memory %d", shape, t.Bytes(n)+4*n, memory)
	}
	return nil
}

// npyTypes are the supported element types of NumPy's format.
var npyTypes = map[string]graph.DType{
	"<f4": graph.Float32, "<f8": graph.Float64, "<f2": graph.Float16, "<i8": graph.Int64, "<i4": graph.Int32, "|b1": graph.Bool, "|u1": graph.Uint8,
}

// ReadNPY reads one array in NumPy's format (numpy.lib.format, version 1 to 3).
func ReadNPY(r io.Reader) (*Array, error) { return readNPY(r, arrayMemory) }

func readNPY(r io.Reader, memory int64) (*Array, error) {
	t, shape, _, err := npyHead(r)
	if err != nil {
		return nil, err
	}
	if err := affordable(t, shape, memory); err != nil {
		return nil, err
	}
	raw, err := exactly(r, t.Bytes(Elems(shape)))
	if err != nil {
		return nil, fmt.Errorf("an array of %v: %w", shape, err)
	}
	return decode(raw, &program.View{DType: t, Shape: shape, Strides: RowMajor(shape)})
}

// exactly reads n bytes. Memory grows with what is read: a header that claims
// more than its file has costs nothing.
func exactly(r io.Reader, n int64) ([]byte, error) {
	const first = 1 << 20
	raw := make([]byte, 0, min(n, first))
	for {
		at := len(raw)
		raw = raw[:cap(raw)]
		if k, err := io.ReadFull(r, raw[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return raw[:at+k], err
		}
		if int64(len(raw)) == n {
			return raw, nil
		}
		raw = append(make([]byte, 0, min(n, 2*int64(len(raw)))), raw...)
	}
}

// npyHead reads the header: the elements' type, the shape, and the header's
// length in bytes.
func npyHead(r io.Reader) (graph.DType, []int64, int64, error) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(r, head); err != nil || string(head[:6]) != "\x93NUMPY" {
		return 0, nil, 0, errors.New("not a .npy file")
	}
	size := make([]byte, 2)
	if head[6] > 1 {
		size = make([]byte, 4)
	}
	if _, err := io.ReadFull(r, size); err != nil {
		return 0, nil, 0, err
	}
	n := uint32(binary.LittleEndian.Uint16(size))
	if len(size) == 4 {
		n = binary.LittleEndian.Uint32(size)
	}
	if n > 1<<16 {
		return 0, nil, 0, fmt.Errorf("a .npy header of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return 0, nil, 0, err
	}
	t, shape, err := npyHeader(string(text))
	return t, shape, int64(len(head)+len(size)) + int64(n), err
}

// npyHeader parses the Python literal of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3),
// }.
func npyHeader(text string) (graph.DType, []int64, error) {
	fields, ok := npyFields(strings.TrimSpace(text))
	if !ok {
		return 0, nil, fmt.Errorf("a .npy header that is not understood: %.200q", text)
	}
	t, ok := npyTypes[strings.Trim(fields["descr"], "'")]
	if !ok {
		return 0, nil, fmt.Errorf("elements of NumPy's type %.40q: only float16, float32, float64, int32, int64, uint8 and bool are read", strings.Trim(fields["descr"], "'"))
	}
	if fields["fortran_order"] != "False" {
		return 0, nil, errors.New("columns first: save a C-contiguous array")
	}
	var shape []int64
	for f := range strings.SplitSeq(strings.Trim(fields["shape"], "()"), ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			return 0, nil, fmt.Errorf("a .npy header with shape %.200s", fields["shape"])
		}
		if shape = append(shape, n); len(shape) > maxRank {
			return 0, nil, fmt.Errorf("a .npy header with a shape of more than %d dimensions", maxRank)
		}
	}
	if n, ok := graph.Product(shape); !ok || n > maxArray {
		return 0, nil, fmt.Errorf("an array of %v", shape)
	}
	return t, shape, nil
}

// npyFields returns the values of a header by key, as written. Commas separate
// them, and also the dims inside the shape's brackets.
func npyFields(text string) (map[string]string, bool) {
	text, open := strings.CutPrefix(text, "{")
	text, closed := strings.CutSuffix(text, "}")
	fields := map[string]string{}
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimLeft(text, ", ") {
		key, value, ok := strings.Cut(text, ":")
		if !ok || len(fields) == 3 {
			return nil, false
		}
		value = strings.TrimSpace(value)
		end := 0
		if strings.HasPrefix(value, "(") {
			end = max(strings.IndexByte(value, ')'), 0)
		}
		if comma := strings.IndexByte(value[end:], ','); comma >= 0 {
			end += comma
		} else {
			end = len(value)
		}
		fields[strings.Trim(strings.TrimSpace(key), "'")], text = strings.TrimSpace(value[:end]), value[end:]
	}
	return fields, open && closed && fields["descr"] != "" && fields["fortran_order"] != "" && strings.HasPrefix(fields["shape"], "(")
}

// ReadNPZ reads all arrays of a .npz file by name, except those that are not
// numbers.
func ReadNPZ(path string) (map[string]*Array, error) {
	z, err := OpenNPZ(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = z.Close() }() // it is only read
	out := map[string]*Array{}
	for _, name := range z.Names() {
		if a, err := z.Read(name); err == nil {
			out[name] = a
		}
	}
	return out, nil
}

// An Archive is an open .npz file: arrays by name, read one at a time.
type Archive struct {
	// Memory limits the bytes of memory for reading one array; 0: 4 GiB.
	Memory int64

	path string
	file *files.File
	at   map[string]*zip.File
}

// maxEntries bounds the entries of an archive.
const maxEntries = 1 << 20

// OpenNPZ opens a .npz file, as numpy.savez or numpy.savez_compressed write it.
// The arrays' elements are not read yet.
func OpenNPZ(path string) (*Archive, error) {
	file, err := files.Door{}.Open(path, files.Archive)
	if err != nil {
		return nil, err
	}
	z, err := zip.NewReader(file, file.Size)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: not a .npz file: %w", path, err)
	}
	if len(z.File) > maxEntries {
		file.Close()
		return nil, fmt.Errorf("%s: an archive of %d entries, more than %d", path, len(z.File), maxEntries)
	}
	out := &Archive{path: path, file: file, at: make(map[string]*zip.File, len(z.File))}
	for _, f := range z.File {
		name := strings.TrimSuffix(f.Name, ".npy")
		if out.at[name] != nil {
			return nil, errors.Join(fmt.Errorf("%s: two arrays are called %s", path, name), out.Close())
		}
		out.at[name] = f
	}
	return out, nil
}

// Close closes the file.
func (z *Archive) Close() error { return z.file.Close() }

// Names lists the arrays, sorted.
func (z *Archive) Names() []string { return slices.Sorted(maps.Keys(z.at)) }

// Check reads an array's header and returns an error if its type is not supported, or if
// its length does not match its shape.
func (z *Archive) Check(name string) error {
	return z.open(name, func(r io.Reader, size int64) error {
		t, shape, head, err := npyHead(r)
		if err != nil {
			return err
		}
		if err := npySize(size, head, t, shape); err != nil {
			return err
		}
		return affordable(t, shape, z.Memory)
	})
}

// Read reads one array.
func (z *Archive) Read(name string) (a *Array, err error) {
	err = z.open(name, func(r io.Reader, _ int64) error {
		if a, err = readNPY(r, z.Memory); err == nil {
			_, err = io.Copy(io.Discard, r) // the checksum is verified at the end
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// open calls f with an entry and its size in bytes.
func (z *Archive) open(name string, f func(r io.Reader, size int64) error) error {
	e := z.at[name]
	if e == nil {
		return fmt.Errorf("%s: no array %s", z.path, name)
	}
	r, err := e.Open()
	if err == nil {
		err = f(r, int64(e.UncompressedSize64))
		if e := r.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", z.path, name, err)
	}
	return nil
}

// ReadArray reads a tensor from a .npy file or from a .pb file, as the ONNX
// project stores test data, with at most memory bytes of memory; 0: 4 GiB.
func ReadArray(path string, memory int64) (*Array, error) {
	if memory <= 0 {
		memory = arrayMemory
	}
	f, err := files.Door{}.Open(path, files.Array)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var a *Array
	switch strings.ToLower(filepath.Ext(path)) {
	case ".npy":
		a, err = wholeNPY(f, memory)
	case ".pb":
		a, err = readPB(f, f.Size, path, memory)
	case ".npz":
		err = errors.New("an archive names its arrays itself: give the file alone, without NAME=")
	default:
		err = errors.New("neither .npy nor .pb")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// wholeNPY reads a .npy file, which ends with the array. It checks the header
// before reading the rest: a file of zeros can be as large as the disk.
func wholeNPY(f *files.File, memory int64) (*Array, error) {
	t, shape, head, err := npyHead(io.NewSectionReader(f, 0, f.Size))
	if err != nil {
		return nil, err
	}
	if err := npySize(f.Size, head, t, shape); err != nil {
		return nil, err
	}
	return readNPY(io.NewSectionReader(f, 0, f.Size), memory)
}

// npySize returns an error unless a file of size bytes holds exactly one array
// after its header.
func npySize(size, head int64, t graph.DType, shape []int64) error {
	if want := head + t.Bytes(Elems(shape)); size != want {
		return fmt.Errorf("%d bytes, and an array of shape %v takes %d: is the file whole?", size, shape, want)
	}
	return nil
}

// readPB reads an onnx.TensorProto of size bytes that contains its elements.
func readPB(r io.ReaderAt, size int64, path string, memory int64) (*Array, error) {
	t, err := onnx.ReadTensor(r, size, path, onnx.Within(memory))
	if err != nil {
		return nil, err
	}
	n, ok := graph.Product(t.Dims)
	if !ok || n > maxArray || len(t.Dims) > maxRank {
		return nil, fmt.Errorf("an array of %v", t.Dims)
	}
	if err := affordable(t.Type, t.Dims, memory); err != nil {
		return nil, err
	}
	if t.Ref != nil && t.Ref.Location != "" {
		return nil, fmt.Errorf("its elements are in another file, %.40q", t.Ref.Location)
	}
	if t.Ref != nil {
		raw, err := exactly(io.NewSectionReader(r, t.Ref.Offset, t.Ref.Length), t.Type.Bytes(n))
		if err != nil {
			return nil, err
		}
		return decode(raw, &program.View{DType: t.Type, Shape: t.Dims, Strides: RowMajor(t.Dims)})
	}
	switch there := int64(len(t.Floats) + len(t.Ints)); {
	case there == 0 && n > onnx.MaxElements(memory):
		return nil, fmt.Errorf("more than --max-memory %d to read", memory)
	case there != n:
		return nil, fmt.Errorf("%d elements of a tensor of %v", there, t.Dims)
	}
	a := &Array{Shape: t.Dims, DType: t.Type, Values: make([]float32, 0, n)}
	for _, v := range t.Floats {
		a.Values = append(a.Values, float32(v))
	}
	for _, v := range t.Ints {
		a.Values = append(a.Values, float32(v))
	}
	return a, nil
}

// ModelSource returns the initializers held in a model's file, which open
// opens, or in the files beside it: others are generated from the seed.
func ModelSource(g *graph.Graph, open func() (*files.File, error)) Source {
	at := map[string]*graph.Constant{}
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == graph.Initializer && v.Const != nil {
			at[v.Name] = v.Const
		}
	}
	return func(name string) (*Array, error) {
		t := at[name]
		switch {
		case t == nil || t.Sparse != nil:
			return nil, nil
		case t.Known():
			a := &Array{Shape: t.Dims, DType: t.Type, Values: make([]float32, max(len(t.Ints), len(t.Floats)))}
			for i := range a.Values {
				if t.Floats != nil {
					a.Values[i] = float32(t.Floats[i])
				} else {
					a.Values[i] = float32(t.Ints[i])
				}
			}
			return a, nil
		case t.Ref == nil:
			return nil, nil
		}
		return readRef(t, open)
	}
}

// readRef reads a tensor's bytes from the model, or from the file beside it that
// the tensor names; nil if that is missing.
func readRef(t *graph.Constant, open func() (*files.File, error)) (*Array, error) {
	f, err := open()
	if err == nil && t.Ref.Location != "" {
		door := f.Beside()
		f.Close()
		f, err = door.Open(t.Ref.Location, files.ExternalData)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Name, err)
	}
	defer f.Close()
	n, ok := t.Bytes()
	if !ok || n > 8*maxArray {
		return nil, fmt.Errorf("%s: a tensor of %v", t.Name, t.Dims)
	}
	raw := make([]byte, n)
	if _, err := f.ReadAt(raw, t.Ref.Offset); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", t.Name, f.Path, err)
	}
	return decode(raw, &program.View{DType: t.Type, Shape: t.Dims, Strides: RowMajor(t.Dims)})
}
