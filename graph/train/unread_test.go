package train

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/lift"
)

// TestUnread: of a list that a loop fills the file may have the last result
// alone. Each word is the number of a line of the source that ran.
func TestUnread(t *testing.T) {
	source := map[string]string{
		"1": "x = self.stem(x)",
		"3": "inner = self.inner[i](x)",
		"4": "x = inner + x",
		"5": "results.append(self.layer[i](x))",
		"6": "out[i] = self.head(x)",
		"8": "results.append(self.pool(image))",
		"9": "return self.last(x)",
	}
	for ran, want := range map[string]string{
		"1 3 4 3 4 3 4 5 9":   "5", // a pyramid whose last level is returned
		"1 3 4 6 3 4 3 4 6":   "6",
		"1 3 4 5 3 4 5 3 4 5": "", // all are there
		"1 3 4 3 4 9":         "", // what stands behind the loop collects nothing
		"1 3 4 3 4 8":         "", // or reads nothing that the loop names
		"1 3 4 5 9":           "", // no loop
	} {
		s := &sources{read: map[string][]statement{}, dels: map[string][]string{}}
		var items []item
		for i, w := range strings.Fields(ran) {
			items = append(items, item{first: i, last: i, line: lift.Line{File: "model.py", Number: int(w[0] - '0'), Text: source[w]}})
		}
		if line, ok := s.unread(items); ok != (want != "") || line.Text != source[want] {
			t.Errorf("%s: line %d, %v; want %q", ran, line.Number, ok, want)
		}
	}
}
