package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/planner"
)

// bestLines says why a batch does the most samples per second, and what the largest would do.
func bestLines(r *planner.Report) []string {
	b := r.Batch.Best
	line := fmt.Sprintf("most samples per second: batch %d does %s", r.Config.Batch, millis(b.SamplesPerSecond))
	if b.Target > 0 {
		line = fmt.Sprintf("least time for %d samples: %s, in %s of %d", b.Target, millis(b.TargetMs)+" ms", Plural(r.Config.Accumulate, "batch", "batches"), r.Config.Batch)
		if b.LastBatch != r.Config.Batch {
			line += fmt.Sprintf(", the last of %d", b.LastBatch)
		}
		line += fmt.Sprintf(": %s samples a second", millis(b.SamplesPerSecond))
	}
	if b.Gap == 0 {
		line += "; no other does more"
	} else {
		line += fmt.Sprintf("; none does more than %s, %.2f%% more", millis(b.Bound), 100*b.Gap)
	}
	if r.Config.Mode != "infer" {
		line += ", with any choice of checkpointed modules"
	}
	out := []string{line}
	if p := b.Plain; p != nil && p.Batch != r.Config.Batch && r.Config.Mode != "infer" {
		out = append(out, fmt.Sprintf("without checkpoints up to batch %d fits, which does %s", p.Batch, millis(p.SamplesPerSecond)))
	}
	if p := b.Largest; p != nil && p.Batch > r.Config.Batch {
		with := " with some checkpoints"
		if r.Batch.Checkpoint == "none" {
			with = ""
		}
		out = append(out, fmt.Sprintf("the largest batch known to fit%s, %d, does %s", with, p.Batch, millis(p.SamplesPerSecond)))
	}
	return out
}

// mostBatches is the largest number of batches listed; JSON has more.
const mostBatches = 12

// batchText lists memory and samples per second over the batch.
func batchText(p *page, r *planner.Report) {
	if r.Batch == nil || r.Batch.Best == nil {
		return
	}
	p.head("over the batch")
	const head = "    batch    memory  samples/s  "
	p.line("%s", strings.TrimRight(head, " "))
	points := batchPoints(r, mostBatches)
	most := 0.0
	for _, x := range points {
		most = max(most, x.Bound)
	}
	for _, x := range points {
		memory, speed, value := size(x.ProcessBytes), millis(x.SamplesPerSecond), x.SamplesPerSecond
		if !x.Fits {
			memory, speed, value = "> card", "< "+millis(x.Bound), x.Bound
		}
		mark, code := " ", blue
		if x.Batch == r.Config.Batch {
			mark, code = "*", green
		}
		text := fmt.Sprintf("%s %7d %9s  %9s  ", mark, x.Batch, memory, speed)
		p.line("%s%s", text, paint(p.color, code, bar(int64(1000*value), int64(1000*most), p.width-len(text))))
	}
	p.wrapped("  ", "* the batch of this report; \"<\": a bound for any checkpoints, where the step does not fit without", "")
}

// batchPoints are at most n points that can fit, with the report's own as it is.
func batchPoints(r *planner.Report, n int) (out []planner.BatchPoint) {
	all := slices.DeleteFunc(slices.Clone(r.Batch.Best.Points), func(x planner.BatchPoint) bool { return x.Bound == 0 })
	for i, x := range all {
		if x.Batch == r.Config.Batch {
			x = planner.BatchPoint{Batch: x.Batch, Fits: true, ProcessBytes: r.Peak.ProcessBytes, SamplesPerSecond: r.Batch.Best.SamplesPerSecond, Bound: x.Bound}
		} else if i > 0 && i < len(all)-1 && i*n/len(all) == (i-1)*n/len(all) {
			continue
		}
		out = append(out, x)
	}
	return out
}
