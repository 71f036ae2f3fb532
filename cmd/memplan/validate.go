package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// errNoCUDA is what validate answers in a build without CUDA.
var errNoCUDA = errors.New("built without CUDA; build with: go install -tags cuda github.com/memplan/memplan/cmd/memplan")

type validateOptions struct {
	outputFlags
	path, device, cap string
}

func newValidateCmd(_ *streams, run func(*validateOptions) error) *cobra.Command {
	o := &validateOptions{}
	c := &cobra.Command{
		Use:               "validate <plan.json|model.onnx>",
		Short:             "Run it on a device, predicted against measured",
		Example:           "  memplan validate plan.json --device cuda --cap 16G",
		Args:              exactly(1, "one plan or model file"),
		ValidArgsFunction: completeFiles(1, "json", "onnx"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.path = args[0]
			return run(o)
		},
	}
	addEnum(c, c.Flags(), &o.device, "device", "cuda", "`DEVICE` to run on", []string{"cuda", "cpu"}, nil)
	c.Flags().StringVar(&o.cap, "cap", "", "take no more than `SIZE` of the device's memory")
	noFiles(c, "cap")
	o.outputFlags.add(c, []string{"text", "json"})
	return c
}

func validateRun(o *validateOptions) error {
	if o.cap != "" {
		if _, err := positiveSize("cap", o.cap); err != nil {
			return err
		}
	}
	return errNoCUDA
}
