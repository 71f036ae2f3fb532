package train

import (
	"fmt"
	"strings"
	"testing"
)

// TestReadLine reads lines of Python: what they assign, read and call.
func TestReadLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"x = self.conv(x)", "x= reads x calls self.conv"},
		{"a = b = f(c)  # a comment = none", "a= b= reads c calls f"},
		{"q, k, v = qkv.chunk(3, dim=-1)", "q= k= v= reads qkv calls qkv.chunk"},
		{"(a, *rest), n = g(x)", "a= *rest= n= reads x calls g"},
		{"x += y", "x= reads x y"},
		{"outs += [f(x)]", "outs= list reads outs x calls f"},
		{"y: torch.Tensor = self.act(x)", "y= reads x calls self.act"},
		{"feats[i] = self.lat[i](feats[i + 1])", "feats[]= reads i feats[] calls self.lat[]"},
		{"self.cache = h.norm()", "self.= reads h calls h.norm"},
		{"return self.fc(F.relu(x)) + r", "return reads x r calls self.fc F.relu"},
		{"feats.append(self.down(x))", "adds feats reads feats x calls feats.append self.down"},
		{"x = torch.cat([x, skips.pop()], 1)", "x= reads x skips^ calls torch.cat skips.pop"},
		{"ys = [m(x) for m in self.ms]", "ys= list loops reads x calls m"},
		{"s = sum(f.abs() for f in feats)", "s= loops reads feats[] calls sum f.abs"},
		{"z = (lambda u: u * w)(x)", "z= reads w x"},
		{"if (n := f(x)) is not None: y = g(n)", "n= reads x calls f; y= reads n calls g"},
		{"x = x + b(x); del b", "x= reads x calls b; del b"},
		{"out = torch.cat(", "out= open calls torch.cat"},
		{"r.sin()], 1", "inner list reads r calls r.sin"},
		{"left * right,", "inner reads left right"},
		{").sigmoid().cos()", "inner calls .sigmoid .cos"},
		{"+ helper(", "inner open calls helper"},
		{"h = x.new_zeros(x.shape[0], 'a)b = c')", "h= reads x~ calls x.new_zeros"},
		{`y = f"{x} = {z}" + rb'=' + "open`, "y="},
		{"a == b", "reads a b"},
		{"self.norm(x), weights=weights", "inner reads x weights calls self.norm"},
		{"x, weights=weights", "inner reads x weights"},
		{"mask = m, bias = self.pos(x)", "inner reads m x calls self.pos"},
		{"(a, b), c = f(x)", "a= b= c= reads x calls f"},
		{"", ""},
	} {
		list, dels := readLine(c.text)
		var parts []string
		for i := range list {
			parts = append(parts, brief(&list[i]))
		}
		for _, d := range dels {
			parts = append(parts, "del "+d)
		}
		if got := strings.Join(parts, "; "); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// brief writes a statement in a few words.
func brief(s *statement) string {
	var w []string
	for _, x := range s.targets {
		w = append(w, map[targetKind]string{starredName: "*"}[x.kind]+x.name+map[targetKind]string{element: "[]", attribute: "."}[x.kind]+"=")
	}
	for _, x := range []struct {
		is   bool
		word string
	}{{s.returns, "return"}, {s.inner, "inner"}, {s.open, "open"}, {s.list, "list"}, {s.loops, "loops"}} {
		if x.is {
			w = append(w, x.word)
		}
	}
	if s.adds != "" {
		w = append(w, "adds "+s.adds)
	}
	var reads []string
	seen := map[string]bool{}
	for _, r := range s.reads {
		word := r.name
		switch {
		case r.pop:
			word += "^"
		case r.element:
			word += "[]"
		case r.shape:
			word += "~"
		}
		if !seen[word] {
			reads = append(reads, word)
		}
		seen[word] = true
	}
	if len(reads) > 0 {
		w = append(w, "reads "+strings.Join(reads, " "))
	}
	var calls []string
	for _, c := range s.calls {
		calls = append(calls, c.path+map[bool]string{true: "[]"}[c.item])
	}
	if len(calls) > 0 {
		w = append(w, "calls "+strings.Join(calls, " "))
	}
	return strings.Join(w, " ")
}

// FuzzReadLine looks for lines that make the reader panic, or that give names
// which are not in them.
func FuzzReadLine(f *testing.F) {
	for _, s := range []string{"x = self.a(x)", "a, *b = c[1:](d)", "((((", "]]}})", "lambda: x :=", "x = '''", "for i in x: y += [z", "\\", "é = ü.pop()", "del", ";;", "return", "@=", "f\"{x", "a = = b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, dels := readLine(text)
		for i := range list {
			s := &list[i]
			for _, x := range s.targets {
				if !strings.Contains(text, x.name) || !strings.Contains(text, x.text) {
					t.Errorf("%q assigns %+v", text, x)
				}
			}
			for _, r := range s.reads {
				if r.name == "" || !strings.Contains(text, r.name) || keywords[r.name] {
					t.Errorf("%q reads %+v", text, r)
				}
			}
		}
		for _, d := range dels {
			if !strings.Contains(text, d) {
				t.Errorf("%q deletes %q", text, d)
			}
		}
		if fmt.Sprint(list) == "" {
			t.Error("no list")
		}
	})
}
