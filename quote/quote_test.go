package quote_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/memplan/memplan/internal/inert"
	"github.com/memplan/memplan/quote"
)

func TestText(t *testing.T) {
	for _, tt := range []struct{ s, want string }{
		{"layer1.0/Conv_3", "layer1.0/Conv_3"}, {"größe 重み وزن वज़न", "größe 重み وزن वज़न"}, {`C:\new\x1b`, `C:\new\x1b`}, {"", ""},
		{"a\x1b[2Jb", `a\x1b[2Jb`}, {"a\nb\r\tc", `a\nb\r\tc`}, {"\x00\a\b\x7f", `\x00\x07\x08\x7f`}, {"\u0085\u009b", `\u0085\u009b`},
		{"\u202a\u202e\u2066\u2069", `\u202a\u202e\u2066\u2069`}, {"\u200b\u200f\u2028\u2029\ufeff\u00ad\u061c", `\u200b\u200f\u2028\u2029\ufeff\u00ad\u061c`},
		{"\ue000\U000f0000\U000e0041\ufffe", `\ue000\U000f0000\U000e0041\ufffe`}, {"\xff\xed\xa0\x80\xc3", `\xff\xed\xa0\x80\xc3`}, {"\ufffd", "\ufffd"}, {"\u00a0", `\u00a0`},
	} {
		if got := quote.Text(tt.s); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.s, got, tt.want)
		}
	}
}

func TestCode(t *testing.T) {
	for _, tt := range []struct{ s, want string }{
		{"", ""}, {"a.b", "`a.b`"}, {"a`b", "``a`b``"}, {"`", "`` ` ``"}, {"a``", "``` a`` ```"}, {" a ", "`  a  `"}, {" a", "` a`"}, {"a\n\n# b", "`a\\n\\n# b`"}, {"a|b", "`a|b`"},
	} {
		if got := quote.Code(tt.s); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.s, got, tt.want)
		}
	}
	if got, want := quote.Cell(`a|b\|c`), "`"+`a\x7cb\\x7cc`+"`"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCSV(t *testing.T) {
	for s, want := range map[string]string{"": "", "a=b": "a=b", "=1": "'=1", "+a": "'+a", "-a": "'-a", "@a": "'@a", "-12": "-12", "+3": "+3", "-2+3": "'-2+3", "\t=1": `\t=1`, "\uff1d1": "'\uff1d1"} {
		if got := quote.CSV(s); got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	}
}

// hostileText is text of characters that some format minds.
func hostileText(r *rand.Rand) string {
	parts := append(inert.Names(), "`", "``", "\\", "|", "[", "](", " ", "a", "=", "\n", "<", "&", "'", "\"", "\U0001f600")
	var b strings.Builder
	for range r.IntN(6) {
		p := parts[r.IntN(len(parts))]
		lo := r.IntN(len(p))
		b.WriteString(p[lo : lo+1+r.IntN(len(p)-lo)])
	}
	return b.String()
}

// What is quoted is inert where it is meant for, by that format's own parser;
// it is quoted no further, and letters stay as they are.
func TestInert(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 10))
	for range 5000 {
		s := hostileText(r)
		text := quote.Text(s)
		check(t, s, "text", inert.Text([]byte(text), false))
		if quote.Text(text) != text {
			t.Errorf("%q: quoted twice is %q, once %q", s, quote.Text(text), text)
		}
		code, cell := quote.Code(s), quote.Cell(s)
		check(t, s, "Markdown", inert.Markdown(fmt.Appendf(nil, "a %s b\n\n- %s c\n\n| a | b |\n|---|---|\n| %s | %s |\n", code, code, cell, cell)))
		row := strings.ReplaceAll(quote.CSV(s), `"`, `""`)
		check(t, s, "CSV", inert.CSV(fmt.Appendf(nil, "a,b\n\"%s\",\"x\"\n", row)))
		doc, err := json.Marshal(map[string]string{s: s})
		if err != nil {
			t.Fatal(err)
		}
		quoted := quote.JSON(doc)
		check(t, s, "JSON", inert.JSON(quoted))
		var want, got map[string]string
		if err := json.Unmarshal(doc, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(quoted, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: decodes to %q, want %q (%v)", s, got, want, err)
		}
	}
}

func check(t *testing.T, s, format string, faults []string) {
	t.Helper()
	for _, fault := range faults {
		t.Errorf("%q as %s: %s", s, format, fault)
	}
}

// Letters, digits, punctuation and symbols of every script stay.
func TestLettersStay(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S) && quote.Text(string(r)) != string(r) {
			t.Errorf("%U becomes %s", r, quote.Text(string(r)))
		}
	}
}

func TestWriter(t *testing.T) {
	var b bytes.Buffer
	n, err := quote.NewWriter(&b).Write([]byte("a\x1b[0m\nb\tc\n"))
	if want := "a\\x1b[0m\nb\\tc\n"; err != nil || n != 10 || b.String() != want {
		t.Errorf("%d, %v, %q, want %q", n, err, b.String(), want)
	}
}

type inner struct {
	Name string
	List []string
}

type outer struct {
	Embedded
	Ptr, Nil *inner
	ByName   map[string]inner
	Any      []any
	Fixed    [2]string
	Number   int
	Call     func() string
	hidden   int
}

// Embedded is exported, so that its fields can be set.
type Embedded struct{ Deep inner }

func TestAll(t *testing.T) {
	bad, good := "a\x1bb", `a\x1bb`
	v := &outer{Embedded{inner{bad, []string{bad}}}, &inner{Name: bad}, nil, map[string]inner{bad: {Name: bad}}, []any{bad, 1, nil, inner{Name: bad}}, [2]string{"x", bad}, 3, func() string { return bad }, 4}
	got := quote.All(v)
	want := &outer{Embedded{inner{good, []string{good}}}, &inner{Name: good}, nil, map[string]inner{good: {Name: good}}, []any{good, 1, nil, inner{Name: good}}, [2]string{"x", good}, 3, nil, 4}
	if got.Call == nil || got.Call() != bad {
		t.Error("the function is lost")
	}
	if got.Call = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if v.Deep.Name != bad || v.Deep.List[0] != bad || v.Ptr.Name != bad || v.Any[0] != bad || v.ByName[bad].Name != bad {
		t.Errorf("the value itself was changed: %+v", v)
	}
	if x := quote.All[any](nil); x != nil {
		t.Errorf("nil becomes %v", x)
	}
	defer func() {
		if recover() == nil {
			t.Error("text in a field that is not exported passes")
		}
	}()
	quote.All(struct{ secret string }{bad})
}
