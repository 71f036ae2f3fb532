package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// A Lever is what of a training step may change to save memory.
type Lever struct {
	Name string
	Doc  string
	// Settings are the values that it can take besides those of the question; none if
	// nothing of it can be predicted or changed, and then the reason.
	Settings func(s *leverScope) (settings []LeverSetting, why string)
	// Refused are the parts of it that memplan does not predict, and so never uses.
	Refused []RefusedLever
}

// A LeverSetting is one value of a lever.
type LeverSetting struct {
	Name    string
	Set     func(c *Config) error // an error: this question cannot have it
	Changes string                // what of the training it changes, besides memory and time; "": nothing
	Asked   bool                  // it is chosen only where the question names it: another algorithm
}

// A RefusedLever is a lever, or a part of one, without a prediction.
type RefusedLever struct {
	Lever string `json:"lever"`
	What  string `json:"what"`
	Why   string `json:"why"`
}

// A leverScope is what the settings of a lever depend on.
type leverScope struct {
	base       Config
	device     *profile.Device
	cap        int64
	batchNorms bool // the step has batch normalisations, which see micro-batches
}

// flagSetting returns a setting of one flag.
func flagSetting(flag, word, changes string) LeverSetting {
	return LeverSetting{Name: word, Changes: changes, Set: func(c *Config) error { return settingNamed(flag).Read(c, word) }}
}

func settingNamed(flag string) *Setting {
	return &Settings[slices.IndexFunc(Settings, func(s Setting) bool { return s.Flag == flag })]
}

// Levers lists the levers, in the order of the table of their names.
var Levers = []Lever{
	{Name: "precision", Doc: "autocast, and parameters in half precision", Settings: precisionLever},
	{Name: "optimizer", Doc: "the optimizer's kernels, and how many bytes its state has", Settings: optimizerLever},
	{Name: "in-backward", Doc: "each parameter is updated as soon as its gradient is there (memplan help in-backward)", Settings: inBackwardLever},
	{Name: "accumulate", Doc: "micro-batches, whose gradients add up to those of the same batch", Settings: accumulateLever},
	{Name: "attention", Doc: "kernels of attention", Settings: func(s *leverScope) ([]LeverSetting, string) {
		return otherWords("attention", s.base.Attention, Attentions[1:], ""), ""
	}},
	{Name: "checkpoint", Doc: "which modules run again in backward", Settings: checkpointLever, Refused: []RefusedLever{
		{What: "schedule, ops", Why: "memplan's own executor runs them, PyTorch cannot: ask with --checkpoint schedule"},
	}},
	{Name: "offload", Doc: "activations and optimizer state in host memory", Settings: offloadLever, Refused: []RefusedLever{
		{What: "parameters, optimizers other than AdamW", Why: "only torchao's CPUOffloadOptimizer with AdamW is predicted; with --parallel fsdp=N, --fsdp-offload is"},
	}},
	{Name: "batch", Doc: "a smaller batch; --batch max finds the largest", Settings: batchLever},
	{Name: "input-size", Doc: "smaller inputs, by the dimensions that --dim binds", Settings: inputLever},
	{Name: "loss", Doc: "a cross-entropy that never holds all scores at once", Settings: func(s *leverScope) ([]LeverSetting, string) {
		if l := s.base.Loss; l != "" && l != "auto" && l != "cross-entropy" {
			return nil, "the loss is " + l
		}
		return otherWords("loss", s.base.Loss, []string{train.ChunkedLoss, train.LigerLoss}, ""), ""
	}, Refused: []RefusedLever{
		{What: "cut cross-entropy", Why: "Apple's kernels and their buffers are not predicted; liger-kernel's are"},
	}},
	{Name: "in-place", Doc: "activations that overwrite their operands", Refused: []RefusedLever{
		{What: "in-place activations", Why: "the model's code decides: change it (nn.ReLU(inplace=True)) and export again"},
	}},
	{Name: "channels-last", Doc: "another order of the elements of images", Refused: []RefusedLever{
		{What: "channels_last", Why: "cuDNN's workspaces were measured for contiguous tensors alone"},
	}},
	{Name: "zero-grad", Doc: "when gradients are freed", Refused: []RefusedLever{
		{What: "set_to_none", Why: "the step already frees its gradients before forward, as zero_grad does by default: nothing is left to save"},
	}},
	{Name: "buckets", Doc: "copies of gradients for communication", Refused: []RefusedLever{
		{What: "gradients as views of buckets, smaller buckets", Why: "not a lever yet: with --parallel ddp=N, ask with --ddp-views and --ddp-bucket"},
	}},
}

// LeverNames lists the levers' names.
func LeverNames() []string { return texts(Levers, func(l *Lever) string { return l.Name }) }

// otherWords are settings of one flag, without the question's own.
func otherWords(flag, base string, words []string, changes string) (out []LeverSetting) {
	for _, w := range words {
		if w != base {
			out = append(out, flagSetting(flag, w, changes))
		}
	}
	return out
}

// precisionLever leaves out what the card computes without its tensor cores, and float16
// without a scaler, which trains few models.
func precisionLever(s *leverScope) ([]LeverSetting, string) {
	words := []string{"amp-bf16", "bf16"}
	if !s.device.BF16 {
		words = []string{"amp-fp16"}
	}
	var out []LeverSetting
	for _, w := range words {
		p, err := profile.FindPrecision(w)
		if err == nil && w != s.base.Precision && !(p.Autocast && s.base.Precision != profile.Precisions[0].Name) {
			out = append(out, flagSetting("precision", w, map[bool]string{true: "products in half precision", false: "parameters, their updates too, in half precision"}[p.Autocast]))
		}
	}
	if len(out) == 0 {
		return nil, "nothing has fewer bits than " + s.base.Precision + " on this card"
	}
	return out, ""
}

// optimizerRows are the optimizers that stand for others: the same rule in other kernels,
// with quantized state, or another rule, which is priced but only chosen where it is named.
var optimizerRows = []struct {
	name, rule, changes string
}{
	{"adamw-fused", "adamw", ""}, {"adamw-loop", "adamw", ""}, {"adamw-8bit", "adamw", "state of 8 bits"},
	{"adam-fused", "adam", ""}, {"adam-loop", "adam", ""},
	{"sgd-fused", "sgd-momentum", ""}, {"sgd-loop", "sgd-momentum", ""},
	{"adafactor", "", "another algorithm"}, {"lion", "", "another algorithm"}, {"sgd-momentum", "", "another algorithm"}, {"sgd", "", "another algorithm"},
}

func optimizerLever(s *leverScope) ([]LeverSetting, string) {
	if s.base.Optimizer == "none" {
		return nil, "the step has no optimizer"
	}
	var out []LeverSetting
	base, err := profile.FindOptimizer(cmp.Or(s.base.Optimizer, profile.Optimizers[0].Name))
	if err != nil {
		return nil, err.Error()
	}
	for _, r := range optimizerRows {
		if r.name == base.Name || r.rule != "" && r.rule != ruleOf(base.Name) {
			continue
		}
		x := flagSetting("optimizer", r.name, r.changes)
		x.Asked = r.rule == ""
		out = append(out, x)
	}
	return out, ""
}

// ruleOf is the update rule of an optimizer by the rows of optimizerRows, or its own name.
func ruleOf(name string) string {
	for _, r := range optimizerRows {
		if r.name == name && r.rule != "" {
			return r.rule
		}
	}
	return name
}

// noBatch is why levers that change the batch have no settings.
const noBatch = "the file fixes the batch, or --dim binds it: give --batch N"

// mostHalved is the largest number by which a batch is divided.
const mostHalved = 64

// accumulateLever halves the micro-batch as long as that gives whole numbers.
func accumulateLever(s *leverScope) (out []LeverSetting, why string) {
	if s.base.Batch < 2 {
		return nil, map[bool]string{true: "the batch is 1", false: noBatch}[s.base.Batch == 1]
	}
	changes := map[bool]string{true: "what batch norms see"}[s.batchNorms]
	for n := int64(2); s.base.Batch%n == 0 && n <= mostHalved; n *= 2 {
		out = append(out, LeverSetting{Name: fmt.Sprintf("%d micro-batches", n), Changes: changes, Set: func(c *Config) error {
			if c.Batch%n != 0 {
				return fmt.Errorf("batch %d has no %d equal parts", c.Batch, n)
			}
			c.Batch, c.Accumulate = c.Batch/n, max(c.Accumulate, 1)*int(n)
			return nil
		}})
	}
	if len(out) == 0 {
		return nil, fmt.Sprintf("batch %d is odd", s.base.Batch)
	}
	return out, ""
}

func batchLever(s *leverScope) (out []LeverSetting, why string) {
	if s.base.Batch < 2 {
		return nil, map[bool]string{true: "the batch is 1", false: noBatch}[s.base.Batch == 1]
	}
	for n := s.base.Batch / 2; n > 0 && n >= s.base.Batch/mostHalved; n /= 2 {
		out = append(out, flagSetting("batch", fmt.Sprint(n), "the batch of an update"))
	}
	return out, ""
}

// checkpointLever has the choice by the budget last: it needs one.
func checkpointLever(s *leverScope) ([]LeverSetting, string) {
	words := []string{"none", "sqrt", "all"}
	if s.cap > 0 {
		words = append(words, budgetChosen)
	}
	return otherWords("checkpoint", s.base.Checkpoint, words, ""), ""
}

// offloadLever sends activations to the host only under a budget, which says how many.
func offloadLever(s *leverScope) ([]LeverSetting, string) {
	var words []string
	if s.cap > 0 {
		words = append(words, "activations")
	}
	if slices.Contains(hostRules, s.base.Optimizer) && s.base.Accumulate < 2 {
		if words = append(words, "optimizer"); s.cap > 0 {
			words = append(words, "both")
		}
	}
	if len(words) == 0 {
		return nil, "activations need a budget, and the optimizer on the host is AdamW without accumulation"
	}
	return otherWords("offload", s.base.Offload, words, ""), ""
}

// budgetChosen are the checkpoints that a budget chooses.
const budgetChosen = "auto"

// inputLever scales each dimension that the question binds, and all together.
func inputLever(s *leverScope) (out []LeverSetting, why string) {
	names := slices.Sorted(maps.Keys(s.base.Dims))
	if len(names) == 0 {
		return nil, "--dim binds no dimension: the file fixes all but the batch"
	}
	groups := [][]string{names}
	if len(names) > 1 {
		for _, n := range names {
			groups = append(groups, []string{n})
		}
	}
	for _, part := range []struct{ n, of int64 }{{3, 4}, {1, 2}, {1, 4}} {
		for _, group := range groups {
			if slices.ContainsFunc(group, func(n string) bool { return s.base.Dims[n]*part.n < part.of }) {
				continue
			}
			dims := maps.Clone(s.base.Dims)
			for _, n := range group {
				dims[n] = dims[n] * part.n / part.of
			}
			out = append(out, LeverSetting{Name: strings.Join(only(pairs(dims), group), " "), Changes: "what the model sees", Set: func(c *Config) error { c.Dims = dims; return nil }})
		}
	}
	return out, ""
}

// only are the NAME=VALUE pairs of some names.
func only(pairs, names []string) (out []string) {
	for _, p := range pairs {
		if name, _, _ := strings.Cut(p, "="); slices.Contains(names, name) {
			out = append(out, p)
		}
	}
	return out
}
