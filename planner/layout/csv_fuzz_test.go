package layout

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// An instance that is read comes back from what is written of it. The seeds lie
// in testdata/fuzz.
func FuzzReadCSV(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ReadCSV(strings.NewReader(text))
		if err != nil {
			if err.Error() == "" {
				t.Error("an empty error")
			}
			return
		}
		for _, b := range list {
			if b.Lower > maxTime || b.Upper > maxTime || b.Lower < -maxTime || b.Upper < -maxTime {
				t.Errorf("times of %+v", b)
			}
		}
		var out bytes.Buffer
		if err := WriteCSV(&out, list, make([]int64, len(list))); err != nil {
			t.Fatal(err)
		}
		again, err := ReadCSV(&out)
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%+v becomes %+v, %v", list, again, err)
		}
	})
}
