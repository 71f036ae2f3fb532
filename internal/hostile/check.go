//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A finding is one promise that a case broke.
type finding struct {
	Check string `json:"check"`
	What  string `json:"what"`
}

// checkNames lists the checks, in the order of the report.
var checkNames = []string{"written", "read", "leak", "control", "markup", "time", "memory", "output", "exit", "line", "internals"}

// judge holds an outcome against every promise. written are the case's own
// files that are new or changed.
func judge(b *builder, o *outcome, written map[string][]byte) ([]finding, error) {
	out := slices.Concat(judgeLimits(o), judgeExit(b, o), judgeText(b, o, written))
	read, wrote := b.w.events()
	changed, err := b.w.changes()
	if err != nil {
		return nil, err
	}
	if all := b.unscratched(slices.Concat(changed, wrote)); len(all) > 0 {
		out = append(out, finding{"written", strings.Join(all, ", ")})
	}
	if len(read) > 0 && !b.mayRead {
		out = append(out, finding{"read", strings.Join(read, ", ")})
	}
	if !b.mayRead {
		out = append(out, judgeLeak(b.w, o, written)...)
	}
	if len(changed) > 0 || len(wrote) > 0 {
		err = b.w.rebuild()
	}
	return out, err
}

// unscratched leaves out, for a command that works in a temporary folder of its own,
// that there was one. What is left of it counts.
func (b *builder) unscratched(changes []string) []string {
	if !b.scratch {
		return changes
	}
	return slices.DeleteFunc(changes, func(s string) bool { return s == "changed tmp" || strings.HasPrefix(s, "wrote tmp/memplan-") })
}

func judgeLimits(o *outcome) []finding {
	var out []finding
	switch {
	case strings.HasPrefix(o.Killed, "no end"):
		out = append(out, finding{"time", o.Killed})
	case o.took() > mostTime:
		out = append(out, finding{"time", fmt.Sprintf("%.1f s by the clock, %.1f s of the processor, %.1f s of waiting for it", o.Wall.Seconds(), o.CPU.Seconds(), o.Stall.Seconds())})
	}
	if o.Memory > mostMemory || strings.HasPrefix(o.Killed, "more than") {
		out = append(out, finding{"memory", fmt.Sprintf("%d MB", o.Memory/1_000_000)})
	}
	if o.Cut {
		out = append(out, finding{"output", fmt.Sprintf("more than %d MiB", mostOutput>>20)})
	}
	return out
}

// internals are traces of the program in its messages. What a case itself
// says is not among them.
var internals = regexp.MustCompile(`runtime error|internal error|goroutine \d+ \[|panic:|fatal error|nil pointer|%![a-zA-Z]?\(|Go struct field|Go value of type|strconv\.|interface conversion|has Def \d|reflect\.|0xc0[0-9a-f]{8}|unexpected EOF.*\.go:|\.go:\d+`)

// judgeExit holds exit code, streams and messages against the contract.
func judgeExit(b *builder, o *outcome) []finding {
	var out []finding
	if m := internals.Find(o.Stderr); m != nil {
		out = append(out, finding{"internals", string(m) + ": " + quoted(o.Stderr)})
	}
	if m := internals.Find(o.Stdout); m != nil {
		out = append(out, finding{"internals", string(m) + " in the result"})
	}
	if o.Killed != "" {
		return out
	}
	if o.Exit < 0 || o.Exit > 2 {
		return append(out, finding{"exit", fmt.Sprintf("exit %d %s: %s", o.Exit, o.Signal, quoted(o.Stderr))})
	}
	if o.Exit == 2 {
		out = append(out, judgeLine(b, o)...)
	}
	return out
}

// judgeLine wants an empty stdout and one line that begins with the program's
// name; lines of warnings, and of the cases of a sweep, may stand before it.
func judgeLine(b *builder, o *outcome) []finding {
	if len(o.Stdout) > 0 {
		return []finding{{"line", fmt.Sprintf("exit 2 with %d bytes of stdout", len(o.Stdout))}}
	}
	text := string(o.Stderr)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	last := lines[len(lines)-1]
	bad := !strings.HasPrefix(last, "memplan: ") || !strings.HasSuffix(text, "\n") || len(last) == len("memplan: ")
	for _, line := range lines[:len(lines)-1] {
		bad = bad || !strings.HasPrefix(line, "warning: ") && !b.reports
	}
	if bad {
		return []finding{{"line", fmt.Sprintf("exit 2 with %d lines: %s", len(lines), quoted(o.Stderr))}}
	}
	return nil
}

// quoted is the beginning of a text, safe to print.
func quoted(b []byte) string {
	if len(b) > 300 {
		b = b[:300]
	}
	return fmt.Sprintf("%+q", b)
}

// binaries are endings of files that hold no text.
var binaries = []string{".png", ".pickle"}

// judgeText looks for what a terminal or a page would obey in all that was
// printed or written.
func judgeText(b *builder, o *outcome, written map[string][]byte) []finding {
	texts := map[string][]byte{"stdout": o.Stdout, "stderr": o.Stderr}
	for name, data := range written {
		if !slices.Contains(binaries, filepath.Ext(name)) {
			texts[name] = data
		}
	}
	var out []finding
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		data := texts[name]
		if b.colored {
			data = sgr.ReplaceAll(data, nil)
		}
		format := b.formatOf(name)
		if what := control(data, format == "html"); what != "" {
			out = append(out, finding{"control", what + " in " + name})
		}
		if what := markup(data, format); what != "" {
			out = append(out, finding{"markup", what + " in " + name})
		}
	}
	return out
}

// sgr is what colour is made of.
var sgr = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// control describes the first rune that no text may have, or is "". Pages and
// drawings may have tabs.
func control(data []byte, tabs bool) string {
	for at := 0; at < len(data); {
		r, n := utf8.DecodeRune(data[at:])
		if r == '\n' || r >= ' ' && r < 0x7f || r == '\t' && tabs {
			at += n
			continue
		}
		if r == utf8.RuneError && n == 1 {
			return fmt.Sprintf("a byte %#02x that is no UTF-8: %s", data[at], around20(data, at))
		}
		if forbidden(r) {
			return fmt.Sprintf("%U: %s", r, around20(data, at))
		}
		at += n
	}
	return ""
}

// around20 is the text beside a place.
func around20(data []byte, at int) string {
	return quoted(data[max(0, at-20):min(len(data), at+20)])
}

// forbidden are the controls of ASCII and Latin-1, of direction and of lines.
func forbidden(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r <= 0x9f:
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x61c, r == 0x2028, r == 0x2029:
		return true
	}
	return false
}

// formatOf is the format of a stream or file, as far as it matters here.
func (b *builder) formatOf(name string) string {
	switch {
	case name == "stderr":
		return "text"
	case filepath.Ext(name) == ".svg":
		return "html"
	}
	for i, arg := range b.args[:max(0, len(b.args)-1)] {
		if arg == "--format" && (name == "stdout" || strings.HasPrefix(name, "out.")) {
			return strings.Replace(b.args[i+1], "svg", "html", 1)
		}
	}
	return "text"
}

// markup describes a piece of a hostile name that is live in a page, or is "".
func markup(data []byte, format string) string {
	switch format {
	case "html":
		if m := liveHTML.Find(data); m != nil {
			return quoted(m)
		}
	case "markdown":
		for line := range bytes.Lines(withoutFences(data)) {
			for _, cell := range cells(line) {
				if m := liveMarkdown.Find(withoutCode(cell)); m != nil {
					return quoted(m) + ": " + quoted(line)
				}
			}
		}
	}
	return ""
}

var (
	liveHTML     = regexp.MustCompile(`<(img src=x|script>hostile|h1>hostile|hostile|/code></pre><h1)[^>]*`)
	liveMarkdown = regexp.MustCompile(`(^|[^\\])(\]\(https?://hostile|@hostile|<img src|<script|<h1>|<hostile|https?://hostile\.example|www\.hostile|-->hostile)`)
	fence        = regexp.MustCompile("(?ms)^```+[^`\n]*\n.*?^```+ *$")
)

// withoutFences is a page without its fenced blocks.
func withoutFences(page []byte) []byte { return fence.ReplaceAll(page, nil) }

// cells splits the row of a table, as GitHub does: before code is looked for.
func cells(line []byte) [][]byte {
	if !bytes.HasPrefix(line, []byte("|")) {
		return [][]byte{line}
	}
	var out [][]byte
	start := 0
	for i, c := range line {
		if c == '|' && (i == 0 || line[i-1] != '\\') {
			out = append(out, line[start:i])
			start = i + 1
		}
	}
	return append(out, line[start:])
}

// withoutCode is a line without its code spans, which end with as many
// backticks as they begin with.
func withoutCode(line []byte) []byte {
	var out []byte
	for len(line) > 0 {
		if line[0] == '\\' && len(line) > 1 {
			out, line = append(out, line[:2]...), line[2:]
			continue
		}
		if line[0] != '`' {
			out, line = append(out, line[0]), line[1:]
			continue
		}
		n := ticks(line)
		if end := closing(line[n:], n); end >= 0 {
			line = line[n+end+n:]
		} else {
			out, line = append(out, line[:n]...), line[n:]
		}
	}
	return out
}

// ticks is how many backticks a text begins with.
func ticks(b []byte) int { return len(b) - len(bytes.TrimLeft(b, "`")) }

// closing is where the next run of n backticks begins, -1 if nowhere.
func closing(b []byte, n int) int {
	for at := 0; at < len(b); {
		if b[at] != '`' {
			at++
			continue
		}
		if run := ticks(b[at:]); run == n {
			return at
		} else {
			at += run
		}
	}
	return -1
}

// judgeLeak looks for canaries in all that was printed or written.
func judgeLeak(w *world, o *outcome, written map[string][]byte) []finding {
	texts := map[string][]byte{"stdout": o.Stdout, "stderr": o.Stderr}
	for name, data := range written {
		texts[name] = data
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if n := w.leak(texts[name]); n != "" {
			return []finding{{"leak", fmt.Sprintf("%q in %s", n, name)}}
		}
	}
	return nil
}

// contents describes the case's own files, so that new ones are seen.
func contents(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err == nil && !d.IsDir() {
			out[name], err = describe(path)
		}
		return err
	})
	return out, err
}

// writtenSince reads the regular files that are new or changed.
func writtenSince(dir string, before map[string]string) (map[string][]byte, error) {
	now, err := contents(dir)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, is := range now {
		if before[name] == is || !strings.HasPrefix(is, "-") {
			continue
		}
		if out[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// A result is a case that was run.
type result struct {
	Kind     string        `json:"kind"`
	Seed     uint64        `json:"seed"`
	Args     []string      `json:"args"`
	Exit     int           `json:"exit"`
	Wall     time.Duration `json:"wallNs"`
	CPU      time.Duration `json:"cpuNs"`
	Memory   int64         `json:"memoryBytes"`
	Findings []finding     `json:"findings"`
	Stderr   string        `json:"stderr,omitempty"`
	took     time.Duration // what is judged
	read     bool          // something outside was read, as the case allows
	warned   bool          // lines of warnings stood before an exit of 2
}

// runCase builds, runs and judges one case. One that takes too long is run
// again, twice at most: other programs may have had the processor.
func runCase(l *launcher, w *world, s *samples, g generator, seed uint64) (*result, error) {
	var best *result
	for range 3 {
		r, err := runOnce(l, w, s, g, seed)
		if err != nil {
			return nil, fmt.Errorf("case %s:%d: %w", g.name, seed, err)
		}
		if best == nil || r.took < best.took {
			best = r
		}
		if r.took <= mostTime || r.Wall >= killAfter {
			break
		}
	}
	return best, nil
}

func runOnce(l *launcher, w *world, s *samples, g generator, seed uint64) (*result, error) {
	b, err := newCase(w, s, g, seed)
	if err != nil {
		return nil, err
	}
	return runBuilt(l, b, g.name, seed)
}

// runBuilt runs a case whose folder is ready.
func runBuilt(l *launcher, b *builder, kind string, seed uint64) (*result, error) {
	before, err := contents(b.dir)
	if err != nil {
		return nil, err
	}
	b.w.events() // those of making the case
	o, err := l.execute(b)
	if err != nil {
		return nil, err
	}
	b.w.seen()
	written, err := writtenSince(b.dir, before)
	if err != nil {
		return nil, err
	}
	r := &result{Kind: kind, Seed: seed, Args: b.args, Exit: o.Exit, Wall: o.Wall, CPU: o.CPU, Memory: o.Memory, Findings: []finding{}}
	r.took, r.read = o.took(), b.w.reads > 0
	r.warned = o.Exit == 2 && bytes.HasPrefix(o.Stderr, []byte("warning: "))
	found, err := judge(b, o, written)
	if err != nil {
		return nil, err
	}
	r.Findings = append(r.Findings, found...)
	if len(found) > 0 {
		r.Stderr = quoted(o.Stderr)
	}
	return r, nil
}
