package train

import (
	"slices"
	"testing"
)

// TestResults reads what a return gives its caller from lines of Python.
func TestResults(t *testing.T) {
	for text, want := range map[string][]result{
		"return self.o(attn @ v), attn":                            {{}, {name: "attn"}},
		"return x, None":                                           {{name: "x"}, {}},
		`return {"low": low, "high": self.c(mid)}`:                 {{name: "low", field: "low"}, {field: "high"}},
		"return Out(features=self.l3(h2), hidden=[h1, h2])":        {{field: "features"}, {name: "h1"}, {name: "h2"}},
		"return out.Pair(out=self.o(y), attn=attn)":                {{field: "out"}, {name: "attn", field: "attn"}},
		"return dict(y=y, z=f(y))":                                 {{name: "y", field: "y"}, {field: "z"}},
		"return [self.decode(z), mu]":                              {{}, {name: "mu"}},
		"return (self.a(x), (h, c))":                               {{}, {name: "h"}, {name: "c"}},
		"return F.relu(x)":                                         nil,
		"return torch.cat([a, b], 1)":                              nil,
		"return self.Head(x)":                                      nil,
		"return (self.a(x) + y)":                                   nil,
		"return self.tail(feats * scale.unsqueeze(1)).view(b, -1)": nil,
		"return Out(logits=self.head(x),":                          {{field: "logits"}},
	} {
		list, _ := readLine(text)
		if len(list) != 1 || !slices.Equal(list[0].results, want) {
			t.Errorf("%q: %+v, want %+v", text, list[0].results, want)
		}
	}
}

// TestFields reads what a line asks a variable for.
func TestFields(t *testing.T) {
	for text, want := range map[string]string{
		"y = self.head(encoded.features)": "features",
		`y = self.p1(feats["high"])`:      `"high"`,
		"out = self.head(feats[-1])":      "-1",
		"y = torch.cat(f[0], 1)":          "0",
		"y = self.a(f[i])":                "",
		"y = self.a(f[:, 0])":             "",
		"y = self.a(f.shape[0])":          "",
		"y = self.a(f.mean(1))":           "",
		"y = self.a(f.T)":                 "",
	} {
		list, _ := readLine(text)
		if len(list) != 1 || len(list[0].reads) == 0 || list[0].reads[0].field != want {
			t.Errorf("%q: %+v, want %q", text, list[0].reads, want)
		}
	}
}
