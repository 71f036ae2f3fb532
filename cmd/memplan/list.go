package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/layout"
	"github.com/memplan/memplan/planner/profile"
)

// A listing is one table that list prints. In JSON, its items have a key for
// each heading; items, if set, returns them with numbers.
type listing struct {
	name, short string
	head, keys  []string
	rows        func() [][]string
	items       func() any
}

// listings are the tables.
var listings = []listing{
	{"ops", "framework operators that memplan models", []string{"operator", "kind", "autocast", "saved for backward"}, []string{"operator", "kind", "autocast", "saved"}, opRows, nil},
	{"gpus", "cards", []string{"gpu", "memory", "GB/s", "fp32 TFLOP/s", "half TFLOP/s", "CUDA context"}, nil, gpuRows, gpuItems},
	{"optimizers", "optimizers", []string{"optimizer", "PyTorch", "what it is"}, []string{"optimizer", "class", "doc"}, func() [][]string {
		return rows(profile.Optimizers, func(x *profile.Optimizer) []string {
			return []string{strings.Join(append([]string{x.Name}, x.Aliases...), ", "), x.Class, x.Doc}
		})
	}, nil},
	{"precisions", "precisions", []string{"precision", "what it is"}, []string{"precision", "doc"}, func() [][]string {
		return rows(profile.Precisions, func(x *profile.Precision) []string { return []string{x.Name, x.Doc} })
	}, nil},
	{"runtimes", "runtimes", []string{"runtime", "CUDA", "cuDNN", "measured"}, []string{"runtime", "cuda", "cudnn", "measured"}, func() [][]string {
		return rows(profile.AllRuntimes(), func(x *profile.Runtime) []string {
			return []string{x.Name, x.CUDA, x.CuDNN, strconv.FormatBool(x.Measured)}
		})
	}, nil},
	{"layouts", "arena layouts", []string{"layout", "what it is"}, []string{"layout", "doc"}, func() [][]string {
		return rows(layout.Methods, func(m *layout.Method) []string { return []string{m.Name, m.Doc} })
	}, nil},
	{"selectors", "checkpoint selections", []string{"selection", "what it is"}, []string{"selection", "doc"}, func() [][]string {
		return rows(planner.Selections, func(x *struct{ Name, Doc string }) []string { return []string{x.Name, x.Doc} })
	}, nil},
	{"levers", "what analyze --allow may change", []string{"lever", "what it is", "not used"}, []string{"lever", "doc", "refused"}, func() [][]string {
		return rows(planner.Levers, func(l *planner.Lever) []string {
			var refused []string
			for _, r := range l.Refused {
				refused = append(refused, r.What+": "+r.Why)
			}
			return []string{l.Name, l.Doc, strings.Join(refused, "; ")}
		})
	}, nil},
	{"rules", "rules of check", []string{"rule", "a limit is", "what it limits"}, []string{"rule", "form", "doc"}, func() [][]string {
		return rows(planner.Rules, func(r *planner.Rule) []string { return []string{r.Name, r.Form, r.Doc} })
	}, nil},
}

// rows writes each entry of a table as a row.
func rows[T any](table []T, row func(*T) []string) [][]string {
	out := make([][]string, len(table))
	for i := range table {
		out[i] = row(&table[i])
	}
	return out
}

func opRows() [][]string {
	var out [][]string
	for _, op := range aten.Ops() {
		for _, n := range op.Names {
			out = append(out, []string{"aten." + n, op.Kind, op.Cast.String(), op.Saved()})
		}
	}
	return out
}

func gpuRows() [][]string {
	return rows(profile.Devices, func(d *profile.Device) []string {
		return []string{d.Name, profile.FormatBytes(d.Memory), fmt.Sprintf("%.0f", d.Bandwidth/1e9), fmt.Sprintf("%.1f", d.FP32/1e12), fmt.Sprintf("%.1f", d.Half/1e12), profile.FormatBytes(d.Context)}
	})
}

// A gpuItem is a card as JSON.
type gpuItem struct {
	GPU            string  `json:"gpu"`
	Title          string  `json:"title"`
	MemoryBytes    int64   `json:"memoryBytes"`
	ContextBytes   int64   `json:"contextBytes"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
	FP32           float64 `json:"fp32FlopsPerSecond"`
	Half           float64 `json:"halfFlopsPerSecond"` // of tensor cores; 0 without
	BF16           bool    `json:"bf16"`
}

func gpuItems() any {
	var out []gpuItem
	for i := range profile.Devices {
		d := &profile.Devices[i]
		out = append(out, gpuItem{d.Name, d.Title, d.Memory, d.Context, d.Bandwidth, d.FP32, d.Half, d.BF16})
	}
	return out
}

// listed are the formats of list; its tables are memplan's own and need no quoting.
var listed = []report.Format[*listing]{
	{Name: "text", Write: func(w io.Writer, l *listing, _ report.Style) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.Join(l.head, "\t"))
		for _, r := range l.rows() {
			fmt.Fprintln(t, strings.Join(r, "\t"))
		}
		return t.Flush()
	}, Exact: true},
	report.AsJSON(func(l *listing) any {
		return map[string]any{"schemaVersion": planner.SchemaVersion, l.name: l.document()}
	}),
}

// document returns the rows as JSON.
func (l *listing) document() any {
	if l.items != nil {
		return l.items()
	}
	items := []map[string]string{}
	for _, r := range l.rows() {
		m := map[string]string{}
		for i, k := range l.keys {
			m[k] = r[i]
		}
		items = append(items, m)
	}
	return items
}

// opSupports are the formats of list ops --model.
var opSupports = []report.Format[[]planner.OpSupport]{
	{Name: "text", Write: func(w io.Writer, ops []planner.OpSupport, _ report.Style) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "operator\tnodes\tsupported\tfirst node")
		for _, x := range ops {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", x.Op, x.Count, map[bool]string{true: "yes", false: "NO"}[x.Known], x.Node)
		}
		return t.Flush()
	}},
	report.AsJSON(func(ops []planner.OpSupport) any {
		return struct {
			SchemaVersion int                 `json:"schemaVersion"`
			Ops           []planner.OpSupport `json:"ops"`
		}{planner.SchemaVersion, ops}
	}),
}

type listOptions struct {
	outputFlags
	limitFlags
	what, model, explain string
	outside              bool
}

func newListCmd(s *streams, run func(*streams, *listOptions) error) *cobra.Command {
	var names []string
	var long strings.Builder
	long.WriteString("list prints what memplan knows:\n")
	for i := range listings {
		names = append(names, listings[i].name)
		fmt.Fprintf(&long, "\n  %-11s %s", listings[i].name, listings[i].short)
	}
	o := &listOptions{}
	c := &cobra.Command{
		Use:       "list <table>",
		Short:     "What memplan knows: operators, cards, optimizers, rules and more",
		Long:      long.String(),
		Example:   "  memplan list gpus\n  memplan list ops --model model.onnx\n  memplan list ops --explain layer_norm",
		Args:      exactly(1, "one of "+strings.Join(names, ", ")),
		ValidArgs: names,
		RunE: func(_ *cobra.Command, args []string) error {
			o.what = args[0]
			return run(s, o)
		},
	}
	c.Flags().StringVar(&o.model, "model", "", "with ops: the operators of this model `FILE`, and which of them are not supported")
	c.Flags().StringVar(&o.explain, "explain", "", "with ops: what lifts the PyTorch operator `NAME`, its properties, and what runs it")
	_ = c.RegisterFlagCompletionFunc("explain", cobra.FixedCompletions(operatorNames(), cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist
	addOutside(c, &o.outside)
	o.limitFlags.add(c, boundedRun)
	o.outputFlags.add(c, report.Names(listed))
	return c
}

func listRun(s *streams, o *listOptions) error {
	switch {
	case (o.model != "" || o.explain != "") && o.what != "ops":
		return errors.New("--model and --explain go with list ops")
	case o.model != "" && o.explain != "":
		return errors.New("--model and --explain do not go together")
	case o.explain != "":
		x, err := explain(o.explain)
		if err != nil {
			return err
		}
		return emit(s, &o.outputFlags, explanations, x)
	case o.model != "":
		m, err := planner.OpenFrom(files.Door{Outside: o.outside}, o.model, onnx.Within(o.reading()))
		if err != nil {
			return err
		}
		if err := s.keep(m.Files()...); err != nil {
			return err
		}
		return emit(s, &o.outputFlags, opSupports, m.Ops())
	}
	var names []string
	for i := range listings {
		if listings[i].name == o.what {
			return emit(s, &o.outputFlags, listed, &listings[i])
		}
		names = append(names, listings[i].name)
	}
	return fmt.Errorf("list %q: %w", o.what, oneOf(o.what, names))
}
