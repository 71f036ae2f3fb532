package planner

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/planner/profile"
)

// inBackwardRefused says why parameters cannot be updated in backward: their gradients must be
// whole when backward has made them, and an update is not taken back.
func (j *job) inBackwardRefused() error {
	c := &j.cfg
	refuse := func(format string, a ...any) error {
		return fmt.Errorf("--in-backward "+format, a...)
	}
	_, hosted := c.offloads()
	switch {
	case !c.InBackward:
		return nil
	case c.Mode == "infer":
		return refuse("is about training steps: give it without --mode infer")
	case j.optimizer == nil:
		return refuse("with --optimizer none: there is nothing to update")
	case c.Accumulate > 1 || c.Target > 0:
		return refuse("with micro-batches whose gradients add up: the first one's would be used and freed; give a smaller --batch instead")
	case strings.HasSuffix(c.Precision, "fp16"):
		return refuse("with --precision %s: GradScaler looks at all gradients before it updates any; bf16 needs no scaler", c.Precision)
	case j.meshed != nil:
		return refuse("with --parallel: gradients are reduced over the ranks after backward has made them")
	case hosted:
		return refuse("with --offload %s: the optimizer on the host takes the gradients at the step's end", c.Offload)
	case c.Checkpoint == "schedule" || c.Checkpoint == "ops":
		return refuse("with --checkpoint %s: what runs again must not read updated parameters, which memplan's executor does not look at; give auto or segments", c.Checkpoint)
	}
	return nil
}

// inBackwardLever offers it where it can be had.
func inBackwardLever(s *leverScope) ([]LeverSetting, string) {
	if s.base.InBackward {
		return nil, "parameters are updated in backward already"
	}
	c := s.base
	c.InBackward = true
	j := &job{cfg: c}
	if c.Optimizer != "none" {
		j.optimizer, _ = profile.FindOptimizer(c.Optimizer)
	}
	if err := j.inBackwardRefused(); err != nil {
		return nil, strings.TrimPrefix(err.Error(), "--in-backward ")
	}
	return []LeverSetting{{Name: "each parameter", Changes: "gradients' norms can no longer be clipped", Set: func(c *Config) error {
		c.InBackward = true
		return nil
	}}}, ""
}
