package lift

import "testing"

// Dropouts that copy say nothing of the mode where their library's have p = 0 by default.
func TestSeldomDrops(t *testing.T) {
	for _, c := range []struct {
		class string
		want  bool
	}{
		{"deepctr_torch.layers.core.DNN", true},
		{"perceiver_pytorch.perceiver_pytorch.Attention", true},
		{"transformers.models.bert.modeling_bert.BertLayer", false},
		{"mymodel.Block", false},
	} {
		if got := seldomDrops([]string{"mymodel.Net", c.class, "torch.nn.modules.container.Sequential"}); got != c.want {
			t.Errorf("%s: %v", c.class, got)
		}
	}
}
