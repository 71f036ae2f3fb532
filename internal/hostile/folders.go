//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Kinds of commands that read folders: diff, of the file system and of git, and merge.
var folderGenerators = []generator{
	{"diff-folders", 6, diffFolders},
	{"diff-git", 4, diffGit},
	{"sweep", 6, sweepText},
	{"merge", 5, mergeFolder},
}

// someFile is the content of a model or plan, whole or not.
func (b *builder) someFile() (name string, data []byte) {
	name = pick(b.r, []string{"mlp.onnx", "mlp.onnx", "gpt.onnx", "plan.json", "gpt-plan.json", "checkpoint.json", "chain.json"})
	data = b.s.data(name)
	switch {
	case b.chance(4):
		data = mutateBytes(b.r, data)
	case b.chance(4) && strings.HasSuffix(name, ".json"):
		data = b.mutateJSON(data)
	}
	return name, data
}

// somePath is a name in a folder that diff compares: plain, hostile, deep.
func (b *builder) somePath(name string) string {
	switch b.r.IntN(4) {
	case 0:
		s := fileName(hostileName(b.r))
		return s[:min(len(s), 120)] + filepath.Ext(name) // special makes longer ones of it
	case 1:
		return strings.Repeat("d/", 1+b.r.IntN(30)) + name
	}
	return name
}

// diffFolders compares two folders of models, plans, links and other things.
func diffFolders(b *builder) {
	for _, side := range []string{"old", "new"} {
		if b.chance(12) {
			b.special(side)
			b.mayRead = true // what the command line names may lie anywhere
			continue
		}
		b.folder(side)
		for range b.r.IntN(4) {
			name, data := b.someFile()
			path := side + "/" + b.somePath(name)
			if _, err := os.Lstat(filepath.Join(b.dir, path)); err == nil {
				continue
			}
			if b.chance(5) {
				b.special(path)
				b.mayRead = false
				continue
			}
			b.file(path, data)
		}
		if b.chance(8) { // which is none of the folder's
			b.link(side+"/elsewhere", pick(b.r, []string{"../../../outside", "..", "/"}))
		}
	}
	b.reports = true
	b.run("diff", "old", pick(b.r, []string{"new", "new", "new", "old", "old/mlp.onnx"}), "--batch", "2")
	b.format(text...)
}

// diffGit compares with commits, whose files and names are hostile.
func diffGit(b *builder) {
	b.commit()
	b.sample("mlp.onnx")
	b.reports, b.scratch = true, true
	ref := pick(b.r, []string{"HEAD", "HEAD", "HEAD", "HEAD", "main", "HEAD~1", "HEAD@{1}", ":/x", "--help", "-o", "", "HEAD^{tree}", "nowhere", strings.ReplaceAll(hostileName(b.r), "\x00", "_")})
	path := pick(b.r, []string{"m/mlp.onnx", "m/mlp.onnx", "m/plan.json", "m", "m", "", ".", "m/link.onnx", "m/pointer.onnx", "m/secret.json", "../m/mlp.onnx", "./m", "m/../m", "/etc/passwd", strings.ReplaceAll(hostileName(b.r), "\x00", "_")})
	spec := "git:" + ref + ":" + path
	if b.chance(10) {
		spec = pick(b.r, []string{"git:", "git::", "git:HEAD", "git:HEAD:", "git:" + b.w.path("outside") + ":secret.json"})
	}
	other := pick(b.r, []string{"mlp.onnx", "mlp.onnx", "git:HEAD:m/mlp.onnx", "git:HEAD:m", "m"})
	b.run("diff", spec, other, "--batch", "2")
	b.format(text...)
	for _, arg := range b.args {
		b.mayRead = b.mayRead || strings.Contains(arg, "outside")
	}
}

// commit makes the case's folder a repository of one commit: a model and a plan
// of the samples, links to what lies outside, a pointer of Git LFS, and files with hostile
// names and contents, which git can hold and a file system perhaps cannot.
func (b *builder) commit() {
	var s bytes.Buffer
	s.WriteString("commit refs/heads/main\ncommitter a <a@b> 0 +0000\ndata 1\nx\n")
	add := func(mode, path string, data []byte) {
		path = strings.ReplaceAll(path, "\x00", "_")
		quoted := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n").Replace(path)
		fmt.Fprintf(&s, "M %s inline \"%s\"\ndata %d\n", mode, quoted, len(data))
		s.Write(data)
		s.WriteString("\n")
	}
	add("100644", "m/mlp.onnx", b.s.data("mlp.onnx"))
	add("100644", "m/plan.json", bytes.ReplaceAll(b.s.data("plan.json"), []byte(`"mlp.onnx"`), fmt.Appendf(nil, "%q", pick(b.r, []string{"mlp.onnx", "mlp.onnx", "../../outside/secret.onnx", b.w.path("outside/secret.onnx"), "../m/mlp.onnx", "link.onnx", ".", "plan.json"}))))
	add("120000", "m/link.onnx", []byte(pick(b.r, []string{"../../../outside/secret.onnx", "mlp.onnx", "link.onnx", b.w.path("outside/secret.onnx")})))
	add("120000", "m/secret.json", []byte(b.w.path("outside/secret.json")))
	add("100644", "m/pointer.onnx", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"))
	for range b.r.IntN(4) {
		name, data := b.someFile()
		add("100644", "m/"+fileName(hostileName(b.r))+filepath.Ext(name), data)
	}
	if b.chance(4) {
		add("100644", ".gitattributes", []byte("*.onnx diff=evil filter=evil\n"))
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"config", "filter.evil.smudge", "touch ran"}, {"config", "core.fsmonitor", "touch ran"}, {"fast-import", "--quiet", "--force"}} {
		c := exec.Command("git", args...)
		c.Dir, c.Stdin = b.dir, &s
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.w.path("home"), "GIT_CONFIG_NOSYSTEM=1"}
		if args[0] != "fast-import" {
			c.Stdin = nil
		}
		if out, err := c.CombinedOutput(); err != nil && args[0] != "fast-import" { // which refuses some names
			b.check(fmt.Errorf("git %s: %w: %s", args[0], err, out))
		}
	}
}

// sweepText mutates the cases of a sweep.
func sweepText(b *builder) {
	b.sample("mlp.onnx")
	b.reports = true
	switch b.r.IntN(7) {
	case 0:
		b.file("cases.yaml", mutateBytes(b.r, []byte(sweepCases)))
	case 5, 6: // cases that are, of a model with a hostile name
		name := fileName(hostileName(b.r)) + ".onnx"
		b.file(name, b.s.data("mlp.onnx"))
		quoted := strings.ReplaceAll(name, "'", "''")
		b.text("cases.yaml", "models:\n- {path: './"+quoted+"', batch: "+itoa(pick(b.r, []int64{1, 2, 4, 1000, 1 << 40}))+", matrix: {precision: [fp32, bf16]}}\n")
	case 1: // a matrix of many cases
		n := 1 << b.r.IntN(18)
		b.text("cases.yaml", "models:\n- path: nowhere.onnx\n  matrix: {batch: ["+strings.TrimSuffix(strings.Repeat("1,", n), ",")+"], accumulate: ["+strings.TrimSuffix(strings.Repeat("2,", b.r.IntN(40)+1), ",")+"]}\n")
	default:
		b.file("cases.yaml", b.mutateLines(sweepCases))
	}
	out := pick(b.r, []string{"out", "out", "out", "link", "nowhere/at/all", "mlp.onnx", fileName(hostileName(b.r))})
	if out == "link" {
		b.link("link", "../../outside/sub")
	}
	b.run("sweep", "cases.yaml", "-o", strings.TrimLeft(out, "-"))
	if b.chance(3) {
		b.run("--shard", pick(b.r, []string{"1/2", "0/0", "-1/2", "auto/4", "9223372036854775807/9223372036854775807", strings.ReplaceAll(hostileName(b.r), "\x00", "_")}))
	}
}

// mergeFolder joins the documents of a sweep, some of which are not its own.
func mergeFolder(b *builder) {
	b.folder("out")
	names := make([]string, 0, len(b.s.answers))
	for _, name := range b.s.answers {
		names = append(names, name)
		b.file(name, b.s.data(name))
	}
	name := pick(b.r, names)
	b.check(os.Remove(filepath.Join(b.dir, name)))
	switch b.r.IntN(5) {
	case 0:
		b.special(name)
		b.mayRead = false
	case 1:
		data := b.s.data(name)
		for range 1 + b.r.IntN(3) {
			data = mutateBytes(b.r, data)
		}
		b.file(name, data)
	case 2:
		b.file(name, b.s.data(pick(b.r, []string{"plan.json", "chain.json", ".memplan-baseline.json"})))
	default:
		b.file(name, b.mutateJSON(b.s.data(name)))
	}
	b.reports = true
	b.run("merge", "out")
	b.format("text", "json", "markdown", "csv")
}

// mutateLines changes a document of lines such as YAML's or TOML's: values, kinds, keys, bytes.
func (b *builder) mutateLines(document string) []byte {
	lines := strings.Split(document, "\n")
	value := pick(b.r, []func() string{
		func() string { return fmt.Sprintf("%q", hostileName(b.r)) },
		func() string { return hostileName(b.r) },
		func() string { return itoa(pick(b.r, hostileInts)) },
		func() string {
			return pick(b.r, []string{"null", "~", "[]", "{}", "[1, [2, [3]]]", "&a [*a]", "*nowhere", "!!binary aGk=", "!!int x", "0x10", "1e400", ".nan", ".inf", "|\n  text", ">-\n  text", "? a", "<<: *a", "\t", "- - -", "12:30:45", "2026-01-01", "1_000", "'", "\"", "%", "@x", "yes"})
		},
	})
	for range 1 + b.r.IntN(3) {
		at := b.r.IntN(len(lines))
		separator := ":"
		if strings.Contains(lines[at], " = ") {
			separator = " ="
		}
		key, _, ok := strings.Cut(lines[at], separator)
		switch {
		case ok && b.chance(2):
			lines[at] = key + separator + " " + value()
		case ok && b.chance(2):
			lines[at] = strings.Replace(lines[at], strings.TrimLeft(key, " -"), hostileName(b.r), 1)
		default:
			lines[at] += "\n" + lines[b.r.IntN(len(lines))]
		}
	}
	data := []byte(strings.Join(lines, "\n"))
	if b.chance(2) {
		data = mutateBytes(b.r, data)
	}
	return data
}

// frameworkText mutates the configuration of a training framework.
func frameworkText(b *builder) {
	r := pick(b.r, slices.Concat(rolesOf(".toml"), rolesOf("framework.yaml"), rolesOf("framework.yml")))
	b.use(r)
	data := b.s.data(r.name)
	if b.chance(3) { // a key more, which it names or counts
		key, line := strings.NewReplacer("\n", "_", "\r", "_", "\x00", "_").Replace(hostileName(b.r)), "%q: %q\n"
		if strings.HasSuffix(r.name, ".toml") {
			line = "%q = %q\n"
		}
		b.file(r.name, append(fmt.Appendf(nil, line, pick(b.r, []string{"gradient_" + key, "offload_" + key, key}), hostileName(b.r)), data...))
		return
	}
	n := 100 + b.r.IntN(50_000)
	switch b.r.IntN(8) {
	case 0:
		data = []byte(strings.Repeat("[", n))
	case 1:
		data = append(bytes.Clone(data), strings.Repeat("[a]\nb = 1\n", n)...)
	case 2:
		data = fmt.Appendf(bytes.Clone(data), "x: %s\n", strings.Repeat("{a: ", n))
	case 3:
		data = []byte("[parallelism]\ntensor_parallel_degree = " + itoa(pick(b.r, hostileInts)) + "\n[training]\nlocal_batch_size = " + itoa(pick(b.r, hostileInts)) + "\n")
	default:
		data = b.mutateLines(string(data))
	}
	b.file(r.name, data)
}

// pricesText mutates the prices of cards.
func pricesText(b *builder) {
	r := rolesOf("prices.csv")[0]
	b.use(r)
	data := b.s.data(r.name)
	switch b.r.IntN(4) {
	case 0:
		data = mutateBytes(b.r, data)
	case 1:
		data = bytes.Repeat(data, 1+b.r.IntN(50_000))
	default:
		cells := strings.FieldsFunc(string(data), func(r rune) bool { return r == ',' || r == '\n' })
		for range 1 + b.r.IntN(2) {
			cells[b.r.IntN(len(cells))] = pick(b.r, []string{itoa(pick(b.r, hostileInts)), hostileName(b.r), "", "-1.5", "NaN", "Inf", "1e400", "0x1p4", " 1", "#", "t4"})
		}
		data = nil
		for i, c := range cells {
			data = append(append(data, c...), ",\n"[i%2])
		}
	}
	b.file(r.name, data)
}

// meshFlags spreads a step over cards in ways that there are not.
func meshFlags(b *builder) {
	model := pick(b.r, []string{"mlp.onnx", "gpt.onnx"})
	b.sample(model)
	number := func() string {
		return pick(b.r, []string{"1", "2", "4", "8", "3", "2x2", "4x0", itoa(pick(b.r, hostileInts)), "1e3", "", hostileName(b.r), "9223372036854775807x2"})
	}
	var parts []string
	for range 1 + b.r.IntN(3) {
		parts = append(parts, pick(b.r, []string{"ddp", "zero1", "fsdp", "hsdp", "zero2", "zero3", "tp", "cp", "pp", "ep", "TP", hostileName(b.r)})+"="+number())
	}
	b.run(pick(b.r, []string{"analyze", "analyze", "plan"}), model, "--batch", "2")
	switch b.r.IntN(6) {
	case 1, 2: // one that there is
		b.run("--parallel", pick(b.r, []string{"ddp=2", "zero1=4", "zero2=4", "zero3=8", "ddp=1024", "tp=2", "zero1=3"}))
	case 3:
		b.run("--parallel", pick(b.r, []string{"fsdp=2", "fsdp=8", "hsdp=2x2", "fsdp=4096"}), "--fsdp-wrap", pick(b.r, []string{"root", "none", "*", "net.*"}))
	case 0:
		b.run("--gpus", pick(b.r, []string{"2", "4", "8", "16", itoa(pick(b.r, hostileInts)), hostileName(b.r)}))
	default:
		b.run("--parallel", strings.Join(parts, pick(b.r, []string{",", ",", ",", ";", " ", ",,"})))
	}
	for range b.r.IntN(3) {
		flag := pick(b.r, []string{"--ddp-bucket", "--ddp-first-bucket", "--fsdp-precision", "--fsdp-prefetch", "--fsdp-reshard", "--fsdp-wrap", "--pp-micros", "--pp-schedule", "--pp-split", "--pp-stages",
			"--tp-colwise", "--tp-rowwise", "--tp-sequence", "--zero-bucket", "--zero-live", "--zero-persistence", "--zero-prefetch", "--zero-reuse", "--cp-dim"})
		b.run(flag, pick(b.r, []string{itoa(pick(b.r, hostileInts)), hostileName(b.r), "blocks", "root", "*", "net.*", "class:" + hostileName(b.r), "0.5", "1K", "true", "zbv", strings.Repeat("*", 2000), "[", "a,b,c"}))
	}
	for i, arg := range b.args {
		b.args[i] = strings.ReplaceAll(arg, "\x00", "_")
		b.mayRead = b.mayRead || strings.Contains(arg, "outside")
	}
}
