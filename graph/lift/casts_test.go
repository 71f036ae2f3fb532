package lift

import (
	"strings"
	"testing"
)

// TestParsePy reads lines as Python's ast module would, as far as casts go: the
// calls in the order of their evaluation, a cast as what it casts to.
func TestParsePy(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"x = x.float()", ">float32"},
		{"return self.weight * hidden_states.to(input_dtype)", ">input_dtype mul"},
		{"y = (x.float()*torch.rsqrt(x.float().pow(2).mean(-1,keepdim=True)+1e-6)).type_as(x)*s.w", ">float32 >float32 pow mean add rsqrt mul type_as mul"},
		{"def forward(s,x): return F.group_norm(x.float(), s.n, s.weight.float(), eps=1e-5).to(x.dtype)", ">float32 >float32 group_norm >x.dtype"},
		{"e = torch.cat([a.sin(), a.cos()], -1).to(dtype=self.t1.weight.dtype)", "sin cos cat >self.t1.weight.dtype"},
		{"x = x.to(torch.float32) @ -w[:, None].exp() ** 2", ">float32 exp pow neg matmul"},
		{"x = x.to(device)", "to"},
		{"x = F.dropout(s.l(x), p=0.0,", ""},
		{"if a.float() > 0:", ""},
	} {
		got := ""
		if e := parsePy(c.line); e != nil {
			var words []string
			for _, k := range e.calls(nil) {
				if to := k.cast(); to != "" {
					words = append(words, ">"+to)
				} else {
					words = append(words, k.text)
				}
			}
			got = strings.Join(words, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
}

// FuzzParsePy looks for lines that end the parser other than by an answer.
func FuzzParsePy(f *testing.F) {
	for _, s := range []string{"x = x.float()", "a[", "f(a=1, *b)", "((((", "x = 'a' + \"b", "1e-", "x.y.z(1)(2)[3].to(x.dtype)", "-", "x **", "a = = b"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		if e := parsePy(s); e != nil {
			e.calls(nil)
			e.casts()
		}
	})
}
