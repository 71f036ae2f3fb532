package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpColumns is the width of help in columns, and flagColumn where descriptions
// of flags begin in it.
const (
	helpColumns = 80
	flagColumn  = 24
)

// usage writes a command's usage; cobra's own template does not wrap.
func usage(w io.Writer, c *cobra.Command) error {
	fmt.Fprintf(w, "Usage:\n  %s\n", c.UseLine())
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", continued(c.Example))
	}
	for _, g := range c.Groups() {
		fmt.Fprintf(w, "\n%s:\n", g.Title)
		listCommands(w, c, func(sub *cobra.Command) bool { return sub.GroupID == g.ID && sub.IsAvailableCommand() })
	}
	if len(c.Groups()) == 0 && c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nCommands:\n")
		listCommands(w, c, (*cobra.Command).IsAvailableCommand)
	}
	if c.HasHelpSubCommands() {
		fmt.Fprintf(w, "\nTopics (memplan help <topic>):\n")
		listCommands(w, c, (*cobra.Command).IsAdditionalHelpTopicCommand)
	}
	listFlags(w, "Flags", c.LocalFlags(), func(f *pflag.Flag) bool { return !ofMesh(f) })
	listFlags(w, "Flags of several cards, with --parallel or --gpus", c.LocalFlags(), ofMesh)
	listFlags(w, "Flags of every command", c.InheritedFlags(), func(*pflag.Flag) bool { return true })
	return nil
}

// ofMesh reports whether a flag is about one way to spread a step over cards.
func ofMesh(f *pflag.Flag) bool {
	way, _, several := strings.Cut(f.Name, "-")
	return several && slices.Contains([]string{"ddp", "fsdp", "zero", "tp", "pp"}, way)
}

func listCommands(w io.Writer, c *cobra.Command, which func(*cobra.Command) bool) {
	for _, sub := range c.Commands() {
		if which(sub) {
			fmt.Fprintln(w, strings.Join(wrapped(fmt.Sprintf("  %-13s ", sub.Name()), 16, sub.Short), "\n"))
		}
	}
}

// listFlags writes the flags of a set that which holds for, under a title.
func listFlags(w io.Writer, title string, set *pflag.FlagSet, which func(*pflag.Flag) bool) {
	var lines []string
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && which(f) {
			lines = append(lines, flagLines(f)...)
		}
	})
	if len(lines) > 0 {
		fmt.Fprintf(w, "\n%s:\n%s\n", title, strings.Join(lines, "\n"))
	}
}

// described returns a flag's name and value as a line of help begins, and what it
// does.
func described(f *pflag.Flag) (head, text string) {
	value, text := pflag.UnquoteUsage(f)
	head = "      --" + f.Name
	if f.Shorthand != "" {
		head = "  -" + f.Shorthand + ", --" + f.Name
	}
	if value != "" {
		head += " " + value
	}
	if !slices.Contains([]string{"", "0", "false", "[]", "0s"}, f.DefValue) {
		text += " (default " + f.DefValue + ")"
	}
	return head, text
}

// flagLines describes a flag: on the line of its name where that leaves room.
func flagLines(f *pflag.Flag) []string {
	head, text := described(f)
	if len(head)+2 > flagColumn {
		return append([]string{head}, wrapped(strings.Repeat(" ", flagColumn), flagColumn, text)...)
	}
	return wrapped(fmt.Sprintf("%-*s", flagColumn, head), flagColumn, text)
}

// choices ends the help of a flag whose value is one of some names: with these,
// or with the command that lists them if they are many.
func choices(flag string, names []string) string {
	const most = 60 // characters
	text := strings.Join(names, "|")
	table := flag + "s"
	if len(text) > most && slices.ContainsFunc(listings, func(l listing) bool { return l.name == table }) {
		return fmt.Sprintf(": %s, .. (memplan list %s)", strings.Join(names[:3], ", "), table)
	}
	return ": " + text
}

// wrapped breaks a text into lines of helpColumns: the first after begin, the
// others indented. A word is broken only where it is wider, behind a | or a comma.
func wrapped(begin string, indent int, text string) (lines []string) {
	line, blank := begin, true
	flush := func() {
		lines = append(lines, strings.TrimRight(line, " "))
		line, blank = strings.Repeat(" ", indent), true
	}
	for _, word := range strings.Fields(text) {
		for _, part := range parts(word, helpColumns-indent) {
			space := 1
			if blank {
				space = 0
			}
			if !blank && columns(line)+space+columns(part) > helpColumns {
				flush()
				space = 0
			}
			line, blank = line+strings.Repeat(" ", space)+part, false
		}
	}
	flush()
	return lines
}

func columns(s string) int { return utf8.RuneCountInString(s) }

// parts breaks a word that is wider than a line behind signs of a list.
func parts(word string, width int) (out []string) {
	for columns(word) > width {
		at := strings.LastIndexAny(word[:min(width, len(word))], "|,") + 1
		if at == 0 {
			break
		}
		out, word = append(out, word[:at]), word[at:]
	}
	return append(out, word)
}

// filled breaks the lines of a text that are wider than helpColumns: a paragraph
// as a whole, a row of a table or of a list within its last column, which the
// lines below it that begin there belong to.
func filled(text string) string {
	var out []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		begin, at := lastColumn(lines[i])
		n := 1
		for lines[i] != "" && i+n < len(lines) && lines[i+n] != "" && indentation(lines[i+n]) == at && !isRow(lines[i+n]) {
			n++
		}
		if group := lines[i : i+n]; widest(group) <= helpColumns {
			out = append(out, group...)
		} else {
			out = append(out, wrapped(begin, at, strings.TrimPrefix(strings.Join(group, " "), begin))...)
		}
		i += n
	}
	return strings.Join(out, "\n")
}

func widest(lines []string) (n int) {
	for _, l := range lines {
		n = max(n, columns(l))
	}
	return n
}

func indentation(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// isRow reports whether a line has two columns or more.
func isRow(line string) bool { return strings.Contains(strings.TrimLeft(line, " "), "  ") }

// lastColumn returns what stands before the last column of a line, and where
// that begins; for a line of one column its indentation.
func lastColumn(line string) (begin string, at int) {
	at = indentation(line)
	if i := strings.LastIndex(line, "  "); i >= at {
		at = i + 2
	}
	return line[:at], at
}

// continued breaks wide commands of examples, as a shell reads them.
func continued(examples string) string {
	var out []string
	for _, line := range strings.Split(examples, "\n") {
		for columns(line) > helpColumns {
			at := strings.LastIndex(line[:min(len(line), helpColumns+1)], " --")
			if at <= 6 {
				break
			}
			out, line = append(out, line[:at]+` \`), "      "+line[at+1:]
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// fill breaks the wide lines of all that commands say of themselves, but for
// files that they print.
func fill(c *cobra.Command) {
	if !strings.HasSuffix(c.Name(), ".py") {
		c.Long = filled(c.Long)
	}
	for _, sub := range c.Commands() {
		fill(sub)
	}
}
