package main

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/planner"
)

func newDiff(s *streams) *cobra.Command {
	var f modelFlags
	var o output
	cmd := &cobra.Command{
		Use:   "diff <base> <head>",
		Short: "Two models or plans: what changed, attributed per module and operator",
		Example: `  memplan diff old.onnx new.onnx --batch 32
  memplan diff base-plan.json head-plan.json --format markdown`,
		Args: exactly(2, "two models or plans"),
		RunE: func(_ *cobra.Command, args []string) error { return runDiff(s, args, &f, &o) },
	}
	f.add(cmd)
	o.add(cmd, "text", "json", "markdown")
	return cmd
}

// side opens a model, or the model and configuration of a plan.
func side(path string, cfg planner.Config) (*planner.Model, planner.Config, error) {
	if !strings.HasSuffix(path, ".json") {
		m, err := planner.Open(path)
		return m, cfg, err
	}
	p, err := planner.ReadPlan(path)
	if err != nil {
		return nil, cfg, err
	}
	m, err := planner.Open(p.Model.Path)
	if err != nil {
		return nil, cfg, fmt.Errorf("%s: its model: %w", path, err)
	}
	return m, p.Question(), nil
}

func runDiff(s *streams, args []string, f *modelFlags, o *output) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	base, bc, err := side(args[0], cfg)
	if err != nil {
		return err
	}
	head, hc, err := side(args[1], cfg)
	if err != nil {
		return err
	}
	d, err := planner.Compare(base, head, bc, hc)
	if err != nil {
		return err
	}
	data, err := renderDiff(d, o.format)
	if err != nil {
		return err
	}
	return o.write(s, data)
}

// change writes a delta with its share, "~" for none.
func change(delta, base int64) string {
	switch {
	case delta == 0:
		return "~"
	case base == 0:
		return signed(delta)
	}
	return fmt.Sprintf("%s (%+.2f%%)", signed(delta), 100*float64(delta)/float64(base))
}

func signed(n int64) string {
	if n > 0 {
		return "+" + size(n)
	}
	return size(n)
}

// mostModules bounds the list of modules for people; JSON has them all.
const mostModules = 15

func renderDiff(d *planner.Diff, format string) ([]byte, error) {
	var b bytes.Buffer
	switch format {
	case "json":
		return jsonBytes(d)
	case "markdown":
		fmt.Fprintf(&b, "<!-- memplan:diff -->\n**memplan: allocated peak %s → %s, %s**\n\n| category | base | head | change |\n|---|---|---|---|\n",
			size(d.Base.AllocatedBytes), size(d.Head.AllocatedBytes), change(d.DeltaBytes, d.Base.AllocatedBytes))
		for _, c := range d.Categories {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base))
		}
		fmt.Fprintf(&b, "\n<details><summary>%d modules, %d operators added, %d removed, %d changed</summary>\n\n", len(d.Modules), len(d.Ops.Added), len(d.Ops.Removed), len(d.Ops.Changed))
		for i, m := range d.Modules {
			if i == mostModules {
				break
			}
			fmt.Fprintf(&b, "- `%s` %s\n", moduleName(m.Module), signed(m.Delta))
		}
		fmt.Fprintln(&b, "\n</details>")
	default:
		fmt.Fprintf(&b, "allocated peak %s -> %s  %s\n\n", size(d.Base.AllocatedBytes), size(d.Head.AllocatedBytes), change(d.DeltaBytes, d.Base.AllocatedBytes))
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, c := range d.Categories {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base))
		}
		fmt.Fprintln(t)
		for i, m := range d.Modules {
			if i == mostModules {
				fmt.Fprintf(t, "  %d more modules\n", len(d.Modules)-i)
				break
			}
			fmt.Fprintf(t, "  %s\t%s\n", moduleName(m.Module), signed(m.Delta))
		}
		t.Flush()
		fmt.Fprintf(&b, "\noperators: %d added, %d removed, %d changed\n", len(d.Ops.Added), len(d.Ops.Removed), len(d.Ops.Changed))
	}
	return b.Bytes(), nil
}

func moduleName(m string) string {
	if m == "" {
		return "(model)"
	}
	return m
}
