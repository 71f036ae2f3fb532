package bounded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Decode decodes a JSON document into v, if its memory is within Decoded. Errors
// describe the JSON by its keys, not by Go's types.
func Decode(data []byte, v any) error {
	if err := JSON(data, Decoded); err != nil {
		return err
	}
	return Explain(json.Unmarshal(data, v))
}

// Explain rewords an error of encoding/json in terms of JSON.
func Explain(err error) error {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case err == nil, errors.Is(err, io.EOF): // io.EOF: there is no document at all
		return err
	case errors.As(err, &syntax):
		return fmt.Errorf("byte %d: %s", syntax.Offset, strings.TrimPrefix(syntax.Error(), "json: "))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the document ends early")
	case errors.As(err, &mismatch):
		at := mismatch.Field
		if at == "" {
			at = "the document"
		}
		return fmt.Errorf("byte %d: %s is a JSON %s, want %s", mismatch.Offset, at, mismatch.Value, wanted(mismatch.Type))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// wanted returns the JSON type that a Go type is written as.
func wanted(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct, reflect.Interface:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number in range"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, not negative and in range"
	}
	return "a whole number in range"
}
