package layout

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/quote"
)

// An instance that is read comes back from what is written of it, its
// identifiers as quote.CSV writes them. The seeds lie in testdata/fuzz.
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
		written := map[string]bool{}
		for i := range list {
			list[i].ID = quote.CSV(list[i].ID)
			written[list[i].ID] = true
		}
		again, err := ReadCSV(&out)
		if len(written) < len(list) { // +a and '+a are written alike
			if err == nil {
				t.Errorf("%+v is read back", list)
			}
			return
		}
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%+v becomes %+v, %v", list, again, err)
		}
	})
}
