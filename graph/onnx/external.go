package onnx

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
)

// maxSideFloats is the largest number of floats that are read from a file
// beside the model: scales, but not weights.
const maxSideFloats = 64

// A sideReader reads small tensors from the files beside a model: a shape in
// external data decides shapes like any other. Large tensors and absent files
// are ignored; files outside the model's folder, too, with a warning.
type sideReader struct {
	door   files.Door // of the model's folder
	model  *graph.Model
	at     string          // location of the file that is open
	open   *files.File     // nil: none, or one that cannot be read
	warned map[string]bool // locations outside the folder
}

// readBeside decodes the small external tensors of g, its subgraphs and
// functions that files beside the model hold.
func readBeside(g *graph.Graph, door files.Door) {
	s := &sideReader{door: door, model: g.Model, warned: map[string]bool{}}
	defer s.close()
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

func (s *sideReader) tensor(t *graph.Constant) {
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
	f := s.file(t)
	if f == nil {
		return
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, t.Ref.Offset); err != nil || t.Ref.Length != -1 && t.Ref.Length != size {
		s.warn("tensor %q: %s does not hold its %d bytes at %d", t.Name, t.Ref.Location, size, t.Ref.Offset)
		return
	}
	decodeRaw(t, n, raw)
}

// file returns the file that holds a tensor, or nil. One is open at a time:
// tensors name theirs one after the other.
func (s *sideReader) file(t *graph.Constant) *files.File {
	location := t.Ref.Location
	if s.at == location {
		return s.open
	}
	s.close()
	f, err := s.door.Open(location, files.ExternalData)
	s.at, s.open = location, f
	if out := new(files.OutsideError); errors.As(err, &out) && !s.warned[location] {
		s.warned[location] = true
		s.warn("tensor %q: %s leads out of the model's folder and is not read: --allow-outside reads it", t.Name, location)
	}
	return f
}

func (s *sideReader) close() {
	if s.open != nil {
		s.open.Close()
	}
}

func (s *sideReader) warn(format string, args ...any) {
	s.model.Warnings = append(s.model.Warnings, graph.Warning{Code: "external-data", Message: fmt.Sprintf(format, args...)})
}
