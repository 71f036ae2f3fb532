package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	sampled "github.com/memplan/memplan/validate/calls"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/cuda"
)

// An explanation is an operator's origin, its properties, and the kernels that it runs.
type explanation struct {
	SchemaVersion int             `json:"schemaVersion"`
	Operator      string          `json:"operator"`
	Family        []string        `json:"family"` // operators of the same row
	Row           string          `json:"row"`    // file and function that run it
	Kind          string          `json:"kind"`   // its group
	Autocast      string          `json:"autocast"`
	Saved         string          `json:"saved"`    // what autograd keeps
	Backward      string          `json:"backward"` // what backward allocates
	Traits        []string        `json:"traits"`   // what else is true of it
	Lift          []liftedBy      `json:"lift"`     // rules that emit it
	Calls         []explainedCall `json:"calls"`
	Measured      int             `json:"measured"` // calls that were run on a card
	Exact         int             `json:"exact"`    // those among them with PyTorch's bytes
	Docs          []string        `json:"docs"`
}

// A liftedBy is a rule that lifts files without metadata.
type liftedBy struct {
	Rule  string   `json:"rule"`
	Onnx  []string `json:"onnx"` // operators in its patterns
	Doc   string   `json:"doc"`
	Fused bool     `json:"fused"` // whether the patterns have several nodes
}

// An explainedCall is a small call and the kernels that it runs.
type explainedCall struct {
	Call     string            `json:"call"`
	Forward  []explainedKernel `json:"forward"`
	Backward []explainedKernel `json:"backward"`
}

// An explainedKernel is a kernel and the function that runs it in memplan validate, ""
// if none.
type explainedKernel struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CUDA   string `json:"cuda"`
}

// explain follows an operator, with or without the prefix "aten.", through the tables.
func explain(name string) (*explanation, error) {
	name = strings.TrimPrefix(name, "aten.")
	op := aten.Lookup(name)
	if op == nil {
		return nil, fmt.Errorf("--explain: no operator %q: %w", name, oneOf(name, operatorNames()))
	}
	x := &explanation{SchemaVersion: planner.SchemaVersion, Operator: name, Family: op.Names, Row: op.Where(), Kind: op.Kind, Autocast: op.Cast.String(),
		Saved: op.Saved(), Backward: op.Back, Traits: op.Has(name), Docs: []string{"docs/ops.md", "docs/atlas.md", "docs/kernels.md"}}
	x.Measured, x.Exact = aten.Measured(name)
	for _, r := range lift.PatternRules() {
		if slices.Contains(r.Makes, name) {
			x.Lift = append(x.Lift, liftedBy{r.Name, r.Ops, r.Doc, strings.Contains(r.From[0], "(") && len(r.Ops) > 1})
		}
	}
	samples, err := sampled.Of(name)
	if err != nil {
		return nil, err
	}
	for i := range samples {
		c := explainedCall{Call: samples[i].Call}
		for j := range samples[i].Program.Nodes {
			n := &samples[i].Program.Nodes[j]
			switch {
			case n.Phase == program.Forward:
				c.Forward = explained(c.Forward, n)
			case j > 0 && n.Autograd != "":
				c.Backward = explained(c.Backward, n)
			}
		}
		x.Calls = append(x.Calls, c)
	}
	return x, nil
}

// explained adds a node's kernel to a list, once.
func explained(list []explainedKernel, n *program.Node) []explainedKernel {
	k := explainedKernel{n.Does(), cpu.Where(n.Does()), cuda.Where(n.Does())}
	if slices.Contains(list, k) {
		return list
	}
	return append(list, k)
}

func operatorNames() (out []string) {
	for _, op := range aten.Ops() {
		out = append(out, op.Names...)
	}
	return out
}

// explanations are the formats of list ops --explain; their texts are memplan's own.
var explanations = []report.Format[*explanation]{
	{Name: "text", Write: writeExplanation, Exact: true},
	report.AsJSON(func(x *explanation) any { return x }),
}

func writeExplanation(w io.Writer, x *explanation, _ report.Style) error {
	say := func(what, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-12s%s\n", what, text)
		}
	}
	say("operator", "aten."+x.Operator)
	if len(x.Family) > 1 {
		say("row of", strings.Join(x.Family, ", "))
	}
	for _, l := range x.Lift {
		what := strings.Join(l.Onnx, ", ")
		if l.Fused {
			what = "nodes of " + what
		}
		say("from ONNX", what+" (rule "+l.Rule+": "+l.Doc+")")
	}
	if len(x.Lift) == 0 {
		say("from ONNX", "only from a file's metadata or a capture: no rule makes it from ONNX operators")
	}
	say("run by", x.Row+" ("+x.Kind+")")
	say("autocast", x.Autocast)
	say("saves", x.Saved)
	say("backward", x.Backward)
	for _, t := range x.Traits {
		say("it", t)
	}
	for _, c := range x.Calls {
		say("call", c.Call)
		writeKernels(say, "forward", c.Forward)
		writeKernels(say, "backward", c.Backward)
	}
	if !cuda.Functions {
		say("CUDA", "builds with the cuda tag also name the functions of kernels that are not elementwise")
	}
	say("measured", fmt.Sprintf("%d calls on a card, %d of them with PyTorch's bytes", x.Measured, x.Exact))
	say("docs", strings.Join(x.Docs, ", "))
	return nil
}

func writeKernels(say func(what, text string), phase string, list []explainedKernel) {
	for _, k := range list {
		text := "  " + phase + " " + k.Kernel
		if k.CPU != "" {
			text += "; CPU " + k.CPU
		} else {
			text += "; no CPU kernel"
		}
		if k.CUDA != "" {
			text += "; CUDA " + k.CUDA
		}
		say("", text)
	}
}
