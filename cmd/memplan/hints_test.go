package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// What analyze says to try of a step that does not fit, that step fits with: each
// hint is given to analyze as its flags.
func TestHints(t *testing.T) {
	helped, refused := 0, 0
	for _, question := range []string{
		"resnet50 --batch 64 --vram 5G --checkpoint none", "resnet50 --vram 1300M", "resnet50 --vram 900M", "mlp --batch 4 --vram 3G", "mlp --batch 4 --vram 1G",
		"vit_b_16 --batch 64 --vram 1200M --mode infer", "resnet50 --batch 64 --vram 2G --checkpoint sqrt", "gpt2 --batch 64 --vram 5G --checkpoint none",
	} {
		args := strings.Fields(question)
		args = append([]string{"analyze", filepath.Join("..", "..", "models", args[0]+".onnx")}, args[1:]...)
		code, out, errw := memplan(args...)
		if code != exitNo {
			t.Fatalf("%s: code %d, %s", question, code, errw)
		}
		_, after, found := strings.Cut(strings.Join(strings.Fields(out), " "), " try ")
		if !found {
			t.Errorf("%s: no hint", question)
			continue
		}
		hint, _, _ := strings.Cut(after, " free ")
		if strings.HasPrefix(hint, "a card with more memory") {
			refused++
			continue
		}
		for _, one := range strings.Split(hint, ", or ") {
			helped++
			if code, _, errw := memplan(replaced(args, strings.Fields(one))...); code != exitYes {
				t.Errorf("%s with %s: code %d, %s", question, one, code, errw)
			}
		}
	}
	if helped < 6 || refused < 1 {
		t.Errorf("%d hints, %d without", helped, refused)
	}
}

// replaced gives a command line other values of flags.
func replaced(args, flags []string) (out []string) {
	for i := 0; i < len(args); i++ {
		if strings.Contains(" "+strings.Join(flags, " ")+" ", " "+args[i]+" ") && strings.HasPrefix(args[i], "--") {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return append(out, flags...)
}
