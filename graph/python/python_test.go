package python

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern pattern
		name    string
		want    bool
	}{
		{"a.B", "a.B", true}, {"a.B", "a.Bc", false}, {"a.B", "xa.B", false}, {"", "", true}, {"", "a", false},
		{"a.*", "a.b.C", true}, {"a.*", "b.a.C", false}, {"*.C", "a.b.C", true}, {"*.C", "C", false}, {"*C", "C", true}, {"*", "", true},
		{"a.*C", "a.C", true}, {"a.*.C", "a.C", false}, {"a*a", "a", false},
		{"*b*", "abc", true}, {"*b*", "b", true}, {"*b*", "ac", false}, {"a*b*c", "a.b.b.c", true}, {"a*b*c", "a.c.b", false},
	} {
		if got := c.pattern.matches(c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

// TestRows: rows have only conditions that read knows and values that this package's
// functions read, and no row stands behind one that matches all its classes.
func TestRows(t *testing.T) {
	values := map[string]string{
		"recurrent":            `|\w+\.input`,
		"cells":                `gru|lstm`,
		"adaptive-pools":       `adaptive_(avg|max)_pool[123]d`,
		"activations-in-place": `all|none|\w+(,\w+)*`,
		"locals":               `\w+\.( \w+\.)?( first| last)?`,
	}
	names := 0
	for _, header := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(libraries, -1) {
		name := header[1]
		if name == "layers" || name == "frames" || name == "casts" {
			continue
		}
		names++
		rows := fact(name).rows()
		if len(rows) == 0 {
			t.Errorf("%s has no rows", name)
		}
		want := regexp.MustCompile("^(" + values[name] + ")$")
		for i, r := range rows {
			if got := strings.Join(r.values, " "); !want.MatchString(got) {
				t.Errorf("%s: %s says %q", name, r.class, got)
			}
			for _, before := range rows[:i] {
				unconditional := before.not+before.root+before.around+before.module == ""
				if name != "locals" && unconditional && before.class.matches(string(r.class)) {
					t.Errorf("%s: %s stands behind %s, which takes it", name, r.class, before.class)
				}
			}
		}
	}
	if made := len(regexp.MustCompile(`(?m)^\s+\w+ += fact\(`).FindAllString(source(t, "facts.go"), -1)); names != made {
		t.Errorf("%d sections of facts, %d variables", names, made)
	}
}

func TestFacts(t *testing.T) {
	const whisper = "transformers.models.whisper.modeling_whisper.WhisperEncoder"
	for _, c := range []struct {
		fact *Fact
		at   Place
		want bool
	}{
		{AddsInPlace, Place{Class: "torchvision.models.resnet.BasicBlock"}, true},
		{AddsInPlace, Place{Class: "mine.resnet.BasicBlock"}, false},
		{WideNorms, Place{Class: "transformers.models.llama.modeling_llama.LlamaRMSNorm"}, true},
		{WideNorms, Place{Class: "torch.nn.modules.normalization.RMSNorm"}, false},
		{DropsOut, Place{Class: "transformers.models.bert.modeling_bert.BertModel"}, true},
		{DropsOut, Place{Class: "transformers.models.llama.modeling_llama.LlamaModel"}, false},
		{FrozenPositions, Place{Class: "torch.nn.modules.sparse.Embedding", Around: []string{whisper}, Module: "encoder.embed_positions"}, true},
		{FrozenPositions, Place{Class: "torch.nn.modules.sparse.Embedding", Around: []string{whisper}, Module: "encoder.tokens"}, false},
		{FrozenPositions, Place{Class: "torch.nn.modules.sparse.Embedding", Module: "encoder.embed_positions"}, false},
	} {
		if got := c.fact.At(&c.at); got != c.want {
			t.Errorf("%s of %+v: %v", c.fact.name, c.at, got)
		}
	}
}

func TestActivatesInPlace(t *testing.T) {
	const vit = "torchvision.models.vision_transformer.VisionTransformer"
	for _, c := range []struct {
		op        string
		at        Place
		in, known bool
	}{
		{"relu", Place{Class: "mine.Block"}, false, false},
		{"relu", Place{Class: "mine.Block", Root: "timm.models.resnet.ResNet"}, true, true},
		{"relu", Place{Class: "torchvision.models.resnet.BasicBlock"}, true, true},
		{"relu", Place{Class: "torchvision.models.segmentation.fcn.FCNHead"}, false, true},
		{"relu", Place{Class: "torchvision.models.segmentation.lraspp.LRASPPHead"}, true, true},
		{"gelu", Place{Class: vit}, false, true},
		{"relu", Place{Class: "torchvision.ops.misc.Conv2dNormActivation", Root: vit}, false, true},
		{"relu", Place{Class: "torchvision.ops.misc.Conv2dNormActivation", Root: "mine.Net"}, true, true},
		{"silu", Place{Class: "torchvision.ops.misc.SqueezeExcitation"}, true, true},
		{"relu", Place{Class: "torchvision.ops.misc.SqueezeExcitation"}, false, true},
		{"silu", Place{Class: "torchvision.ops.misc.SqueezeExcitation", Around: []string{"torchvision.models.maxvit.MBConv"}}, false, true},
		{"leaky_relu", Place{Class: "monai.networks.blocks.convolutions.Convolution"}, true, true},
		{"elu", Place{Class: "monai.networks.blocks.convolutions.Convolution"}, false, true},
	} {
		if in, known := ActivatesInPlace(c.op, &c.at); in != c.in || known != c.known {
			t.Errorf("%s at %+v: %v %v", c.op, c.at, in, known)
		}
	}
}

func TestModules(t *testing.T) {
	if call, ok := Recurrent("torch.nn.modules.rnn.LSTM"); call != "lstm.input" || !ok {
		t.Error(call, ok)
	}
	if call, ok := Recurrent("torch.nn.modules.rnn.RNN"); call != "" || !ok {
		t.Error(call, ok)
	}
	if _, ok := Recurrent("torch.nn.modules.rnn.LSTMCell"); ok {
		t.Error("a cell is a recurrent module")
	}
	if op, dims := AdaptivePool("torch.nn.modules.pooling.AdaptiveMaxPool3d"); op != "adaptive_max_pool3d" || dims != 3 {
		t.Error(op, dims)
	}
	if op, dims := AdaptivePool("torch.nn.modules.pooling.MaxPool3d"); op != "" || dims != 0 {
		t.Error(op, dims)
	}
	if got := Locals("transformers.models.llama.modeling_llama.LlamaRotaryEmbedding"); !slices.Equal(got, []Local{{Op: "matmul."}, {Op: "cat."}}) {
		t.Error(got)
	}
	if got := Locals("torchvision.models.swin_transformer.ShiftedWindowAttentionV2"); !slices.Equal(got, []Local{{Op: "sub.", Until: "masked_fill."}, {Op: "masked_fill.", Which: -1}}) {
		t.Error(got)
	}
	if got := Locals("transformers.models.gemma.modeling_gemma.GemmaRMSNorm"); got != nil {
		t.Error(got)
	}
	if !Layer("transformers.models.gpt2.modeling_gpt2.GPT2Block") || Layer("mine.GPT2Block") || Layer("transformers.models.gpt2.modeling_gpt2.GPT2Model") {
		t.Error("layers")
	}
}

// TestFrames: every row is found, and rows are in order.
func TestFrames(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(frames(), "\n"), "\n")
	if len(lines) < 1000 {
		t.Fatalf("%d lines", len(lines))
	}
	before := ""
	for _, line := range lines {
		fields := strings.Fields(line)
		if fields[0] <= before {
			t.Fatalf("%s stands after %s", fields[0], before)
		}
		before = fields[0]
		if got := Frame(fields[0]); !slices.Equal(got, fields[1:]) {
			t.Fatalf("%s: %v, want %v", fields[0], got, fields[1:])
		}
		for _, v := range fields[1:] {
			if what, until, ok := strings.Cut(v, ">"); !ok || strings.TrimPrefix(what, "<") == "" || until == "" {
				t.Errorf("%s: %s", fields[0], v)
			}
		}
	}
	for _, name := range []string{"", "a", "zzz", "torchvision.models.densenet._DenseLaye", "torchvision.models.densenet._DenseLayers"} {
		if got := Frame(name); got != nil {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestCasts: rows have three columns and are found, and rows are in order.
func TestCasts(t *testing.T) {
	rows := strings.Split(strings.TrimSuffix(casts(), "\n"), "\n")
	if len(rows) < 100 {
		t.Fatalf("%d rows", len(rows))
	}
	before := ""
	for _, r := range rows {
		f := strings.Split(r, "\t")
		if len(f) != 3 || f[0] < before {
			t.Fatalf("columns or order of %q", r)
		}
		before = f[0]
		for _, name := range strings.Fields(f[2]) {
			file, class, _ := strings.Cut(name, ":")
			if !slices.Contains(Casts(file, f[0]), Cast{class, f[1]}) {
				t.Errorf("%q of %s is not found", f[0], name)
			}
		}
	}
	for _, line := range []string{"", "zzz", before + " "} {
		if got := Casts("modeling_bert.py", line); got != nil {
			t.Errorf("%q: %v", line, got)
		}
	}
}
