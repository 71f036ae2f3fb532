package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/cmd/memplan/timeline"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/inert"
	"github.com/memplan/memplan/internal/testdata"
)

// An evil is a folder of files in which every name is a hostile one.
type evil struct {
	dir, name string
	answered  map[string]bool // of all names: commands and their formats, as "analyze json"
}

// path returns a file of the folder.
func (e *evil) path(name string) string { return filepath.Join(e.dir, name) }

// write writes a file of the folder.
func (e *evil) write(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := e.path(name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// document writes a JSON document, in which $ stands for the name; bytes that
// are no UTF-8 stay as they are.
func (e *evil) document(t *testing.T, name, text string) string {
	t.Helper()
	quoted, err := json.Marshal(strings.ToValidUTF8(e.name, "\x7f"))
	if err != nil {
		t.Fatal(err)
	}
	return e.write(t, name, []byte(strings.ReplaceAll(text, "$", strings.ReplaceAll(string(quoted[1:len(quoted)-1]), "\x7f", "\xff"))))
}

// evilType is a tensor's type, of dims that are numbers or names; its
// denotation is the name.
func evilType(bad string, dims ...string) string {
	var shape pb
	for _, d := range dims {
		dim := pb{}.str(2, d)
		if n, err := strconv.ParseInt(d, 10, 64); err == nil {
			dim = pb{}.int(1, n)
		}
		shape = shape.str(1, string(dim))
	}
	return string(pb{}.str(1, string(pb{}.int(1, 1).str(2, string(shape)))).str(6, bad))
}

func evilPair(key, value string) string { return string(pb{}.str(1, key).str(2, value)) }

// evilModel is a network of four layers, whose modules are known by the names
// of their weights. With an operator that memplan does not know, its last node
// has it; the type of its result is declared.
func evilModel(bad string, unknown bool) []byte {
	g := pb{}.str(2, bad).str(10, bad).str(16, evilPair(bad, bad))
	last := "x" + bad
	g = g.str(11, string(pb{}.str(1, last).str(2, evilType(bad, "N"+bad, "8")).str(3, bad)))
	meta := func(i int) []string {
		return []string{evilPair("namespace", fmt.Sprintf("%s: %s/%s_%d: aten.%s.default", bad, bad, bad, i, bad)), evilPair("pkg.torch.onnx.stack_trace", "File \""+bad+"\", line 1, in "+bad), evilPair(bad, bad)}
	}
	node := func(name, op, out string, in ...string) pb {
		return pb{}.str(1, in...).str(2, out).str(3, bad+name).str(4, op).str(6, bad).str(5, string(pb{}.str(1, "a"+bad).str(4, bad).int(20, 3)))
	}
	for i := range 4 {
		weight, hidden, next := fmt.Sprintf("m.%s.%d.weight", bad, i), fmt.Sprintf("h%d%s", i, bad), fmt.Sprintf("y%d%s", i, bad)
		g = g.str(5, string(pb{}.int(1, 8, 8).int(2, 1).str(9, strings.Repeat("\x00", 256)).str(8, weight).str(12, bad)))
		g = g.str(1, string(node(fmt.Sprint("/mm", i), "MatMul", hidden, last, weight)), string(node(fmt.Sprint("/act", i), "Relu", next, hidden).str(9, meta(i)...)))
		last = next
	}
	if unknown {
		g = g.str(1, string(node("/odd", "op"+bad, "z"+bad, last).str(7, "dom"+bad)))
		last = "z" + bad
	}
	g = g.str(13, string(pb{}.str(1, "h0"+bad).str(2, evilType(bad, "N"+bad, "77")))) // which is not what comes out
	g = g.str(12, string(pb{}.str(1, last).str(2, evilType(bad, "N"+bad, "8")).str(3, bad)))
	fn := pb{}.str(1, "f"+bad).str(4, "i"+bad).str(5, "o"+bad).str(6, "a"+bad).str(8, bad).str(9, string(pb{}.int(2, 20))).str(10, "dom"+bad+"f").
		str(7, string(pb{}.str(1, "i"+bad).str(2, "o"+bad).str(3, bad).str(4, "Relu")))
	return pb{}.int(1, 10).str(2, bad).str(3, bad).str(4, bad).str(6, bad).str(7, string(g)).str(8, string(pb{}.int(2, 20)), string(pb{}.str(1, "dom"+bad).int(2, 1))).
		str(14, evilPair(bad, bad)).str(25, string(fn))
}

// evilSnapshot is a memory snapshot in whose stack every text is the name.
func evilSnapshot(bad string) []byte {
	text := func(s string) string {
		return fmt.Sprintf("X%s%s", string([]byte{byte(len(s)), byte(len(s) >> 8), 0, 0}), s)
	}
	frame := "](}(" + text("name") + text(bad) + text("filename") + text(bad) + text("line") + "K\x03ue"
	event := "}(" + text("action") + text("alloc") + text("addr") + "K\x01" + text("size") + "M\x00\x10" + text("frames") + frame + text(bad) + text(bad) + "u"
	return []byte("\x80\x02}(" + text("segments") + "]" + text("device_traces") + "](](" + event + "eeu.")
}

// newEvil writes the files of a name.
func newEvil(t *testing.T, bad string) *evil {
	t.Helper()
	asFile := strings.NewReplacer("/", "", "\x00", "").Replace(bad)
	e := &evil{filepath.Join(t.TempDir(), "d"+asFile), bad, nil}
	if err := os.Mkdir(e.dir, 0o700); err != nil {
		t.Skipf("no folder can be called that: %v", err)
	}
	e.write(t, "m.onnx", evilModel(bad, false))
	e.write(t, "odd.onnx", evilModel(bad, true))
	e.write(t, asFile+".onnx", evilModel(bad, false))
	e.write(t, "external.onnx", evilExternal(bad))
	e.write(t, "snapshot.pickle", evilSnapshot(bad))
	device := string(bytes.ReplaceAll([]byte(inYAML(bad)), []byte("\n"), []byte(`\n`)))
	e.write(t, "watched.jsonl", fmt.Appendf(nil, "{\"schemaVersion\":1,\"gpus\":[{\"device\":%[1]s},{\"gpu\":1,\"device\":%[1]s}]}\n{\"usedBytes\":3,\"totalBytes\":9}\n", device))
	e.document(t, "remat.json", `{"graph": {"name": "$"}, "nodes": [{"id": 0, "name": "$", "cost_cpu": 1, "cost_ram": 1}, {"id": 1, "name": "$2", "cost_cpu": 1, "cost_ram": 1}], "links": [{"source": 0, "target": 1}]}`)
	e.document(t, "badremat.json", `{"nodes": [{"id": "$"}], "links": [{"source": "$", "target": "$"}]}`)
	e.document(t, "times.json", `{"schemaVersion": 1, "device": {"name": "$"}, "nodes": [{"op": "$", "node": "$", "phase": "$", "kind": "$", "dtype": "$", "runs": 1, "measuredMs": 1}]}`)
	e.document(t, "badtimes.json", `{"schemaVersion": 1, "device": {"name": "$"}, "nodes": [{"op": "$", "node": "$", "$": "$"}]}`)
	e.document(t, "checkpoint.json", `{"schemaVersion": 1, "framework": "torch", "checkpoint": [{"modules": ["$", "m.$.0"]}], "ops": [{"region": 0, "op": "$", "calls": [0]}]}`)
	e.document(t, "badcheckpoint.json", `{"schemaVersion": 1, "framework": "torch", "checkpoint": [{"modules": ["$"], "save": [{"op": "$", "calls": [-1]}]}], "ops": []}`)
	e.document(t, "recipe.json", `{"train_micro_batch_size_per_gpu": 64, "optimizer": {"type": "$"}, "zero_optimization": {"stage": "$"}, "activation_checkpointing": {"$": "$"}}`)
	e.document(t, "badrecipe.json", `{"micro_batch_size": "$", "$": {"$": "$"}}`)
	for _, dir := range []string{"swept", "badswept"} {
		if err := os.Mkdir(filepath.Join(e.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	e.document(t, "swept/cases.json", `{"schemaVersion": 1, "cases": [{"path": "$", "settings": "batch=$", "document": "a.json"}]}`)
	e.document(t, "swept/a.json", `{"schemaVersion": 1, "config": {"batch": 3, "precision": "$"}, "$": "$"}`)
	e.document(t, "badswept/cases.json", `{"schemaVersion": 1, "cases": [{"path": "$", "settings": "$", "document": "$"}]}`)
	e.write(t, "buffers.csv", fmt.Appendf(nil, "id,lower,upper,size\n\"%s\",0,2,4\nb,1,3,4\n", strings.ReplaceAll(bad, `"`, `""`)))
	e.write(t, "lengths.csv", []byte("4\n8,"+bad+"\n"))
	e.write(t, "head.csv", fmt.Appendf(nil, "id,lower,upper,size,\"%s\"\nb,1,3,4,1\n", strings.ReplaceAll(bad, `"`, `""`)))
	rules := fmt.Sprintf("models:\n  - path: %s\n    batch: 64\n    rules: {max-peak: 1G, max-parameters: 1}\n", inYAML(asFile+".onnx"))
	e.write(t, "rules.yaml", []byte(rules))
	e.write(t, "key.yaml", fmt.Appendf(nil, "models:\n  - path: m.onnx\n    %s: %s\n", inYAML(bad), inYAML(bad)))
	e.write(t, "value.yaml", fmt.Appendf(nil, "models:\n  - path: m.onnx\n    gpu: %[1]s\n    dims: {%[1]s: %[1]s}\nbaseline: %[1]s\n", inYAML(bad)))
	e.write(t, "raw.yaml", []byte(bad+": \n - "+bad+"\n\t"+bad))
	return e
}

// inYAML writes a string in double quotes: those of JSON are YAML's.
func inYAML(s string) string {
	b, _ := json.Marshal(s) // strings have no errors
	return string(b)
}

// evilExternal is a model with a weight in a file of the name.
func evilExternal(bad string) []byte {
	w := pb{}.int(1, 8, 8).int(2, 1).str(8, "w"+bad).int(14, 1).str(13, evilPair("location", bad), evilPair("offset", bad), evilPair(bad, bad))
	n := pb{}.str(1, "x", "w"+bad).str(2, "y").str(3, bad).str(4, "MatMul")
	g := pb{}.str(2, bad).str(1, string(n)).str(5, string(w)).str(11, string(pb{}.str(1, "x").str(2, evilType("", "N", "8")))).str(12, string(pb{}.str(1, "y").str(2, evilType("", "N", "8"))))
	return pb{}.int(1, 10).str(7, string(g)).str(8, string(pb{}.int(2, 20)))
}

// tried are command lines of each command, without its formats: @file is a
// file of the folder. A command that is not here fails the test.
var tried = map[string][]string{
	"memplan":              {"--help", "$", "--$"},
	"memplan analyze":      {"@m.onnx --batch 64", "@m.onnx", "@$.onnx --batch 64 --vram 8G --checkpoint all", "@$.onnx --mode infer --batch 64", "@m.onnx --batch 1000000 --checkpoint schedule --vram 1100M", "@odd.onnx --batch 64", "@odd.onnx --mode infer --batch 64", "@odd.onnx --mode infer --batch 64 --checkpoint @checkpoint.json", "@external.onnx --batch 64", "@m.onnx --batch 64 --checkpoint @checkpoint.json", "@m.onnx --batch 64 --checkpoint @badcheckpoint.json", "@m.onnx --batch 64 --times @times.json", "@m.onnx --batch 64 --times @badtimes.json", "@m.onnx --batch 64 --dim $=3", "@m.onnx --batch 64 --freeze $", "@m.onnx --batch 64 --lora r=4,target=$", "@m.onnx --batch 64 --gpu @$.json", "@m.onnx --config @recipe.json", "@m.onnx --config @badrecipe.json", "@m.onnx --batch 64 --config @value.yaml", "@none$", "@m.onnx --batch 64 --times @none$", "@m.onnx --batch max --vram 1G", "@m.onnx --batch 64 --allow all", "@m.onnx --batch 64 --allow $", "@m.onnx --batch 64 --phases", "@m.onnx --batch 64 --dim $=@buffers.csv", "@m.onnx --dim N$=@lengths.csv --draws 2"},
	"memplan plan":         {"@m.onnx --batch 64", "@$.onnx --batch 64 --vram 8G --checkpoint all", "@m.onnx --batch 64 --checkpoint @checkpoint.json", "@odd.onnx --mode infer --batch 64"},
	"memplan config":       {"@plan.json", "@evilplan.json", "@badcheckpoint.json"},
	"memplan validate":     {"@m.onnx --batch 2 --device cpu", "@plan.json --device cpu", "@evilplan.json --device cpu", "@odd.onnx --mode infer --batch 2 --device cpu", "@m.onnx --batch 2 --device cpu --input $=@m.onnx", "@m.onnx --batch 2 --device cpu --expect $=@buffers.csv"},
	"memplan monitor":      {"--gpu 0 --duration 100ms --interval 10ms --window 10ms", "--gpu 0 --duration 100ms --interval 10ms --window 10ms --plan @evilplan.json", "--replay @watched.jsonl", "--replay @rules.yaml", "--gpu $", "--gpu 1 --duration 100ms --interval 10ms --window 10ms"},
	"memplan compare":      {"@snapshot.pickle @plan.json", "@snapshot.pickle @m.onnx --batch 64", "@snapshot.pickle @$.onnx --batch 3 --snapshot-gpu 7", "@m.onnx @plan.json", "@none$ @plan.json", "@snapshot.pickle @evilplan.json"},
	"memplan check":        {"@rules.yaml", "@key.yaml", "@value.yaml", "@raw.yaml", "@none$"},
	"memplan baseline":     {"@rules.yaml", "@key.yaml", "@value.yaml"},
	"memplan diff":         {"@m.onnx @odd.onnx --mode infer --batch 64", "@m.onnx @external.onnx --batch 64", "@plan.json @evilplan.json", "@plan.json @$.onnx --batch 3"},
	"memplan show":         {"@m.onnx", "@odd.onnx", "@$.onnx --batch 64", "@external.onnx", "@m.onnx --shape $=1,2", "@m.onnx --dim $=1"},
	"memplan solve":        {"", "$"},
	"memplan solve remat":  {"@remat.json --budget 10", "@remat.json --budget 1", "@badremat.json --budget 3", "@remat.json --frontier --points 2", "@remat.json --verify @remat.json", "@times.json --budget 1"},
	"memplan solve layout": {"@buffers.csv", "@buffers.csv --capacity 1", "@head.csv", "@remat.json"},
	"memplan sweep":        {"@rules.yaml -o @out", "@key.yaml -o @out", "@value.yaml -o @out", "@raw.yaml -o @out", "@none$ -o @out", "@rules.yaml -o @out --shard $/2"},
	"memplan merge":        {"@swept", "@none$", "@badswept"},
	"memplan list":         {"ops --explain $", "ops", "ops --model @m.onnx", "ops --model @odd.onnx", "gpus", "$"},
	"memplan calibrate":    {"--python @python", "--python @nopython", "--python @none$"},
	"memplan version":      {""},
	"memplan man":          {"", "$", "analyze"},
	"memplan completion":   {"bash", "zsh", "fish", "powershell", "$"},
	"memplan help":         {"", "$", "analyze", "config-file"},
}

// silent are commands that print nothing with what is tried, or only run those below them.
var silent = map[string]bool{"solve ": true, "calibrate ": true, "baseline ": true, "sweep ": true}

// looks are what looks at each format's output.
var looks = map[string]func([]byte) []string{
	"text": func(b []byte) []string { return inert.Text(b, false) }, "json": inert.JSON, "sarif": inert.JSON, "markdown": inert.Markdown, "html": func(b []byte) []string { return inert.HTML(b, report.StepScript) },
	"junit": inert.SVG, "gitlab": inert.JSON, "github": workflowCommands, "svg": inert.SVG, "png": inert.PNG, "csv": inert.CSV, "trace": inert.JSON,
}

// workflowCommands are the faults of annotations: every line but the summary is a
// command of ours.
func workflowCommands(b []byte) []string {
	faults := inert.Text(b, false)
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, line := range lines[:len(lines)-1] {
		if !strings.HasPrefix(line, "::error file=") && !strings.HasPrefix(line, "::warning file=") && !strings.HasPrefix(line, "::notice file=") {
			faults = append(faults, "command "+line)
		}
	}
	return faults
}

// Nothing but text comes of hostile names: every command in every format, its
// output, messages and files.
func TestHostileNames(t *testing.T) {
	testdata.Sequential(t) // besides, the monitor has no time to read under the race detector
	const together = 5     // as many at once as a file's name has room for; report's tests have them one by one
	names := slices.Collect(slices.Chunk(inert.Names(), together))
	root := newRootCmd(newStreams(&bytes.Buffer{}, &bytes.Buffer{}))
	answered := map[string]bool{}
	for _, bad := range names {
		t.Run(fmt.Sprintf("%+q", bad[0]), func(t *testing.T) {
			e := newEvil(t, strings.Join(bad, " "))
			e.answered = answered
			e.programs(t)
			e.plans(t)
			e.tryAll(t, root)
			e.timelines(t)
			e.shown(t)
		})
	}
	checkAnswered(t, root, answered)
}

// checkAnswered fails for a command, or a format of it, that printed nothing
// with all that was tried.
func checkAnswered(t *testing.T, c *cobra.Command, answered map[string]bool) {
	for _, sub := range c.Commands() {
		if !sub.IsAdditionalHelpTopicCommand() {
			checkAnswered(t, sub, answered)
		}
	}
	for _, format := range formatsOf(c) {
		if name := strings.Join(append(strings.Fields(c.CommandPath())[1:], format), " "); !answered[name] && !silent[name] {
			t.Errorf("nothing that is tried of %q has an answer", name)
		}
	}
}

// formatsOf are the values of a command's --format; one "" without the flag.
func formatsOf(c *cobra.Command) []string {
	complete, ok := c.GetFlagCompletionFunc("format")
	if !ok {
		return []string{""}
	}
	formats, _ := complete(c, nil, "")
	return formats
}

// programs puts programs that print the name in the place of others.
func (e *evil) programs(t *testing.T) {
	text := e.write(t, "text", []byte(e.name))
	for name, script := range map[string]string{
		"nvidia-smi": "#!/bin/sh\ncase \"$*\" in *--id=1*) cat '" + quoteSh(text) + "'; exit 3;; esac\nprintf '%s, 100, 1000\\n' \"$(tr -d '\\n,\\000' <'" + quoteSh(text) + "')\"\n",
		"python":     "#!/bin/sh\ncat '" + quoteSh(text) + "' >&2\nexit 1\n", "nopython": "#!/bin/sh\ncat '" + quoteSh(text) + "'\n",
	} {
		if err := os.Chmod(e.write(t, name, []byte(script)), 0o700); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", e.dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func quoteSh(s string) string { return strings.ReplaceAll(s, "'", `'\''`) }

// plans makes a plan, and one in which names of the document are hostile too.
func (e *evil) plans(t *testing.T) {
	if code, _, errw := memplan("plan", e.path("m.onnx"), "--batch", "64", "-o", e.path("plan.json")); code != exitYes {
		t.Fatalf("no plan: %s", errw)
	}
	data, err := os.ReadFile(e.path("plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	var plan map[string]any
	if err := json.Unmarshal(data, &plan); err != nil {
		t.Fatal(err)
	}
	plan["selection"] = []any{map[string]any{"modules": []string{e.name, "m." + e.name}, "save": []any{map[string]any{"op": e.name, "calls": []int{0}, "of": 1}}}}
	plan["proof"] = e.name
	plan["warnings"] = []any{map[string]string{"code": e.name, "message": e.name, "node": e.name}}
	plan["peak"].(map[string]any)["node"] = e.name
	if data, err = json.Marshal(plan); err != nil {
		t.Fatal(err)
	}
	e.write(t, "evilplan.json", data)
}

// tryAll runs what is tried of a command and of those below it.
func (e *evil) tryAll(t *testing.T, c *cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.IsAdditionalHelpTopicCommand() {
			e.tryAll(t, sub)
		}
	}
	lines, ok := tried[c.CommandPath()]
	if !ok {
		t.Errorf("nothing is tried of %s", c.CommandPath())
	}
	for _, line := range lines {
		for _, format := range formatsOf(c) {
			e.try(t, strings.Fields(c.CommandPath())[1:], line, format)
		}
	}
}

// args are those of a line that is tried.
func (e *evil) args(line string) (args []string) {
	for _, word := range strings.Fields(line) {
		key, file, isFile := strings.Cut(word, "@")
		name := e.name
		if isFile {
			name = strings.NewReplacer("/", "", "\x00", "").Replace(name)
		}
		if word = strings.ReplaceAll(key, "$", e.name); isFile {
			word += e.path(strings.ReplaceAll(file, "$", name))
		}
		args = append(args, word)
	}
	return args
}

// try runs a command line with a format, and looks at what comes out.
func (e *evil) try(t *testing.T, command []string, line, format string) {
	args := append(slices.Clone(command), e.args(line)...)
	look := looks["text"]
	if format != "" {
		args = append(args, "--format", format)
		if look = looks[format]; look == nil {
			t.Errorf("nothing looks at the format %s of %v", format, command)
			return
		}
	}
	code, out, errw := memplan(args...)
	for _, fault := range inert.Text([]byte(errw), false) {
		t.Errorf("%q: stderr: %s", args, fault)
	}
	for _, said := range strings.Split(strings.TrimSuffix(errw, "\n"), "\n") {
		if ours := strings.HasPrefix(said, "warning: ") || strings.HasPrefix(said, "memplan: ") || said == "measuring; this takes a few seconds"; code == exitUnknown && !ours || strings.Contains(said, "internal error") {
			t.Errorf("%q: stderr has %q", args, said)
		}
	}
	if code == exitUnknown && (out != "" || strings.Count("\n"+errw, "\nmemplan: ") != 1) {
		t.Errorf("%q: %d bytes of output, and:\n%s", args, len(out), errw)
	}
	if out == "" {
		return
	}
	e.answered[strings.Join(append(command, format), " ")] = true
	switch strings.Join(command, " ") {
	case "completion":
		out = strings.ReplaceAll(out, "\t", " ") // scripts are indented by them
	case "config", "plan", "baseline", "calibrate":
		look = inert.JSON
	}
	for _, fault := range look([]byte(out)) {
		t.Errorf("%q: %s", args, fault)
	}
	if format == "text" {
		_, painted, _ := memplan(append(args, "--color", "always")...)
		for _, fault := range inert.Text([]byte(painted), true) {
			t.Errorf("%q, coloured: %s", args, fault)
		}
	}
}

// timelines writes every kind of timeline.
func (e *evil) timelines(t *testing.T) {
	model := e.args("@$.onnx")[0]
	for i := range timeline.Formats {
		ending := timeline.Formats[i].Ending
		path := e.path("t" + ending)
		if code, _, errw := memplan("analyze", model, "--batch", "64", "--timeline", path); code != exitYes {
			t.Fatalf("%s: %s", ending, errw)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		look := looks[ending[1:]]
		if ending == ".pickle" { // its strings lie between other bytes
			look = func(b []byte) []string {
				if len(inert.Text([]byte(e.name), false)) > 0 && bytes.Contains(b, []byte(e.name)) {
					return []string{"the name as it is"}
				}
				return nil
			}
		}
		for _, fault := range look(data) {
			t.Errorf("timeline %s: %s", ending, fault)
		}
	}
}

// shown checks that names come back: the text of show parses, and its JSON
// decodes, to values of the names that the file has.
func (e *evil) shown(t *testing.T) {
	_, out, _ := memplan("show", e.path("odd.onnx"))
	g, err := graph.Parse(strings.NewReader(out))
	if err != nil {
		t.Fatalf("show: %v in\n%s", err, out)
	}
	var names []string
	for i := range g.Values {
		names = append(names, g.Values[i].Name)
	}
	_, out, _ = memplan("show", e.path("odd.onnx"), "--format", "json")
	var doc struct {
		Values []struct{ Name string }
		Nodes  []struct{ Name, Op string }
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	var decoded []string
	for _, v := range doc.Values {
		decoded = append(decoded, v.Name)
	}
	for _, want := range []string{"x" + e.name, "m." + e.name + ".0.weight", "z" + e.name} {
		if !slices.Contains(names, want) {
			t.Errorf("show: no %q among %q", want, names)
		}
		if want := string([]rune(want)); !slices.Contains(decoded, want) {
			t.Errorf("show --format json: no %q among %q", want, decoded)
		}
	}
	if last := g.Nodes[len(g.Nodes)-1]; last.Op != "op"+e.name || last.Domain != "dom"+e.name || last.Name != e.name+"/odd" {
		t.Errorf("show: the last node is %q %q.%q", last.Name, last.Domain, last.Op)
	}
}

// Escape sequences in names of operators, domains, nodes, values and dims come
// out as letters, and a line's end in one does not end a warning.
func TestEscapesInNames(t *testing.T) {
	const evil, said = "\x1b[2J\x1b[31mEVIL\x1b[0m", `\x1b[2J\x1b[31mEVIL\x1b[0m`
	path := onnxFile(t, []int64{0, 8}, nil)
	for _, tt := range []struct{ name, said string }{{evil, said}, {"a\nb", `a\nb`}} {
		n := pb{}.str(1, "x").str(2, "y").str(3, tt.name).str(4, tt.name).str(7, tt.name)
		g := pb{}.str(2, "g").str(1, string(n)).str(11, string(pb{}.str(1, "x").str(2, evilType("", "N"+tt.name, "8")))).str(12, string(pb{}.str(1, "y")))
		m := pb{}.int(1, 8).str(7, string(g)).str(8, string(pb{}.int(2, 17)), string(pb{}.str(1, tt.name).int(2, 1)))
		if err := os.WriteFile(path, m, 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errw := memplan("show", path)
		if want := fmt.Sprintf("warning: %[1]s \"%[1]s\": no rule for operator %[1]s.%[1]s, and no declared shape of its output \"y\" [unknown-op]\n", tt.said); code != exitYes || errw != want {
			t.Errorf("show: code %d, %q, want %q", code, errw, want)
		}
		if want := fmt.Sprintf("  [\"%[1]s\"] y = \"%[1]s\".\"%[1]s\" (x)", tt.said); !strings.Contains(out, want) || !strings.Contains(out, `"N`+tt.said+`"`) {
			t.Errorf("show: no %q in %q", want, out)
		}
		code, out, errw = memplan("analyze", path, "--batch", "2")
		if code != exitUnknown || out != "" || !strings.Contains(errw, tt.said) || strings.Count(errw, "\n") != 1 || strings.Contains(errw, tt.name) {
			t.Errorf("analyze: code %d, %q, %q", code, out, errw)
		}
	}
}

// Markdown in the names of modules, nodes and dims is code in a comment, in
// warnings and in the line of the peak, too.
func TestMarkdownInNames(t *testing.T) {
	const evil = "](http://evil) **b** | x `c` <img src=x onerror=alert(1)> \n# H\n- [ ] t @user ![i](http://evil/i.png)"
	e := newEvil(t, evil)
	code, out, errw := memplan("analyze", e.path("m.onnx"), "--batch", "64", "--checkpoint", "all", "--vram", "8G", "--format", "markdown")
	if code != exitYes || strings.Count(out, "@user") < 4 || !strings.Contains(out, "\nwarning: ``") {
		t.Fatalf("code %d, %q\n%s", code, errw, out)
	}
	for _, fault := range inert.Markdown([]byte(out)) {
		t.Errorf("%s in\n%s", fault, out)
	}
}
