package profile

import "github.com/memplan/memplan/graph"

// A Precision is the choice of element types in which a model trains.
type Precision struct {
	Name string
	Doc  string
	// Storage is the type of parameters, gradients, optimizer state and
	// floating-point inputs and buffers.
	Storage graph.DType
	// Compute is the type in which operators of autocast's lower-precision
	// list run; equal to Storage without autocast.
	Compute graph.DType
	// Autocast is set if operators run under torch.autocast, which keeps casts
	// of parameters alive for the length of the forward pass.
	Autocast bool
	// Scaler is set if a GradScaler multiplies the loss; see ScalerEvents.
	Scaler bool
}

// Precisions lists the precisions, the default first.
var Precisions = []Precision{
	{Name: "fp32", Doc: "everything in float32", Storage: graph.Float32, Compute: graph.Float32},
	{Name: "amp-bf16", Doc: "float32 parameters, torch.autocast to bfloat16", Storage: graph.Float32, Compute: graph.BFloat16, Autocast: true},
	{Name: "amp-fp16", Doc: "float32 parameters, torch.autocast to float16, GradScaler", Storage: graph.Float32, Compute: graph.Float16, Autocast: true, Scaler: true},
	{Name: "bf16", Doc: "model.to(bfloat16): parameters, gradients and optimizer state in bfloat16", Storage: graph.BFloat16, Compute: graph.BFloat16},
	{Name: "fp16", Doc: "model.to(float16): parameters, gradients and optimizer state in float16", Storage: graph.Float16, Compute: graph.Float16},
}

func precisionNames(p *Precision) []string { return []string{p.Name} }

// FindPrecision returns the precision called name.
func FindPrecision(name string) (*Precision, error) {
	return find("precision", Precisions, precisionNames, name)
}

// PrecisionNames returns the names of Precisions in order.
func PrecisionNames() []string { return ownNames(Precisions, precisionNames) }
