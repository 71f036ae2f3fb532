// Package report writes memplan's answers: one table of formats for each kind
// of answer, with the same words for the same thing in all of them.
package report

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/quote"
)

// A Style is the style of text for people.
type Style struct {
	Color bool
	Width int // columns; 0: a width that fits most terminals
}

// A Format is one way to write a T. Its function gets a copy in which every
// text has been quoted for a line of text (quote.All), unless it is Exact: then
// it gets the value itself, and quotes texts from files by its own rules.
type Format[T any] struct {
	Name  string
	Write func(w io.Writer, v T, s Style) error
	Exact bool
}

// AsJSON returns the format that writes a document: its names are exact.
func AsJSON[T any](document func(v T) any) Format[T] {
	return Format[T]{Name: "json", Write: func(w io.Writer, v T, _ Style) error { return JSON(w, document(v)) }, Exact: true}
}

// Itself returns a value that is its own document.
func Itself[T any](v T) any { return v }

// Names lists the formats of a table in order, the default first.
func Names[T any](table []Format[T]) []string {
	out := make([]string, len(table))
	for i := range table {
		out[i] = table[i].Name
	}
	return out
}

// Write writes v in the format of that name, which the table must have.
func Write[T any](w io.Writer, table []Format[T], name string, v T, s Style) error {
	for i := range table {
		if table[i].Name != name {
			continue
		}
		if !table[i].Exact {
			v = quote.All(v)
		}
		return table[i].Write(w, v, s)
	}
	panic("report: format " + name + " is not in the table")
}

// JSON writes a document: indented, without escapes for HTML, and with empty
// arrays and objects for nil slices and maps. Strings are exact, except for
// bytes that are not UTF-8.
func JSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(filled(reflect.ValueOf(v)).Interface()); err != nil {
		return err
	}
	_, err := w.Write(quote.JSON(b.Bytes()))
	return err
}

// filled returns a copy of v in which no slice and no map is nil, except in
// values that encode themselves.
func filled(v reflect.Value) reflect.Value {
	if !v.IsValid() || v.Type().Implements(reflect.TypeFor[json.Marshaler]()) {
		return v
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(filled(v.Elem()))
		return p
	case reflect.Struct:
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				c.Field(i).Set(filled(v.Field(i)))
			}
		}
		return c
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(filled(v.Index(i)))
		}
		return c
	case reflect.Map:
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			c.SetMapIndex(it.Key(), filled(it.Value()))
		}
		return c
	}
	return v
}

// size writes bytes with four significant digits and a binary unit.
var size = profile.FormatBytes

// signed writes a change of bytes.
func signed(n int64) string {
	if n > 0 {
		return "+" + size(n)
	}
	return size(n)
}

// share returns n as a percentage of all.
func share(n, all int64) float64 { return 100 * float64(n) / float64(max(all, 1)) }

// paint colours s; colour never carries meaning alone.
func paint(on bool, code, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// SGR codes.
const (
	bold    = "1"
	green   = "32;1"
	red     = "31;1"
	yellow  = "33"
	blue    = "34"
	magenta = "35"
	cyan    = "36"
)

// Plural writes a number and its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Either lists words as alternatives.
func Either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// moduleName returns a module's name for people: the model itself has none.
func moduleName(m string) string {
	if m == "" {
		return "(model)"
	}
	return m
}

// joined returns a segment's modules in one text.
func joined(modules []string) string { return strings.Join(modules, " + ") }

// A warningGroup is the warnings of one code.
type warningGroup struct {
	code, text string
	count      int
}

// grouped returns warnings by code, in order of first appearance.
func grouped(r *planner.Report) []warningGroup {
	var out []warningGroup
	at := map[string]int{}
	for _, x := range r.Warnings {
		i, ok := at[x.Code]
		if !ok {
			i = len(out)
			at[x.Code] = i
			text := x.Message
			if x.Node != "" {
				text = x.Node + ": " + text
			}
			out = append(out, warningGroup{code: x.Code, text: text})
		}
		out[i].count++
	}
	return out
}

// others returns the groups of warnings that do not come first in a report.
func others(r *planner.Report) []warningGroup {
	return slices.DeleteFunc(grouped(r), func(g warningGroup) bool { return planner.IsDoubt(g.code) })
}

// Warnings returns warnings as lines, one for each code.
func Warnings(list []graph.Warning) []string {
	var out []string
	for _, g := range grouped(&planner.Report{Warnings: list}) {
		out = append(out, g.String())
	}
	return out
}

// String returns the group in one line.
func (g *warningGroup) String() string { return g.first() + g.others() }

// first is the group's first warning.
func (g *warningGroup) first() string { return g.text + " [" + g.code + "]" }

// others returns the count of the group's other warnings.
func (g *warningGroup) others() string {
	if g.count < 2 {
		return ""
	}
	return " and " + strconv.Itoa(g.count-1) + " more like it"
}
