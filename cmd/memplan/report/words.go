package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
)

// Verdict returns the sentence that a person acts on.
func Verdict(r *planner.Report) string {
	if r.Fits == nil {
		return shown(r) + outcome(r) + " " + needs(r)
	}
	return shown(r) + outcome(r) + ": " + needs(r)
}

// cannotTell begins the first line of a report whose file does not hold the answer.
const cannotTell = "cannot tell for training"

// doubtText returns the text of a doubt.
func doubtText(d graph.Warning) string { return d.Message + " [" + d.Code + "]" }

// doubtLines returns the first lines of a report whose file does not hold the
// answer.
func doubtLines(r *planner.Report) []string {
	var out []string
	for _, d := range r.Doubts() {
		out = append(out, cannotTell+": "+doubtText(d))
	}
	return out
}

// shown restricts a verdict to what the file shows, if that is not the answer.
func shown(r *planner.Report) string {
	if len(r.Doubts()) == 0 {
		return ""
	}
	return cannotTell + "; what the file shows: "
}

// outcome returns the answer without its numbers.
func outcome(r *planner.Report) string {
	at := ""
	if r.Config.Batch > 0 {
		at = fmt.Sprintf(" at batch %d", r.Config.Batch)
	}
	card := size(r.Config.VRAM)
	switch {
	case r.Fits == nil:
		return stepName(r) + at
	case !*r.Fits:
		return fmt.Sprintf("does not fit %s%s", card, at)
	}
	if n := len(segments(r)); n > 0 {
		at += fmt.Sprintf(" with %s, for %.1f%% more time", regionsOf(segments(r)), 100*r.Checkpoint.RecomputeOverhead)
	}
	if n := recomputed(r); n > 0 {
		at += fmt.Sprintf(" with %s run again, for %.1f%% more time", Plural(n, "operation", "operations"), 100*r.Checkpoint.RecomputeOverhead)
	}
	return fmt.Sprintf("fits %s%s", card, at)
}

// needs returns the numbers behind the answer.
func needs(r *planner.Report) string {
	p := &r.Peak
	assumed := ""
	if r.Config.GPUAssumed && r.Config.VRAM > 0 {
		assumed = " as on an " + r.Config.GPU
	}
	if onArena(r) {
		return fmt.Sprintf("needs %s on a processor (%s of onnxruntime %s's arena, and %s of weights)", size(p.ProcessBytes), size(p.ReservedBytes), r.Inference.Runtime.Release, size(p.ProcessBytes-p.ReservedBytes))
	}
	context := "CUDA context"
	if r.Parallel != nil {
		context += " and NCCL"
	}
	s := fmt.Sprintf("needs %s (%s reserved and %s of %s%s)", size(p.ProcessBytes), size(p.ReservedBytes), size(p.ProcessBytes-p.ReservedBytes), context, assumed)
	switch {
	case r.Fits == nil:
		return s
	case *r.Fits:
		spare := max(r.Config.VRAM-p.ProcessBytes-r.Uncertainty.HeadroomBytes, 0)
		if r.Uncertainty.HeadroomBytes > 0 {
			return s + ", " + size(spare) + " to spare beyond the headroom"
		}
		return s + ", " + size(spare) + " to spare"
	}
	return s + excess(r)
}

// parallelLines describes how ranks differ, and what is outside their
// allocator.
func parallelLines(r *planner.Report) (out []string) {
	p := r.Parallel
	if p == nil {
		return nil
	}
	line := fmt.Sprintf("on %d cards: rank %d needs the most, and this report is about it; NCCL takes %s of each card", p.Ranks, p.WorstRank, size(p.NCCLBytes))
	if p.HostBytes > 0 {
		line += fmt.Sprintf(", and each rank pins %s of its host's memory", size(p.HostBytes))
	}
	out = append(out, line)
	for _, k := range p.PerRank {
		if size(k.AllocatedBytes) != size(r.Peak.AllocatedBytes) || size(k.ReservedBytes) != size(r.Peak.ReservedBytes) {
			out = append(out, fmt.Sprintf("rank %d: %s allocated, %s reserved", k.Rank, size(k.AllocatedBytes), size(k.ReservedBytes)))
		}
	}
	return append(out, expertLines(p.Experts)...)
}

// expertLines say what a rank's experts may receive, and what of it the answer is of.
func expertLines(x *planner.ExpertInfo) []string {
	if x == nil {
		return nil
	}
	what := "as many as a balanced router sends"
	if x.Rows == x.Most.Rows {
		what = "all that can go to one rank"
	} else if x.Rows > x.Balanced.Rows {
		what = fmt.Sprintf("%g times as many as a balanced router sends", x.Imbalance)
	}
	end := func(e *planner.ExpertEnd) string {
		s := fmt.Sprintf("%s of %d rows", size(e.ProcessBytes), e.Rows)
		if e.Fits != nil && !*e.Fits {
			s += ", which does not fit"
		}
		return s
	}
	return []string{
		fmt.Sprintf("experts: %d of each layer on a rank; what a rank receives depends on the router, which is not in the file. This report is of %d rows, %s (--ep-imbalance)", x.Local, x.Rows, what),
		fmt.Sprintf("experts: between %s (balanced) and %s (all to one rank)", end(&x.Balanced), end(&x.Most)),
	}
}

// hostLine describes what a step keeps in its host's memory; "" for nothing.
func hostLine(r *planner.Report) string {
	o := r.Offload
	if o == nil {
		return ""
	}
	var parts []string
	if o.Regions > 0 {
		parts = append(parts, fmt.Sprintf("%s of the activations of %s", size(o.Bytes), Plural(o.Regions, "module", "modules")))
	}
	if o.Optimizer != "" {
		parts = append(parts, "the optimizer, by "+o.Optimizer)
	}
	line := fmt.Sprintf("%s in the host's memory: %s pinned", strings.Join(parts, " and "), size(o.PinnedBytes))
	if o.PageableBytes > 0 {
		line += fmt.Sprintf(", %s not", size(o.PageableBytes))
	}
	return line + fmt.Sprintf("; the card waits %.2f ms for copies at %.3g GB/s", o.WaitMs, o.Bandwidth/1e9)
}

// headroomLine describes how much a verdict leaves free of the card, and why.
func headroomLine(r *planner.Report) string {
	n, card := r.Uncertainty.HeadroomBytes, r.Config.VRAM
	if r.Fits == nil || n == 0 {
		return ""
	}
	line := fmt.Sprintf("%.1f%% of the card kept free (%s)", share(n, card), size(n))
	if r.Config.Headroom == planner.AutoHeadroom {
		line += ": 1 in 100 runs needs it"
	}
	return line
}

func stepName(r *planner.Report) string {
	if r.Config.Mode == "infer" {
		return "one inference"
	}
	return "one training step"
}

// excess returns by how much a step exceeds the card. Fragmentation under the
// cap can keep a step from fitting although its peak without a cap would fit.
func excess(r *planner.Report) string {
	if over := r.Peak.ProcessBytes - r.Config.VRAM; over > 0 {
		return ", " + size(over) + " too much"
	}
	if r.Uncertainty.HeadroomBytes > 0 {
		return fmt.Sprintf(", which would take of the %s that are kept free; --headroom 0 keeps none", size(r.Uncertainty.HeadroomBytes))
	}
	return ", and its blocks find no room under the limit"
}

// segments returns the checkpointed segments of a report.
func segments(r *planner.Report) []train.Segment {
	if r.Checkpoint == nil {
		return nil
	}
	return r.Checkpoint.Segments
}

// recomputed returns the number of operations that a schedule recomputes.
func recomputed(r *planner.Report) (n int) {
	if r.Checkpoint == nil {
		return 0
	}
	for i := range r.Checkpoint.Recomputed {
		n += r.Checkpoint.Recomputed[i].Times
	}
	return n
}

// A namer writes a text from a file into a sentence: unchanged if the whole
// sentence is text (plain), as code in Markdown.
type namer func(name string) string

func plain(name string) string { return name }

func peakLine(r *planner.Report, name namer) string {
	if onArena(r) {
		return fmt.Sprintf("%s hold all intermediate results in one block from the second run on, of which %s live at once", size(r.Peak.AllocatedBytes), size(r.Peak.RequestedBytes))
	}
	line := fmt.Sprintf("peak %s allocated in the %s", size(r.Peak.AllocatedBytes), phaseName(r.Peak.Phase))
	if r.Peak.Node != "" {
		line += " at " + name(r.Peak.Node)
	}
	for _, l := range r.Live {
		if l.Node == r.Peak.Node && l.Module != "" && !strings.Contains(line, l.Module) {
			line += ", module " + name(l.Module)
			break
		}
	}
	if r.Config.Mode != "infer" {
		line += fmt.Sprintf(" (step %d, counted from 0)", r.Peak.Step)
	}
	return line
}

func phaseName(p string) string {
	switch p {
	case "":
		return "step"
	case "optimizer":
		return "optimizer step"
	case "loss":
		return "loss"
	}
	return p + " pass"
}

func batchLines(r *planner.Report, name namer) []string {
	b := r.Batch
	switch {
	case b == nil:
		return nil
	case b.Max == 0:
		return []string{"not even batch 1 fits; what stops it: " + name(b.LimitedBy)}
	case b.Best != nil:
		return bestLines(r)
	}
	with := ""
	switch {
	case b.Checkpoint != "none":
		with = " with checkpoints"
	case r.Config.Mode != "infer":
		with = " without checkpoints"
	}
	known := fmt.Sprintf("proven: none above %d can", b.UpperBound)
	if len(r.Doubts()) > 0 {
		known = "of the step that the file shows"
	}
	line := fmt.Sprintf("largest batch that fits%s: %d (%s)", with, b.Max, known)
	if b.LimitedBy != "" {
		line += "; what stops the next: " + name(b.LimitedBy)
	}
	return []string{line}
}

// timeLine returns the estimate of a step's time.
func timeLine(r *planner.Report) string {
	if onArena(r) {
		return "not predicted on a processor"
	}
	t := &r.Time
	line := fmt.Sprintf("about %s ms a step on %s", millis(t.StepMs), r.Config.GPU)
	if r.Config.Mode != "infer" {
		line += fmt.Sprintf(": forward %s, backward %s, optimizer %s", millis(t.ForwardMs), millis(t.BackwardMs), millis(t.OptimizerMs))
	}
	if t.SamplesPerSecond > 0 {
		line += fmt.Sprintf("; %s samples/s", millis(t.SamplesPerSecond))
	}
	return line + " (" + timeSource(t.Sources) + ")"
}

// timeSource describes the origin of times.
func timeSource(s *planner.TimeSources) string {
	if s == nil {
		return "roofline estimate"
	}
	text := fmt.Sprintf("%d of %s measured on %s", s.Measured, Plural(s.Measured+s.Nearest+s.Estimated, "operation", "operations"), s.Device)
	if s.Nearest > 0 {
		text += fmt.Sprintf(", %d from the nearest size that was", s.Nearest)
	}
	if s.Estimated > 0 {
		text += fmt.Sprintf(", %d by the roofline", s.Estimated)
	}
	return text
}

// millis writes a number with at least three significant digits.
func millis(x float64) string {
	switch {
	case x >= 99.95:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// modelLine describes the file.
func modelLine(r *planner.Report) string {
	m := &r.Model
	operators := map[string]string{"capture": "as captured", "metadata": "from the exporter's metadata", "patterns": "recognised by patterns"}[m.Lift]
	return fmt.Sprintf("%s: %s parameters, %d nodes, operators %s", m.Path, grouped3(m.Parameters), m.Nodes, cmp.Or(operators, "of ONNX"))
}

// grouped3 writes a count with its digits in groups of three.
func grouped3(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// onArena reports whether a report is about onnxruntime's arena, not PyTorch's memory.
func onArena(r *planner.Report) bool {
	return r.Config.OnArena() && r.Inference != nil && r.Inference.Runtime != nil
}

// numbers returns the four memory numbers and the bound.
func numbers(r *planner.Report) [][2]string {
	p := &r.Peak
	return [][2]string{
		{"requested", size(p.RequestedBytes)}, {"allocated", size(p.AllocatedBytes)}, {"reserved", size(p.ReservedBytes)},
		{"process", size(p.ProcessBytes)}, {"upper bound", size(p.UpperBoundBytes)},
	}
}

// wide is how far the bound must exceed the reserved bytes, as a fraction of
// them, for a report to say why; mostReasons is the largest number of reasons
// it gives.
const (
	wide        = 0.1
	mostReasons = 3
)

// doubtfulLines names the guesses that make the bound wide, and what would
// narrow it; none if it is not wide.
func doubtfulLines(r *planner.Report) []string {
	u, reserved := &r.Uncertainty, r.Peak.ReservedBytes
	if float64(u.HighBytes-reserved) < wide*float64(reserved) {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(u.Sources), func(s planner.UncertaintySource) bool { return s.Bytes == 0 })
	slices.SortStableFunc(list, func(a, b planner.UncertaintySource) int { return cmp.Compare(b.Bytes, a.Bytes) })
	such := " in 99 of 100 such runs"
	if onArena(r) {
		such = ""
	}
	out := []string{fmt.Sprintf("reserved between %s and %s%s; why so wide:", size(u.LowBytes), size(u.HighBytes), such)}
	for _, s := range list[:min(len(list), mostReasons)] {
		line := fmt.Sprintf("+%s: %s", size(s.Bytes), s.Message)
		if s.Narrow != "" {
			line += "; narrower with " + s.Narrow
		}
		out = append(out, line)
	}
	return out
}

func proof(c *planner.CheckpointInfo) string {
	what := ""
	switch c.Class {
	case "segments":
		what = "segments"
	case "selective":
		what = "segments and of what they keep"
	case "offload":
		what = "segments and of modules on the host"
	default:
		if c.Optimal {
			return "optimal: no schedule that fits costs less"
		}
		return fmt.Sprintf("no schedule that fits costs less than %.2f%%", 100*c.LowerBound)
	}
	price := ""
	if c.RecomputeOverhead > 0 && c.ScheduleBound > 0 {
		price = fmt.Sprintf("; any schedule of operations costs at least %.2f%%", 100*c.ScheduleBound)
	}
	switch {
	case c.Optimal:
		return "optimal among choices of " + what + price
	case c.LowerBound > 0:
		return fmt.Sprintf("no choice of %s that fits costs less than %.2f%%", what, 100*c.LowerBound) + price
	}
	return "no bound on what another choice would cost" + price
}

// PlanCommand returns the command line that plans a report's step.
func PlanCommand(r *planner.Report) string {
	parts := []string{"memplan plan", quoted(r.Model.Path)}
	for _, word := range r.Config.Args(&r.Model) {
		parts = append(parts, quoted(word))
	}
	return strings.Join(parts, " ")
}

// quoted quotes a word for a shell if needed.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
