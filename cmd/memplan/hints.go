package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// A change is one that a user could make for a step to fit.
type change struct {
	words string
	set   func(c *planner.Config)
}

// lean lists optimizers with less state than Adam's, the least change first.
var lean = []string{"adamw-8bit", "adafactor", "sgd"}

// everything is the strongest checkpointing that needs no search.
var everything = change{"--checkpoint all", func(c *planner.Config) { c.Checkpoint, c.Segments, c.Schedule = "all", nil, nil }}

// hints returns what makes a step fit that does not: each has been tried, without
// another search for checkpoints. First are single changes, then those with all
// modules checkpointed, then several at once; the first of these that help are
// returned. Without any, the only text says so.
func hints(ctx context.Context, m *planner.Model, cfg planner.Config) []string {
	if !slices.Contains([]string{"none", "all", "sqrt"}, cfg.Checkpoint) { // what a search would find at least
		cfg.Checkpoint, cfg.Segments, cfg.Schedule = "none", nil, nil
	}
	single := changes(&cfg)
	stages := [][]change{single}
	several := oneOfEach(single)
	for n := 2; n <= len(several); n++ {
		stages = append(stages, []change{together(several[len(several)-n:]...)})
	}
	if cfg.Mode != "infer" && cfg.Checkpoint != "all" {
		with := []change{everything}
		for _, x := range single {
			with = append(with, together(x, everything))
		}
		stages = slices.Insert(stages, 1, with)
		stages = append(stages, []change{together(append(several, everything)...)})
	}
	for _, stage := range stages {
		var out []string
		for _, x := range stage {
			if words, ok := helps(ctx, m, cfg, x); ok && !slices.ContainsFunc(out, func(s string) bool { return sameFlag(s, words) }) {
				out = append(out, words)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	if len(several) == 0 || ctx.Err() != nil {
		return nil
	}
	return []string{fmt.Sprintf("a card with more memory: %s do not make it fit, alone or together", together(several...).words)}
}

// oneOfEach leaves one change of each flag, the most far-reaching.
func oneOfEach(list []change) (out []change) {
	for i, x := range list {
		if i+1 == len(list) || !sameFlag(x.words, list[i+1].words) {
			out = append(out, x)
		}
	}
	return out
}

// sameFlag reports whether two hints change the same setting.
func sameFlag(a, b string) bool {
	first, _, _ := strings.Cut(a, " ")
	return strings.HasPrefix(b, first+" ")
}

// changes lists single changes of a question; of one flag the most far-reaching is
// the last.
func changes(cfg *planner.Config) (out []change) {
	add := func(words string, set func(*planner.Config)) { out = append(out, change{words, set}) }
	training := cfg.Mode != "infer"
	if cfg.Batch > 1 {
		add("--batch max", func(c *planner.Config) { c.Batch, c.BatchMax = 0, true })
	}
	if training && (cfg.Optimizer == "" || strings.HasPrefix(cfg.Optimizer, "adam")) {
		for _, name := range lean {
			if name != cfg.Optimizer {
				add("--optimizer "+name, func(c *planner.Config) { c.Optimizer = name })
			}
		}
	}
	if cfg.Precision == "" || cfg.Precision == "fp32" {
		name := "amp-bf16"
		if d, err := profile.FindDevice(cfg.GPU); err == nil && !d.BF16 {
			name = "amp-fp16"
		}
		add("--precision "+name, func(c *planner.Config) { c.Precision = name })
	}
	return out
}

// together makes one change of several.
func together(list ...change) change {
	var words []string
	for _, x := range list {
		words = append(words, x.words)
	}
	return change{strings.Join(words, " "), func(c *planner.Config) {
		for _, x := range list {
			x.set(c)
		}
	}}
}

// helps reports whether a step fits after a change, which it returns with the
// batch that does.
func helps(ctx context.Context, m *planner.Model, cfg planner.Config, x change) (string, bool) {
	x.set(&cfg)
	r, err := m.Analyze(ctx, cfg)
	if err != nil || r.Fits == nil || !*r.Fits {
		return "", false
	}
	return strings.Replace(x.words, "--batch max", fmt.Sprintf("--batch %d", r.Config.Batch), 1), true
}
