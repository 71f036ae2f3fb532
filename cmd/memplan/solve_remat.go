package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/cmd/memplan/frontier"
	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/quote"
)

// rematFrontiers are the formats of solve remat --frontier.
var rematFrontiers = []report.Format[*remat.Frontier]{
	{Name: "text", Write: frontierText},
	report.AsJSON(func(f *remat.Frontier) any { return newFrontierDocument(f) }),
	{Name: "csv", Write: frontierCSV},
	{Name: "svg", Write: func(w io.Writer, f *remat.Frontier, _ report.Style) error { return frontier.SVG(w, f) }},
	{Name: "png", Write: func(w io.Writer, f *remat.Frontier, _ report.Style) error { return frontier.PNG(w, f) }},
}

// rematFormats lists the formats of either table.
func rematFormats() []string {
	names := report.Names(rematSolutions)
	for _, n := range report.Names(rematFrontiers) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// searchProgress shows the best schedule and the bound as they change; nil
// without a terminal.
func searchProgress(show func(done, total int, message string), in *remat.Instance) func(cost, bound int64) {
	if show == nil {
		return nil
	}
	total := float64(max(in.Total(), 1))
	return func(cost, bound int64) {
		best := "none yet"
		if cost < math.MaxInt64 {
			best = fmt.Sprintf("+%.4f%%", 100*(float64(cost)/total-1))
		}
		show(0, 0, fmt.Sprintf("best %s, bound +%.4f%%", best, 100*(float64(bound)/total-1)))
	}
}

// prove writes the certificate of an answer, if requested.
func (o *solveRematOptions) prove(s *streams, r *remat.Result, err error) error {
	if o.certificate == "" {
		return nil
	}
	var c *remat.Certificate
	if e := (*remat.InfeasibleError)(nil); errors.As(err, &e) {
		c = e.Certificate
	} else if r != nil {
		c = r.Certificate
	}
	if c == nil {
		return errors.New("--certificate: the budget is less than the fixed bytes of the graph: there is nothing to prove")
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return s.writeFile(o.certificate, quote.JSON(b.Bytes()))
}

// A verification is what solve remat --verify writes.
type verification struct {
	SchemaVersion int    `json:"schemaVersion"`
	Name          string `json:"name"`
	Budget        int64  `json:"budget"`
	Valid         bool   `json:"valid"`
	Infeasible    bool   `json:"infeasible"`
	LowerBound    int64  `json:"lowerBound"`
	Reason        string `json:"reason,omitempty"`
}

var verifications = []report.Format[*verification]{
	{Name: "text", Write: func(w io.Writer, v *verification, _ report.Style) error {
		text := fmt.Sprintf("proved: no schedule within %d bytes costs less than %d", v.Budget, v.LowerBound)
		switch {
		case !v.Valid:
			text = "not proved: " + v.Reason
		case v.Infeasible:
			text = fmt.Sprintf("proved: no schedule fits %d bytes", v.Budget)
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}},
	report.AsJSON(report.Itself[*verification]),
}

// verifyRemat checks a certificate: exit 1 if it does not prove its claim.
func verifyRemat(s *streams, o *solveRematOptions, in *remat.Instance) error {
	data, err := files.Door{}.Read(o.verify, files.Certificate)
	if err != nil {
		return err
	}
	c := &remat.Certificate{}
	if err := bounded.Decode(data, c); err != nil {
		return fmt.Errorf("%s: %w", o.verify, err)
	}
	v := &verification{SchemaVersion: 1, Name: in.Name, Budget: c.Budget, Infeasible: c.Infeasible}
	if v.LowerBound, err = remat.VerifyCertificate(in, c); err != nil {
		v.Reason = err.Error()
	}
	v.Valid = err == nil
	if err := emit(s, &o.outputFlags, verifications, v); err != nil {
		return err
	}
	return answer(&v.Valid)
}

// traceRemat answers --frontier.
func traceRemat(ctx context.Context, s *streams, o *solveRematOptions, in *remat.Instance) error {
	show, stop := s.progress("solve remat --frontier")
	f, err := remat.Trace(ctx, in, remat.Options{Timeout: o.timeout, Seed: o.seed, Progress: searchProgress(show, in)}, o.points)
	stop()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	}
	return emit(s, &o.outputFlags, rematFrontiers, f)
}

func frontierText(w io.Writer, f *remat.Frontier, _ report.Style) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%12s  %12s  %10s  %10s\n", "budget", "peak", "overhead", "bound")
	for i := range f.Points {
		p := &f.Points[i]
		bound := fmt.Sprintf("%.4f%%", 100*p.Bound)
		if p.Optimal {
			bound = "optimal"
		}
		fmt.Fprintf(&b, "%12s  %12s  %9.4f%%  %10s\n", profile.FormatBytes(p.Budget), profile.FormatBytes(p.Peak), 100*p.Overhead, bound)
	}
	fmt.Fprintf(&b, "no schedule fits less than %d bytes, one of %d is known\n", f.Floor.Bound, f.Floor.Budget)
	_, err := w.Write(b.Bytes())
	return err
}

func frontierCSV(w io.Writer, f *remat.Frontier, _ report.Style) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"budget", "peak", "cost", "lowerBound", "overhead", "bound", "optimal"}}
	for i := range f.Points {
		p := &f.Points[i]
		rows = append(rows, []string{strconv.FormatInt(p.Budget, 10), strconv.FormatInt(p.Peak, 10), strconv.FormatInt(p.Cost, 10), strconv.FormatInt(p.LowerBound, 10),
			strconv.FormatFloat(p.Overhead, 'f', 8, 64), strconv.FormatFloat(p.Bound, 'f', 8, 64), strconv.FormatBool(p.Optimal)})
	}
	return c.WriteAll(rows)
}

// A frontierDocument is a frontier as JSON.
type frontierDocument struct {
	SchemaVersion int                  `json:"schemaVersion"`
	Cost          int64                `json:"cost"` // without recomputation
	Floor         int64                `json:"floor"`
	Known         int64                `json:"known"` // least budget with a schedule
	Points        []frontierDocumentAt `json:"points"`
}

type frontierDocumentAt struct {
	Budget     int64   `json:"budget"`
	Peak       int64   `json:"peak"`
	Cost       int64   `json:"cost"`
	LowerBound int64   `json:"lowerBound"`
	Overhead   float64 `json:"overhead"`
	Bound      float64 `json:"bound"`
	Optimal    bool    `json:"optimal"`
}

func newFrontierDocument(f *remat.Frontier) *frontierDocument {
	d := &frontierDocument{SchemaVersion: 1, Cost: f.Total, Floor: f.Floor.Bound, Known: f.Floor.Budget}
	for _, p := range f.Points {
		d.Points = append(d.Points, frontierDocumentAt{p.Budget, p.Peak, p.Cost, p.LowerBound, p.Overhead, p.Bound, p.Optimal})
	}
	return d
}
