//go:build linux

package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A generator makes the cases of one kind.
type generator struct {
	name   string
	weight int // how often, beside the others
	make   func(b *builder)
}

// generators is the table of kinds.
var generators = slices.Concat(modelGenerators, documentGenerators, placeGenerators, folderGenerators)

// generatorNamed finds a kind.
func generatorNamed(name string) (generator, error) {
	var names []string
	for _, g := range generators {
		if g.name == name {
			return g, nil
		}
		names = append(names, g.name)
	}
	return generator{}, fmt.Errorf("no kind %q: there are %s", name, strings.Join(names, ", "))
}

// chosen is the kind of the case of this seed, by the weights.
func chosen(seed uint64) generator {
	total := 0
	for _, g := range generators {
		total += g.weight
	}
	n := random("kind", seed).IntN(total)
	for _, g := range generators {
		if n -= g.weight; n < 0 {
			return g
		}
	}
	panic("weights do not add up")
}

// random is the source of one case's choices.
func random(kind string, seed uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(kind))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// A builder makes one case: files in its folder and a command line.
type builder struct {
	r    *rand.Rand
	w    *world
	s    *samples
	dir  string // the case's folder
	args []string
	// mayRead is set where the command line names a file outside, or allows to:
	// then a read is what the user asked for.
	mayRead bool
	// colored is set where the command line asks for colour.
	colored bool
	// reports is set where the command answers many cases: then a line of each that
	// it cannot answer may stand before the last.
	reports bool
	// scratch is set where the command copies what it reads into a temporary folder,
	// which it removes.
	scratch bool
	links   int
	err     error
}

// newCase builds the case of a kind and a seed in the world's empty folder.
func newCase(w *world, s *samples, g generator, seed uint64) (*builder, error) {
	if err := os.RemoveAll(w.caseDir()); err != nil {
		return nil, err
	}
	if err := os.Mkdir(w.caseDir(), 0o755); err != nil {
		return nil, err
	}
	b := &builder{r: random(g.name, seed), w: w, s: s, dir: w.caseDir()}
	g.make(b)
	if b.err == nil {
		b.err = give(b.dir)
	}
	return b, b.err
}

// at is the path of a name in the case's folder, whose folders are made.
func (b *builder) at(name string) string {
	path := filepath.Join(b.dir, name)
	b.check(os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

// check keeps the first error of the harness itself.
func (b *builder) check(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

func (b *builder) file(name string, data []byte) {
	b.check(os.WriteFile(b.at(name), data, 0o644))
}

func (b *builder) text(name, text string) { b.file(name, []byte(text)) }

func (b *builder) folder(name string) { b.check(os.Mkdir(b.at(name), 0o755)) }

func (b *builder) link(name, target string) { b.check(os.Symlink(target, b.at(name))) }

func (b *builder) fifo(name string) { b.check(syscall.Mkfifo(b.at(name), 0o644)) }

func (b *builder) run(args ...string) { b.args = append(b.args, args...) }

// chance is true once in n.
func (b *builder) chance(n int) bool { return b.r.IntN(n) == 0 }

// sample puts one of the samples into the folder under its own name.
func (b *builder) sample(name string) { b.file(name, b.s.data(name)) }

// outside names a canary as a document in the case's folder could.
func (b *builder) outside(name string) string {
	switch b.r.IntN(6) {
	case 0:
		return b.w.path("outside/" + name)
	case 1:
		return "./.././../outside/" + name
	case 2: // through a link to the folder
		link := fmt.Sprintf("folder%d", b.links)
		b.links++
		b.link(link, pick(b.r, []string{"../../outside", b.w.path("outside")}))
		return link + "/" + name
	case 3: // through a link to the file
		link := fmt.Sprintf("link%d%s", b.links, filepath.Ext(name))
		b.links++
		b.link(link, pick(b.r, []string{"../../outside/" + name, b.w.path("outside/" + name)}))
		return link
	case 4:
		b.check(os.MkdirAll(filepath.Join(b.dir, "sub"), 0o755))
		return "sub/../../../outside/" + name
	}
	return "../../outside/" + name
}

// canary is any of the canaries, by its name in the folder outside.
func (b *builder) canary() string {
	return pick(b.r, []string{"secret.txt", "secret.json", "baseline.json", "secret.yaml", "secret.csv", "secret.bin", "secret.npy",
		"secret.onnx", "secret.pb", "sub/victim.json", "link.json", "fifo", "zero", "full", "sub", "new.json", "sub/new.json"})
}
