package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Verdict is the sentence that a person acts on.
func Verdict(r *planner.Report) string {
	need := fmt.Sprintf("needs %s (%s reserved and %s of CUDA context)", size(r.Peak.ProcessBytes), size(r.Peak.ReservedBytes), size(r.Peak.ProcessBytes-r.Peak.ReservedBytes))
	at := ""
	if r.Config.Batch > 0 {
		at = fmt.Sprintf(" at batch %d", r.Config.Batch)
	}
	card := size(r.Config.VRAMBytes)
	switch {
	case r.Fits == nil:
		return stepName(r) + at + " " + need
	case !*r.Fits:
		return fmt.Sprintf("does not fit %s%s: %s%s", card, at, need, excess(r))
	}
	with := ""
	if n := len(segments(r)); n > 0 {
		with = fmt.Sprintf(" with %s, for %.1f%% more time", Plural(n, "checkpointed segment", "checkpointed segments"), 100*r.Checkpoint.RecomputeOverhead)
	}
	return fmt.Sprintf("fits %s%s%s: %s, %s to spare", card, at, with, need, size(max(r.Config.VRAMBytes-r.Peak.ProcessBytes, 0)))
}

func stepName(r *planner.Report) string {
	if r.Config.Mode == "infer" {
		return "one inference"
	}
	return "one training step"
}

// excess is by how much a step exceeds the card. Fragmentation under the cap
// can keep a step from fitting whose peak without it would.
func excess(r *planner.Report) string {
	if over := r.Peak.ProcessBytes - r.Config.VRAMBytes; over > 0 {
		return ", " + size(over) + " too much"
	}
	return ", and its blocks find no room under the limit"
}

// segments are the checkpointed segments of a report.
func segments(r *planner.Report) []train.Segment {
	if r.Checkpoint == nil {
		return nil
	}
	return r.Checkpoint.Segments
}

// analysisText writes a report for a person: what to act on first.
func analysisText(w io.Writer, a *Analysis, s Style) error {
	r := a.Report
	fmt.Fprintln(w, verdictLine(r, s.Color))
	fmt.Fprintln(w, peakLine(r))
	for _, line := range batchLines(r) {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w)
	breakdownTable(w, r)
	liveTable(w, r)
	curve(w, r, s.Width)
	checkpointLines(w, r)
	adviceLine(w, r)
	t := &r.Time
	fmt.Fprintf(w, "time    about %.1f ms a step on %s: forward %.1f, backward %.1f, optimizer %.1f; %.0f samples/s (roofline estimate)\n",
		t.StepMs, deviceName(r), t.ForwardMs, t.BackwardMs, t.OptimizerMs, t.SamplesPerSecond)
	fmt.Fprintf(w, "model   %s\n", modelLine(r))
	for _, g := range grouped(r) {
		fmt.Fprintln(w, "warning", g.String())
	}
	return nil
}

func verdictLine(r *planner.Report, color bool) string {
	code := bold
	if r.Fits != nil {
		code = map[bool]string{true: green, false: red}[*r.Fits]
	}
	return paint(color, code, Verdict(r))
}

func peakLine(r *planner.Report) string {
	line := fmt.Sprintf("peak %s allocated in the %s", size(r.Peak.AllocatedBytes), phaseName(r.Peak.Phase))
	if r.Peak.Node != "" {
		line += " at " + r.Peak.Node
	}
	for _, l := range r.Live {
		if l.Node == r.Peak.Node && l.Module != "" && !strings.Contains(line, l.Module) {
			line += ", module " + l.Module
			break
		}
	}
	if r.Config.Mode != "infer" {
		line += fmt.Sprintf(" (step %d)", r.Peak.Step+1)
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

func batchLines(r *planner.Report) []string {
	b := r.Batch
	switch {
	case b == nil:
		return nil
	case b.Max == 0:
		return []string{"not even batch 1 fits; what stops it: " + b.LimitedBy}
	}
	return []string{fmt.Sprintf("largest batch that fits: %d (proven: none above %d can); what stops the next: %s", b.Max, b.UpperBound, b.LimitedBy)}
}

func modelLine(r *planner.Report) string {
	m, c := &r.Model, &r.Config
	line := fmt.Sprintf("%s: %d parameters, %d nodes, lift from %s; %s", m.Path, m.Parameters, m.Nodes, m.Lift, c.Precision)
	if c.Mode != "infer" {
		line += ", " + c.Optimizer
	}
	return line + ", " + c.Runtime
}

func deviceName(r *planner.Report) string {
	if r.Config.GPU != "" {
		return r.Config.GPU
	}
	return profile.Devices[0].Name
}

// numbers are the four memory numbers and the bound.
func numbers(r *planner.Report) [][2]string {
	p := &r.Peak
	return [][2]string{
		{"requested", size(p.RequestedBytes)}, {"allocated", size(p.AllocatedBytes)}, {"reserved", size(p.ReservedBytes)},
		{"process", size(p.ProcessBytes)}, {"upper bound", size(p.UpperBoundBytes) + " reserved"},
	}
}

// breakdownTable lists the categories at the peak beside the numbers.
func breakdownTable(w io.Writer, r *planner.Report) {
	right := numbers(r)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "at the peak\t\t\tthe four numbers\t\n")
	row := 0
	for _, c := range r.Breakdown {
		if c.Bytes == 0 {
			continue
		}
		n := [2]string{}
		if row < len(right) {
			n = right[row]
		}
		fmt.Fprintf(t, "  %s\t%s\t%5.1f%%\t  %s\t%s\n", c.Category, size(c.Bytes), share(c.Bytes, r.Peak.AllocatedBytes), n[0], n[1])
		row++
	}
	for ; row < len(right); row++ {
		fmt.Fprintf(t, "\t\t\t  %s\t%s\n", right[row][0], right[row][1])
	}
	t.Flush()
	fmt.Fprintln(w)
}

// mostLive is how many storages the table lists; JSON has more.
const mostLive = 8

func liveTable(w io.Writer, r *planner.Report) {
	if len(r.Live) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "largest at the peak\t\t\t\n")
	for _, l := range r.Live[:min(len(r.Live), mostLive)] {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", size(l.Bytes), l.Category, l.Value, l.Module)
	}
	t.Flush()
	fmt.Fprintln(w)
}

// mostSegments is how many segments are listed; the plan has them all.
const mostSegments = 16

// checkpointLines says what to checkpoint, what it costs and how to apply it.
func checkpointLines(w io.Writer, r *planner.Report) {
	segs := segments(r)
	if len(segs) == 0 {
		return
	}
	fmt.Fprintf(w, "checkpoint these modules (torch.utils.checkpoint): +%.2f%% time; %s\n", 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint))
	for _, s := range segs[:min(len(segs), mostSegments)] {
		fmt.Fprintf(w, "  %s\n", joined(s.Modules))
	}
	if more := len(segs) - mostSegments; more > 0 {
		fmt.Fprintf(w, "  and %d more: the plan lists them\n", more)
	}
	fmt.Fprintf(w, "  apply it: %s -o plan.json && memplan config plan.json --to torch\n\n", PlanCommand(r))
}

func proof(c *planner.CheckpointInfo) string {
	switch {
	case c.Optimal:
		return "optimal among choices of segments"
	case c.LowerBound > 0:
		return fmt.Sprintf("no choice of segments that fits costs less than %.2f%%", 100*c.LowerBound)
	}
	return "no bound on what another choice would cost"
}

// PlanCommand is the command line that plans what a report found.
func PlanCommand(r *planner.Report) string {
	c := &r.Config
	parts := []string{"memplan plan", quoted(r.Model.Path)}
	add := func(flag, value, standard string) {
		if value != standard {
			parts = append(parts, "--"+flag+" "+quoted(value))
		}
	}
	add("batch", strconv.FormatInt(c.Batch, 10), "0")
	for _, name := range sortedKeys(c.Dims) {
		add("dim", fmt.Sprintf("%s=%d", name, c.Dims[name]), "")
	}
	add("mode", c.Mode, "train")
	add("precision", c.Precision, profile.Precisions[0].Name)
	if c.Mode != "infer" {
		add("optimizer", c.Optimizer, profile.Optimizers[0].Name)
		add("loss", c.Loss, "auto")
	}
	add("attention", c.Attention, "auto")
	add("runtime", c.Runtime, profile.Runtimes[0].Name)
	add("accumulate", itoa(c.Accumulate), "1")
	if c.Checkpoint == "all" || c.Checkpoint == "sqrt" {
		add("checkpoint", c.Checkpoint, "")
	}
	add("gpu", c.GPU, "")
	if d, err := profile.FindDevice(c.GPU); err != nil || d.Memory != c.VRAMBytes {
		add("vram", sizeFlag(c.VRAMBytes), "0")
	}
	return strings.Join(parts, " ")
}

// sizeFlag writes a size as briefly as a flag can take it exactly.
func sizeFlag(n int64) string {
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"G", profile.GiB}, {"M", profile.MiB}, {"GB", 1e9}} {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// quoted writes a word as a shell needs it.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@+\\", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// adviceLine names what could make a step fit that does not.
func adviceLine(w io.Writer, r *planner.Report) {
	if r.Fits == nil || *r.Fits {
		return
	}
	var try []string
	c := &r.Config
	if r.Batch == nil && c.Batch > 1 {
		try = append(try, "--batch max")
	}
	if c.Mode != "infer" && c.Checkpoint == "none" {
		try = append(try, "--checkpoint auto")
	}
	if c.Precision == "fp32" {
		try = append(try, "--precision amp-bf16")
	}
	if strings.HasPrefix(c.Optimizer, "adam") && c.Mode != "infer" {
		try = append(try, "an optimizer with less state (memplan list optimizers)")
	}
	if len(try) > 0 {
		fmt.Fprintf(w, "try     %s\n", strings.Join(try, ", "))
	}
}
