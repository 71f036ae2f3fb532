package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
)

func newSolveCmd(s *streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "solve <problem> <instance>",
		Short: "The solvers on a bare instance file",
		Long:  "solve runs memplan's solvers on instance files of public collections, for comparison with others.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			var known []string
			for _, sub := range c.Commands() {
				known = append(known, sub.Name())
			}
			if len(args) == 0 {
				return fmt.Errorf("solve wants a problem, %s: see %s --help", report.Either(known), c.CommandPath())
			}
			return fmt.Errorf("solve %q: %w", args[0], oneOf(args[0], known))
		},
	}
	c.AddCommand(newSolveRematCmd(s, solveRematRun), newSolveLayoutCmd(s, solveLayoutRun))
	return c
}

// A rematClass is a value of --class.
type rematClass struct {
	name  string
	class remat.Class
	err   string // why there is no solver for it
}

var rematClasses = []rematClass{
	{name: "schedule", class: remat.ClassSchedule},
	{name: "segments", err: "segments are runs of a model's modules, which a bare instance does not have: use memplan plan on the model, or --class schedule"},
	{name: "opset", class: remat.ClassOpSet},
}

func rematClassNames() []string {
	var names []string
	for i := range rematClasses {
		names = append(names, rematClasses[i].name)
	}
	return names
}

type solveRematOptions struct {
	outputFlags
	limitFlags
	path, budget, class string
	ratio               float64
	certificate, verify string
	frontier            bool
	points              int
	seed                uint64
}

func newSolveRematCmd(s *streams, run func(context.Context, *streams, *solveRematOptions) error) *cobra.Command {
	o := &solveRematOptions{}
	c := &cobra.Command{
		Use:   "remat <graph.json>",
		Short: "Rematerialization: the cheapest schedule within a budget",
		Long: `remat reads a graph in networkx's node-link form and looks for the schedule of
least cost whose memory stays within the budget. It ends when it has proved that
nothing is better, when it no longer makes progress, or after --timeout, and
prints the best schedule with the bound that no schedule can go below.
It exits 1 if it proves that no schedule fits the budget.

--certificate writes the proof of the bound, --verify checks such a proof
against the graph without the solver. --frontier shows what every byte costs:
overhead and bound at budgets down to the least that is known to suffice.`,
		Example: `  memplan solve remat graph.json --budget 12G
  memplan solve remat graph.json --budget-ratio 0.8 --timeout 60s --format json
  memplan solve remat graph.json --budget-ratio 0.5 --certificate proof.json
  memplan solve remat graph.json --verify proof.json
  memplan solve remat graph.json --frontier --format svg -o frontier.svg`,
		Args:              exactly(1, "one graph"),
		ValidArgsFunction: completeFiles(1, "json"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	c.Flags().StringVar(&o.budget, "budget", "", "memory that must suffice, `BYTES` or a size such as 12G")
	c.Flags().Float64Var(&o.ratio, "budget-ratio", 0, "the budget as a fraction `R` of the memory without recomputation, such as 0.8")
	addEnum(c, c.Flags(), &o.class, "class", rematClasses[0].name, "`CLASS` of schedules that are admitted", rematClassNames(), nil)
	o.limitFlags.add(c, boundedSearch)
	c.Flags().StringVar(&o.certificate, "certificate", "", "write the proof of the bound to `FILE`")
	c.Flags().StringVar(&o.verify, "verify", "", "check the proof in `FILE` instead of solving")
	c.Flags().BoolVar(&o.frontier, "frontier", false, "overhead against memory, at many budgets")
	c.Flags().Uint64Var(&o.seed, "seed", 0, "seed `N` of the search's random choices")
	c.Flags().IntVar(&o.points, "points", 24, "`N` budgets of --frontier")
	o.outputFlags.add(c, rematFormats())
	noFiles(c, "budget", "budget-ratio", "points", "seed")
	for _, name := range []string{"certificate", "verify"} {
		_ = c.RegisterFlagCompletionFunc(name, completeFiles(2, "json")) // fails only for a flag that does not exist
	}
	return c
}

// A rematSolution is what solve remat writes.
type rematSolution struct {
	SchemaVersion int         `json:"schemaVersion"`
	Name          string      `json:"name"`
	Class         string      `json:"class"`
	Feasible      bool        `json:"feasible"`
	Budget        int64       `json:"budget"`
	Cost          int64       `json:"cost"`
	Extra         int64       `json:"extra"`
	Overhead      float64     `json:"overhead"`
	LowerBound    int64       `json:"lowerBound"`
	Gap           float64     `json:"gap"`
	Optimal       bool        `json:"optimal"`
	Peak          int64       `json:"peak"`
	Seconds       float64     `json:"seconds"`
	Schedule      []rematStep `json:"schedule"`
	Reason        string      `json:"reason,omitempty"` // why no schedule fits
}

// A rematStep is one execution: the node's index in the graph's order, its name, and
// the nodes whose outputs are freed after it.
type rematStep struct {
	Node int    `json:"node"`
	Name string `json:"name"`
	Drop []int  `json:"drop"`
}

// rematSolutions are the formats of solve remat.
var rematSolutions = []report.Format[*rematSolution]{
	{Name: "text", Write: rematText},
	report.AsJSON(report.Itself[*rematSolution]),
}

func rematText(w io.Writer, r *rematSolution, _ report.Style) error {
	if !r.Feasible {
		_, err := fmt.Fprintf(w, "no schedule fits %d bytes\n%s\n", r.Budget, r.Reason)
		return err
	}
	proof := fmt.Sprintf("no schedule costs less than %d: within %.4f%%", r.LowerBound, 100*r.Gap)
	if r.Optimal {
		proof = "proved optimal"
	}
	_, err := fmt.Fprintf(w, "cost    %d, %d more than without recomputation (+%.4f%%)\nbound   %s\nmemory  %d of %d bytes\nsteps   %d\ntime    %.2f s\n",
		r.Cost, r.Extra, 100*r.Overhead, proof, r.Peak, r.Budget, len(r.Schedule), r.Seconds)
	return err
}

func solveRematRun(ctx context.Context, s *streams, o *solveRematOptions) error {
	class, err := o.wanted()
	if err != nil {
		return err
	}
	data, err := files.Door{}.Read(o.path, files.Instance)
	if err != nil {
		return err
	}
	in, err := remat.ReadJSON(bytes.NewReader(data))
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is empty: want a graph in networkx's node-link form")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	switch {
	case o.verify != "":
		return verifyRemat(s, o, in)
	case o.frontier:
		return traceRemat(ctx, s, o, in)
	}
	budget, err := o.bytes(in)
	if err != nil {
		return err
	}
	show, stop := s.progress("solve remat")
	start := time.Now() //nolint:forbidigo // the search's time is part of the answer
	r, err := remat.Solve(ctx, in, remat.Options{Budget: budget, Timeout: o.timeout, Class: class, Seed: o.seed, Certificate: o.certificate != "", Progress: searchProgress(show, in)})
	out := &rematSolution{SchemaVersion: 1, Name: in.Name, Class: o.class, Budget: budget, Seconds: math.Round(time.Since(start).Seconds()*1e3) / 1e3}
	stop()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, remat.ErrInfeasible):
		out.Reason = err.Error()
	case err != nil:
		return fmt.Errorf("%w: give it more memory, or more time with --timeout", err)
	default:
		out.fill(in, r)
	}
	if err := o.prove(s, r, err); err != nil {
		return err
	}
	if err := emit(s, &o.outputFlags, rematSolutions, out); err != nil {
		return err
	}
	return answer(&out.Feasible)
}

// wanted checks the options that do not depend on the instance.
func (o *solveRematOptions) wanted() (remat.Class, error) {
	switch {
	case o.verify != "" && (o.frontier || o.budget != "" || o.ratio != 0 || o.certificate != ""):
		return 0, errors.New("--verify checks a proof, which says its budget: leave out --budget, --budget-ratio, --certificate and --frontier")
	case o.frontier && (o.budget != "" || o.ratio != 0 || o.certificate != ""):
		return 0, errors.New("--frontier looks at many budgets: leave out --budget, --budget-ratio and --certificate")
	case o.frontier && o.points < 2:
		return 0, fmt.Errorf("--points %d: want at least 2", o.points)
	case !o.frontier && !slices.Contains(report.Names(rematSolutions), o.format):
		return 0, fmt.Errorf("--format %s is for --frontier: want %s", o.format, report.Either(report.Names(rematSolutions)))
	case o.verify != "" || o.frontier:
		return remat.ClassSchedule, nil
	}
	switch given := o.ratio != 0; {
	case given == (o.budget != ""):
		return 0, errors.New("solve remat wants either --budget BYTES or --budget-ratio R")
	case given && !(o.ratio > 0 && o.ratio <= 1e6):
		return 0, fmt.Errorf("--budget-ratio %v: want a positive fraction such as 0.8", o.ratio)
	}
	for i := range rematClasses {
		if c := &rematClasses[i]; c.name == o.class {
			if c.err != "" {
				return 0, fmt.Errorf("--class %s: %s", c.name, c.err)
			}
			return c.class, nil
		}
	}
	return 0, fmt.Errorf("--class %q: %w", o.class, oneOf(o.class, rematClassNames()))
}

// bytes returns the budget for an instance.
func (o *solveRematOptions) bytes(in *remat.Instance) (int64, error) {
	if o.budget != "" {
		return planner.PositiveSize("--budget", o.budget)
	}
	n := o.ratio * float64(in.Peak())
	if n >= math.MaxInt64 {
		return 0, fmt.Errorf("--budget-ratio %v: more than any memory", o.ratio)
	}
	return int64(n), nil
}

func (out *rematSolution) fill(in *remat.Instance, r *remat.Result) {
	out.Feasible = true
	out.Cost, out.Extra, out.Overhead = r.Cost, r.Extra, r.Overhead
	out.LowerBound, out.Gap, out.Optimal, out.Peak = r.LowerBound, r.Gap, r.Optimal, r.Peak
	for _, st := range r.Schedule {
		out.Schedule = append(out.Schedule, rematStep{Node: st.Node, Name: in.Nodes[st.Node].Name, Drop: st.Drop})
	}
}
