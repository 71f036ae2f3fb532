package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/owenrumney/go-sarif/v3/pkg/report"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/spf13/cobra"

	"github.com/memplan/memplan/planner"
)

func newCheck(s *streams) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "check [config file]",
		Short: "CI gate: budget and regression rules from .memplan.yaml",
		Long: `check applies the rules of .memplan.yaml (found upward from the working directory)
to its models, on a machine without a GPU. It exits 1 when a rule fails and 2
when one cannot tell, for instance for want of a baseline.`,
		Example: "  memplan check\n  memplan check ci/.memplan.yaml --format markdown",
		Args:    cobra.MaximumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return runCheck(cmd.Context(), s, args, &o) },
	}
	o.add(cmd, "text", "json", "markdown", "sarif")
	return cmd
}

// rulesFile reads the file named, or the one found upward.
func rulesFile(args []string) (*planner.RulesFile, error) {
	if len(args) == 1 {
		return planner.ReadRulesFile(args[0])
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	path, err := planner.FindRulesFile(dir)
	if err != nil {
		return nil, err
	}
	return planner.ReadRulesFile(path)
}

func runCheck(ctx context.Context, s *streams, args []string, o *output) error {
	f, err := rulesFile(args)
	if err != nil {
		return err
	}
	vs, err := f.Check(ctx)
	if err != nil {
		return err
	}
	failed := 0
	for _, v := range vs {
		if v.OK == nil {
			return fmt.Errorf("%s: rule %s: %s", v.Model, v.Rule, v.Message)
		}
		if !*v.OK {
			failed++
		}
	}
	data, err := renderVerdicts(f, vs, o.format)
	if err != nil {
		return err
	}
	if err := o.write(s, data); err != nil {
		return err
	}
	if failed > 0 {
		return errNo
	}
	return nil
}

func renderVerdicts(f *planner.RulesFile, vs []planner.Verdict, format string) ([]byte, error) {
	var b bytes.Buffer
	switch format {
	case "json":
		return jsonBytes(struct {
			SchemaVersion int               `json:"schemaVersion"`
			Verdicts      []planner.Verdict `json:"verdicts"`
		}{planner.SchemaVersion, vs})
	case "sarif":
		err := sarifVerdicts(&b, f, vs)
		return b.Bytes(), err
	case "markdown":
		fmt.Fprintln(&b, "<!-- memplan:check -->")
		fmt.Fprintf(&b, "**memplan: %s**\n\n| model | rule | value | limit | |\n|---|---|---|---|---|\n", summary(vs))
		for _, v := range vs {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", v.Model, v.Rule, v.Value, v.Limit, okWord(v))
		}
	default:
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, v := range vs {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", okWord(v), v.Model, v.Rule, v.Message)
		}
		t.Flush()
		fmt.Fprintln(&b, summary(vs))
	}
	return b.Bytes(), nil
}

func okWord(v planner.Verdict) string {
	if v.OK != nil && *v.OK {
		return "ok"
	}
	return "FAIL"
}

func summary(vs []planner.Verdict) string {
	failed := 0
	for _, v := range vs {
		if v.OK != nil && !*v.OK {
			failed++
		}
	}
	if failed == 0 {
		return fmt.Sprintf("all %d rules hold", len(vs))
	}
	return fmt.Sprintf("%d of %d rules failed", failed, len(vs))
}

// sarifVerdicts writes failed rules as results. ONNX files have no lines: the
// place is the rules file, the model a logical location.
func sarifVerdicts(w io.Writer, f *planner.RulesFile, vs []planner.Verdict) error {
	r := report.NewV210Report()
	run := sarif.NewRunWithInformationURI("memplan", "https://github.com/memplan/memplan")
	for _, rule := range planner.Rules {
		run.AddRule("memplan/" + rule.Name).WithDescription(rule.Doc)
	}
	run.AddRule("memplan/fits").WithDescription("the step fits the card")
	for _, v := range vs {
		if v.OK == nil || *v.OK {
			continue
		}
		res := run.CreateResultForRule("memplan/" + v.Rule)
		res.WithLevel("error").WithMessage(sarif.NewTextMessage(v.Model + ": " + v.Message))
		loc := sarif.NewLocationWithPhysicalLocation(sarif.NewPhysicalLocation().
			WithArtifactLocation(sarif.NewSimpleArtifactLocation(filepath.ToSlash(f.Path))).
			WithRegion(sarif.NewSimpleRegion(ruleLine(f.Path, v), ruleLine(f.Path, v))))
		res.AddLocation(loc)
		res.WithPartialFingerprints(map[string]string{"memplan/v1": v.Rule + ":" + v.Model})
	}
	r.AddRun(run)
	return r.PrettyWrite(w)
}

// ruleLine is the line of the rule, or of the model, in the rules file.
func ruleLine(path string, v planner.Verdict) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 1
	}
	model := 1
	for i, l := range strings.Split(string(data), "\n") {
		if strings.Contains(l, v.Rule+":") {
			return i + 1
		}
		if strings.Contains(l, v.Model) && model == 1 {
			model = i + 1
		}
	}
	return model
}

func newBaseline(s *streams) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "baseline [config file]",
		Short:   "Write the baseline that check compares with",
		Example: "  memplan baseline && git add .memplan-baseline.json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := rulesFile(args)
			if err != nil {
				return err
			}
			b, path, err := f.NewBaseline(cmd.Context())
			if err != nil {
				return err
			}
			if file != "" {
				path = file
			}
			data, err := jsonBytes(b)
			if err != nil {
				return err
			}
			if path == "-" {
				_, err = s.out.Write(data)
				return err
			}
			if err := writeAtomic(path, data); err != nil {
				return err
			}
			fmt.Fprintf(s.err, "wrote %s: %d models\n", path, len(b.Models))
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to `FILE` instead of the rules file's baseline")
	return cmd
}
