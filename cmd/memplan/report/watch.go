package report

import (
	"fmt"
	"io"

	"github.com/memplan/memplan/validate/monitor"
)

// Watches are the formats of monitor.
var Watches = []Format[*monitor.Report]{
	{Name: "text", Write: watchText},
	AsJSON(watchDocument),
}

// watchDocument is the summary of one GPU, or a document of several.
func watchDocument(r *monitor.Report) any {
	if len(r.GPUs) == 1 {
		return r.GPUs[0]
	}
	return r
}

// Watched writes one reading in words.
func Watched(used, total, predicted int64) string {
	text := fmt.Sprintf("%s of %s", size(used), size(total))
	if predicted > 0 {
		text += fmt.Sprintf(", %.0f%% of the plan's %s", 100*float64(used)/float64(predicted), size(predicted))
	}
	return text
}

func watchText(w io.Writer, all *monitor.Report, s Style) error {
	p := newPage(w, s)
	for _, r := range all.GPUs {
		what := r.Device
		if len(all.GPUs) > 1 {
			what = fmt.Sprintf("GPU %d, %s", r.GPU, r.Device)
		}
		if r.PID != 0 {
			what = fmt.Sprintf("process %d on %s", r.PID, what)
		}
		code := green
		if len(r.Warnings) > 0 {
			code = red
		}
		p.wrapped("", fmt.Sprintf("%s: at most %s in %.0f s, %s", what, Watched(r.PeakBytes, r.TotalBytes, r.PredictedBytes), r.Seconds, Plural(r.Samples, "reading", "readings")), code)
		for _, warning := range r.Warnings {
			p.wrapped("  "+pad(fmt.Sprintf("%.0f s", warning.Seconds), 8)+pad(warning.Code, 12), warning.Message, "")
		}
	}
	return nil
}
