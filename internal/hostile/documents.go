//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
)

var documentGenerators = []generator{
	{"yaml-paths", 14, yamlPaths},
	{"yaml-text", 12, yamlText},
	{"yaml-scaled", 3, yamlScaled},
	{"json-values", 26, jsonValues},
	{"json-paths", 10, jsonPaths},
	{"json-bytes", 8, jsonBytes},
	{"pickle", 3, pickleBytes},
	{"watched", 2, watchedText},
	{"json-scaled", 2, jsonScaled},
	{"frameworks", 6, frameworkText},
	{"prices", 4, pricesText},
	{"csv", 8, csvText},
	{"npy", 8, npyBytes},
	{"npz", 8, npzBytes},
	{"pb", 5, pbFields},
}

// A role is a way in which a document reaches memplan.
type role struct {
	name   string   // of the sample
	with   []string // the other samples that the command needs
	args   []string
	json   bool
	format []string
}

var text = []string{"text", "json", "markdown"}

// roles is the table of documents, with the commands that read them.
var roles = []role{
	{"plan.json", []string{"mlp.onnx"}, []string{"config", "plan.json", "--to", "torch"}, true, nil},
	{"plan.json", []string{"mlp.onnx"}, []string{"validate", "plan.json", "--device", "cpu", "--timeout", "1s"}, true, []string{"text", "json", "html"}},
	{"plan.json", []string{"mlp.onnx", "gpt-plan.json", "gpt.onnx"}, []string{"diff", "plan.json", "gpt-plan.json"}, true, text},
	{"gpt-plan.json", []string{"gpt.onnx", "mlp.onnx"}, []string{"diff", "mlp.onnx", "gpt-plan.json", "--batch", "2"}, true, text},
	{"plan.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "4", "--checkpoint", "plan.json"}, true, text},
	{"gpt-plan.json", []string{"gpt.onnx"}, []string{"analyze", "gpt.onnx", "--batch", "2", "--checkpoint", "gpt-plan.json"}, true, text},
	{"checkpoint.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "4", "--checkpoint", "checkpoint.json"}, true, text},
	{"checkpoint.json", []string{"mlp.onnx"}, []string{"plan", "mlp.onnx", "--batch", "4", "--checkpoint", "checkpoint.json"}, true, nil},
	{".memplan-baseline.json", []string{".memplan.yaml", "mlp.onnx"}, []string{"check"}, true, []string{"text", "json", "markdown", "sarif"}},
	{".memplan-baseline.json", []string{".memplan.yaml", "mlp.onnx"}, []string{"baseline"}, true, nil},
	{"calibration.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "4", "--gpu", "calibration.json"}, true, text},
	{"calibration.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "4", "--runtime", "calibration.json"}, true, text},
	{"times.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "4", "--times", "times.json"}, true, text},
	{"times.json", []string{"mlp.onnx"}, []string{"plan", "mlp.onnx", "--batch", "4", "--checkpoint", "all", "--times", "times.json"}, true, nil},
	{"chain.json", nil, []string{"solve", "remat", "chain.json", "--budget-ratio", "0.75", "--timeout", "1s"}, true, []string{"text", "json"}},
	{"chain.json", nil, []string{"solve", "remat", "chain.json", "--frontier", "--points", "3", "--timeout", "1s"}, true, []string{"text", "json", "csv", "svg"}},
	{"proof.json", []string{"chain.json"}, []string{"solve", "remat", "chain.json", "--verify", "proof.json"}, true, []string{"text", "json"}},
	{"plan.json", nil, []string{"monitor", "--pid", "1", "--duration", "100ms", "--plan", "plan.json"}, true, []string{"text", "json"}},
	{"step.pickle", []string{"mlp.onnx", "plan.json"}, []string{"compare", "step.pickle", "plan.json"}, false, []string{"text", "json", "markdown"}},
	{"plan.json", []string{"mlp.onnx", "step.pickle"}, []string{"compare", "step.pickle", "plan.json"}, true, []string{"text", "json", "markdown"}},
	{"watched.jsonl", []string{"plan.json"}, []string{"monitor", "--replay", "watched.jsonl", "--plan", "plan.json"}, false, []string{"text", "json"}},
	{".memplan.yaml", []string{"mlp.onnx", ".memplan-baseline.json"}, []string{"check"}, false, []string{"text", "json", "markdown", "sarif"}},
	{".memplan.yaml", []string{"mlp.onnx"}, []string{"baseline"}, false, nil},
	{"buffers.csv", nil, []string{"solve", "layout", "buffers.csv", "--timeout", "1s"}, false, []string{"csv", "text", "json"}},
	{"lengths.csv", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--dim", "batch=lengths.csv", "--draws", "3", "--vram", "16G"}, false, []string{"text", "json"}},
	{"prices.csv", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--gpu", "t4,a10,h100", "--prices", "prices.csv", "--batch", "4"}, false, []string{"text", "json", "markdown"}},
	{"ds_config.json", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--config", "ds_config.json"}, true, text},
	{"training_args.json", []string{"mlp.onnx"}, []string{"plan", "mlp.onnx", "--config", "training_args.json"}, true, nil},
	{"torchtitan.toml", []string{"gpt.onnx"}, []string{"analyze", "gpt.onnx", "--config", "torchtitan.toml"}, false, text},
	{"accelerate.framework.yaml", []string{"mlp.onnx"}, []string{"analyze", "mlp.onnx", "--batch", "2", "--config", "accelerate.framework.yaml"}, false, text},
	{"axolotl.framework.yml", []string{"mlp.onnx"}, []string{"plan", "mlp.onnx", "--config", "axolotl.framework.yml"}, false, nil},
	{"cases.yaml", []string{"mlp.onnx"}, []string{"sweep", "cases.yaml", "-o", "answers"}, false, nil},
	{"input.npy", []string{"mlp.onnx"}, []string{"validate", "mlp.onnx", "--batch", "2", "--device", "cpu", "--input", "input0=input.npy", "--timeout", "1s"}, false, []string{"text", "json", "html"}},
	{"input.npy", []string{"mlp.onnx"}, []string{"validate", "mlp.onnx", "--batch", "2", "--device", "cpu", "--expect", "output=input.npy", "--timeout", "1s"}, false, []string{"text", "json"}},
	{"mlp.npz", []string{"mlp.onnx"}, []string{"validate", "mlp.onnx", "--batch", "2", "--device", "cpu", "--input", "mlp.npz", "--timeout", "1s"}, false, []string{"text", "json"}},
	{"mlp.npz", []string{"mlp.onnx"}, []string{"validate", "mlp.onnx", "--batch", "2", "--device", "cpu", "--expect", "mlp.npz", "--timeout", "1s"}, false, []string{"text", "json"}},
	{"tensor.pb", []string{"mlp.onnx"}, []string{"validate", "mlp.onnx", "--batch", "2", "--device", "cpu", "--input", "input0=tensor.pb", "--timeout", "1s"}, false, []string{"text", "json"}},
	{"mlp.onnx", nil, []string{"analyze", "mlp.onnx", "--batch", "4"}, false, []string{"text", "json", "markdown", "sarif", "html"}},
	{"mlp.onnx", nil, []string{"list", "ops", "--model", "mlp.onnx"}, false, []string{"text", "json"}},
	{"mlp.onnx", nil, []string{"show", "mlp.onnx"}, false, []string{"text", "json"}},
	{"mlp.onnx", []string{"gpt.onnx"}, []string{"diff", "gpt.onnx", "mlp.onnx", "--batch", "4"}, false, text},
}

// rolesOf are those whose document's name ends so.
func rolesOf(suffix string) []role {
	var out []role
	for _, r := range roles {
		if strings.HasSuffix(r.name, suffix) {
			out = append(out, r)
		}
	}
	return out
}

// use puts what the command needs beside the document into the folder.
func (b *builder) use(r role) {
	for _, name := range r.with {
		b.sample(name)
	}
	b.run(r.args...)
	b.reports = r.args[0] == "sweep"
	if r.format != nil {
		b.format(r.format...)
	}
}

func jsonValues(b *builder) {
	r := pick(b.r, rolesOf(".json"))
	b.use(r)
	b.file(r.name, b.mutateJSON(b.s.data(r.name)))
}

func jsonBytes(b *builder) {
	r := pick(b.r, rolesOf(".json"))
	b.use(r)
	data := b.s.data(r.name)
	for range 1 + b.r.IntN(3) {
		data = mutateBytes(b.r, data)
	}
	if b.chance(8) {
		data = append([]byte(pick(b.r, []string{"\ufeff", "\xff\xfe", "{}", "null", "[]", "0", "\"x\"", hostileName(b.r)})), data...)
	}
	b.file(r.name, data)
}

// jsonPaths lets documents name files outside, in every value that is a path,
// and where none is, in keys that could be.
func jsonPaths(b *builder) {
	r := pick(b.r, rolesOf(".json"))
	b.use(r)
	data := b.s.data(r.name)
	path := fmt.Sprintf("%q", b.outside(b.canary()))
	for _, key := range []string{"path", "times", "gpu", "runtime", "checkpoint", "baseline", "name", "model"} {
		if i := bytes.Index(data, []byte(`"`+key+`": "`)); i >= 0 && b.chance(2) {
			at := i + len(key) + 4
			end := at + 1 + bytes.IndexByte(data[at+1:], '"') + 1
			data = bytes.Join([][]byte{data[:at], data[end:]}, []byte(path))
		}
	}
	if b.chance(3) {
		data = bytes.Replace(data, []byte("{"), []byte(`{"`+pick(b.r, []string{"path", "times", "gpu", "checkpoint", "schedule", "file", "$ref"})+`": `+path+`, `), 1)
	}
	b.file(r.name, data)
}

// jsonScaled makes documents large in one way.
func jsonScaled(b *builder) {
	r := pick(b.r, rolesOf(".json"))
	b.use(r)
	n := 1000 + b.r.IntN(200_000)
	data := string(b.s.data(r.name))
	switch b.r.IntN(6) {
	case 0:
		data = strings.Repeat("[", n)
	case 1:
		data = strings.Repeat(`{"model":`, n)
	case 2:
		data = `{"schemaVersion": 1, "model": {"path": "` + strings.Repeat("a", 10*n) + `"}}`
	case 3:
		data = `{"schemaVersion": 1, "checkpoint": [` + strings.TrimSuffix(strings.Repeat(`{"modules": ["net.0"]},`, n), ",") + `]}`
	case 4:
		data = `{"schemaVersion": 1, "models": [` + strings.TrimSuffix(strings.Repeat(`{"path": "mlp.onnx", "reservedBytes": 1},`, n), ",") + `]}`
	case 5:
		var s strings.Builder
		s.WriteString(`{"nodes": [`)
		for i := range n / 20 {
			fmt.Fprintf(&s, `{"id": %d, "name": "n", "cost_cpu": 1, "cost_ram": 1},`, i)
		}
		data = strings.TrimSuffix(s.String(), ",") + `], "links": []}`
	}
	b.file(r.name, []byte(data))
}

// yamlKeys are keys of a model's entry that name, or could name, a file.
var yamlKeys = []string{"path", "checkpoint", "gpu", "runtime", "times", "baseline"}

// yamlPaths lets a configuration name files outside in each key that is a path.
func yamlPaths(b *builder) {
	b.sample("mlp.onnx")
	b.sample("checkpoint.json")
	key := pick(b.r, yamlKeys)
	target := map[string]string{"path": "secret.onnx", "baseline": "baseline.json"}[key]
	if target == "" || b.chance(2) {
		target = b.canary()
	}
	value := fmt.Sprintf("%q", b.outside(target))
	entry, rest := "path: mlp.onnx, batch: 4", "baseline: .memplan-baseline.json"
	switch key {
	case "path":
		entry = "path: " + value + ", batch: 4"
	case "baseline":
		rest = "baseline: " + value
	default:
		entry += ", " + key + ": " + value
	}
	config := ".memplan.yaml"
	if b.chance(6) { // the configuration in a folder of its own
		config = "ci/.memplan.yaml"
	}
	b.text(config, "models:\n  - {"+entry+"}\nrules: {max-increase: 2%}\n"+rest+"\n")
	if b.chance(2) && key != "baseline" {
		b.sample(".memplan-baseline.json")
	}
	b.run(pick(b.r, []string{"check", "baseline", "baseline"}))
	if config != ".memplan.yaml" {
		b.run(config)
	}
	if b.args[0] == "check" {
		b.format("text", "json", "markdown", "sarif")
	}
	if b.chance(20) && b.args[0] == "check" { // baseline would write outside, as it was told to
		b.run("--allow-outside")
		b.mayRead = true
	}
}

// yamlText mutates a configuration as text: values, kinds, keys, bytes.
func yamlText(b *builder) {
	b.sample("mlp.onnx")
	b.sample(".memplan-baseline.json")
	b.file(".memplan.yaml", b.mutateLines(gate))
	b.run(pick(b.r, []string{"check", "check", "baseline"}))
	if b.args[0] == "check" {
		b.format("text", "json", "markdown", "sarif")
	}
}

// yamlScaled makes a configuration large in one way.
func yamlScaled(b *builder) {
	b.sample("mlp.onnx")
	n := 100 + b.r.IntN(100_000)
	var s strings.Builder
	switch b.r.IntN(9) {
	case 0:
		s.WriteString("models: " + strings.Repeat("[", n))
	case 1:
		s.WriteString("models: " + strings.Repeat("{a: ", n))
	case 2: // laughs
		s.WriteString("a0: &a0 [x, x]\n")
		for i := range 30 {
			fmt.Fprintf(&s, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d]\n", i+1, i+1, i, i, i, i)
		}
		s.WriteString("models: *a30\n")
	case 3:
		s.WriteString("models:\n")
		for range n / 10 {
			s.WriteString("  - {path: mlp.onnx}\n")
		}
	case 4:
		s.WriteString("models:\n  - path: " + strings.Repeat("a", 20*n) + "\n")
	case 5:
		for i := range n {
			fmt.Fprintf(&s, "k%d: 1\n", i)
		}
	case 6:
		s.WriteString(strings.Repeat("- ", n))
	case 7:
		for i := range min(n, 5000) {
			s.WriteString(strings.Repeat(" ", i) + "a:\n")
		}
	case 8:
		s.WriteString("models: [{path: mlp.onnx, dims: {")
		for i := range n {
			fmt.Fprintf(&s, "d%d: 1, ", i)
		}
		s.WriteString("}}]\n")
	}
	b.text(".memplan.yaml", s.String())
	b.run(pick(b.r, []string{"check", "baseline"}))
}

// watchedText mutates what a watch recorded.
func watchedText(b *builder) {
	r := rolesOf(".jsonl")[0]
	b.use(r)
	data := b.s.data(r.name)
	if b.chance(2) {
		data = mutateBytes(b.r, data)
	} else {
		for range 1 + b.r.IntN(3) {
			value := pick(b.r, []string{itoa(pick(b.r, hostileInts)), fmt.Sprintf("%q", hostileName(b.r)), "null", "1e999", "-1", "[]", "0.5"})
			data = bytes.Replace(data, []byte(pick(b.r, []string{`:0`, `:1`, `:1024`, `"card"`, `:0.5`})), []byte(":"+value), 1+b.r.IntN(2))
		}
	}
	b.file(r.name, data)
}

// pickleBytes mutates a memory snapshot: as bytes, or with opcodes that make objects
// put into it, or many times the same.
func pickleBytes(b *builder) {
	r := rolesOf(".pickle")[0]
	b.use(r)
	data := b.s.data(r.name)
	at := 2 + b.r.IntN(len(data)-3)
	switch b.r.IntN(3) {
	case 0:
		for range 1 + b.r.IntN(5) {
			data = mutateBytes(b.r, data)
		}
	case 1:
		code := pick(b.r, []string{"cos\nsystem\n(S'touch ran'\ntR0", "cbuiltins\neval\n0", "\x8c\x02os\x8c\x06system\x93\x8c\x05touch\x85R0", "(ios\nsystem\n0", "Pid\n0", "}}b0"})
		data = slices.Concat(data[:at], []byte(code), data[at:])
	case 2:
		many := pick(b.r, []string{"]", "(", "}", ")", "N2", "\x94", "0", "e", "](]e", "\x8b\xff\xff\xff\x7f", "X\xff\xff\xff\xff"})
		data = slices.Concat(data[:at], bytes.Repeat([]byte(many), 1+b.r.IntN(500_000)), data[at:])
	}
	b.file(r.name, data)
}

// csvText mutates an instance of solve layout.
func csvText(b *builder) {
	if b.chance(4) {
		lengthsText(b)
		return
	}
	r := rolesOf("buffers.csv")[0]
	b.use(r)
	data := b.s.data(pick(b.r, []string{"buffers.csv", "placed.csv"}))
	switch b.r.IntN(4) {
	case 0:
		data = mutateBytes(b.r, data)
	case 1: // a field
		cells := strings.Split(string(data), ",")
		for range 1 + b.r.IntN(3) {
			cells[b.r.IntN(len(cells))] = pick(b.r, []string{itoa(pick(b.r, hostileInts)), hostileName(b.r), "", "1.5", "NaN", "0x10", " 1"})
		}
		data = []byte(strings.Join(cells, ","))
	case 2: // names
		data = []byte(strings.Replace(string(data), "b1", hostileName(b.r), 1))
	case 3:
		var s strings.Builder
		s.WriteString("id,lower,upper,size\n")
		for i := range 1 + b.r.IntN(30_000) {
			lower := b.r.IntN(1000)
			fmt.Fprintf(&s, "b%d,%d,%d,%d\n", i, lower, lower+1+b.r.IntN(1000), 1+b.r.IntN(1<<b.r.IntN(40)))
		}
		data = []byte(s.String())
	}
	b.file(r.name, data)
	if b.chance(3) {
		b.run("--capacity", pick(b.r, []string{"16", "1", "9223372036854775807"}))
	}
}

// lengthsText mutates a file of lengths.
func lengthsText(b *builder) {
	r := rolesOf("lengths.csv")[0]
	b.use(r)
	data := b.s.data(r.name)
	switch b.r.IntN(3) {
	case 0:
		data = mutateBytes(b.r, data)
	case 1: // a field
		cells := strings.Split(string(data), ",")
		cells[b.r.IntN(len(cells))] = pick(b.r, []string{itoa(pick(b.r, hostileInts)), hostileName(b.r), "", "1.5", "NaN", "0x10", " 1", "#"})
		data = []byte(strings.Join(cells, ","))
	case 2:
		data = nil
		for range b.r.IntN(100_000) {
			data = fmt.Appendf(data, "%d,%d\n", 1+b.r.IntN(1<<b.r.IntN(20)), b.r.IntN(1<<b.r.IntN(50)))
		}
	}
	b.file(r.name, data)
}

// npy is an array's file with this header.
func npy(header string, data []byte) []byte {
	header += "\n"
	out := append([]byte("\x93NUMPY\x01\x00"), binary.LittleEndian.AppendUint16(nil, uint16(len(header)))...)
	return append(append(out, header...), data...)
}

// someArray is an array's file whose header may lie.
func (b *builder) someArray() []byte {
	switch b.r.IntN(4) {
	case 0:
		return b.s.data("input.npy")
	case 1:
		return mutateBytes(b.r, b.s.data("input.npy"))
	}
	descr := pick(b.r, []string{"<f4", "<f8", ">f4", "<i8", "|O", "|V8", "<U4", "<f2", "|b1", "<c8", "<f4294967296", hostileName(b.r)})
	shape := pick(b.r, []string{"4, 12", "4, 12, 1", "", "-1, 12", "9223372036854775807, 2", "4294967296, 4294967296", "1000000000, 12", "0", "0, 9223372036854775807", strings.Repeat("1, ", 3000), "4, 12.5", "4, 'x'", hostileName(b.r)})
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }", descr, pick(b.r, []string{"True", "False", "None", "1"}), shape)
	return npy(header, make([]byte, pick(b.r, []int{0, 1, 192, 384, 100_000})))
}

func npyBytes(b *builder) {
	r := pick(b.r, rolesOf(".npy"))
	b.use(r)
	b.file(r.name, b.someArray())
}

// npzBytes makes archives: members with hostile names, contents and sizes.
func npzBytes(b *builder) {
	r := pick(b.r, rolesOf(".npz"))
	b.use(r)
	if b.chance(4) {
		b.file(r.name, mutateBytes(b.r, b.s.data("mlp.npz")))
		return
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	members := 1 + b.r.IntN(2)
	if b.chance(20) {
		members = 66_000
	}
	for i := range members {
		name := pick(b.r, []string{"input0.npy", "input0.npy", "output.npy", "grad:net.0.bias.npy", "target.npy", "../../outside/new.npy", b.w.path("outside/new.npy"), "input0", hostileName(b.r) + ".npy"})
		if members > 4 {
			name = fmt.Sprintf("a%d.npy", i)
		}
		b.member(z, name, members > 4)
	}
	b.check(z.Close())
	data := out.Bytes()
	if b.chance(3) { // sizes that lie, in the directory at the end
		at := max(0, len(data)-100)
		for range 1 + b.r.IntN(6) {
			data[at+b.r.IntN(len(data)-at)] = byte(b.r.Uint32())
		}
	}
	b.file(r.name, data)
}

// member adds an array to an archive; a hollow one is empty.
func (b *builder) member(z *zip.Writer, name string, hollow bool) {
	header := &zip.FileHeader{Name: name, Method: pick(b.r, []uint16{zip.Store, zip.Deflate, zip.Deflate})}
	var data []byte
	switch {
	case hollow:
	case b.chance(8): // which inflates to much
		header.Method, data = zip.Deflate, inflating()
		header.CompressedSize64, header.UncompressedSize64 = uint64(len(data)), inflated
		f, err := z.CreateRaw(header)
		b.check(err)
		_, err = f.Write(data)
		b.check(err)
		return
	default:
		data = b.someArray()
	}
	f, err := z.CreateHeader(header)
	b.check(err)
	_, err = f.Write(data)
	b.check(err)
}

// inflated is how many bytes inflating inflates to.
const inflated = 1 << 30

// inflating is a GiB of an array, compressed a thousandfold.
var inflating = sync.OnceValue(func() []byte {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		panic(err)
	}
	// Blocks repeat: one is compressed, the others are copies of it.
	chunk := make([]byte, 1<<20)
	copy(chunk, npy("{'descr': '<f4', 'fortran_order': False, 'shape': (268435424,), }", nil))
	parts := []int{}
	for range 3 {
		_, _ = w.Write(chunk)
		_ = w.Flush()
		parts = append(parts, out.Len())
		clear(chunk)
	}
	head, block := out.Bytes()[:parts[1]], out.Bytes()[parts[1]:parts[2]]
	all := append(bytes.Clone(head), bytes.Repeat(block, 1022)...)
	return append(all, 1, 0, 0, 0xff, 0xff) // a last block, of no bytes
})

func pbFields(b *builder) {
	r := rolesOf(".pb")[0]
	b.use(r)
	t := parse("Tensor", b.s.data("tensor.pb"))
	switch b.r.IntN(4) {
	case 0:
		b.file(r.name, mutateBytes(b.r, encode(t)))
		return
	case 1:
		t = append(t, num(14, 1), entry(13, "location", b.location()), entry(13, "offset", itoa(pick(b.r, hostileInts))))
	default:
		for range 1 + b.r.IntN(3) {
			b.mutateField(pick(b.r, places("Tensor", &t)))
		}
	}
	b.file(r.name, encode(t))
}
