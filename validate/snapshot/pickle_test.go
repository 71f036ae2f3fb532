package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

// run gives a script to Python, and skips where there is none.
func run(t *testing.T, script string, args ...string) []byte {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	out, err := exec.CommandContext(t.Context(), python, append([]string{"-c", script}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return out
}

// writer pickles random plain data in every protocol, with shared lists and
// strings, and writes each in hexadecimal with what it means as JSON.
const writer = `
import json, pickle, pickletools, random
def value(r, depth, seen):
    k = r.randrange(11 if depth else 7)
    if k == 0: return None
    if k == 1: return r.random() < .5
    if k == 2: return r.choice([0, 1, -1, 127, 128, 255, 256, 65535, 65536, -2**31, 2**31 - 1, 2**31, 2**47, -2**63, 2**63 - 1, r.randrange(-2**63, 2**63)])
    if k == 3: return r.random() * 10 ** r.randrange(-9, 9)
    if k in (4, 5, 6): return r.choice(['', 'a', 'segment_alloc', 'é', '雪', '\U0001f40d', 'a\\b\nc\x00\r\x1a', '\\u0041', 'x' * 300, 'y' * 70000][:10 if r.random() < .05 else 9])
    if k == 7 and seen: return r.choice(seen)
    if k == 8: x = tuple(value(r, depth - 1, seen) for _ in range(r.randrange(5)))
    elif k == 9: x = {str(i) * r.randrange(1, 3): value(r, depth - 1, seen) for i in range(r.choice([0, 1, 2, 5, 1500 if r.random() < .02 else 3]))}
    else: x = [value(r, depth - 1, seen) for _ in range(r.choice([0, 1, 2, 3, 2500 if r.random() < .02 else 4]))]
    seen.append(x)
    return x
for seed in range(60):
    r = random.Random(seed)
    v = value(r, 4, [])
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for data in (pickle.dumps(v, protocol), pickletools.optimize(pickle.dumps(v, protocol)), pickle._dumps(v, protocol)):
            print(json.dumps(dict(name=f'seed {seed}, protocol {protocol}', pickle=data.hex(), value=v)))
`

// plain returns a value as encoding/json with UseNumber has it.
func plain(v any) any {
	switch x := v.(type) {
	case int64:
		return json.Number(fmt.Sprint(x))
	case float64:
		b, _ := json.Marshal(x) // a number that Python could write
		return json.Number(b)
	case *list:
		out := []any{}
		for _, i := range x.items {
			out = append(out, plain(i))
		}
		return out
	case *dict:
		out := map[string]any{}
		for i := 0; i < len(x.items); i += 2 {
			out[x.items[i].(string)] = plain(x.items[i+1])
		}
		return out
	}
	return v
}

// numbers makes equal numbers equal texts.
func numbers(v any) any {
	switch x := v.(type) {
	case json.Number:
		if strings.ContainsAny(string(x), ".eE") {
			f, _ := x.Float64() // which JSON's grammar allows
			return f
		}
		return string(x)
	case []any:
		for i := range x {
			x[i] = numbers(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = numbers(x[k])
		}
	}
	return v
}

// What Python's pickle writes, in any protocol, reads back as the same value.
func TestUnpickle(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(run(t, writer)))
	d.UseNumber()
	n := 0
	for ; d.More(); n++ {
		var c struct {
			Name, Pickle string
			Value        any
		}
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		var data []byte
		if _, err := fmt.Sscanf(c.Pickle, "%x", &data); err != nil {
			t.Fatal(err)
		}
		v, err := unpickle(data, 1<<30)
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if got, want := numbers(plain(v)), numbers(c.Value); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %.200v, want %.200v", c.Name, got, want)
		}
		if _, err := unpickle(data[:len(data)-1], 1<<30); err == nil {
			t.Fatalf("%s: read though it is cut off", c.Name)
		}
	}
	if n < 1000 {
		t.Errorf("%d pickles", n)
	}
}

// objects are pickles that would run code, or make what is no plain data.
const objects = `
import pickle, os, collections, datetime, sys
class Run:
    def __init__(self, *call): self.call = call
    def __reduce__(self): return self.call
path = sys.argv[1]
for v in (Run(os.system, ('touch ' + path,)), Run(eval, (f'open({path!r}, "w")',)), {'segments': [Run(open, (path, 'w'))]}, os.system, collections.OrderedDict(a=1), datetime.date(2020, 1, 1), 1 + 2j, Exception('x'), slice):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        print(pickle.dumps(v, protocol).hex())
print((b"(i__main__\nRun\n.").hex()); print((b"cos\nsystem\n(S'touch " + path.encode() + b"'\ntR.").hex()); print((b"\x80\x02Ppersistent\n.").hex()); print((b"\x80\x02\x82\x01.").hex())
`

// Nothing but plain data is read: each is refused, by name, and nothing runs.
func TestNoObjects(t *testing.T) {
	path := t.TempDir() + "/ran"
	lines := strings.Fields(string(run(t, objects, path)))
	if len(lines) < 50 {
		t.Fatalf("%d pickles", len(lines))
	}
	for _, line := range lines {
		var data []byte
		if _, err := fmt.Sscanf(line, "%x", &data); err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(data, 1<<30); err == nil || !strings.Contains(err.Error(), "makes a Python object") && !strings.Contains(err.Error(), "no opcode of a memory snapshot") {
			t.Errorf("%q: %v", data, err)
		}
	}
	if _, err := exec.Command("test", "-e", path).Output(); err == nil {
		t.Error("a pickle ran")
	}
}

// Damaged pickles are errors that say where.
func TestDamaged(t *testing.T) {
	for data, want := range map[string]string{
		"":                             "ends within",
		"\x80\x04":                     "ends within",
		"hello":                        "byte 0: ", // h recalls a value that is not there
		"\x80\x04u.":                   "byte 2: an opcode lacks its operands",
		"\x80\x04}u.":                  "byte 3: an opcode lacks its operands",
		"\x80\x04](K\x01K\x02u.":       "an opcode lacks its operands",
		"\x80\x04}(K\x01u.":            "an opcode lacks its operands",
		"\x80\x04a.":                   "an opcode lacks its operands",
		"\x80\x04\x86.":                "an opcode lacks its operands",
		"\x80\x04(0.":                  "an opcode lacks its operands",
		"\x80\x04h\x05.":               "an opcode lacks its operands",
		"\x80\x04X\xff\xff\xff\xffa.":  "ends within",
		"\x80\x04\x8b\xff\xff\xff\xff": "ends within",
		"\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.": "more than 64 bits",
		"I99999999999999999999\n.":                              "no integer of 64 bits",
		"L5x\n.":                                                "no integer",
		"Fx\n.":                                                 "no number",
		"p-1\n":                                                 "no index of the memo",
		"\x7fELF":                                               "0x7f is no opcode",
		"{\"schemaVersion\": 1}":                                "0x7b is no opcode",
		"\x80\x04K\x01.":                                        "no dictionary",
		"\x80\x04}.":                                            "no list of segments",
		"\x80\x04}(X\x08\x00\x00\x00segmentsK\x01u.":                                   "no list of segments",
		"\x80\x04}(X\x08\x00\x00\x00segments](K\x01eu.":                                "segment 0 is no dictionary",
		"\x80\x04}(X\x08\x00\x00\x00segments](}eu.":                                    "lacks an address",
		"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](K\x01eu.": "trace of device 0 is no list",
	} {
		if _, err := Decode([]byte(data), 1<<20); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", data, err, want)
		}
	}
}

// bombs are small pickles that stand for much.
func bombs() map[string][]byte {
	text := func(s string) string { return fmt.Sprintf("X%c\x00\x00\x00%s", len(s), s) }
	entries := text("address") + "K\x01" + text("total_size") + "K\x01" + text("size") + "K\x01" + text("state") + text("active_allocated")
	block := "}(" + entries + "u"
	shared := func(n int, item string) string { // a list of n references to one value
		return "](" + item + "q\x01" + strings.Repeat("h\x01", n) + "e"
	}
	segment := "}(" + entries + text("blocks") + shared(20000, block) + "u"
	doubled := "]q\x00" + strings.Repeat("]q\x01(h\x00h\x00eq\x00", 500)
	return map[string][]byte{
		"segments":  []byte("\x80\x02}(" + text("segments") + "](" + segment + "q\x02" + strings.Repeat("h\x02", 20000) + "eu."),
		"doubling":  []byte("\x80\x02" + doubled + "."),
		"marks":     bytes.Repeat([]byte("("), 1<<20),
		"lists":     bytes.Repeat([]byte("]"), 1<<20),
		"duplicate": append([]byte("]"), bytes.Repeat([]byte("2"), 1<<20)...),
		"nested":    append(bytes.Repeat([]byte("(]"), 1<<19), bytes.Repeat([]byte("l"), 1<<19)...),
		"memo":      append([]byte("]"), bytes.Repeat([]byte("\x94"), 1<<20)...),
	}
}

// TestBombs: small files that stand for much take no more memory than the limit, and little time.
func TestBombs(t *testing.T) {
	const most = 16 << 20
	for name, data := range bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		if _, err := Decode(data, most); err == nil {
			t.Errorf("%s: read", name)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8*most {
			t.Errorf("%s: %d bytes were allocated for one of %d", name, n, len(data))
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, data := range bombs() {
		f.Add(data[:min(len(data), 4096)])
	}
	f.Add([]byte("\x80\x02}(X\x08\x00\x00\x00segments](}(X\x07\x00\x00\x00addressK\x01X\x0a\x00\x00\x00total_sizeK\x09X\x06\x00\x00\x00blocks]ueX\x0d\x00\x00\x00device_traces](](}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x01X\x04\x00\x00\x00sizeK\x05ueeu."))
	f.Add([]byte("(dVsegments\np0\n(lp1\ns."))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Decode(data, 1<<22)
		if err != nil {
			return
		}
		for i := range s.Devices {
			d := &s.Devices[i]
			for _, x := range d.Tensors() {
				if x.Bytes < 0 || x.Alloc < -1 || x.Free <= x.Alloc || x.Free > len(d.Events) || int(x.Stack) >= len(s.Stacks) {
					t.Fatalf("%+v of %d events", x, len(d.Events))
				}
			}
			d.mostReserved()
		}
		s.Busiest()
	})
}
