package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
)

// analysisText writes a report for a person: what to act on first.
func analysisText(w io.Writer, a *Analysis, s Style) error {
	r, p := a.Report, newPage(w, s)
	code := bold
	if r.Fits != nil {
		code = map[bool]string{true: green, false: red}[*r.Fits]
	}
	for _, line := range doubtLines(r) {
		p.wrapped("", line, red)
	}
	head, rest := shown(r)+outcome(r), needs(r)
	if r.Fits == nil {
		head, rest = Verdict(r), ""
	}
	p.wrapped("", head, code)
	for _, line := range slices.Concat([]string{rest, peakLine(r, plain)}, parallelLines(r), batchLines(r, plain)) {
		if line != "" {
			p.wrapped("", line, "")
		}
	}
	gauge(p, r)
	batchText(p, r)
	numbersText(p, r)
	breakdownText(p, r)
	liveText(p, r)
	curveText(p, r)
	checkpointText(p, r)
	p.line("")
	if len(a.Hints) > 0 {
		p.labelled("try", strings.Join(a.Hints, ", or "))
	}
	if line := headroomLine(r); line != "" {
		p.labelled("free", line)
	}
	if line := hostLine(r); line != "" {
		p.labelled("host", line)
	}
	p.labelled("time", timeLine(r))
	p.labelled("model", modelLine(r))
	p.labelled("config", r.Config.Line())
	for _, g := range others(r) {
		p.labelled("warning", g.String())
	}
	return nil
}

// gauge draws how full the card is.
func gauge(p *page, r *planner.Report) {
	card := r.Config.VRAM
	if r.Fits == nil || card <= 0 {
		return
	}
	label := fmt.Sprintf("  %.1f%% of %s", share(r.Peak.ProcessBytes, card), size(card))
	width := p.width - len(label) - 2
	full := bar(r.Peak.ProcessBytes, card, width)
	code := map[bool]string{true: green, false: red}[*r.Fits]
	p.line("\n▕%s%s▏%s", paint(p.color, code, full), strings.Repeat("░", width-widest(full)), label)
}

// numbersText writes the four numbers and the bound side by side.
func numbersText(p *page, r *planner.Report) {
	p.head("the four numbers, and a bound on reserved")
	var names, values strings.Builder
	gap := min((p.width-50)/5, 4)
	for _, n := range numbers(r) {
		column := widest(n[0], n[1]) + gap
		names.WriteString(left(n[0], column))
		values.WriteString(left(n[1], column))
	}
	p.line("%s\n%s", names.String()[gap-2:], values.String()[gap-2:])
	if n := r.Peak.IdealArenaBytes; n > 0 {
		p.wrapped("  ", idealArena(n, r), "")
	}
	if r.Inference != nil {
		p.wrapped("  ", inferenceArena(r.Inference), "")
	}
	for i, line := range doubtfulLines(r) {
		p.wrapped(map[bool]string{true: "  ", false: "  • "}[i == 0], line, "")
	}
}

// idealArena compares the allocator with an arena planned ahead.
func idealArena(n int64, r *planner.Report) string {
	return fmt.Sprintf("an arena with offsets planned ahead would need %s: %.1f%% less than reserved", size(n), 100*(1-float64(n)/float64(max(r.Peak.ReservedBytes, 1))))
}

// inferenceArena says what an inference's intermediate results need by themselves.
func inferenceArena(n *planner.Inference) string {
	order := "no order of the operators needs less"
	if size(n.PlannedBytes) != size(n.BoundBytes) {
		order = fmt.Sprintf("no order of the operators needs less than %s", size(n.BoundBytes))
	}
	if size(n.FileBytes) != size(n.PlannedBytes) {
		order = fmt.Sprintf("in the best order of operators found (%s in the file's); ", size(n.FileBytes)) + order
	}
	text := fmt.Sprintf("what operators pass on would fit %s; %s", size(n.PlannedBytes), order)
	switch o := n.Runtime; {
	case o == nil:
	case o.TorchReservedBytes > 0:
		text += fmt.Sprintf("; PyTorch on a card allocates %s, weights and workspaces included, and reserves %s", size(o.TorchAllocatedBytes), size(o.TorchReservedBytes))
	default:
		text += fmt.Sprintf("; onnxruntime %s on a processor holds it in %s, in an arena of %s", o.Release, size(o.PatternBytes), size(o.ArenaBytes))
	}
	return text
}

// breakdownText lists the categories at the peak, the largest first.
func breakdownText(p *page, r *planner.Report) {
	p.head("allocated at the peak")
	rows := slices.Clone(r.Breakdown)
	rows = slices.DeleteFunc(rows, func(c planner.CategoryBytes) bool { return c.Bytes == 0 })
	slices.SortStableFunc(rows, func(a, b planner.CategoryBytes) int { return -cmp.Compare(a.Bytes, b.Bytes) })
	for _, c := range rows {
		text := fmt.Sprintf("  %-13s  %9s  %5.1f%%  ", c.Category, size(c.Bytes), share(c.Bytes, r.Peak.AllocatedBytes))
		p.line("%s%s", text, paint(p.color, blue, bar(c.Bytes, r.Peak.AllocatedBytes, p.width-len(text))))
	}
}

// mostLive is the largest number of storages listed; JSON has more.
const mostLive = 8

// liveText lists the largest storages at the peak, clipped to the page.
func liveText(p *page, r *planner.Report) {
	rows := r.Live[:min(len(r.Live), mostLive)]
	if len(rows) == 0 {
		return
	}
	p.head("largest at the peak")
	values, modules := 0, 0
	for _, l := range rows {
		values, modules = max(values, widest(l.Value)), max(modules, widest(l.Module))
	}
	room := p.width - len("  999.9 MiB  activations  ") - 2
	modules = min(modules, max(room-values, room/2))
	values = min(values, room-modules)
	for _, l := range rows {
		text := fmt.Sprintf("  %9s  %-11s  %s  %s", size(l.Bytes), l.Category, pad(clip(l.Value, values), values), clip(l.Module, modules))
		p.line("%s", strings.TrimRight(text, " "))
	}
}

// mostSegments is the largest number of lines for segments; the plan has all.
const mostSegments = 16

// checkpointText describes what to checkpoint, its cost and how to apply it.
func checkpointText(p *page, r *planner.Report) {
	segs := segments(r)
	if recomputed(r) > 0 {
		scheduleText(p, r)
	}
	if len(segs) == 0 {
		return
	}
	head := "checkpoint these modules (torch.utils.checkpoint)"
	if slices.ContainsFunc(segs, func(s train.Segment) bool { return s.Offload }) {
		head = "checkpoint or offload these modules (memplan.checkpoint)"
	}
	p.head(head)
	p.wrapped("", fmt.Sprintf("+%.2f%% time; %s", 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint)), "")
	lines := segmentLines(segs)
	for _, line := range lines[:min(len(lines), mostSegments)] {
		p.wrapped(strings.Repeat("  ", line.depth+1)+"• ", line.text, "")
	}
	if more := len(lines) - mostSegments; more > 0 {
		p.line("  and %d more: the plan lists them", more)
	}
	p.line("apply it, as memplan help torch shows:\n  %s -o plan.json\n  memplan config plan.json --to torch", PlanCommand(r))
}

// scheduleText describes what a schedule recomputes, by operator, and the cost.
func scheduleText(p *page, r *planner.Report) {
	p.head("run these operations again (memplan's executor)")
	p.wrapped("", fmt.Sprintf("+%.2f%% time; %s", 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint)), "")
	for _, line := range recomputedLines(r, plain) {
		p.line("  • %s", line)
	}
	for _, x := range r.Checkpoint.Restore {
		p.wrapped("  ! ", fmt.Sprintf("%s: restore %s", x.Op, x.What), "")
	}
}

// recomputedLines counts what a schedule recomputes by operator, in the order
// of the first executions.
func recomputedLines(r *planner.Report, name namer) []string {
	var ops []string
	times := map[string]int{}
	for i := range r.Checkpoint.Recomputed {
		x := &r.Checkpoint.Recomputed[i]
		if times[x.Op] == 0 {
			ops = append(ops, x.Op)
		}
		times[x.Op] += x.Times
	}
	lines := make([]string, len(ops))
	for i, op := range ops {
		lines[i] = fmt.Sprintf("%d × %s", times[op], name(op))
	}
	return lines
}

// A segmentLine is a line about segments; depth is the number of enclosing
// ones.
type segmentLine struct {
	depth int
	text  string
}

// segmentLines describes segments; consecutively numbered ones of one module
// share a line.
func segmentLines(segs []train.Segment) []segmentLine {
	var out []segmentLine
	depths := train.Depths(segs)
	for i := 0; i < len(segs); {
		j := i + 1
		for j < len(segs) && depths[j] == depths[i] && follows(segs[j-1], segs[j]) {
			j++
		}
		if j-i > 2 {
			out = append(out, segmentLine{depths[i], fmt.Sprintf("%s to %s, %d segments of one module each", segs[i].Modules[0], segs[j-1].Modules[0], j-i) + keeping(segs[i].Save, plain) + hosting(segs[i])})
			i = j
			continue
		}
		out = append(out, segmentLine{depths[i], joined(segs[i].Modules) + keeping(segs[i].Save, plain) + hosting(segs[i])})
		i++
	}
	return out
}

// hosting says whether a segment goes to the host in place of being computed again.
func hosting(s train.Segment) string {
	switch {
	case s.Keep:
		return "; it keeps what it saves: the copies of the module before come back while it runs backward"
	case s.Offload:
		return "; what it saves goes to the host"
	}
	return ""
}

// regionsOf counts segments by what becomes of them.
func regionsOf(segs []train.Segment) string {
	again, host := 0, 0
	for _, s := range segs {
		switch {
		case !s.Offload:
			again++
		case !s.Keep:
			host++
		}
	}
	text := Plural(again, "checkpointed segment", "checkpointed segments")
	switch {
	case host > 0 && again > 0:
		return text + " and " + Plural(host, "offloaded module", "offloaded modules")
	case host > 0:
		return Plural(host, "offloaded module", "offloaded modules")
	}
	return text
}

// keeping describes the operators whose results a segment keeps.
func keeping(save []train.Saved, name namer) string {
	parts := make([]string, len(save))
	for i, o := range save {
		parts[i] = fmt.Sprintf("%d of %d %s", len(o.Calls), o.Of, name(strings.TrimPrefix(o.Op, "aten.")))
	}
	if len(parts) == 0 {
		return ""
	}
	return "; it keeps " + strings.Join(parts, ", ")
}

// follows reports whether two segments are one module each, the second has the
// next number, and both keep the same: blocks.3 and blocks.4.
func follows(a, b train.Segment) bool {
	if len(a.Modules) != 1 || len(b.Modules) != 1 || fmt.Sprint(a.Save) != fmt.Sprint(b.Save) || a.Offload != b.Offload || a.Keep || b.Keep {
		return false
	}
	parent, n, ok := numbered(a.Modules[0])
	next, m, ok2 := numbered(b.Modules[0])
	return ok && ok2 && parent == next && m == n+1
}

// numbered splits a module's name before its number.
func numbered(module string) (parent string, n int, ok bool) {
	i := strings.LastIndexByte(module, '.') + 1
	if i == len(module) {
		return "", 0, false
	}
	for _, c := range module[i:] {
		if c < '0' || c > '9' || n > 1e6 {
			return "", 0, false
		}
		n = 10*n + int(c-'0')
	}
	return module[:i], n, true
}
