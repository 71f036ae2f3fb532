package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

var size = profile.FormatBytes

// paint colours a word; colour never carries meaning alone.
func paint(on bool, code, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

const (
	green = "32"
	red   = "31"
	bold  = "1"
)

// verdict is the sentence a person acts on.
func verdict(r *planner.Report) string {
	need := fmt.Sprintf("needs %s (%s reserved and %s of CUDA context)", size(r.Peak.ProcessBytes), size(r.Peak.ReservedBytes), size(r.Peak.ProcessBytes-r.Peak.ReservedBytes))
	step := "one training step"
	if r.Config.Mode == "infer" {
		step = "one inference"
	}
	at := ""
	if r.Config.Batch > 0 {
		at = fmt.Sprintf(" at batch %d", r.Config.Batch)
	}
	switch {
	case r.Fits == nil:
		return step + at + " " + need
	case *r.Fits && r.Checkpoint != nil && len(r.Checkpoint.Segments) > 0:
		return fmt.Sprintf("fits %s%s with %d checkpointed segments, for %.1f%% more time: %s, %s to spare", size(r.Config.VRAMBytes), at, len(r.Checkpoint.Segments),
			100*r.Checkpoint.RecomputeOverhead, need, size(r.Config.VRAMBytes-r.Peak.ProcessBytes))
	case *r.Fits:
		return fmt.Sprintf("fits %s%s: %s, %s to spare", size(r.Config.VRAMBytes), at, need, size(r.Config.VRAMBytes-r.Peak.ProcessBytes))
	default:
		return fmt.Sprintf("does not fit %s%s: %s, %s too much", size(r.Config.VRAMBytes), at, need, size(max(r.Peak.ProcessBytes-r.Config.VRAMBytes, 0)))
	}
}

// textReport writes the report for a person.
func textReport(w io.Writer, r *planner.Report, color bool) {
	v := verdict(r)
	switch {
	case r.Fits == nil:
		v = paint(color, bold, v)
	case *r.Fits:
		v = paint(color, green+";"+bold, v)
	default:
		v = paint(color, red+";"+bold, v)
	}
	fmt.Fprintln(w, v)
	fmt.Fprintf(w, "peak %s allocated in the %s at %s%s\n", size(r.Peak.AllocatedBytes), phaseWord(r.Peak.Phase), r.Peak.Node, inStep(r))
	batchLines(w, r)
	fmt.Fprintln(w)
	breakdownTable(w, r)
	liveTable(w, r, 8)
	timelineArt(w, r, 72)
	checkpointLines(w, r)
	fmt.Fprintf(w, "time    about %.1f ms a step on %s: forward %.1f, backward %.1f, optimizer %.1f; %.0f samples/s (roofline estimate)\n",
		r.Time.StepMs, deviceWord(r), r.Time.ForwardMs, r.Time.BackwardMs, r.Time.OptimizerMs, r.Time.SamplesPerSecond)
	fmt.Fprintf(w, "model   %s: %d parameters, %d nodes, lift from %s; %s, %s, %s\n", r.Model.Path, r.Model.Parameters, r.Model.Nodes, r.Model.Lift, r.Config.Precision, r.Config.Optimizer, r.Config.Runtime)
	warningLines(w, r)
}

func phaseWord(p string) string {
	if p == "optimizer" {
		return "optimizer step"
	}
	return p + " pass"
}

func deviceWord(r *planner.Report) string {
	if r.Config.GPU != "" {
		return r.Config.GPU
	}
	return profile.Devices[0].Name
}

func inStep(r *planner.Report) string {
	if r.Config.Mode == "infer" {
		return ""
	}
	return fmt.Sprintf(" (step %d)", r.Peak.Step+1)
}

func batchLines(w io.Writer, r *planner.Report) {
	b := r.Batch
	if b == nil {
		return
	}
	if b.Max == 0 {
		fmt.Fprintf(w, "not even batch 1 fits; what stops it: %s\n", b.LimitedBy)
		return
	}
	fmt.Fprintf(w, "largest batch that fits: %d (proven: none above %d can); what stops the next: %s\n", b.Max, b.UpperBound, b.LimitedBy)
}

// breakdownTable lists categories at the peak beside the four numbers.
func breakdownTable(w io.Writer, r *planner.Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "at the peak\t\t\tthe four numbers\t\n")
	numbers := [][2]string{
		{"requested", size(r.Peak.RequestedBytes)}, {"allocated", size(r.Peak.AllocatedBytes)}, {"reserved", size(r.Peak.ReservedBytes)},
		{"process", size(r.Peak.ProcessBytes)}, {"upper bound", size(r.Peak.UpperBoundBytes) + " reserved"},
	}
	rows := 0
	for _, c := range r.Breakdown {
		if c.Bytes == 0 {
			continue
		}
		extra := [2]string{}
		if rows < len(numbers) {
			extra = numbers[rows]
		}
		fmt.Fprintf(t, "  %s\t%s\t%5.1f%%\t  %s\t%s\n", c.Category, size(c.Bytes), 100*float64(c.Bytes)/float64(max(r.Peak.AllocatedBytes, 1)), extra[0], extra[1])
		rows++
	}
	for ; rows < len(numbers); rows++ {
		fmt.Fprintf(t, "\t\t\t  %s\t%s\n", numbers[rows][0], numbers[rows][1])
	}
	t.Flush()
	fmt.Fprintln(w)
}

func liveTable(w io.Writer, r *planner.Report, n int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "largest at the peak\t\t\t\n")
	for i, l := range r.Live {
		if i == n {
			break
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", size(l.Bytes), l.Category, l.Value, l.Module)
	}
	t.Flush()
	fmt.Fprintln(w)
}

// timelineArt draws allocated bytes over the peak's step in block characters.
func timelineArt(w io.Writer, r *planner.Report, width int) {
	if len(r.Curve) < 2 || r.Peak.AllocatedBytes <= 0 {
		return
	}
	const rows = 6
	width = min(width, len(r.Curve))
	cols := make([]int64, width)
	phases := make([]byte, width)
	for i, p := range r.Curve {
		c := i * width / len(r.Curve)
		cols[c] = max(cols[c], p.Bytes)
		phases[c] = p.Phase[0]
	}
	blocks := []rune(" ▁▂▃▄▅▆▇█")
	for row := rows - 1; row >= 0; row-- {
		label := ""
		if row == rows-1 {
			label = size(r.Peak.AllocatedBytes)
		} else if row == 0 {
			label = "0"
		}
		var sb strings.Builder
		for _, v := range cols {
			level := float64(v)/float64(r.Peak.AllocatedBytes)*rows - float64(row)
			sb.WriteRune(blocks[int(min(max(level, 0), 1)*8)])
		}
		fmt.Fprintf(w, "%10s ┤%s\n", label, strings.TrimRight(sb.String(), " "))
	}
	fmt.Fprintf(w, "%10s  %s\n\n", "", phaseAxis(phases))
}

// phaseAxis writes the phases' names under their columns.
func phaseAxis(phases []byte) string {
	names := map[byte]string{'z': "", 'f': "forward", 'l': "loss", 'b': "backward", 'o': "optimizer"}
	var sb strings.Builder
	for i := 0; i < len(phases); {
		j := i
		for j < len(phases) && phases[j] == phases[i] {
			j++
		}
		cell := "|" + names[phases[i]]
		if len(cell) > j-i {
			cell = cell[:j-i]
		}
		sb.WriteString(cell + strings.Repeat(" ", j-i-len(cell)))
		i = j
	}
	return strings.TrimRight(sb.String(), " ")
}

func checkpointLines(w io.Writer, r *planner.Report) {
	c := r.Checkpoint
	if c == nil || len(c.Segments) == 0 {
		return
	}
	proof := fmt.Sprintf("no choice of segments that fits costs less than %.2f%%", 100*c.LowerBound)
	if c.Optimal {
		proof = "optimal among choices of segments"
	}
	fmt.Fprintf(w, "checkpoint these modules (torch.utils.checkpoint): +%.2f%% time; %s\n", 100*c.RecomputeOverhead, proof)
	for _, s := range c.Segments {
		fmt.Fprintf(w, "  %s\n", strings.Join(s.Modules, " + "))
	}
	fmt.Fprintf(w, "  apply it: memplan plan %s --batch %d --vram %d -o plan.json && memplan config plan.json --to torch\n\n", r.Model.Path, r.Config.Batch, r.Config.VRAMBytes)
}

// warningLines groups warnings by code.
func warningLines(w io.Writer, r *planner.Report) {
	count := map[string]int{}
	for _, x := range r.Warnings {
		count[x.Code]++
	}
	for _, x := range r.Warnings {
		n := count[x.Code]
		if n == 0 {
			continue
		}
		count[x.Code] = 0
		more, node := "", ""
		if n > 1 {
			more = fmt.Sprintf(" (and %d more like it)", n-1)
		}
		if x.Node != "" {
			node = x.Node + ": "
		}
		fmt.Fprintf(w, "warning %s%s [%s]%s\n", node, x.Message, x.Code, more)
	}
}
