package onnx

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/memplan/memplan/graph"
)

// maxSideFloats is the number of elements up to which floats are read from a
// file beside the model: scales, but no weights.
const maxSideFloats = 64

// A sideReader reads small tensors from the files beside a model: a shape kept
// in external data decides shapes like any other. Large tensors, and files
// that are absent or lie outside the model's directory, are left alone.
type sideReader struct {
	dir   string
	model *graph.Model
	files map[string]*os.File // nil for one that cannot be read
}

// readBeside decodes the small external tensors of g, its subgraphs and
// functions that files in dir hold.
func readBeside(g *graph.Graph, dir string) {
	s := &sideReader{dir: dir, model: g.Model, files: map[string]*os.File{}}
	defer func() {
		for _, f := range s.files {
			if f != nil {
				f.Close()
			}
		}
	}()
	s.graph(g)
	for _, fn := range g.Model.Functions {
		s.graph(fn.Body)
	}
}

func (s *sideReader) graph(g *graph.Graph) {
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == graph.Initializer {
			s.tensor(v.Const)
		}
	}
	for i := range g.Nodes {
		for j := range g.Nodes[i].Attrs {
			a := &g.Nodes[i].Attrs[j]
			s.tensor(a.Tensor)
			for _, t := range a.Tensors {
				s.tensor(t)
			}
		}
		for _, sub := range g.Nodes[i].Subgraphs() {
			s.graph(sub)
		}
	}
}

func (s *sideReader) tensor(t *graph.Tensor) {
	if t == nil {
		return
	}
	s.tensor(t.Sparse)
	if t.Ref == nil || t.Ref.Location == "" || t.Sparse != nil || t.Known() || t.Type == graph.String {
		return
	}
	n, _ := t.Elems()
	size, _ := t.Bytes()
	if n == 0 || n > limit(t.Type) || t.Type.IsFloat() && n > maxSideFloats {
		return
	}
	f := s.open(t.Ref.Location)
	if f == nil {
		return
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, t.Ref.Offset); err != nil || t.Ref.Length != -1 && t.Ref.Length != size {
		s.model.Warnings = append(s.model.Warnings, graph.Warning{
			Code:    "external-data",
			Message: fmt.Sprintf("tensor %q: %s does not hold its %d bytes at %d", t.Name, t.Ref.Location, size, t.Ref.Offset),
		})
		return
	}
	decodeRaw(t, n, raw)
}

// open returns the file at location, or nil.
func (s *sideReader) open(location string) *os.File {
	f, known := s.files[location]
	if known || !filepath.IsLocal(location) {
		return f
	}
	f, _, err := open(filepath.Join(s.dir, filepath.FromSlash(location)))
	if err != nil {
		f = nil
	}
	s.files[location] = f
	return f
}
