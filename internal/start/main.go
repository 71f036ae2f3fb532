//go:build linux

// Command start measures memplan analyze as a whole process, from its start to
// its end, on every sample and shared model: the processor's time, user and
// system of all threads, the clock's, and the most memory that was resident
// (VmHWM).
//
//	go run ./internal/start -runs 10
//	go run ./internal/start -binary ./new -against ./old -- --batch 16 --vram 16G
//
// A time is the least of the runs, which other processes disturb least; memory
// is the most. With -against the two programs take turns. It says what it
// measured and judges nothing: a machine has its own times.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	runs            int
	binary, against string
	models          []string
	flags           []string // of analyze
}

func main() {
	var o options
	flag.IntVar(&o.runs, "runs", 10, "runs of each model")
	flag.StringVar(&o.binary, "binary", "", "memplan to measure; built from this folder, as releases are, without it")
	flag.StringVar(&o.against, "against", "", "another memplan, measured in turns")
	models := flag.String("models", "", "patterns of model files, separated by commas: those of models and ../shared/data/models without it")
	flag.Parse()
	o.flags = flag.Args()
	if len(o.flags) == 0 {
		o.flags = []string{"--batch", "16"}
	}
	if *models == "" {
		*models = "models/*.onnx,../shared/data/models/*.onnx"
	}
	if err := o.run(strings.Split(*models, ","), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "start:", err)
		os.Exit(1)
	}
}

// run finds the models, builds memplan if none is named, and measures.
func (o *options) run(patterns []string, out io.Writer) error {
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return err
		}
		o.models = append(o.models, found...)
	}
	if len(o.models) == 0 {
		return fmt.Errorf("no model file matches %s", strings.Join(patterns, ", "))
	}
	if o.binary == "" {
		dir, err := os.MkdirTemp("", "start")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // what is left of it is the system's to remove
		o.binary = filepath.Join(dir, "memplan")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", o.binary, "./cmd/memplan")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // a static program, as releases are
		if b, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w: %s", err, b)
		}
	}
	return o.table(out)
}

// table measures and prints a row for each model.
func (o *options) table(out io.Writer) error {
	binaries := []string{o.binary}
	head := "| model | processor ms | clock ms | MiB |\n|---|--:|--:|--:|\n"
	if o.against != "" {
		binaries = append(binaries, o.against)
		head = "| model | processor ms | clock ms | MiB | before: processor ms | clock ms | MiB |\n|---|--:|--:|--:|--:|--:|--:|\n"
	}
	fmt.Fprintf(out, "memplan analyze MODEL %s, %d runs\n\n%s", strings.Join(o.flags, " "), o.runs, head)
	for _, m := range o.models {
		costs, err := o.measure(binaries, m)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| %s |", filepath.Base(m))
		for _, c := range costs {
			fmt.Fprintf(out, " %.1f | %.1f | %.1f |", ms(c.processor), ms(c.clock), float64(c.memory)/(1<<20))
		}
		fmt.Fprintln(out)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// A cost is what runs of one program took.
type cost struct {
	processor, clock time.Duration // the least
	memory           int64         // bytes, the most
}

// measure runs the programs on a model in turns.
func (o *options) measure(binaries []string, model string) ([]cost, error) {
	costs := make([]cost, len(binaries))
	for i := range o.runs {
		for j, b := range binaries {
			c, err := once(b, append([]string{"analyze", model}, o.flags...))
			if err != nil {
				return nil, err
			}
			if i == 0 {
				costs[j] = c
			}
			costs[j] = cost{min(costs[j].processor, c.processor), min(costs[j].clock, c.clock), max(costs[j].memory, c.memory)}
		}
	}
	return costs, nil
}

// once runs a program. Its memory is that of the process's own pages and of those of
// the file that it has touched. (The kernel counts what this program had at
// the child's birth as well; that is less.)
func once(binary string, args []string) (cost, error) {
	cmd := exec.Command(binary, args...)
	var said strings.Builder
	cmd.Stderr = &said
	begin := time.Now()
	err := cmd.Run()
	clock := time.Since(begin)
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 { // 1 is an answer: it does not fit
		return cost{}, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	use := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{time.Duration(use.Utime.Nano() + use.Stime.Nano()), clock, use.Maxrss << 10}, nil
}
