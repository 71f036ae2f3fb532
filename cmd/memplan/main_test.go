package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner"
)

// memplan runs a command line.
func memplan(args ...string) (code exitCode, out, errw string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

// Every command describes itself, and every flag with it; no line of help is
// wider than a terminal of 80 columns, but for a file that is printed.
func TestHelp(t *testing.T) {
	root := newRootCmd(newStreams(&bytes.Buffer{}, &bytes.Buffer{}))
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s: no help", c.CommandPath(), f.Name)
			}
			if _, ok := c.GetFlagCompletionFunc(f.Name); !ok && !strings.Contains("help version output timeline model input expect profile times config prices", f.Name) && f.Value.Type() != "bool" {
				t.Errorf("%s --%s: no completion", c.CommandPath(), f.Name)
			}
		})
		if code, out, errw := memplan(append(strings.Fields(c.CommandPath())[1:], "--help")...); code != exitYes || out == "" || errw != "" {
			t.Errorf("%s --help: code %d, %q", c.CommandPath(), code, errw)
		}
		_, out, _ := memplan(append([]string{"help"}, strings.Fields(c.CommandPath())[1:]...)...)
		for line := range strings.Lines(out) {
			if line = strings.TrimSuffix(line, "\n"); columns(line) > 80 && !strings.HasSuffix(c.Name(), ".py") {
				t.Errorf("help %s: %d columns: %q", c.CommandPath(), columns(line), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// What the help of a flag leaves to memplan list, that prints: every name.
func TestChoices(t *testing.T) {
	for i := range planner.Settings {
		x := &planner.Settings[i]
		text := choices(x.Flag, x.Names)
		_, table, listed := strings.Cut(strings.TrimSuffix(text, ")"), "memplan list ")
		if !listed {
			if text != ": "+strings.Join(x.Names, "|") {
				t.Errorf("--%s: %q", x.Flag, text)
			}
			continue
		}
		_, out, _ := memplan("list", table)
		for _, name := range x.Names {
			if !strings.Contains(out, name) {
				t.Errorf("--%s %s: memplan list %s has it not", x.Flag, name, table)
			}
		}
	}
}

// Wide lines break within their column; narrow ones stay as they were written.
func TestFilled(t *testing.T) {
	long := strings.Repeat("word ", 18) + "end"
	for _, tt := range []struct{ text, want string }{
		{"short\nlines\n\n    code  # stays", "short\nlines\n\n    code  # stays"},
		{"a\n" + long + "\nb", "a" + strings.Repeat(" word", 15) + "\nword word word end b"},
		{"  row  " + long + "\n       more\n  next  x", "  row " + strings.Repeat(" word", 14) + "\n       word word word word end more\n  next  x"},
		{"\n" + long, "\n" + strings.TrimSpace(strings.Repeat("word ", 16)) + "\nword word end"},
	} {
		if got := filled(tt.text); got != tt.want {
			t.Errorf("%q:\n%s\nwant\n%s", tt.text, got, tt.want)
		}
	}
	begin := "  x " + strings.Repeat("y", 60) + " --long"
	if got := continued(begin + " value"); got != begin+" value" {
		t.Errorf("a narrow command becomes %q", got)
	}
	if got, want := continued(begin+" value --short"), "  x "+strings.Repeat("y", 60)+" --long value \\\n      --short"; got != want {
		t.Errorf("a wide command becomes %q, want %q", got, want)
	}
}

// The commands and flags that are promised.
func TestSurface(t *testing.T) {
	root := newRootCmd(newStreams(&bytes.Buffer{}, &bytes.Buffer{}))
	model := "vram gpu batch dim mode precision optimizer loss attention accumulate checkpoint runtime config format output timeout"
	for name, flags := range map[string]string{
		"analyze": model + " timeline times", "plan": model + " times", "diff": model, "show": model + " timeline", "config": "to format output", "check": "format output", "baseline": "output",
		"validate": model + " device cap input expect tolerance seed steps profile", "list": "format output model", "version": "", "completion": "", "solve remat": "budget budget-ratio class format output timeout",
	} {
		c, rest, err := root.Find(strings.Fields(name))
		if err != nil || len(rest) > 0 || c == root {
			t.Errorf("no command %s: %v", name, err)
			continue
		}
		for _, f := range strings.Fields(flags) {
			if c.Flags().Lookup(f) == nil {
				t.Errorf("%s has no --%s", name, f)
			}
		}
	}
	for i := range topics {
		if _, out, _ := memplan("help", topics[i].name); strings.TrimSpace(out) != strings.TrimSpace(topics[i].text) && strings.TrimSpace(out) != strings.TrimSpace(filled(topics[i].text)) {
			t.Errorf("help %s prints %q", topics[i].name, out)
		}
	}
}

// Every row of every table that list prints has a cell for each heading.
func TestListings(t *testing.T) {
	for i := range listings {
		l := &listings[i]
		for _, r := range l.rows() {
			if len(r) != len(l.head) || r[0] == "" {
				t.Errorf("%s: row %q under %q", l.name, r, l.head)
			}
		}
		code, out, errw := memplan("list", l.name, "--format", "json")
		var doc map[string]any
		if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitYes {
			t.Errorf("list %s: code %d, %v %s", l.name, code, err, errw)
		}
		if items, ok := doc[l.name].([]any); !ok || len(items) != len(l.rows()) {
			t.Errorf("list %s has %d items, want %d", l.name, len(items), len(l.rows()))
		}
		if l.items == nil && len(l.keys) != len(l.head) {
			t.Errorf("list %s: keys %q for %q", l.name, l.keys, l.head)
		}
		for _, fault := range spelling(doc, "") {
			t.Errorf("list %s: %s", l.name, fault)
		}
	}
}

// The command line that a report suggests gives the plan that the report has.
func TestPlanCommand(t *testing.T) {
	testdata.Sequential(t)
	model := filepath.Join("..", "..", "models", "gpt2.onnx")
	for _, flags := range [][]string{
		{"--batch", "48", "--vram", "16G"},
		{"--batch", "40", "--gpu", "t4", "--precision", "amp-fp16", "--attention", "eager", "--optimizer", "sgd"},
		{"--dim", "batch=48", "--vram", "17179869185", "--loss", "sum", "--accumulate", "2"},
	} {
		code, out, errw := memplan(append([]string{"analyze", model, "--format", "json"}, flags...)...)
		if code != exitYes {
			t.Fatalf("%v: code %d %s", flags, code, errw)
		}
		r := &planner.Report{}
		if err := json.Unmarshal([]byte(out), r); err != nil {
			t.Fatal(err)
		}
		line := strings.Fields(report.PlanCommand(r))
		code, out, errw = memplan(line[1:]...)
		p := &planner.Plan{}
		if err := json.Unmarshal([]byte(out), p); err != nil || code != exitYes {
			t.Fatalf("%v: code %d, %v, %s", line, code, err, errw)
		}
		if a, b := r.Peak, p.Peak; a != b {
			t.Errorf("%v: %+v, analyze says %+v", line, b, a)
		}
		if got, want := fmt.Sprint(p.Selection), fmt.Sprint(r.Checkpoint.Segments); got != want {
			t.Errorf("%v selects %s, analyze says %s", line, got, want)
		}
	}
}

// What is written replaces a file as a whole, keeps its mode and follows
// links; what is no file is written to.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", link); err != nil {
		t.Skip(err)
	}
	if err := files.Write(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	info, _ := os.Stat(file)
	if err != nil || string(data) != "new" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, mode %v, %v", data, info.Mode(), err)
	}
	if l, err := os.Readlink(link); err != nil || l != "a" {
		t.Errorf("the link is %q, %v", l, err)
	}
	if err := files.Write(os.DevNull, []byte("x")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%s is a file now", os.DevNull)
	}
	if err := files.Write(dir, nil); err == nil {
		t.Error("wrote a directory")
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("left behind: %v", list)
	}
}

// Progress appears on terminals only, late, and leaves nothing.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	s := &streams{err: messages{&b}, watch: newWatchdog(&b)}
	show, stop := s.progress("work")
	stop()
	if show != nil || b.Len() != 0 {
		t.Error("progress without a terminal")
	}
	s.errTTY = true
	_, stop = s.progress("work")
	stop()
	if b.Len() != 0 {
		t.Errorf("progress at once: %q", b.String())
	}
	show, stop = s.progress("work")
	show(1, 3, "part")
	time.Sleep(patience + patience/2)
	stop()
	if got, want := b.String(), "\r\x1b[Kwork: 0.5 s  1 of 3  part\r\x1b[K"; got != want && !strings.HasPrefix(got, "\r\x1b[Kwork: ") {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.HasSuffix(b.String(), "\r\x1b[K") {
		t.Errorf("the line stays: %q", b.String())
	}
}

func TestExitFor(t *testing.T) {
	var b bytes.Buffer
	for _, tt := range []struct {
		err  error
		code exitCode
		text string
	}{
		{nil, exitYes, ""}, {errNo, exitNo, ""}, {fmt.Errorf("x: %w", errNo), exitNo, ""},
		{errors.New("a\nb\r\n"), exitUnknown, "memplan: a b\n"},
	} {
		b.Reset()
		if code := exitFor(tt.err, &b); code != tt.code || b.String() != tt.text {
			t.Errorf("%v: code %d, %q", tt.err, code, b.String())
		}
	}
}

// A panic is reported as ours, with code 2 and nothing on stdout.
func TestPanicIsReported(t *testing.T) {
	var out, errw bytes.Buffer
	code := guarded(&errw, func() exitCode { panic("broken") })
	if code != exitUnknown || out.Len() != 0 || !strings.HasPrefix(errw.String(), "memplan: internal error: broken: please report") {
		t.Errorf("code %d, %q", code, errw.String())
	}
}

// The schedules that solve remat prints hold in a replay that reads the
// graph's file by itself.
func TestSolveRemat(t *testing.T) {
	for _, tt := range []struct {
		file  string
		ratio string
	}{{"checkmate_mobilenet_b512.json", "0.8"}, {"rl1_n100.json", "0.9"}, {"checkmate_vgg16_b256.json", "0.95"}} {
		path := testdata.Shared(t, "remat", tt.file)
		code, out, errw := memplan("solve", "remat", path, "--budget-ratio", tt.ratio, "--format", "json")
		if code != exitYes {
			t.Fatalf("%s: code %d, %s", tt.file, code, errw)
		}
		var r rematSolution
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		peak, cost, total := replayRemat(t, path, r.Schedule)
		if peak != r.Peak || peak > r.Budget || cost != r.Cost || cost-total != r.Extra || r.LowerBound > r.Cost || r.Optimal != (r.LowerBound == r.Cost) {
			t.Errorf("%s: peak %d of %d, printed %d; cost %d of %d, printed %d; bound %d, optimal %v", tt.file, peak, r.Budget, r.Peak, cost, total, r.Cost, r.LowerBound, r.Optimal)
		}
		ratio, _ := new(big.Rat).SetString(tt.ratio)
		if plain, _, _ := replayRemat(t, path, nil); new(big.Rat).Mul(ratio, new(big.Rat).SetInt64(plain)).Cmp(new(big.Rat).SetInt64(r.Budget)) < 0 {
			t.Errorf("%s: budget %d of %d", tt.file, r.Budget, plain)
		}
	}
}

// replayRemat executes a schedule, or every node once and frees each after its
// last reader.
func replayRemat(t *testing.T, path string, schedule []rematStep) (peak, cost, total int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		ID, Name any
		Duration int64
		CPU      int64 `json:"cost_cpu"`
		RAM      int64 `json:"cost_ram"`
		Out      int64 `json:"out_cost"`
		Param    int64 `json:"param_cost"`
	}
	var g struct {
		Nodes []node
		Links []struct {
			Source, Target any
			From           any `json:"0"`
			To             any `json:"1"`
		}
		Graph struct{ Order []any }
	}
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	id := func(n node) any {
		if n.ID == nil {
			return n.Name
		}
		return n.ID
	}
	rank, place := map[any]int{}, map[any]int{}
	for i, x := range g.Graph.Order {
		rank[x] = i
	}
	slices.SortStableFunc(g.Nodes, func(a, b node) int { return rank[id(a)] - rank[id(b)] })
	for i, n := range g.Nodes {
		place[id(n)] = i
		total += n.CPU + n.Duration
	}
	reads, last := make([][]int, len(g.Nodes)), make([]int, len(g.Nodes))
	for i := range last {
		last[i] = i
	}
	for _, l := range g.Links {
		u, v := place[cmp.Or(l.Source, l.From)], place[cmp.Or(l.Target, l.To)]
		reads[v] = append(reads[v], u)
		last[u] = max(last[u], v)
	}
	if schedule == nil {
		for i := range g.Nodes {
			s := rematStep{Node: i}
			for u := range i + 1 {
				if last[u] == i {
					s.Drop = append(s.Drop, u)
				}
			}
			schedule = append(schedule, s)
		}
	}
	live, resident := int64(0), map[int]bool{}
	for _, s := range schedule {
		n := g.Nodes[s.Node]
		for _, u := range reads[s.Node] {
			if !resident[u] {
				t.Fatalf("%s: node %d reads %d, which is not there", path, s.Node, u)
			}
		}
		resident[s.Node] = true
		live += n.RAM + n.Out
		cost += n.CPU + n.Duration
		peak = max(peak, live+n.Param)
		for _, u := range s.Drop {
			delete(resident, u)
			live -= g.Nodes[u].RAM + g.Nodes[u].Out
		}
	}
	return peak, cost, total
}

// A message is never longer than a screen, and keeps both its ends.
func TestLongMessage(t *testing.T) {
	var b bytes.Buffer
	code := exitFor(fmt.Errorf("model.onnx: %s: unknown operator", strings.Repeat("Rélu", 1<<20)), &b)
	if got := b.String(); code != exitUnknown || len(got) > 2*longest || !strings.HasPrefix(got, "memplan: model.onnx: ") || !strings.HasSuffix(got, ": unknown operator\n") {
		t.Errorf("code %d, %d bytes: %.60q", code, len(got), got)
	}
}
