package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/cmd/memplan/timeline"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
)

type analyzeOptions struct {
	modelFlags
	outputFlags
	path, timeline string
	compare, allow []string
	prices         string
	phases         bool
	draws          int
	seed           uint64
	lengths        string
	open           bool
}

func newAnalyzeCmd(s *streams, run func(context.Context, *streams, *analyzeOptions) error) *cobra.Command {
	o := &analyzeOptions{}
	c := &cobra.Command{
		Use:   "analyze <model.onnx>",
		Short: "What one step needs, whether it fits, which batch and checkpoints",
		Long: `analyze says how much GPU memory one training step or inference of a model needs
and where each byte goes. With a budget (--vram or --gpu) it says whether it
fits; without --batch it finds the largest batch that does; and when the batch
asked for does not fit, it chooses the modules to checkpoint so that it does.

The largest batch is rarely the fastest: --batch best finds the batch, and the
checkpoints for it, of the most samples per second, with a bound on what any
other could do, and --target-batch N the least time for N samples in batches
whose gradients add up. Both end after some seconds with the gap that is left;
with --timeout they go on until each batch that could do more was tried, or the
time is up.

With --compare it answers once for each of several checkpoints, and with several
cards after --gpu once for each card, as a table of memory, time and samples per
second; without --batch each has the largest batch that fits.

With --allow it says what may change: what each of these levers alone saves of the
step's memory and what it costs in time, the cheapest first, and with a budget the
fastest configuration of them that fits. Nothing that is not allowed is changed;
what memplan cannot predict is named, and not used. memplan list levers has them.

With --phases it says what a run needs besides its steady step: the first step, an
evaluation between steps, saving a state dict, a last smaller batch. With a file in
--dim, such as seq=lengths.csv, steps of sizes drawn from it run in one allocator:
what is reserved over time, how often that runs out of memory under the budget, and
which settings of PyTorch's allocator help. The file has a length on each line, or
LENGTH,COUNT.`,
		Example: `  memplan analyze models/resnet50.onnx --vram 16G
  memplan analyze models/gpt2.onnx --batch 16 --precision amp-bf16
  memplan analyze models/vit_b_16.onnx --batch 256 --vram 16G --format json
  memplan analyze models/resnet50.onnx --batch 64 --timeline step.svg
  memplan analyze models/resnet50.onnx --batch 64 --open
  memplan analyze models/gpt2.onnx --batch 48 --vram 16G --compare none,sqrt,blocks,auto
  memplan analyze models/vit_b_16.onnx --gpu t4,a10,a100-40gb
  memplan analyze models/gpt2.onnx --batch 48 --vram 16G --allow precision,accumulate,checkpoint
  memplan analyze model.onnx --batch 8 --vram 16G --dim seq=lengths.csv
  memplan analyze models/vit_b_16.onnx --vram 16G --batch best`,
		Args:              exactly(1, "one model file"),
		ValidArgsFunction: completeFiles(1, "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			if o.open && !c.Flags().Changed("format") {
				o.format = "html"
			}
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(report.Analyses))
	addTimeline(c, &o.timeline)
	c.Flags().StringSliceVar(&o.compare, "compare", nil, "answer once for each of the checkpoints `HOW,HOW,..`: values of --checkpoint, and blocks for all")
	c.Flags().StringVar(&o.prices, "prices", "", "prices of cards for --gpu with several, a `FILE` with lines such as a100-80gb,1.89")
	c.Flags().StringSliceVar(&o.allow, "allow", nil, "what may change, levers `LEVER,LEVER,..` or all: what each saves and costs, and the best of them; LEVER=SETTING for one setting")
	c.Flags().BoolVar(&o.phases, "phases", false, "what a run needs besides its steady step: first step, evaluation, state dict, last batch, drawn sizes")
	c.Flags().IntVar(&o.draws, "draws", 200, "with a file in --dim: `N` steps of a run")
	c.Flags().Uint64Var(&o.seed, "seed", 1, "with a file in --dim: `N` that the draws begin with")
	addEnum(c, c.Flags(), &o.lengths, "lengths", "samples", "with a file in --dim: whose lengths it has, `WHOSE`: samples, of which the longest makes a batch's, or batches", []string{"samples", "batches"}, nil)
	noFiles(c, "compare", "draws", "seed")
	_ = c.RegisterFlagCompletionFunc("allow", cobra.FixedCompletions(append([]string{"all"}, planner.LeverNames()...), cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist
	_ = c.MarkFlagFilename("prices", "csv")                                                                                                                 // fails only for a flag that does not exist
	c.Flags().BoolVar(&o.open, "open", false, "write the report as HTML, to a temporary file without -o, and show it in the browser")
	return c
}

// compareRun answers in several ways.
func compareRun(ctx context.Context, s *streams, o *analyzeOptions, m *planner.Model, cfg planner.Config) error {
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	var c *planner.Comparison
	var err error
	if len(o.compare) > 0 {
		c, err = m.CompareCheckpoints(ctx, cfg, o.compare)
	} else {
		c, err = compareCards(ctx, o, m, cfg)
	}
	if err != nil {
		return err
	}
	clear()
	if err := emit(s, &o.outputFlags, report.Comparisons, c); err != nil {
		return err
	}
	fits := c.Fastest != ""
	return answer(&fits)
}

func compareCards(ctx context.Context, o *analyzeOptions, m *planner.Model, cfg planner.Config) (*planner.Comparison, error) {
	cards, err := planner.Cards(cfg.GPU)
	if err != nil {
		return nil, err
	}
	var prices map[string]float64
	if o.prices != "" {
		if prices, err = planner.ReadPrices(&cfg, o.prices); err != nil {
			return nil, fmt.Errorf("--prices: %w", err)
		}
	}
	return m.CompareCards(ctx, cfg, cards, prices)
}

// allowRun prices levers.
func allowRun(ctx context.Context, s *streams, o *analyzeOptions, m *planner.Model, cfg planner.Config) error {
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	r, err := m.Allow(ctx, cfg, o.allow)
	if err != nil {
		return err
	}
	clear()
	if err := emit(s, &o.outputFlags, report.LeverReports, r); err != nil {
		return err
	}
	if r.Base.Fits == nil {
		return nil
	}
	fits := r.Best != nil
	return answer(&fits)
}

// phasesRun replays the phases of a run.
func phasesRun(ctx context.Context, s *streams, o *analyzeOptions, m *planner.Model, cfg planner.Config) error {
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	r, err := m.Phases(ctx, cfg, planner.LengthOptions{Steps: o.draws, Seed: o.seed, Padded: o.lengths == "samples"})
	if err != nil {
		return err
	}
	clear()
	if err := emit(s, &o.outputFlags, report.PhaseReports, r); err != nil {
		return err
	}
	return answer(r.Fits)
}

// addTimeline adds the flag that writes the events of the step.
func addTimeline(c *cobra.Command, at *string) {
	c.Flags().StringVar(at, "timeline", "", "write the steady step's events to `FILE`, which ends in "+timeline.Endings())
}

// together returns an error for questions that cannot be asked together.
func (o *analyzeOptions) together(cfg *planner.Config) error {
	var asked []string
	for _, x := range []struct {
		flag string
		on   bool
	}{{"--gpu with several cards", planner.Several(cfg.GPU)}, {"--compare", len(o.compare) > 0}, {"--allow", len(o.allow) > 0}, {"--phases, or a file in --dim,", o.phases}} {
		if x.on {
			asked = append(asked, x.flag)
		}
	}
	switch {
	case len(asked) > 1:
		return fmt.Errorf("%s and %s do not go together", asked[0], asked[1])
	case len(asked) > 0 && o.timeline != "":
		return fmt.Errorf("--timeline is of one step: give it without %s", asked[0])
	case cfg.OnArena() && (len(asked) > 0 || o.timeline != ""):
		return fmt.Errorf("--runtime %s is of onnxruntime's arena: give it without %s", cfg.Runtime, append(asked, "--timeline")[0])
	case o.prices != "" && !planner.Several(cfg.GPU):
		return errors.New("--prices needs several cards, such as --gpu t4,a10")
	}
	return nil
}

func analyzeRun(ctx context.Context, s *streams, o *analyzeOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	o.phases = o.phases || len(cfg.Lengths) > 0
	if err := o.together(&cfg); err != nil {
		return err
	}
	if err := checkTimeline(o.timeline); err != nil {
		return err
	}
	if o.open {
		if err := o.checkOpen(planner.Several(cfg.GPU) || len(o.allow) > 0 || o.phases); err != nil {
			return err
		}
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	m, err := s.open(o.path, &cfg)
	if err != nil {
		return err
	}
	if len(o.compare) > 0 || planner.Several(cfg.GPU) {
		return compareRun(ctx, s, o, m, cfg)
	}
	switch {
	case len(o.allow) > 0:
		return allowRun(ctx, s, o, m, cfg)
	case o.phases:
		return phasesRun(ctx, s, o, m, cfg)
	}
	r, err := analyzed(ctx, s, m, cfg)
	if err != nil {
		return err
	}
	if err := s.writeTimeline(r, o.timeline); err != nil {
		return err
	}
	chart := func(w io.Writer) error { return timeline.SVG(w, &timeline.Step{Stack: r.Stack()}) }
	a := &report.Analysis{Report: r.Report, Chart: chart, Step: r.View}
	if cfg.OnArena() {
		a.Chart, a.Step = nil, nil // they are PyTorch's
	}
	if r.Fits != nil && !*r.Fits && o.format == report.Analyses[0].Name {
		a.Hints = hints(ctx, m, cfg)
	}
	if err := emit(s, &o.outputFlags, report.Analyses, a); err != nil {
		return err
	}
	if o.open {
		s.browse(o.file)
	}
	return answer(r.Fits)
}

// checkOpen checks that the result is one report as HTML, and gives it a file if it
// has none.
func (o *analyzeOptions) checkOpen(several bool) error {
	switch {
	case o.format != "html":
		return fmt.Errorf("--open shows HTML: give it without --format %s", o.format)
	case several || len(o.compare) > 0:
		return errors.New("--open shows one report: give it without --compare, --allow and --phases, and with one card")
	case o.toFile():
		return nil
	}
	dir, err := files.TempDir("memplan")
	if err != nil {
		return fmt.Errorf("--open: %w; name a file with -o", err)
	}
	o.file = filepath.Join(dir, "memplan.html")
	return nil
}

// browsers are the commands that show a file, by operating system; on others it is
// xdg-open.
var browsers = map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}

// browse shows a file in the browser, or says where it is.
func (s *streams) browse(file string) {
	path, err := filepath.Abs(file)
	if err == nil {
		with, ok := browsers[runtime.GOOS]
		if !ok {
			with = []string{"xdg-open"}
		}
		err = exec.Command(with[0], append(slices.Clone(with[1:]), path)...).Start() // it may live as long as the browser
	}
	if err != nil {
		s.err.line("wrote %s, which no browser shows: %v", file, err)
		return
	}
	s.err.line("wrote %s", file)
}

// open opens a model for a question and checks that the question's selection
// was made for it.
func (s *streams) open(path string, cfg *planner.Config) (*planner.Model, error) {
	m, unknown, err := s.openAny(path, cfg)
	if err == nil && len(unknown) > 0 {
		err = errors.New("--dim: " + unknown[0])
	}
	if err == nil {
		err = m.Matches(cfg)
	}
	return m, err
}

// openAny opens a model for a question, whatever its selection was made for, and
// returns warnings of dimensions that the model lacks.
func (s *streams) openAny(path string, cfg *planner.Config) (*planner.Model, []string, error) {
	m, unknown, err := planner.OpenFor(path, cfg)
	if err != nil {
		return nil, nil, missing(path, err)
	}
	return m, unknown, s.keep(m.Files()...)
}

// missing adds to the error of a file on the command line that does not exist
// what may be meant.
func missing(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, base := filepath.Split(path)
	names, there := files.Names(filepath.Clean(dir))
	if !there {
		return fmt.Errorf("%w: there is no folder %s", err, filepath.Clean(dir))
	}
	if slices.Contains(names, base) { // another file is missing
		return err
	}
	if near := planner.Nearest(base, names); near != "" {
		return fmt.Errorf("%w: did you mean %s?", err, dir+near)
	}
	return err
}

// analyzed answers a question about a model, showing progress if it takes long.
func analyzed(ctx context.Context, s *streams, m *planner.Model, cfg planner.Config) (*planner.Answer, error) {
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	return m.Analyze(ctx, cfg)
}

// answer converts a report's answer to a command's.
func answer(fits *bool) error {
	if fits != nil && !*fits {
		return errNo
	}
	return nil
}

// checkTimeline returns an error for a file that no timeline can be written to,
// before anything else is done.
func checkTimeline(file string) error {
	if file == "" {
		return nil
	}
	if _, err := timeline.FormatOf(file); err != nil {
		return fmt.Errorf("--timeline %w", err)
	}
	return nil
}

// writeTimeline writes the events of the step that a report is about.
func (s *streams) writeTimeline(r *planner.Answer, file string) error {
	if file == "" {
		return nil
	}
	f, err := timeline.FormatOf(file)
	if err != nil {
		return err
	}
	placement, err := r.Placement()
	if err != nil {
		return err
	}
	step := &timeline.Step{Title: title(r.Report), Events: r.Timeline(), Before: r.Standing(), Stack: r.Stack(), Placement: placement}
	var b bytes.Buffer
	if err := f.Write(&b, step); err != nil {
		return err
	}
	return s.writeFile(file, b.Bytes())
}

// title returns the title of a step's drawing.
func title(r *planner.Report) string {
	t := filepath.Base(r.Model.Path) + ", " + r.Config.Mode
	if r.Config.Batch > 0 {
		t += fmt.Sprintf(", batch %d", r.Config.Batch)
	}
	t += ", " + r.Config.Precision
	if r.Config.Mode == "train" {
		t += ", " + r.Config.Optimizer
	}
	return t
}
