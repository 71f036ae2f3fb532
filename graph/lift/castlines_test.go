package lift

import "testing"

// TestCastStatement finds whole statements of well-known files, and leaves lines of
// other files, of base classes and of PyTorch's own alone.
func TestCastStatement(t *testing.T) {
	const first = "return F.layer_norm("
	for _, c := range []struct{ file, text, class, want string }{
		{"/x/diffusers/models/normalization.py", first, "diffusers.models.normalization.FP32LayerNorm",
			"F.layer_norm(inputs.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps).to(origin_dtype)"},
		{"normalization.py", first, "torch.nn.modules.normalization.LayerNorm", first},
		{"normalization.py", first, "transformers.models.convnextv2.modeling_convnextv2.ConvNextV2LayerNorm", first},
		{"modeling_cohere.py", "mean = hidden_states.mean(-1, keepdim=True)", "transformers.models.cohere.modeling_cohere.CohereLayerNorm",
			"hidden_states.to__(torch.float32).mean(-1, keepdim=True)"},
		{"model.py", "mean = hidden_states.mean(-1, keepdim=True)", "model.Norm", "mean = hidden_states.mean(-1, keepdim=True)"},
		{"", "", "", ""},
	} {
		l := Line{File: c.file, Text: c.text}
		if got, _ := wholeStatement(l, castRows(l), c.class); got != c.want {
			t.Errorf("%s in %s: %q, want %q", c.text, c.class, got, c.want)
		}
	}
}
