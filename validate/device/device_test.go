package device

import (
	"errors"
	"strings"
	"testing"

	"github.com/memplan/memplan/validate"
)

// TestFind: every row is found by its name, numbered where there can be several,
// and opens the device with that number.
func TestFind(t *testing.T) {
	table := Table
	defer func() { Table = table }()
	opened := -1
	Table = []Entry{
		{Name: "many", Many: true, Open: func(n int) (validate.Device, error) { opened = n; return nil, nil }}, //nolint:nilnil // no device is needed
		{Name: "one", Open: func(n int) (validate.Device, error) { opened = 100 + n; return nil, nil }},        //nolint:nilnil // no device is needed
	}
	for _, tt := range []struct {
		text string
		want int    // ordinal opened
		err  string // what the error says
	}{
		{"many", 0, ""}, {"many:0", 0, ""}, {"many:3", 3, ""}, {"one", 100, ""},
		{"one:0", 0, "there is one one"}, {"many:", 0, "want many:N"}, {"many:x", 0, "want many:N"}, {"many:-1", 0, "want many:N"}, {"many:1:2", 0, "want many:N"},
		{"three", 0, "unknown"}, {"", 0, "unknown"},
	} {
		open, err := Find(tt.text)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || (tt.err == "unknown") != errors.Is(err, ErrUnknown) {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if _, err := open(); err != nil || opened != tt.want {
			t.Errorf("%q opens %d, %v", tt.text, opened, err)
		}
	}
}
