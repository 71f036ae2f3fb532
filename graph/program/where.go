package program

import (
	"path"
	"reflect"
	"regexp"
	"runtime"
	"strings"
)

// module begins the name of every function of this repository.
const module = "github.com/memplan/memplan/"

// closure ends the name of a function within another.
var closure = regexp.MustCompile(`(\.func\d+(\.\d+)*)+$`)

// Where says in which file of the repository a function of it stands, and what it is called: "graph/aten/ops_norm.go
// runLayerNorm". A closure has the name of the function that makes it.
func Where(function any) string {
	f := runtime.FuncForPC(reflect.ValueOf(function).Pointer())
	file, _ := f.FileLine(f.Entry())
	name := closure.ReplaceAllString(strings.TrimPrefix(f.Name(), module), "")
	dir, last := path.Split(name)
	pkg, called, _ := strings.Cut(last, ".")
	if receiver, method, ok := strings.Cut(called, ")."); ok {
		called = strings.TrimPrefix(receiver, "(*") + "." + method
	} else {
		called = called[strings.LastIndexByte(called, '.')+1:]
	}
	return dir + pkg + "/" + path.Base(file) + " " + called
}
