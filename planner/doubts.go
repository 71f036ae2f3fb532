package planner

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// A Doubt is a kind of warning that the question cannot be answered: the file does
// not hold what was asked about. Such a warning is the first line of a report,
// nothing in the report is called proven, and --strict makes it an error.
type Doubt struct {
	Code string // of the warning
	Doc  string
	// Train is set if the doubt does not concern inferences.
	Train bool
}

// Doubts lists the doubts, the most serious first.
var Doubts = []Doubt{
	{Code: lift.EvalMode, Train: true, Doc: "the model was exported in evaluation mode: what training alone computes and keeps is not in the file"},
	{Code: "folded-batchnorm", Train: true, Doc: "batch normalisations were folded into convolutions: a training step runs them, and keeps their operands"},
	{Code: lift.IdleDropout, Train: true, Doc: "modules of a Dropout class drop nothing, for p = 0 or for evaluation mode, and what they would take is more than the hundredth part of the step"},
	{Code: lift.Unrolled, Doc: "a recurrent network was taken apart into its time steps: PyTorch runs it as one call, with other memory"},
}

// trainOnly are other codes of warnings that only concern training steps.
var trainOnly = []string{"eval-batchnorm", "no-dropout", lift.OwnFunction}

// IsDoubt reports whether a code is that of a doubt.
func IsDoubt(code string) bool {
	return slices.ContainsFunc(Doubts, func(d Doubt) bool { return d.Code == code })
}

// Doubtful returns the warnings that are doubts.
func Doubtful(list []graph.Warning) []graph.Warning {
	var out []graph.Warning
	for _, d := range Doubts {
		for _, w := range list {
			if w.Code == d.Code {
				out = append(out, w)
			}
		}
	}
	return out
}

// Doubts returns the report's warnings because of which its question cannot be
// answered from the file.
func (r *Report) Doubts() []graph.Warning { return Doubtful(r.Warnings) }

// doubtsFirst moves doubts to the front, and drops those about training steps
// from an inference.
func doubtsFirst(list []graph.Warning, training bool) []graph.Warning {
	if !training {
		list = slices.DeleteFunc(slices.Clone(list), func(w graph.Warning) bool {
			return slices.Contains(trainOnly, w.Code) || slices.ContainsFunc(Doubts, func(d Doubt) bool { return d.Train && d.Code == w.Code })
		})
	}
	doubts := Doubtful(list)
	return slices.Concat(doubts, slices.DeleteFunc(slices.Clone(list), func(w graph.Warning) bool { return slices.Contains(doubts, w) }))
}
