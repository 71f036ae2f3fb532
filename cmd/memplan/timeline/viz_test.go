package timeline

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/memplan/memplan/planner"
)

// remote are MemoryViz.js's imports, from a network; the page has D3 already.
var remote = regexp.MustCompile(`(?m)^import .* from "https://[^"]*";$`)

// vizPage is the page that `python -m torch.cuda._memory_viz trace_plot` writes, but for
// where its parts come from.
const vizPage = `<!doctype html><html><head><script src="/d3.js"></script></head><body><script type="module">
import {add_remote_files} from "/viz.js";
add_remote_files([{name: "step.pickle", url: "/step.pickle"}]);
</script></body></html>`

// vizSees waits until the page has drawn the snapshot and returns the highest
// points of its two timelines, and how much of it is drawn.
const vizSees = `new Promise(done => { const look = () => {
  const drawn = document.querySelectorAll('polygon').length;
  if (!drawn) return setTimeout(look, 50);
  const s = memplan.snapshot_cache['step.pickle'], live = memplan.process_alloc_data(s, 0, false, 15000), cached = memplan.process_alloc_data(s, 0, true, 15000);
  const top = Math.min(...[...document.querySelectorAll('polygon')].map(p => p.getBBox().y));
  done({live: Math.max(...live.max_at_time), axis: live.max_size, cached: Math.max(...cached.max_at_time), drawn, top});
}; look(); })`

// TestMemoryViz shows snapshots in PyTorch's own memory_viz page, in a headless
// Chromium: the Active Memory Timeline's highest point is the report's requested
// peak, and the Active Cached Segment Timeline's its reserved memory.
// MEMPLAN_MEMORYVIZ is torch/utils/viz/MemoryViz.js of PyTorch's sources, MEMPLAN_D3
// is d3.min.js of npm's d3@5; the test is skipped without them. With MEMPLAN_SHOTS,
// a folder, it leaves pictures there.
func TestMemoryViz(t *testing.T) {
	viz, d3 := os.Getenv("MEMPLAN_MEMORYVIZ"), os.Getenv("MEMPLAN_D3")
	if viz == "" || d3 == "" {
		t.Skip("MEMPLAN_MEMORYVIZ and MEMPLAN_D3 name no files")
	}
	script, err := os.ReadFile(viz)
	if err != nil {
		t.Fatal(err)
	}
	script = append([]byte("const {axisLeft, scaleLinear, zoom, zoomIdentity, brushX} = d3;\n"), remote.ReplaceAll(script, nil)...)
	script = append(script, "\nwindow.memplan = {process_alloc_data, snapshot_cache};\n"...)
	for name, s := range exported(t) {
		mux := http.NewServeMux()
		give := func(path, kind string, data []byte) {
			mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				_, _ = w.Write(data)
			})
		}
		give("/{$}", "text/html; charset=utf-8", []byte(vizPage))
		give("/viz.js", "text/javascript; charset=utf-8", script)
		give("/step.pickle", "application/octet-stream", file(t, ".pickle", s.Step))
		mux.HandleFunc("/d3.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, d3) })
		server := httptest.NewServer(mux)
		defer server.Close()
		ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1200, 800))...)
		defer cancel()
		ctx, cancel = chromedp.NewContext(ctx)
		defer cancel()
		ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		var got struct {
			Live, Axis, Cached, Top float64
			Drawn                   int
		}
		var shot []byte
		if err := chromedp.Run(ctx, chromedp.Navigate(server.URL), chromedp.Evaluate(vizSees, &got, awaited), chromedp.CaptureScreenshot(&shot)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if int64(got.Live) != s.peak() || got.Axis != got.Live || int64(got.Cached) != s.reserved || got.Drawn < 10 || got.Top != 0 {
			t.Errorf("%s: memory_viz shows %.0f live at most (its axis %.0f, %d polygons up to %v) and %.0f cached, the report %d and %d", name, got.Live, got.Axis, got.Drawn, got.Top, got.Cached, s.peak(), s.reserved)
		}
		t.Logf("%s: %.0f bytes live, %.0f cached, %d tensors drawn", name, got.Live, got.Cached, got.Drawn)
		if dir := os.Getenv("MEMPLAN_SHOTS"); dir != "" {
			if err := os.WriteFile(filepath.Join(dir, name+".png"), shot, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// exported are the steps that other programs are shown.
func exported(t *testing.T) map[string]measured {
	return map[string]measured{
		"resnet50": reported(t, "resnet50.onnx", planner.Config{Batch: 16}),
		"gpt2":     reported(t, "gpt2.onnx", planner.Config{Batch: 4, Checkpoint: "all", Precision: "amp-bf16"}),
		"mlp":      reported(t, "mlp.onnx", planner.Config{Batch: 2, Mode: "infer"}),
	}
}

// peak returns the most bytes that are live at once, as requested.
func (m *measured) peak() (n int64) {
	for i := range m.Stack.Points {
		n = max(n, m.Stack.Points[i].Total())
	}
	return n
}

// awaited lets an evaluation wait for its promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
