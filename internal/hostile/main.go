//go:build linux

// Command hostile runs memplan on hostile input: models, documents, names,
// paths and special files made from a seed, each in a folder of its own with
// canaries around it, and holds what it did against what SECURITY.md and the
// contract of exit codes promise:
//
//	written    nothing around the case's folder is changed or made
//	read       no file around it is opened (inotify sees it)
//	leak       no byte of such a file stands in what is printed or written
//	control    no control character, override of direction or broken UTF-8 in text
//	markup     no markup of a name is live in HTML, SVG or Markdown
//	time       2 s by the clock at most
//	memory     500 MB resident at most
//	output     64 MiB printed at most
//	exit       0, 1 or 2
//	line       exit 2 is one line, after lines of warnings, and no result
//	internals  no panic, no Go type, no format verb in a message
//
//	go run ./internal/hostile -cases 20000 -seed 1
//	go run ./internal/hostile -only json-values:17 -keep /tmp/case
//
// Run as root it runs memplan as nobody, so that what a case says about the
// machine's own files stays without effect.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// options are what the command line says.
type options struct {
	cases   int
	seed    uint64 // of the first case
	workers int
	binary  string
	only    string // KIND:SEED
	kind    string
	limit   time.Duration // after which no case is begun; 0: none
	keep    string        // where a case's folder stays
	report  string        // JSON
	doc     string        // Markdown
}

func main() {
	if launched() {
		return
	}
	var o options
	flag.IntVar(&o.cases, "cases", 300, "how many cases")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the first case; the others count on from it")
	flag.IntVar(&o.workers, "parallel", 2, "how many at a time")
	flag.StringVar(&o.binary, "binary", "", "memplan to run (built from this repository)")
	flag.StringVar(&o.only, "only", "", "run one case, KIND:SEED, and print all that it did")
	flag.StringVar(&o.kind, "kind", "", "run cases of this kind only")
	flag.StringVar(&o.keep, "keep", "", "copy the folder of each case that breaks a promise, or of -only, into this one")
	flag.StringVar(&o.report, "report", "", "write the report as JSON to this file")
	flag.StringVar(&o.doc, "doc", "", "write the report as a page, such as docs/hostile.md, to this file")
	flag.DurationVar(&o.limit, "for", 0, "begin no case after this time")
	flag.DurationVar(&killAfter, "kill", killAfter, "when a process that does not end is ended")
	flag.Parse()
	failed, err := run(o, os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(2)
	case failed:
		os.Exit(1)
	}
}

// run runs the cases and writes the reports; it reports whether a promise was
// broken.
func run(o options, out io.Writer) (failed bool, err error) {
	dir, err := newFolder()
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, s, err := prepare(o.binary, dir)
	if err != nil {
		return false, err
	}
	if o.only != "" {
		return runOnly(o, binary, s, dir, out)
	}
	rep, err := runAll(o, binary, s, dir)
	if err != nil {
		return false, err
	}
	rep.print(out)
	return len(rep.Violations) > 0, errors.Join(rep.write(o.report), rep.page(o))
}

// newFolder makes a temporary folder, into which the user nobody may look.
func newFolder() (string, error) {
	dir, err := os.MkdirTemp("", "hostile")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// prepare builds memplan and has it write the documents that cases start from.
func prepare(given, dir string) (binary string, s *samples, err error) {
	binary = filepath.Join(dir, "memplan")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/memplan")
	cmd.Dir = repository()
	if given != "" { // where nobody can read it
		cmd = exec.Command("cp", given, binary)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	made := filepath.Join(dir, "samples")
	if err := cmp.Or(os.Chmod(binary, 0o755), os.Mkdir(made, 0o755)); err != nil {
		return "", nil, err
	}
	s, err = newSamples(binary, made)
	return binary, s, err
}

// newWorldIn makes a worker's world.
func newWorldIn(dir string, worker int, seed uint64) (*world, error) {
	root := filepath.Join(dir, "w"+strconv.Itoa(worker))
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	return newWorld(root, rand.New(rand.NewPCG(seed, uint64(worker))))
}

// runAll runs the cases on all workers.
func runAll(o options, binary string, s *samples, dir string) (*report, error) {
	rep := newReport(o)
	seeds := make(chan uint64)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var first error
	for i := range o.workers {
		w, err := newWorldIn(dir, i, o.seed)
		if err != nil {
			return nil, err
		}
		defer w.close()
		l, err := newLauncher(binary)
		if err != nil {
			return nil, err
		}
		defer l.close()
		wait.Go(func() {
			for seed := range seeds {
				g := chosen(seed)
				if o.kind != "" {
					g, err = generatorNamed(o.kind)
				}
				var r *result
				if err == nil {
					r, err = runCase(l, w, s, g, seed)
				}
				if err == nil && len(r.Findings) > 0 {
					err = keepCase(o.keep, w, r)
				}
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				if err == nil {
					rep.add(r)
				}
				mu.Unlock()
			}
		})
	}
	for i := range o.cases {
		mu.Lock()
		stop := first != nil
		mu.Unlock()
		if stop || o.limit > 0 && time.Since(rep.start) > o.limit {
			break
		}
		seeds <- o.seed + uint64(i)
	}
	close(seeds)
	wait.Wait()
	rep.finish()
	return rep, first
}

// keepCase copies the case's folder, links as links, with its command line.
func keepCase(keep string, w *world, r *result) error {
	if keep == "" {
		return nil
	}
	to := filepath.Join(keep, r.Kind+"-"+strconv.FormatUint(r.Seed, 10))
	if err := cmp.Or(os.RemoveAll(to), os.MkdirAll(keep, 0o755)); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", "--sparse=always", w.caseDir(), to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(to+".json", append(data, '\n'), 0o644)
}

// runOnly repeats one case and prints what it did.
func runOnly(o options, binary string, s *samples, dir string, out io.Writer) (failed bool, err error) {
	kind, text, _ := strings.Cut(o.only, ":")
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return false, fmt.Errorf("-only %s: want KIND:SEED", o.only)
	}
	g, err := generatorNamed(kind)
	if err != nil {
		return false, err
	}
	w, err := newWorldIn(dir, 0, o.seed)
	if err != nil {
		return false, err
	}
	defer w.close()
	l, err := newLauncher(binary)
	if err != nil {
		return false, err
	}
	defer l.close()
	r, err := runCase(l, w, s, g, seed)
	if err != nil {
		return false, err
	}
	if err := keepCase(o.keep, w, r); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "memplan %s\nexit %d, %.2f s, %.2f s of the processor, %d MB\n", line(r.Args), r.Exit, r.Wall.Seconds(), r.CPU.Seconds(), r.Memory/1_000_000)
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%s: %s\n", f.Check, f.What)
	}
	if r.Stderr != "" {
		fmt.Fprintf(out, "stderr %s\n", r.Stderr)
	}
	return len(r.Findings) > 0, nil
}

// line is a command line that may be printed and, where a name has no control
// characters, given to a shell.
func line(args []string) string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = arg
		if strings.Trim(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:") != "" || arg == "" {
			out[i] = strconv.QuoteToASCII(arg)
		}
		if len(out[i]) > 200 {
			out[i] = out[i][:200] + "..."
		}
	}
	return strings.Join(out, " ")
}

// machine describes where the cases ran.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%s, %d processors, load %s at the end", runtime.Version(), runtime.NumCPU(), average)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
