package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newManCmd(s *streams) *cobra.Command {
	return &cobra.Command{
		Use:   "man [command]",
		Short: "Manual page of memplan or of a command",
		Long: `man prints a manual page in the form that man(1) reads. Packages have the pages of
all commands, as memplan-analyze(1).`,
		Example: `  memplan man analyze > ~/.local/share/man/man1/memplan-analyze.1
  memplan man | man -l -`,
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return helpNames(c.Root()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("no manual page of %q%s", strings.Join(args, " "), suggestion(args[0], helpNames(c.Root()), "memplan help lists commands and topics"))
			}
			manual(s.out, about)
			return nil
		},
	}
}

// manual writes a command's manual page: troff with the macros of man(7).
func manual(w io.Writer, c *cobra.Command) {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(w, ".TH %s 1 \"\" %s memplan\n.SH NAME\n%s \\- %s\n", troff(strings.ToUpper(name)), troff("memplan "+version()), troff(name), troff(c.Short))
	fmt.Fprintf(w, ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n", troff(c.UseLine()))
	verbatim(w, c.Long)
	manFlags(w, "OPTIONS", c.LocalFlags())
	manFlags(w, "OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	if c.HasExample() {
		fmt.Fprint(w, ".SH EXAMPLES\n")
		verbatim(w, continued(c.Example))
	}
	fmt.Fprintf(w, ".SH EXIT STATUS\n0 yes (fits, no regression, validated), 1 no, 2 could not tell\n.SH SEE ALSO\n%s\n", troff(strings.Join(relatives(c), ", ")))
}

// relatives lists the pages of the command above, or of those below the root.
func relatives(c *cobra.Command) []string {
	if c.HasParent() {
		return []string{strings.ReplaceAll(c.Parent().CommandPath(), " ", "-") + "(1)"}
	}
	var out []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			out = append(out, "memplan-"+sub.Name()+"(1)")
		}
	}
	return out
}

// verbatim writes lines as they are: help has broken them.
func verbatim(w io.Writer, text string) {
	fmt.Fprint(w, ".nf\n")
	for line := range strings.Lines(text) {
		fmt.Fprintln(w, troff(strings.TrimSuffix(line, "\n")))
	}
	fmt.Fprint(w, ".fi\n")
}

// manFlags writes the flags of a set, if there are any.
func manFlags(w io.Writer, title string, set *pflag.FlagSet) {
	if set.HasAvailableFlags() {
		fmt.Fprintf(w, ".SH %s\n", title)
	}
	set.VisitAll(func(f *pflag.Flag) {
		if head, text := described(f); !f.Hidden {
			fmt.Fprintf(w, ".TP\n\\fB%s\\fR\n%s\n", troff(strings.TrimSpace(head)), troff(text))
		}
	})
}

// troff quotes what troff would read as its own.
func troff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		return `\&` + line
	}
	return line
}
