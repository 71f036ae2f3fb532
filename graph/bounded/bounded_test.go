package bounded_test

import (
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/bounded"
)

// Documents that JSON accepts take no more memory than its bound when
// encoding/json decodes them, and text within strings is not counted.
func TestJSON(t *testing.T) {
	const most = 32 << 20
	for _, c := range []struct {
		name, text string
		refused    bool
	}{
		{"objects", `[` + strings.Repeat("{},", 100_000) + `{}]`, false},
		{"more objects", `[` + strings.Repeat("{},", 120_000) + `{}]`, true},
		{"numbers", `[` + strings.Repeat("1,", 600_000) + `1]`, false},
		{"more numbers", `[` + strings.Repeat("1,", 800_000) + `1]`, true},
		{"deep", strings.Repeat("[", bounded.MaxDepth) + strings.Repeat("]", bounded.MaxDepth), false},
		{"deeper", strings.Repeat("[", bounded.MaxDepth+1) + strings.Repeat("]", bounded.MaxDepth+1), true},
		{"string", `["` + strings.Repeat(`{[,\"`, 1_000_000) + `"]`, false},
		{"cut short", `["` + strings.Repeat(`\`, 99), false},
	} {
		if err := bounded.JSON([]byte(c.text), most); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.refused {
			continue
		}
		var before, after runtime.MemStats
		var v any
		runtime.GC()
		runtime.ReadMemStats(&before)
		_ = json.Unmarshal([]byte(c.text), &v) // what it holds counts, valid or not
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > most+int64(len(c.text)) {
			t.Errorf("%s: holds %d bytes", c.name, held)
		}
		runtime.KeepAlive(v)
	}
}

// An endless file is an error, one of just the size is not.
func TestReadAll(t *testing.T) {
	if data, err := bounded.ReadAll(strings.NewReader("abcd"), 4); err != nil || string(data) != "abcd" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := bounded.ReadAll(endless{}, 1<<20); err == nil || err.Error() != "larger than 1048576 bytes" {
		t.Errorf("an endless file: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

var _ io.Reader = endless{}
