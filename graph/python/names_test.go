package python

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNamesOfClasses: no other package spells the name of a library's class or
// module in a literal; those belong in libraries.txt.
func TestNamesOfClasses(t *testing.T) {
	of := namesOf(t)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || name == "python" || name == "internal" || strings.HasPrefix(name, ".") && len(name) > 2):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				if class := of(text); class != "" {
					t.Errorf("%s: %q names %s: make it a row of graph/python/libraries.txt", path, text, class)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"torchvision.models.resnet.BasicBlock": "torchvision.models.resnet.BasicBlock", "timm.": "timm.", "torch.nn.modules.": "torch.nn.modules.",
		".PhiAttention": "PhiAttention", "GPTNeoSelfAttention": "GPTNeoSelfAttention", "BertLayer GPT2Block": "BertLayer",
		"layers of transformers": "", "Attention": "", "RMSNorm written out, the weight last": "", "torch.float32": "",
	} {
		if got := of(text); got != want {
			t.Errorf("%q names %q, want %q", text, got, want)
		}
	}
}

// namesOf returns a function that finds a library's class in a literal, "" if there is
// none. It ignores names that ONNX operators share, and prose: words besides names.
func namesOf(t *testing.T) func(text string) string {
	known := map[string]bool{}
	for line := range strings.Lines(frames() + section("layers")) {
		class, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[class[strings.LastIndexByte(class, '.')+1:]] = true
	}
	word := regexp.MustCompile(`\w+`)
	for _, op := range word.FindAllString(source(t, "../infer/ops.go"), -1) {
		delete(known, op)
	}
	library := regexp.MustCompile(`^(torch\.nn|torchvision|timm|transformers|diffusers|monai|peft|segmentation_models_pytorch)\.[\w.*]*$`)
	return func(text string) (first string) {
		for _, field := range strings.Fields(text) {
			class := strings.Trim(field[strings.LastIndexByte(field, '.')+1:], "*'")
			switch {
			case library.MatchString(field):
				class = field
			case !known[class] || strings.ToLower(class) == class:
				return ""
			}
			if first == "" {
				first = class
			}
		}
		return first
	}
}
