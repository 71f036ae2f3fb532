package monitor

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// What is recorded is replayed.
func TestRecording(t *testing.T) {
	var b bytes.Buffer
	targets, devices := []Target{{GPU: 0, PID: 7}, {GPU: 3, PID: 7}}, []string{"card \"a\"", "b\n"}
	r, err := NewRecording(&b, targets, devices)
	if err != nil {
		t.Fatal(err)
	}
	var want []Sample
	for i := range 10 {
		s := Sample{Used: int64(i) << 30, Total: 1 << 40}
		if err := r.Add(i%2, time.Duration(i)*250*time.Millisecond, s); err != nil {
			t.Fatal(err)
		}
		s.At = time.Unix(0, 0).Add(time.Duration(i) * 250 * time.Millisecond)
		want = append(want, s)
	}
	p, err := newReplay(&b)
	if err != nil || !reflect.DeepEqual(p.Targets, targets) || !reflect.DeepEqual(p.Devices, devices) {
		t.Fatalf("%+v, %v", p, err)
	}
	for i, w := range want {
		target, s, err := p.Next()
		if err != nil || target != i%2 || s != w {
			t.Errorf("reading %d is %+v of %d, %v; want %+v", i, s, target, err, w)
		}
	}
	if _, _, err := p.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// TestDamagedRecording: each line that is no reading is named.
func TestDamagedRecording(t *testing.T) {
	const head = `{"schemaVersion":1,"gpus":[{"gpu":0,"device":"c"}]}` + "\n" + `{"seconds":1,"gpu":0,"usedBytes":1,"totalBytes":2}` + "\n"
	for text, want := range map[string]string{
		"": "no lines", "{}": "line 1", "x": "line 1", `{"schemaVersion":2,"gpus":[{}]}`: "line 1", `{"schemaVersion":1,"gpus":[]}`: "line 1",
		head + "x": "line 3 is no reading", head + `{"gpu":1,"seconds":1}`: "line 3 is of device 1 of 1", head + `{"gpu":-1}`: "line 3 is of device -1",
		head + `{"seconds":0.5}`: "line 3 is at 0.5 s, after one at 1 s", head + `{"seconds":1e300}`: "line 3 is at", head + `{"seconds":2,"usedBytes":-1}`: "line 3: -1 bytes",
		head + `{"seconds":2,"usedBytes":9223372036854775807}`: "no GPU's memory", head + strings.Repeat("x", longestLine+1): "line 3 is no reading",
	} {
		p, err := newReplay(strings.NewReader(text))
		for err == nil {
			_, _, err = p.Next()
		}
		if errors.Is(err, io.EOF) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}
