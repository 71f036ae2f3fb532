package main

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/planner"
)

// formName returns the name of a form within a sentence.
func formName(form string) string {
	if form == "arguments" {
		return "on a command line"
	}
	return "as " + form
}

// frameworksTopic describes what memplan writes for frameworks and reads from
// them, from the tables.
func frameworksTopic() string {
	var b strings.Builder
	b.WriteString("What memplan config --to writes, what each target can checkpoint, and what\nreads it back:\n\n")
	fmt.Fprintf(&b, "  %-14s %-10s %-13s %s\n", "--to", "writes", "read by", "checkpoints")
	for _, f := range planner.Frameworks {
		read := "-"
		switch {
		case f.Read != "":
			read = "--config"
		case f.Name == planner.Frameworks[0].Name:
			read = "--checkpoint"
		}
		fmt.Fprintf(&b, "  %-14s %-10s %-13s %s\n", f.Name, f.Form, read, f.Does)
	}
	b.WriteString(`
Where a target can do less than the plan, the fastest of its settings that fits the
plan's budget is written, as memplan predicts each of them. Such a setting is also a
value of --checkpoint: huggingface:every_n_layers=2, or what config prints.
What is not in the file stays to be given: --vram and --dim always, --batch and
--optimizer where a framework's file has no key for them.

Keys that --config reads; of these some only give a warning that says why they are
not taken over. Others whose names say that they change memory are named in the
warning, too, unless they turn something off; the rest is counted.
`)
	for _, name := range planner.Recipes() {
		fmt.Fprintf(&b, "\n  %s\n", name)
		line := "   "
		for _, key := range planner.RecipeKeys(name) {
			if len(line)+1+len(key) > topicColumns {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + key
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// topicColumns is the width of a topic's lines, except for single long words.
const topicColumns = 84
