package bounded_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/bounded"
)

// Errors speak of the document, never of Go's types.
func TestDecode(t *testing.T) {
	type inner struct {
		Bytes int64    `json:"bytes"`
		Names []string `json:"names"`
		Fits  *bool    `json:"fits"`
		Time  float64  `json:"time"`
	}
	type doc struct {
		Peak inner            `json:"peak"`
		Dims map[string]uint8 `json:"dims"`
	}
	for _, c := range []struct{ text, want string }{
		{`{"peak":{"bytes":"x"}}`, "byte 20: peak.bytes is a JSON string, want a whole number in range"},
		{`{"peak":{"bytes":1e99}}`, "peak.bytes is a JSON number 1e99, want a whole number in range"},
		{`{"peak":{"names":3}}`, "peak.names is a JSON number, want an array"},
		{`{"peak":{"fits":[]}}`, "peak.fits is a JSON array, want true or false"},
		{`{"peak":{"time":"a"}}`, "want a number in range"},
		{`{"dims":{"a":-1}}`, "want a whole number, not negative and in range"},
		{`[]`, "the document is a JSON array, want an object"},
		{`{"peak":`, "byte 8: unexpected end of JSON input"},
		{`{x}`, "byte 2: invalid character 'x'"},
		{strings.Repeat("[", 1000), "nested more than 128 deep"},
	} {
		err := bounded.Decode([]byte(c.text), &doc{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
			continue
		}
		for _, word := range []string{"Go ", "struct", "int64", "bounded_test", "unmarshal"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v has %q", c.text, err, word)
			}
		}
	}
	if err := bounded.Decode([]byte(`{"peak":{"bytes":5}}`), &doc{}); err != nil {
		t.Error(err)
	}
}
