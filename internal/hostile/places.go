//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

var placeGenerators = []generator{
	{"special-files", 24, specialFiles},
	{"outputs", 12, outputs},
	{"file-names", 10, fileNames},
	{"baseline-files", 8, baselineFiles},
	{"configuration-links", 3, configurationLinks},
	{"arguments", 6, arguments},
	{"mesh-flags", 8, meshFlags},
	{"allowed", 1, allowed},
}

// special puts something that is no regular document under a name.
func (b *builder) special(name string) {
	switch b.r.IntN(12) {
	case 0, 1:
		b.fifo(name)
	case 2:
		b.check(syscall.Mknod(b.at(name), syscall.S_IFSOCK|0o644, 0))
	case 3:
		b.link(name, b.w.path("outside/"+pick(b.r, []string{"zero", "full", "fifo"})))
		b.mayRead = true
	case 4:
		b.folder(name)
	case 5:
		b.link(name, filepath.Base(name))
	case 6:
		b.link(name, "nowhere")
	case 7:
		b.text(name, "unreadable")
		b.check(os.Chmod(b.at(name), 0))
	case 8:
		b.text(name, "")
	case 9:
		b.link(name, "../../outside/"+b.canary())
		b.mayRead = true
	case 10: // much that is not there
		f, err := os.Create(b.at(name))
		b.check(err)
		b.check(f.Truncate(int64(1) << (30 + b.r.IntN(12))))
		b.check(f.Close())
	case 11: // a chain of links
		for i := range 60 {
			b.link(name+strings.Repeat("x", i), filepath.Base(name)+strings.Repeat("x", i+1))
		}
		b.text(name+strings.Repeat("x", 60), "{}")
	}
}

// specialFiles gives each command, in place of a document that its command
// line names, something that is none. What the user names may lie anywhere.
func specialFiles(b *builder) {
	r := pick(b.r, roles)
	b.use(r)
	b.special(r.name)
}

// outputs writes onto what is there: folders, links, files of others.
func outputs(b *builder) {
	r := pick(b.r, roles)
	b.use(r)
	b.sample(r.name)
	out := "out." + pick(b.r, []string{"json", "txt", "svg"})
	switch b.r.IntN(8) {
	case 0:
		b.folder(out)
	case 1: // which would be written through
		b.link(out, "../../outside/"+pick(b.r, []string{"secret.json", "secret.txt", "new.json", "sub/victim.json", "sub"}))
	case 2:
		b.link(out, out)
	case 3:
		b.link(out, "nowhere/at/all")
	case 4:
		b.text(out, "another program's")
	case 5:
		b.text(out, "read only")
		b.check(os.Chmod(b.at(out), 0o400))
	case 6:
		out = "nowhere/" + out
	case 7:
		out = strings.Repeat("n", 250) + out
	}
	if r.args[0] == "analyze" && b.chance(3) {
		if filepath.Ext(out) == ".txt" {
			out = "step.json"
			b.link(out, "../../outside/new.json")
		}
		b.run("--timeline", out)
		return
	}
	b.run("-o", out)
}

// fileNames gives the document itself a hostile name.
func fileNames(b *builder) {
	r := pick(b.r, roles)
	if r.name[0] == '.' {
		r = roles[0]
	}
	b.use(r)
	name := fileName(hostileName(b.r)) + filepath.Ext(r.name)
	if b.chance(6) {
		name = strings.Repeat("d/", b.r.IntN(1500)) + name
	}
	if len(name) < 3000 && !b.chance(6) {
		b.file(name, b.s.data(r.name))
	}
	for i, arg := range b.args {
		b.args[i] = strings.Replace(arg, r.name, "./"+name, 1)
	}
	if r.name == "mlp.onnx" && b.chance(2) {
		b.args = []string{"check", "--format", pick(b.r, []string{"text", "json", "markdown", "sarif"})}
		quoted := strings.ReplaceAll(name, "'", "''")
		b.text(".memplan.yaml", "models:\n  - {path: './"+quoted+"', batch: 4}\nrules: {max-peak: 1M}\n")
	}
	for i, arg := range b.args {
		b.args[i] = strings.ReplaceAll(arg, "\x00", "_")
	}
}

// baselineFiles has a good configuration, whose baseline is no baseline.
func baselineFiles(b *builder) {
	b.sample("mlp.onnx")
	b.sample(".memplan.yaml")
	const name = ".memplan-baseline.json"
	switch b.r.IntN(5) {
	case 0:
		b.link(name, "../../outside/"+pick(b.r, []string{"secret.json", "baseline.json", "secret.txt", "new.json", "sub/victim.json"}))
	case 1:
		b.link(name, b.w.path("outside/"+b.canary()))
	case 2:
		b.file(name, b.s.data(pick(b.r, []string{"plan.json", "checkpoint.json", "mlp.onnx", "chain.json"})))
	case 3:
		b.special(name)
		b.mayRead = false
	case 4:
		b.text(name, hostileName(b.r))
	}
	b.run(pick(b.r, []string{"check", "baseline"}))
}

// configurationLinks has a configuration that nobody named and that lies
// outside.
func configurationLinks(b *builder) {
	b.sample("mlp.onnx")
	b.link(".memplan.yaml", "../../outside/"+b.canary())
	b.run(pick(b.r, []string{"check", "baseline"}))
}

// arguments gives flags hostile values.
func arguments(b *builder) {
	b.sample("mlp.onnx")
	flags := []string{"--batch", "--dim", "--shape", "--vram", "--gpu", "--runtime", "--precision", "--optimizer", "--loss", "--freeze", "--lora", "--alloc-conf",
		"--timeout", "--accumulate", "--attention", "--checkpoint", "--times", "--mode", "--format", "--color", "--unknown"}
	b.run(pick(b.r, []string{"analyze", "plan", "show", "validate"}), "mlp.onnx")
	for range 1 + b.r.IntN(2) {
		value := pick(b.r, []string{hostileName(b.r), itoa(pick(b.r, hostileInts)), "batch=" + hostileName(b.r), hostileName(b.r) + "=1", "1e999", "0x", "99999999999999999999", "16G", "input0=" + itoa(pick(b.r, hostileInts))})
		b.run(pick(b.r, flags), strings.ReplaceAll(value, "\x00", "_"))
	}
	if b.chance(6) {
		b.args = []string{strings.ReplaceAll(hostileName(b.r), "\x00", "_"), "x"}
	}
	for _, arg := range b.args { // which a user may name
		b.mayRead = b.mayRead || strings.Contains(arg, "outside")
		b.colored = b.colored || arg == "always"
	}
}

// allowed reads a canary because the command line says so: the report counts
// what the harness saw of it.
func allowed(b *builder) {
	b.run("show", b.w.path("outside/secret.onnx"))
	b.mayRead = true
}
