package main

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

func newShow(s *streams) *cobra.Command {
	var o output
	var dims, shapes []string
	var batch string
	cmd := &cobra.Command{
		Use:     "show <model.onnx>",
		Short:   "Values and shapes of the graph",
		Example: "  memplan show models/mlp.onnx --batch 32\n  memplan show models/gpt2.onnx --format json",
		Args:    exactly(1, "one model file"),
		RunE: func(_ *cobra.Command, args []string) error {
			var c planner.Config
			var err error
			if c.Dims, err = parseDims(dims); err != nil {
				return err
			}
			if c.Shapes, err = parseShapes(shapes); err != nil {
				return err
			}
			if batch != "" {
				if c.Batch, err = strconv.ParseInt(batch, 10, 64); err != nil || c.Batch < 1 {
					return fmt.Errorf("--batch %q: want a positive integer", batch)
				}
			}
			return runShow(s, args[0], c, &o)
		},
	}
	cmd.Flags().StringVar(&batch, "batch", "", "batch size `N`")
	cmd.Flags().StringArrayVar(&dims, "dim", nil, "bind a symbolic dimension, `NAME=N`; repeatable")
	cmd.Flags().StringArrayVar(&shapes, "shape", nil, "shape of a value that inference does not know, `NAME=D0,D1,..`; repeatable")
	o.add(cmd, "text", "json")
	return cmd
}

func runShow(s *streams, path string, c planner.Config, o *output) error {
	m, err := planner.Open(path)
	if err != nil {
		return err
	}
	values, err := m.Values(c)
	if err != nil {
		return err
	}
	var data []byte
	if o.format == "json" {
		data, err = jsonBytes(struct {
			SchemaVersion int                 `json:"schemaVersion"`
			Values        []planner.ValueInfo `json:"values"`
		}{planner.SchemaVersion, values})
	} else {
		var b bytes.Buffer
		err = graph.Format(&b, m.Graph())
		data = b.Bytes()
	}
	if err != nil {
		return err
	}
	return o.write(s, data)
}

// A listing is one table that list prints.
type listing struct {
	name, short string
	head        []string
	rows        func() [][]string
}

var listings = []listing{
	{"ops", "framework operators that memplan models", []string{"operator", "kind", "autocast", "saved for backward"}, func() [][]string {
		var out [][]string
		for _, op := range aten.Ops() {
			for _, n := range op.Names {
				out = append(out, []string{"aten." + n, op.Kind, op.Cast.String(), op.Saves})
			}
		}
		return out
	}},
	{"gpus", "device profiles", []string{"gpu", "memory", "GB/s", "fp32 TFLOP/s", "half TFLOP/s", "CUDA context"}, func() [][]string {
		var out [][]string
		for _, d := range profile.Devices {
			out = append(out, []string{d.Name, profile.FormatBytes(d.Memory), fmt.Sprintf("%.0f", d.Bandwidth/1e9), fmt.Sprintf("%.1f", d.FP32/1e12), fmt.Sprintf("%.1f", d.Half/1e12), profile.FormatBytes(d.Context)})
		}
		return out
	}},
	{"optimizers", "optimizers", []string{"optimizer", "PyTorch", "what it is"}, func() [][]string {
		var out [][]string
		for _, x := range profile.Optimizers {
			out = append(out, []string{strings.Join(append([]string{x.Name}, x.Aliases...), ", "), x.Class, x.Doc})
		}
		return append(out, []string{"none", "", "no optimizer: gradients only"})
	}},
	{"precisions", "precisions", []string{"precision", "what it is"}, func() [][]string {
		var out [][]string
		for _, x := range profile.Precisions {
			out = append(out, []string{x.Name, x.Doc})
		}
		return out
	}},
	{"runtimes", "runtime profiles", []string{"runtime", "CUDA", "cuDNN", "measured"}, func() [][]string {
		var out [][]string
		for _, x := range profile.Runtimes {
			out = append(out, []string{x.Name, x.CUDA, x.CuDNN, strconv.FormatBool(x.Measured)})
		}
		return out
	}},
	{"layouts", "arena layouts", []string{"layout", "what it is"}, func() [][]string { return nil }},
	{"selectors", "checkpoint selections", []string{"selection", "what it is"}, func() [][]string {
		return [][]string{{"none", "nothing is recomputed"}, {"all", "every module that saves anything"}, {"sqrt", "runs of about the square root of the number of modules"}, {"auto", "least recomputation that fits the budget"}}
	}},
	{"rules", "budget rules of check", []string{"rule", "what it limits"}, func() [][]string {
		var out [][]string
		for _, r := range planner.Rules {
			out = append(out, []string{r.Name, r.Doc})
		}
		return out
	}},
}

func newList(s *streams) *cobra.Command {
	names := make([]string, len(listings))
	for i, l := range listings {
		names[i] = l.name
	}
	var o output
	var model string
	cmd := &cobra.Command{
		Use:       "list <" + strings.Join(names, "|") + ">",
		Short:     "What memplan knows: operators, GPUs, optimizers, precisions, runtimes, rules",
		Args:      exactly(1, "one of "+strings.Join(names, ", ")),
		ValidArgs: names,
		RunE: func(_ *cobra.Command, args []string) error {
			if model != "" {
				if args[0] != "ops" {
					return fmt.Errorf("--model goes with list ops")
				}
				return listModelOps(s, model, &o)
			}
			for _, l := range listings {
				if l.name == args[0] {
					return printListing(s, &l, &o)
				}
			}
			return fmt.Errorf("unknown list %q (known: %s)", args[0], strings.Join(names, ", "))
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "with ops: the operators of this model `FILE`, and which of them are not supported")
	o.add(cmd, "text", "json")
	return cmd
}

// listModelOps says which operators of a file are known.
func listModelOps(s *streams, path string, o *output) error {
	m, err := planner.Open(path)
	if err != nil {
		return err
	}
	ops := m.Ops()
	if o.format == "json" {
		data, err := jsonBytes(struct {
			SchemaVersion int                 `json:"schemaVersion"`
			Ops           []planner.OpSupport `json:"ops"`
		}{planner.SchemaVersion, ops})
		if err != nil {
			return err
		}
		return o.write(s, data)
	}
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "operator\tnodes\tsupported\tfirst node")
	for _, x := range ops {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", x.Op, x.Count, map[bool]string{true: "yes", false: "NO"}[x.Known], x.Node)
	}
	t.Flush()
	return o.write(s, b.Bytes())
}

func printListing(s *streams, l *listing, o *output) error {
	rows := l.rows()
	if o.format == "json" {
		items := make([]map[string]string, 0, len(rows))
		for _, r := range rows {
			m := map[string]string{}
			for i, h := range l.head {
				m[h] = r[i]
			}
			items = append(items, m)
		}
		data, err := jsonBytes(map[string]any{"schemaVersion": planner.SchemaVersion, l.name: items})
		if err != nil {
			return err
		}
		return o.write(s, data)
	}
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(l.head, "\t"))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	t.Flush()
	return o.write(s, b.Bytes())
}

func newVersion(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v, rev := "devel", ""
			if info, ok := debug.ReadBuildInfo(); ok {
				if info.Main.Version != "" && info.Main.Version != "(devel)" {
					v = info.Main.Version
				}
				for _, kv := range info.Settings {
					if kv.Key == "vcs.revision" {
						rev = " " + kv.Value[:min(12, len(kv.Value))]
					}
				}
			}
			_, err := fmt.Fprintf(s.out, "memplan %s%s (no CUDA)\n", v, rev)
			return err
		},
	}
}
