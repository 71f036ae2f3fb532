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

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/memplan/memplan/internal/inert"
	"github.com/memplan/memplan/planner"
)

// browser opens a page in a headless Chromium; the test is skipped where there is
// none.
func browser(t *testing.T, content string) context.Context {
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
		_, _ = w.Write([]byte(content))
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
	v.Storages = append(v.Storages, [6]int64{1 << 20})
	v.Segments, v.Places = [][3]int64{{2 << 20}, {int64(n) * 1024}}, []int64{0}
	for i := range n {
		v.Strings = append(v.Strings, fmt.Sprintf("tensor_%d", i), fmt.Sprintf("block.%d", i%12))
		v.Storages = append(v.Storages, [6]int64{1024, 1, int64(2*i + 3), int64(2*i + 4)})
		v.Places = append(v.Places, 2<<20+1024*int64(i))
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
	content := written(t, Analyses, "html", &Analysis{Report: hostile("x"), Step: func() *planner.StepView { return view }}, Style{})
	ctx := browser(t, content)
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
	if count != "50001 tensors live there, 49.83 MiB; the largest 200 are shown" || rows != 200 || modules != 2 {
		t.Errorf("%s, %d rows, %d modules", count, rows, modules)
	}
	run("hover", chromedp.Evaluate(fmt.Sprintf(pointer, "pointermove", "62 + (r.width - 70) / 4"), nil), text("step-tip", &tip), chromedp.Evaluate(`document.getElementById('step-tip').hidden`, &hidden))
	if hidden || !strings.Contains(tip, "at event 2") || !strings.Contains(tip, "activations 24.") {
		t.Errorf("hidden %v: %s", hidden, tip)
	}
	run("hovering", chromedp.Evaluate(`(() => { const o = document.getElementById('step-over'), r = o.getBoundingClientRect(), times = []; for (let i = 0; i < 200; i++) { const t = performance.now(); o.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + 10 + i * 3, clientY: r.top + 50})); times.push(performance.now() - t); } return times.sort((a, b) => a - b)[190]; })()`, &hover))
	var paint float64
	run("paint", chromedp.Evaluate(`performance.getEntriesByName('first-contentful-paint')[0].startTime`, &paint))
	t.Logf("%d events, %d bytes of page: first paint after %.0f ms, hover %.2f ms, 95th percentile", len(view.Events), len(content), paint, hover)
	run("click and zoom", chromedp.Evaluate(fmt.Sprintf(pointer, "pointerup", "0"), nil),
		chromedp.Evaluate(`document.getElementById('step-over').focus()`, nil), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowRight), text("step-where", &moved))
	if !strings.HasPrefix(moved, "event 1 of ") {
		t.Error(moved)
	}
	run("search", chromedp.KeyEvent("p"), chromedp.Evaluate(`(() => { const i = document.getElementById('step-search'); i.value = 'tensor_12345 block'; i.dispatchEvent(new Event('input')); })()`, nil), text("step-count", &searched))
	if searched != "1 tensor of the step, 1.000 KiB" {
		t.Error(searched)
	}
	run("from a row to where it was made", chromedp.Evaluate(`document.querySelector('#step-live tr').click()`, nil), text("step-where", &where))
	if !strings.HasPrefix(where, "event 12346 of ") {
		t.Error(where)
	}
	const tensor = `document.getElementById('step-tensor').textContent`
	var chosen, fragments string
	run("its tensor", chromedp.Evaluate(tensor, &chosen), text("step-fragments", &fragments))
	if chosen != "tensor_12345, activations; 1.000 KiB; block.9; made by aten.first (12346); freed by aten.last (87655)" {
		t.Error(chosen)
	}
	if fragments != "2 segments, 50.83 MiB reserved: 13.06 MiB in use at event 12346, 37.77 MiB not (grey); the largest gap has 36.77 MiB; 0 segments empty." {
		t.Error(fragments)
	}
	const at = `(() => { const o = document.getElementById('%s'), r = o.getBoundingClientRect(); for (const what of ['pointerdown', 'pointerup', 'click']) o.dispatchEvent(new PointerEvent(what, {clientX: r.left + %s, clientY: r.top + %s, pointerId: 1, bubbles: true})); })()`
	const still = `HTMLElement.prototype.setPointerCapture = () => {}`
	run("click in the chart", chromedp.Evaluate(still, nil), chromedp.Evaluate(fmt.Sprintf(at, "step-over", "r.width / 2", "r.height - 21"), nil), chromedp.Evaluate(tensor, &chosen))
	if !strings.HasPrefix(chosen, "(unnamed), parameters; 1.000 MiB") {
		t.Error(chosen)
	}
	run("click in a segment", chromedp.Evaluate(fmt.Sprintf(at, "step-segments", "r.width / 2", "23"), nil), chromedp.Evaluate(tensor, &chosen))
	if !strings.HasPrefix(chosen, "tensor_") {
		t.Error(chosen)
	}
	var before, after string
	const pixels = `document.getElementById('step-canvas').toDataURL()`
	run("wheel", chromedp.Evaluate(pixels, &before), chromedp.Evaluate(`(() => { const o = document.getElementById('step-over'), r = o.getBoundingClientRect(); o.dispatchEvent(new WheelEvent('wheel', {deltaY: -1, clientX: r.left + 200, clientY: r.top + 50, cancelable: true})); })()`, nil), chromedp.Evaluate(pixels, &after))
	if before == after {
		t.Error("the wheel changes nothing")
	}
	run("whole step", chromedp.Evaluate(`document.getElementById('step-all').click()`, nil), chromedp.Evaluate(pixels, &after))
	if before != after {
		t.Error("the whole step is not as it was")
	}
}

// printed is what a page looks like on paper: what is seen of the controls, of the
// tables and of the pictures, and what the paper cuts off.
const printed = `(() => {
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; }, all = q => [...document.querySelectorAll(q)];
  const pictures = all('figure svg, .plot canvas').filter(seen), width = document.documentElement.clientWidth;
  const ink = c => { const d = c.getContext('2d').getImageData(0, 0, 60 * devicePixelRatio, c.height).data; let dark = 0; for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 128 && d[i] < 100) dark++; return dark; };
  return {
    controls: all('button, input, .tip, .rows tbody[id], .ground').filter(seen).length,
    pictures: pictures.length, flat: pictures.filter(p => p.getBoundingClientRect().height < 150).length, pale: pictures.filter(p => p.tagName === 'CANVAS' && ink(p) < 50).length,
    rows: all('tr').filter(seen).length, broken: all('tr, figure, .plot').filter(e => seen(e) && getComputedStyle(e).breakInside !== 'avoid').length,
    heads: all('thead').filter(e => seen(e) && getComputedStyle(e).display !== 'table-header-group').length, scrolled: all('.rows, .wide, pre').filter(e => e.scrollHeight > e.clientHeight + 1 || getComputedStyle(e).overflowX === 'auto' && e.scrollWidth > e.clientWidth).length,
    cut: all('td, th, p, svg, canvas, li').filter(e => seen(e) && e.getBoundingClientRect().right > width + 1).length,
  };
})()`

// On paper a page has no controls; its timelines are pictures in dark ink, even
// where the screen is dark; no row of a table is broken or cut off.
func TestPrinted(t *testing.T) {
	long := strings.Repeat("a_rather_long_name_of_a_module.", 6)
	view := synthetic(200)
	analysis := written(t, Analyses, "html", &Analysis{Report: hostile(long), Step: func() *planner.StepView { return view }}, Style{})
	d := &planner.Diff{Base: planner.DiffSide{Path: "a.onnx", AllocatedBytes: 1 << 20}, Head: planner.DiffSide{Path: "b.onnx", AllocatedBytes: 3 << 20}, DeltaBytes: 2 << 20,
		Categories: []planner.CategoryDelta{{Category: "activations", Base: 1 << 20, Head: 3 << 20, Delta: 2 << 20}}}
	for range 80 {
		d.Modules = append(d.Modules, planner.ModuleDelta{Module: long, Delta: 1 << 20})
	}
	d.Steps = func() [2]*planner.StepView { return [2]*planner.StepView{synthetic(100), synthetic(300)} }
	for name, c := range map[string]struct {
		page           string
		pictures, rows int
	}{"analysis": {analysis, 1, 8}, "diff": {written(t, Diffs, "html", d, Style{}), 2, 60}} {
		t.Run(name, func(t *testing.T) { // one browser at a time
			ctx := browser(t, c.page)
			var got struct{ Controls, Pictures, Flat, Pale, Rows, Broken, Heads, Scrolled, Cut int }
			dark := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}})
			paper := emulation.SetEmulatedMedia().WithMedia("print").WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}})
			if err := chromedp.Run(ctx, dark, chromedp.EmulateViewport(700, 990), chromedp.Evaluate(`dispatchEvent(new Event('beforeprint'))`, nil), paper, chromedp.Evaluate(printed, &got)); err != nil {
				t.Fatal(err)
			}
			if got.Controls+got.Flat+got.Pale+got.Broken+got.Heads+got.Scrolled+got.Cut > 0 || got.Pictures != c.pictures || got.Rows < c.rows {
				t.Errorf("%+v, want %d pictures, %d rows at least and none of the others", got, c.pictures, c.rows)
			}
		})
	}
}

// The page of a diff shows both steps, on one scale, each by itself.
func TestDiffInBrowser(t *testing.T) {
	d := &planner.Diff{Base: planner.DiffSide{Path: "a<b>.onnx", AllocatedBytes: 1 << 20}, Head: planner.DiffSide{Path: "c.onnx", AllocatedBytes: 3 << 20}, DeltaBytes: 2 << 20,
		Categories: []planner.CategoryDelta{{Category: "activations", Base: 1 << 20, Head: 3 << 20, Delta: 2 << 20}}, Modules: []planner.ModuleDelta{{Module: "</script>", Delta: 2 << 20}}}
	d.Steps = func() [2]*planner.StepView { return [2]*planner.StepView{synthetic(100), synthetic(300)} }
	content := written(t, Diffs, "html", d, Style{})
	for _, fault := range inert.HTML([]byte(content), StepScript) {
		t.Error(fault)
	}
	ctx := browser(t, content)
	var base, head, count string
	var sections int
	if err := chromedp.Run(ctx, text("base-where", &base), text("head-where", &head), chromedp.Evaluate(`document.querySelectorAll('section.step:not([hidden])').length`, &sections),
		chromedp.Evaluate(`(() => { const i = document.getElementById('head-search'); i.value = 'tensor_250'; i.dispatchEvent(new Event('input')); })()`, nil), text("base-count", &count)); err != nil {
		t.Fatal(err)
	}
	if sections != 2 || !strings.HasPrefix(base, "event 100 of 200, the peak: ") || !strings.HasPrefix(head, "event 300 of 600, the peak: ") || !strings.HasPrefix(count, "101 tensors live there") {
		t.Errorf("%d sections: %s; %s; %s", sections, base, head, count)
	}
}
