package cuda

import "math"

// An optimizerRule is an optimizer other than SGD and Adam: its kernel, its states,
// and the numbers of a step, from 1, as its case in optimizer.cuh reads them. They
// are PyTorch's defaults (torch/optim) and lion_pytorch's.
type optimizerRule struct {
	kind    int32
	kernel  string // kernel optimizer_NAME in optimizer.cu
	states  []string
	numbers func(step int) []float64
}

// The kinds, in optimizer.cuh's numbering.
const (
	kindAMSGrad = iota
	kindAdagrad
	kindRMSProp
	kindRMSPropMomentum
	kindRMSPropCentered
	kindAdadelta
	kindLion
	kindAdamax
	kindNAdam
	kindRAdam
)

const defaultBeta1, defaultBeta2, defaultEps = 0.9, 0.999, 1e-8

// always returns numbers that do not depend on the step.
func always(c ...float64) func(int) []float64 { return func(int) []float64 { return c } }

// left returns 1 - beta^step: Adam's correction of a moment.
func left(beta float64, step int) float64 { return 1 - math.Pow(beta, float64(step)) }

// amsgradNumbers returns the numbers of Adam with amsgrad.
func amsgradNumbers(decay float64) func(int) []float64 {
	return func(step int) []float64 {
		return []float64{1e-3 / left(defaultBeta1, step), math.Sqrt(left(defaultBeta2, step)), defaultEps, 1 - 1e-3*decay, 1 - defaultBeta1, defaultBeta2, 1 - defaultBeta2}
	}
}

// nadamNumbers returns the numbers of NAdam, whose momentum rises with the
// steps.
func nadamNumbers(step int) []float64 {
	mu := func(t int) float64 { return defaultBeta1 * (1 - 0.5*math.Pow(0.96, 4e-3*float64(t))) }
	product := 1.0
	for t := 1; t <= step; t++ {
		product *= mu(t)
	}
	return []float64{2e-3 * (1 - mu(step)) / (1 - product), 2e-3 * mu(step+1) / (1 - product*mu(step+1)), math.Sqrt(left(defaultBeta2, step)), defaultEps, 1 - defaultBeta1, defaultBeta2, 1 - defaultBeta2}
}

// radamNumbers returns the numbers of RAdam, which is rectified from the sixth
// step on.
func radamNumbers(step int) []float64 {
	power, limit := math.Pow(defaultBeta2, float64(step)), 2/(1-defaultBeta2)-1
	length, rectified := limit-2*float64(step)*power/(1-power), 0.0
	if length > 5 {
		rectified = math.Sqrt((length-4)*(length-2)*limit/((limit-4)*(limit-2)*length)) * math.Sqrt(1-power)
	}
	return []float64{1e-3 / left(defaultBeta1, step), rectified, defaultEps, 0, 1 - defaultBeta1, defaultBeta2, 1 - defaultBeta2}
}

// optimizerRules are by their names in the table of optimizers.
var optimizerRules = map[string]*optimizerRule{
	"adamw-amsgrad":    {kindAMSGrad, "amsgrad", []string{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, amsgradNumbers(1e-2)},
	"adam-amsgrad":     {kindAMSGrad, "amsgrad", []string{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, amsgradNumbers(0)},
	"adagrad":          {kindAdagrad, "adagrad", []string{"sum"}, always(1e-2, 1e-10)},
	"rmsprop":          {kindRMSProp, "rmsprop", []string{"square_avg"}, always(1e-2, 0.99, 1-0.99, 1e-8)},
	"rmsprop-momentum": {kindRMSPropMomentum, "rmsprop_momentum", []string{"square_avg", "momentum_buffer"}, always(1e-2, 0.99, 1-0.99, 1e-8, 0.9)},
	"rmsprop-centered": {kindRMSPropCentered, "rmsprop_centered", []string{"square_avg", "grad_avg"}, always(1e-2, 0.99, 1-0.99, 1e-8)},
	"adadelta":         {kindAdadelta, "adadelta", []string{"square_avg", "acc_delta"}, always(1, 0.9, 1-0.9, 1e-6)},
	"lion":             {kindLion, "lion", []string{"exp_avg"}, always(1e-4, 0.9, 1-0.9, 0.99, 1-0.99)},
	"adamax": {kindAdamax, "adamax", []string{"exp_avg", "exp_inf"}, func(step int) []float64 {
		return []float64{2e-3 / left(defaultBeta1, step), 1 - defaultBeta1, defaultBeta2, defaultEps}
	}},
	"nadam": {kindNAdam, "nadam", []string{"exp_avg", "exp_avg_sq"}, nadamNumbers},
	"radam": {kindRAdam, "radam", []string{"exp_avg", "exp_avg_sq"}, radamNumbers},
}
