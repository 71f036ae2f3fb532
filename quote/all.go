package quote

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// All returns a copy of v in which every string, including keys of maps, has
// been through Text; v stays unchanged. It panics for a type with strings that
// it cannot change, in fields that are not exported.
func All[T any](v T) T {
	var out T
	reflect.ValueOf(&out).Elem().Set(copied(reflect.ValueOf(&v).Elem()))
	return out
}

// copied returns a copy of a value.
func copied(v reflect.Value) reflect.Value {
	if !holdsText(v.Type()) {
		return v
	}
	c := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		c.SetString(Text(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			c.Set(reflect.New(v.Type().Elem()))
			c.Elem().Set(copied(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			c.Set(copied(v.Elem()))
		}
	case reflect.Struct:
		copyFields(c, v)
	case reflect.Slice:
		if !v.IsNil() {
			c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			copyElements(c, v)
		}
	case reflect.Array:
		copyElements(c, v)
	case reflect.Map:
		if !v.IsNil() {
			c.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			copyEntries(c, v)
		}
	}
	return c
}

func copyFields(c, v reflect.Value) {
	c.Set(v)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case !holdsText(f.Type):
		case !f.IsExported():
			panic(fmt.Sprintf("quote: the text in %v.%s cannot be quoted: export the field, or let the format quote itself (Exact)", v.Type(), f.Name))
		default:
			c.Field(i).Set(copied(v.Field(i)))
		}
	}
}

func copyElements(c, v reflect.Value) {
	for i := range v.Len() {
		c.Index(i).Set(copied(v.Index(i)))
	}
}

// copyEntries copies entries in the order of keys: of keys that are quoted
// alike the last one counts, in every run.
func copyEntries(c, v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for _, k := range keys {
		c.SetMapIndex(copied(k), copied(v.MapIndex(k)))
	}
}

// known caches the results of holdsText.
var known sync.Map

// holdsText reports whether values of a type can hold strings, except in
// functions.
func holdsText(t reflect.Type) bool {
	if answer, ok := known.Load(t); ok {
		return answer.(bool)
	}
	answer := reaches(t, map[reflect.Type]bool{})
	known.Store(t, answer)
	return answer
}

// reaches reports whether a type contains strings; seen are the types around
// it.
func reaches(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false // being examined already
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.String, reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return reaches(t.Elem(), seen)
	case reflect.Map:
		return reaches(t.Key(), seen) || reaches(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if reaches(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
