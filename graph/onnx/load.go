// Package onnx reads ONNX files into graphs. It has its own reader of the
// protobuf wire format, which slides a window over the file, so that weights
// are never read and a file may be larger than memory.
package onnx

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
)

// maxHashed is the size in bytes from which Load leaves Model.SHA256 empty:
// hashing a file of many gigabytes takes seconds. SHA256 hashes any file.
const maxHashed = 64 << 20

// DefaultMemory is the default limit, in bytes, of the memory that a file may
// take.
const DefaultMemory int64 = 4 << 30

// An Option changes how a file is read.
type Option func(*options)

type options struct{ memory int64 }

// Within bounds the memory of what is built from a file, and of later stages: a
// file that needs more is an error. 0 stands for DefaultMemory.
func Within(bytes int64) Option {
	return func(o *options) {
		if bytes > 0 {
			o.memory = bytes
		}
	}
}

// Load reads the model in the file at path, and small tensors from the files
// of external data beside it, which need not exist. Model.SHA256 is set for
// files smaller than 64 MiB.
func Load(path string, opts ...Option) (*graph.Graph, error) {
	return LoadFrom(files.Door{}, path, opts...)
}

// LoadFrom is Load through the door of a document that names the model. External
// data lies in the model's folder, unless the door is open to the outside.
func LoadFrom(d files.Door, name string, opts ...Option) (*graph.Graph, error) {
	f, err := d.Open(name, files.Model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path, size := f.Path, f.Size
	var sum string
	var failed error
	hashed := make(chan struct{})
	go func() {
		defer close(hashed)
		if size < maxHashed {
			sum, failed = hash(f, size)
		}
	}()
	g, err := Read(f, size, path, opts...)
	<-hashed
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, fmt.Errorf("%s: %w", path, failed)
	}
	g.Model.SHA256 = sum
	readBeside(g, f.Beside())
	return g, nil
}

// SHA256 returns the hash of a file, opened through the door, in lower-case hex.
func SHA256(d files.Door, name string) (string, error) {
	f, err := d.Open(name, files.Model)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum, err := hash(f, f.Size)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path, err)
	}
	return sum, nil
}

func hash(r io.ReaderAt, size int64) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// A file has a text of its own every 300 bytes or so, where it holds no weights:
// room for them is made at first, and any number would do.
const (
	stringEvery = 300
	mostStrings = 1 << 13
)

// Read reads a model of size bytes, without the files beside it. path names it
// in errors and in Model.Path. Model.SHA256 is left empty.
func Read(r io.ReaderAt, size int64, path string, opts ...Option) (*graph.Graph, error) {
	o := options{memory: DefaultMemory}
	for _, set := range opts {
		set(&o)
	}
	if size == 0 {
		return nil, fmt.Errorf("%s: the file is empty", path)
	}
	m := &graph.Model{Path: path}
	d := &decoder{reader: newReader(r, size, path, o.memory), model: m, strings: make(map[string]string, min(size/stringEvery, mostStrings))}
	f, err := d.decode()
	if err == nil && f.graph == nil {
		err = fmt.Errorf("%s: not an ONNX model: it holds no graph", path)
	}
	if err != nil {
		return nil, sniff(r, size, path, err)
	}
	d.tolerate(f)
	g, err := graph.Resolve(m, f.graph, f.functions)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}

// tolerate warns of what the model omits, and fills in the opset.
func (d *decoder) tolerate(f *file) {
	m := d.model
	if m.IRVersion <= 0 {
		d.warn("no-ir-version", "the file has no ir_version")
	}
	if m.Opset("") == 0 && usesDefault(f) {
		v := latestOpset(m.IRVersion)
		d.warn("no-opset", "the file imports no version of the default operator set; version %d is assumed", v)
		m.Opsets = append(m.Opsets, graph.Opset{Version: v})
	}
	if v, newest := m.Opset(""), opsets[len(opsets)-1]; v > newest {
		d.warn("newer-opset", "version %d of the default operator set is newer than %d, the last that memplan knows: operators that changed since are taken as they were", v, newest)
	}
	if f.training {
		d.warn("training-info", "the file's training_info is ignored")
	}
}

func (d *decoder) warn(code, format string, args ...any) {
	d.model.Warnings = append(d.model.Warnings, graph.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// usesDefault reports whether the main graph has a node of the default
// operator set.
func usesDefault(f *file) bool {
	for i := range f.graph.Nodes {
		if f.graph.Nodes[i].Domain == "" {
			return true
		}
	}
	return false
}

// opsets are the newest versions of the default operator set by the IR
// version they were released with (onnx/helper.py, VERSION_TABLE).
var opsets = [...]int64{3: 8, 4: 9, 5: 10, 6: 11, 7: 14, 8: 18, 9: 20, 10: 22, 11: 23, 12: 24, 13: 27, 14: 28}

// latestOpset returns the opset assumed for a file that imports none: the
// newest of its IR version. IR versions 1 and 2 had only opset 1; a file
// without any is not that old but handmade.
func latestOpset(ir int64) int64 {
	switch newest := int64(len(opsets) - 1); {
	case ir <= 0 || ir > newest:
		return opsets[newest]
	case ir < 3:
		return 1
	default:
		return opsets[ir]
	}
}
