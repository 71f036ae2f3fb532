package program

import (
	"path"
	"reflect"
	"regexp"
	"runtime"
	"strings"
)

// module is the prefix of all function names of this repository.
const module = "github.com/memplan/memplan/"

// closure matches the end of a closure's name.
var closure = regexp.MustCompile(`(\.func\d+(\.\d+)*)+$`)

// Where returns the file and the name of a function of this repository: "graph/aten/ops_norm.go runLayerNorm". For a
// closure it is the function that makes it.
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
