//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// A kindCount is a row of the report's table.
type kindCount struct {
	Kind       string         `json:"kind"`
	Cases      int            `json:"cases"`
	Exits      [3]int         `json:"exits"` // 0, 1, 2
	Violations map[string]int `json:"violations"`
}

// A report is what all cases came to.
type report struct {
	Cases      int           `json:"cases"`
	Seed       uint64        `json:"seed"`
	Took       time.Duration `json:"tookNs"`
	Machine    string        `json:"machine"`
	Seen       int           `json:"readsSeenWhereAllowed"` // shows that the harness sees reads
	Warned     int           `json:"exit2AfterWarnings"`
	Kinds      []*kindCount  `json:"kinds"`
	Violations []*result     `json:"violations"`
	Slowest    []*result     `json:"slowest"`
	Largest    []*result     `json:"largest"`
	start      time.Time
}

func newReport(o options) *report {
	rep := &report{Seed: o.seed, start: time.Now(), Violations: []*result{}}
	for _, g := range generators {
		rep.Kinds = append(rep.Kinds, &kindCount{Kind: g.name, Violations: map[string]int{}})
	}
	return rep
}

// add counts a result; the caller holds the lock.
func (rep *report) add(r *result) {
	rep.Cases++
	if r.read && len(r.Findings) == 0 {
		rep.Seen++
	}
	if r.warned {
		rep.Warned++
	}
	k := rep.Kinds[slices.IndexFunc(rep.Kinds, func(k *kindCount) bool { return k.Kind == r.Kind })]
	k.Cases++
	if r.Exit >= 0 && r.Exit < len(k.Exits) {
		k.Exits[r.Exit]++
	}
	for _, f := range r.Findings {
		k.Violations[f.Check]++
	}
	if len(r.Findings) > 0 {
		rep.Violations = append(rep.Violations, r)
	}
	rep.Slowest = topped(rep.Slowest, r, func(a, b *result) int { return cmp.Compare(b.Wall, a.Wall) })
	rep.Largest = topped(rep.Largest, r, func(a, b *result) int { return cmp.Compare(b.Memory, a.Memory) })
}

// topped adds a result to a list of the first twenty.
func topped(list []*result, r *result, order func(a, b *result) int) []*result {
	list = append(list, r)
	slices.SortStableFunc(list, order)
	return list[:min(len(list), 20)]
}

func (rep *report) finish() {
	rep.Took, rep.Machine = time.Since(rep.start), machine()
	slices.SortFunc(rep.Violations, func(a, b *result) int { return cmp.Compare(a.Seed, b.Seed) })
}

// count is how many findings of a check there are.
func (rep *report) count(check string) int {
	n := 0
	for _, k := range rep.Kinds {
		n += k.Violations[check]
	}
	return n
}

// print writes the tables as text.
func (rep *report) print(w io.Writer) {
	fmt.Fprintf(w, "%d cases from seed %d in %.0f s (%s)\n", rep.Cases, rep.Seed, rep.Took.Seconds(), rep.Machine)
	fmt.Fprintf(w, "%d with a broken promise; reads seen where allowed: %d; exits 2 after a warning: %d\n\n", len(rep.Violations), rep.Seen, rep.Warned)
	fmt.Fprintf(w, "%-20s %6s %6s %6s %6s", "kind", "cases", "exit 0", "exit 1", "exit 2")
	for _, c := range checkNames {
		fmt.Fprintf(w, " %9s", c)
	}
	for _, k := range rep.Kinds {
		fmt.Fprintf(w, "\n%-20s %6d %6d %6d %6d", k.Kind, k.Cases, k.Exits[0], k.Exits[1], k.Exits[2])
		for _, c := range checkNames {
			fmt.Fprintf(w, " %9d", k.Violations[c])
		}
	}
	fmt.Fprint(w, "\n\nslowest\n")
	for _, r := range rep.Slowest {
		fmt.Fprintf(w, "  %8s %8s cpu %5d MB  -only %s:%d  memplan %s\n", seconds(r.Wall), seconds(r.CPU), r.Memory/1_000_000, r.Kind, r.Seed, line(r.Args))
	}
	fmt.Fprint(w, "\nlargest\n")
	for _, r := range rep.Largest {
		fmt.Fprintf(w, "  %5d MB %8s  -only %s:%d  memplan %s\n", r.Memory/1_000_000, seconds(r.Wall), r.Kind, r.Seed, line(r.Args))
	}
	rep.printViolations(w)
}

// printViolations lists some findings of each check and kind.
func (rep *report) printViolations(w io.Writer) {
	shown := map[string]int{}
	for _, r := range rep.Violations {
		for _, f := range r.Findings {
			key := f.Check + r.Kind
			if shown[key]++; shown[key] > 5 {
				continue
			}
			fmt.Fprintf(w, "\n%s  -only %s:%d  memplan %s\n    %s\n", f.Check, r.Kind, r.Seed, line(r.Args), f.What)
		}
	}
}

// write writes the report as JSON.
func (rep *report) write(path string) error {
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// page writes the report as Markdown.
func (rep *report) page(o options) error {
	if o.doc == "" {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Hostile input\n\nWritten by `go run ./internal/hostile -cases %d -seed %d -doc docs/hostile.md`, which makes each case from its seed; SECURITY.md\nhas the promises, `go doc ./internal/hostile` the checks. ", rep.Cases, rep.Seed)
	fmt.Fprintf(&b, "%d cases in %.0f s (%s).\n\n", rep.Cases, rep.Took.Seconds(), rep.Machine)
	fmt.Fprint(&b, "| promise | cases that broke it |\n|---|---:|\n")
	for _, c := range checkNames {
		fmt.Fprintf(&b, "| %s | %d |\n", promises[c], rep.count(c))
	}
	fmt.Fprintf(&b, "\nWhere a command line names a file outside, the harness saw %d reads: it sees what it looks for.\n\n", rep.Seen)
	fmt.Fprint(&b, "| kind | cases | exit 0 | exit 1 | exit 2 | broken |\n|---|---:|---:|---:|---:|---:|\n")
	for _, k := range rep.Kinds {
		broken := 0
		for _, n := range k.Violations {
			broken += n
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", k.Kind, k.Cases, k.Exits[0], k.Exits[1], k.Exits[2], broken)
	}
	fmt.Fprint(&b, "\nThe slowest and the largest:\n\n| case | command | time | memory |\n|---|---|---:|---:|\n")
	for _, r := range slices.Concat(rep.Slowest[:min(5, len(rep.Slowest))], rep.Largest[:min(5, len(rep.Largest))]) {
		command := strings.NewReplacer("`", "'", "|", "\\|").Replace(line(r.Args))
		fmt.Fprintf(&b, "| `%s:%d` | `memplan %s` | %s | %d MB |\n", r.Kind, r.Seed, command, seconds(r.Wall), r.Memory/1_000_000)
	}
	return os.WriteFile(o.doc, b.Bytes(), 0o644)
}

// promises says what each check looks for.
var promises = map[string]string{
	"written":   "nothing outside the case's folder is written",
	"read":      "nothing outside it is opened",
	"leak":      "nothing of what lies outside it is printed or written",
	"control":   "no raw control character in text",
	"markup":    "no markup of a name is live",
	"time":      "no run over 2 s",
	"memory":    "no run over 500 MB",
	"output":    "no more than 64 MiB printed",
	"exit":      "an exit code of 0, 1 or 2",
	"line":      "every exit 2 one line",
	"internals": "no internals in messages",
}
