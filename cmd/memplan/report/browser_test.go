package report

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/memplan/memplan/planner"
)

// browser opens a page in a headless Chromium; the test is skipped where there is
// none.
func browser(t *testing.T, page string) context.Context {
	t.Helper()
	found := false
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		_, err := exec.LookPath(name)
		found = found || err == nil
	}
	if !found {
		t.Skip("no Chromium on this machine")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(server.Close)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1000, 900))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Run(ctx, chromedp.Navigate(server.URL)); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// text reads what an element says.
func text(id string, to *string) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf("document.getElementById(%q).textContent", id), to)
}

// synthetic is a step of n tensors, each allocated by a call and freed by another,
// the last born first.
func synthetic(n int) *planner.StepView {
	v := &planner.StepView{Categories: []string{"parameters", "activations"}, Phases: []string{"forward", "backward"}, Strings: []string{"", "aten.first", "aten.last"}, Before: []int32{0}}
	v.Storages = append(v.Storages, [4]int64{1 << 20, 0, 0, 0})
	for i := range n {
		v.Strings = append(v.Strings, fmt.Sprintf("tensor_%d", i), fmt.Sprintf("block.%d", i%12))
		v.Storages = append(v.Storages, [4]int64{1024, 1, int64(2*i + 3), int64(2*i + 4)})
	}
	for i := range n {
		v.Nodes = append(v.Nodes, [4]int{0, 1, 2*i + 3, 2*i + 4})
		v.Events = append(v.Events, [2]int32{int32(i), int32(i + 2)})
	}
	for i := n - 1; i >= 0; i-- {
		v.Events = append(v.Events, [2]int32{int32(len(v.Nodes)), -int32(i + 2)})
		v.Nodes = append(v.Nodes, [4]int{1, 2, 2*i + 3, 2*i + 4})
	}
	return v
}

// In a browser the page of a step of 100,000 events shows its peak, answers to
// hovering, the wheel, clicks, keys and the search.
func TestStepInBrowser(t *testing.T) {
	const tensors = 50_000
	view := synthetic(tensors)
	page := written(t, Analyses, "html", &Analysis{Report: hostile("x"), Step: func() *planner.StepView { return view }}, Style{})
	ctx := browser(t, page)
	var where, count, tip, searched, moved string
	var hidden bool
	var rows, modules int
	var hover float64
	run := func(what string, actions ...chromedp.Action) {
		t.Helper()
		if err := chromedp.Run(ctx, actions...); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	const pointer = `(() => { const o = document.getElementById('step-over'), r = o.getBoundingClientRect(); const e = new PointerEvent('%s', {clientX: r.left + %s, clientY: r.top + 50, pointerId: 1, bubbles: true}); o.dispatchEvent(e); })()`
	run("the peak", text("step-where", &where), text("step-count", &count), chromedp.Evaluate(`document.querySelectorAll('#step-live tr').length`, &rows), chromedp.Evaluate(`document.querySelectorAll('#step-tree > *').length`, &modules))
	if !strings.HasPrefix(where, fmt.Sprintf("event %d of %d, the peak: 49.83 MiB live; forward: aten.first (tensor_49999), block.7; allocates 1.000 KiB", tensors, 2*tensors)) {
		t.Error(where)
	}
	if count != "50001 tensors, 49.83 MiB; the largest 200 are shown" || rows != 200 || modules != 2 {
		t.Errorf("%s, %d rows, %d modules", count, rows, modules)
	}
	run("hover", chromedp.Evaluate(fmt.Sprintf(pointer, "pointermove", "r.width / 4"), nil), text("step-tip", &tip), chromedp.Evaluate(`document.getElementById('step-tip').hidden`, &hidden))
	if hidden || !strings.Contains(tip, "at event 2") || !strings.Contains(tip, "activations 24.") {
		t.Errorf("hidden %v: %s", hidden, tip)
	}
	run("hovering", chromedp.Evaluate(`(() => { const o = document.getElementById('step-over'), r = o.getBoundingClientRect(), times = []; for (let i = 0; i < 200; i++) { const t = performance.now(); o.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + 10 + i * 3, clientY: r.top + 50})); times.push(performance.now() - t); } return times.sort((a, b) => a - b)[190]; })()`, &hover))
	t.Logf("hover over %d events: %.2f ms, 95th percentile", len(view.Events), hover)
	run("click and zoom", chromedp.Evaluate(fmt.Sprintf(pointer, "pointerup", "0"), nil),
		chromedp.Evaluate(`document.getElementById('step-over').focus()`, nil), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowRight), text("step-where", &moved))
	if !strings.HasPrefix(moved, "event 1 of ") {
		t.Error(moved)
	}
	run("search", chromedp.KeyEvent("p"), chromedp.Evaluate(`(() => { const i = document.getElementById('step-search'); i.value = 'tensor_12345 block'; i.dispatchEvent(new Event('input')); })()`, nil), text("step-count", &searched))
	if searched != "1 tensors, 1.000 KiB" {
		t.Error(searched)
	}
	run("from a row to where it was made", chromedp.Evaluate(`document.querySelector('#step-live tr').click()`, nil), text("step-where", &where))
	if !strings.HasPrefix(where, "event 12346 of ") {
		t.Error(where)
	}
}
