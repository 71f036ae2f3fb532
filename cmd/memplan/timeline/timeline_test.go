package timeline

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/planner"
)

// A measured step is one whose report is known.
type measured struct {
	*Step
	reserved int64
}

// step is a steady step of a sample model.
func step(t testing.TB, model string, cfg planner.Config) *Step { return reported(t, model, cfg).Step }

func reported(t testing.TB, model string, cfg planner.Config) measured {
	t.Helper()
	m, err := planner.Open(filepath.Join("..", "..", "..", "models", model))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	placement, err := r.Placement()
	if err != nil {
		t.Fatal(err)
	}
	return measured{&Step{Title: model + " & <others>", Events: r.Timeline(), Before: r.Standing(), Stack: r.Stack(), Placement: placement}, r.Peak.ReservedBytes}
}

func steps(t testing.TB) map[string]*Step {
	return map[string]*Step{
		"train":     step(t, "resnet50.onnx", planner.Config{Batch: 2}),
		"inference": step(t, "mlp.onnx", planner.Config{Batch: 2, Mode: "infer"}),
	}
}

func file(t testing.TB, ending string, s *Step) []byte {
	t.Helper()
	f, err := FormatOf("x" + ending)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := f.Write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFormatOf(t *testing.T) {
	for i := range Formats {
		name := "dir.d/x" + strings.ToUpper(Formats[i].Ending)
		if f, err := FormatOf(name); err != nil || f != &Formats[i] {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"x", "x.", "x.gif", "json", ""} {
		if _, err := FormatOf(name); err == nil || !strings.Contains(err.Error(), ".csv") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// JSON and CSV read back as the same events.
func TestData(t *testing.T) {
	for name, s := range steps(t) {
		var doc Document
		if err := json.Unmarshal(file(t, ".json", s), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.SchemaVersion != 1 || !reflect.DeepEqual(doc.Events, s.Events) {
			t.Errorf("%s: JSON does not read back", name)
		}
		rows, err := csv.NewReader(bytes.NewReader(file(t, ".csv", s))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) != len(s.Events)+1 {
			t.Fatalf("%s: %d rows for %d events", name, len(rows), len(s.Events))
		}
		for i, r := range rows[1:] {
			id, _ := strconv.ParseInt(r[2], 10, 64)
			n, _ := strconv.ParseInt(r[3], 10, 64)
			if got := (planner.TimelineEvent{Phase: r[0], Kind: r[1], ID: id, Bytes: n, Op: r[4], Node: r[5], Module: r[6]}); got != s.Events[i] {
				t.Fatalf("%s: row %d reads %+v, want %+v", name, i, got, s.Events[i])
			}
		}
	}
}

// The chart is an XML document of the drawn size, with a name for every
// category that has bytes and for the long phases.
func TestSVG(t *testing.T) {
	for name, s := range steps(t) {
		text := xmlText(t, file(t, ".svg", s))
		want := []string{s.Title, "forward"}
		for k, category := range s.Stack.Categories {
			for i := range s.Stack.Points {
				if s.Stack.Points[i].Bytes[k] > 0 {
					want = append(want, category)
					break
				}
			}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in the chart", name, w)
			}
		}
	}
}

// xmlText returns the text of a document, which must be well-formed.
func xmlText(t *testing.T, data []byte) string {
	t.Helper()
	var sb strings.Builder
	d := xml.NewDecoder(bytes.NewReader(data))
	root := ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := tok.(type) {
		case xml.StartElement:
			if root == "" {
				root = x.Name.Local
			}
		case xml.CharData:
			sb.Write(x)
			sb.WriteByte(' ')
		}
	}
	if root != "svg" {
		t.Errorf("the root is <%s>", root)
	}
	return sb.String()
}

// The pixels are those of the chart: the lowest of the drawing has the first
// category's colour, and there is more than one colour.
func TestPNG(t *testing.T) {
	for name, s := range steps(t) {
		img, err := png.Decode(bytes.NewReader(file(t, ".png", s)))
		if err != nil {
			t.Fatal(err)
		}
		colors := map[string]int{}
		for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
			for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
				r, g, b, _ := img.At(x, y).RGBA()
				colors[fmt.Sprintf("%02x%02x%02x", r>>8, g>>8, b>>8)]++
			}
		}
		r, g, b, _ := palette[0].RGBA()
		if first := fmt.Sprintf("%02x%02x%02x", r>>8, g>>8, b>>8); colors[first] < 1000 || img.Bounds().Dx() < 800 {
			t.Errorf("%s: %v, %d pixels of the first category", name, img.Bounds(), colors[first])
		}
	}
}

// A step without anything in it still draws.
func TestChartOfNothing(t *testing.T) {
	for _, s := range []*Step{
		{Stack: &planner.Stack{Categories: []string{"parameters"}, Points: []planner.StackPoint{{Phase: "forward", Bytes: []int64{0}}}}, Placement: &planner.Placement{}},
		{Stack: &planner.Stack{Categories: []string{"parameters"}, Points: []planner.StackPoint{{Phase: "forward", Bytes: []int64{5}}}}, Placement: &planner.Placement{}},
	} {
		for _, ending := range []string{".svg", ".png", ".json", ".csv", ".pickle", ".trace"} {
			if len(file(t, ending, s)) == 0 {
				t.Errorf("%s: nothing", ending)
			}
		}
	}
}

// reader is a script that reads a snapshot as memory_viz does: addresses are
// allocated and freed in turn, and what is freed without having been allocated
// was there before. Backward from the segments at the end, all that is in use lies in
// a segment at all times, and nothing overlaps. With PyTorch its own reader runs, too.
const reader = `
import bisect, json, pickle, sys
snapshot = pickle.load(open(sys.argv[1], 'rb'))
trace, = snapshot['device_traces']
live, older, requested, out, entries = {}, 0, None, [], []
now = most = 0
for e in trace:
    assert set(e) == {'action', 'addr', 'size', 'stream', 'time_us', 'frames'} and 0 < e['addr'] < 2**53, e
    assert all(set(f) == {'name', 'filename', 'line'} for f in e['frames']), e
    if e['action'] == 'alloc':
        assert e['addr'] not in live, 'allocated twice'
        live[e['addr']] = e['size']
        now += e['size']
        most = max(most, now)
    elif e['action'] == 'free_requested':
        requested = e['addr']
        continue
    elif e['action'] == 'free_completed':
        assert requested == e['addr'], e
        now -= e['size']
        if live.pop(e['addr'], None) is None:
            older += e['size']
    else:
        continue
    frames = [(f['filename'], f['line'], f['name']) for f in e['frames']]
    out.append([e['action'] == 'alloc', e['size'], e['time_us'], frames[0][2], frames[0][0], frames[-1][2], ' '.join(n for f, _, n in frames if f == 'module'), ''.join(n for f, l, n in frames if l)])
before, blocks, segments = older, {}, {}
for segment in snapshot['segments']:
    at = segment['address']
    segments[at] = segment['total_size']
    assert segment['device'] == segment['stream'] == 0 and segment['segment_type'] in ('small', 'large'), segment
    for b in segment['blocks']:
        assert b['address'] == at and b['requested_size'] <= b['size'], b
        at += b['size']
        if b['state'] == 'active_allocated':
            assert b['frames'], b
            blocks[b['address']] = b['requested_size']
            if b['address'] not in live: before += b['requested_size']
    assert at == segment['address'] + segment['total_size']
assert live.keys() <= blocks.keys() and all(blocks[a] == n for a, n in live.items())
def placed():
    starts, end = sorted(segments), 0
    for a in sorted(blocks):
        s = starts[bisect.bisect(starts, a) - 1]
        assert end <= a and s <= a and a + blocks[a] <= s + segments[s], (a, blocks[a], s)
        end = a + blocks[a]
reserved = sum(segments.values())
for i, e in enumerate(reversed(trace)):
    if i % 97 == 0: placed()
    if e['action'] == 'alloc': assert blocks.pop(e['addr']) == e['size'], e
    elif e['action'] == 'free_completed':
        assert e['addr'] not in blocks
        blocks[e['addr']] = e['size']
    elif e['action'] == 'segment_alloc': assert segments.pop(e['addr']) == e['size']
    elif e['action'] == 'segment_free': segments[e['addr']] = e['size']
    reserved = max(reserved, sum(segments.values()))
placed()
try: import torch.cuda._memory_viz as viz
except ImportError: viz = None
if viz:
    for f in (viz.segsum, viz.trace, viz.trace_plot, viz.segment_plot): assert f(snapshot)
    for f in (viz.segments, viz.memory): assert f(snapshot, format_flamegraph=lambda x: x)
json.dump({'peak': before + most, 'events': out, 'live': sum(live.values()), 'older': older, 'before': sum(blocks.values()), 'reserved': reserved}, sys.stdout)
`

// Python reads the snapshot as the events that were written, in segments that come to
// the report's reserved memory.
func TestPickle(t *testing.T) {
	python, err := exec.LookPath(cmp.Or(os.Getenv("MEMPLAN_PYTHON"), "python3"))
	if err != nil {
		t.Skip("no python3")
	}
	for name, s := range map[string]measured{
		"train":        reported(t, "resnet50.onnx", planner.Config{Batch: 2}),
		"inference":    reported(t, "mlp.onnx", planner.Config{Batch: 2, Mode: "infer"}),
		"checkpointed": reported(t, "gpt2.onnx", planner.Config{Batch: 2, Checkpoint: "all", Precision: "amp-bf16"}),
		"tight":        reported(t, "resnet50.onnx", planner.Config{Batch: 32, VRAM: 4 << 30, Headroom: "0", Checkpoint: "none"}),
	} {
		path := filepath.Join(t.TempDir(), "step.pickle")
		if err := os.WriteFile(path, file(t, ".pickle", s.Step), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), python, "-c", reader, path).Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, stderr(err))
		}
		var got struct {
			Events                              [][8]any
			Live, Older, Before, Peak, Reserved int64
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		var balance, k int64
		for i := range s.Events {
			e := &s.Events[i]
			if e.Bytes == 0 {
				continue
			}
			var modules []string
			for m := e.Module; m != ""; m = m[:max(0, strings.LastIndex(m, "."))] {
				modules = append(modules, m)
			}
			code := ""
			for _, l := range s.Placement.Events[i].Sources {
				code = l.Text + code
			}
			want := [8]any{e.Kind == "alloc", float64(e.Bytes), float64(i), e.Op, e.Node, e.Phase, strings.Join(modules, " "), code}
			if got.Events[k] != want {
				t.Fatalf("%s: event %d is %v, want %v", name, i, got.Events[k], want)
			}
			if k++; e.Kind == "alloc" {
				balance += e.Bytes
			} else {
				balance -= e.Bytes
			}
		}
		if len(got.Events) != int(k) {
			t.Fatalf("%s: %d events, want %d", name, len(got.Events), k)
		}
		var peak int64
		for i := range s.Stack.Points {
			peak = max(peak, s.Stack.Points[i].Total())
		}
		if got.Peak != peak || got.Before != s.Stack.Points[0].Total() {
			t.Errorf("%s: the snapshot has %d before and %d at its peak, the step %d and %d", name, got.Before, got.Peak, s.Stack.Points[0].Total(), peak)
		}
		if got.Live-got.Older != balance {
			t.Errorf("%s: %d bytes live at the end and %d older freed, want a difference of %d", name, got.Live, got.Older, balance)
		}
		if got.Reserved > s.reserved || name != "tight" && got.Reserved != s.reserved { // under a cap, the steps before may have had more
			t.Errorf("%s: segments of %d bytes, the report has %d reserved", name, got.Reserved, s.reserved)
		}
	}
}

func stderr(err error) []byte {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.Stderr
	}
	return nil
}

// Ticks are round, in order, and few enough to read.
func TestTicks(t *testing.T) {
	for _, top := range []float64{1, 7, 8, 9, 1000, 1 << 20, 3 << 30, 17e9, 1e12} {
		ticks := sizeTicks{}.Ticks(0, top)
		if len(ticks) < 2 || len(ticks) > 9 {
			t.Errorf("%d ticks up to %g", len(ticks), top)
		}
		for i := 1; i < len(ticks); i++ {
			if ticks[i].Value <= ticks[i-1].Value || ticks[i].Label == ticks[i-1].Label {
				t.Errorf("ticks %v", ticks)
			}
		}
	}
	for n, want := range map[int64]string{0: "0 B", 512: "512 B", 1 << 10: "1 KiB", 3 << 29: "1.5 GiB", 2 << 30: "2 GiB", 64 << 20: "64 MiB"} {
		if got := tickLabel(n); got != want {
			t.Errorf("%d is labelled %s, want %s", n, got, want)
		}
	}
}

// Fewer columns than points keep the highest point.
func TestReduce(t *testing.T) {
	var pts []planner.StackPoint
	for i := range 1000 {
		pts = append(pts, planner.StackPoint{Phase: "forward", Bytes: []int64{int64(i * 7919 % 1009), 1}})
	}
	for _, n := range []int{1, 3, 640, 1000, 5000} {
		columns, at := reduce(pts, n)
		most := int64(0)
		for i, c := range columns {
			most = max(most, c.Total())
			if i > 0 && at[i] <= at[i-1] {
				t.Fatalf("%d columns are out of order", n)
			}
		}
		if len(columns) != min(n, 1000) || most != 1009 {
			t.Errorf("%d columns: %d, highest %d", n, len(columns), most)
		}
	}
}
