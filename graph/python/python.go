// Package python holds facts about the code of Python libraries: what their classes
// do that an exported file does not show. All of it is data, in libraries.txt; no
// other package names a class of a library.
package python

import (
	_ "embed"
	"slices"
	"strings"
	"sync"
)

// libraries has sections, "## NAME" and then rows; the file says what the rows are.
//
//go:embed libraries.txt
var libraries string

// section returns the rows of a section, one a line.
func section(name string) string {
	_, rest, ok := strings.Cut(libraries, "\n## "+name+"\n")
	if !ok {
		panic("libraries.txt has no section " + name)
	}
	end := strings.Index(rest, "\n## ")
	if end < 0 {
		end = len(rest)
	}
	end = len(strings.TrimRight(rest[:end], "\n"))
	return rest[:min(end+1, len(rest))] // with its last line's end; a part of libraries, not a copy
}

// A Place is a module of a model, as facts look at it.
type Place struct {
	Class  string   // qualified: "torchvision.models.resnet.BasicBlock"
	Around []string // classes of the modules around it, outermost first
	Root   string   // class of the model
	Module string   // name of the module
}

// A row is one line of the file.
type row struct {
	class, not, root, around, module pattern
	values                           []string
}

// read parses a line: a class, conditions, values.
func read(line string) row {
	fields := strings.Fields(line)
	r := row{class: pattern(fields[0])}
	to := map[string]*pattern{"not": &r.not, "root": &r.root, "in": &r.around, "module": &r.module}
	for _, f := range fields[1:] {
		if key, p, ok := strings.Cut(f, "="); ok && to[key] != nil {
			*to[key] = pattern(p)
		} else {
			r.values = append(r.values, f)
		}
	}
	return r
}

// holds reports whether a row applies to a place.
func (r *row) holds(p *Place) bool {
	return r.class.matches(p.Class) &&
		(r.not == "" || !r.not.matches(p.Class)) &&
		(r.root == "" || r.root.matches(p.Root)) &&
		(r.module == "" || r.module.matches(p.Module)) &&
		(r.around == "" || slices.ContainsFunc(p.Around, r.around.matches))
}

// A pattern is a name in which * stands for any text, dots included.
type pattern string

func (p pattern) matches(name string) bool {
	head, rest, star := strings.Cut(string(p), "*")
	if !star {
		return name == head
	}
	name, ok := strings.CutPrefix(name, head)
	for ok {
		var next string
		if next, rest, star = strings.Cut(rest, "*"); !star {
			return strings.HasSuffix(name, next)
		}
		_, name, ok = strings.Cut(name, next)
	}
	return false
}

// A Fact is one section of the file.
type Fact struct {
	name string
	rows func() []row
}

func fact(name string) *Fact {
	return &Fact{name, sync.OnceValue(func() (rows []row) {
		for line := range strings.Lines(section(name)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				rows = append(rows, read(line))
			}
		}
		return rows
	})}
}

// Of reports whether the fact holds of a class, wherever it stands.
func (f *Fact) Of(class string) bool { return f.At(&Place{Class: class}) }

// At reports whether the fact holds at a place.
func (f *Fact) At(p *Place) bool {
	_, ok := f.Values(p)
	return ok
}

// Values returns the values of the first row that holds at a place.
func (f *Fact) Values(p *Place) (values []string, ok bool) {
	for i := range f.rows() {
		if r := &f.rows()[i]; r.holds(p) {
			return r.values, true
		}
	}
	return nil, false
}
