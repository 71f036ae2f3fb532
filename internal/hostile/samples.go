//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// samples are real models, and real documents that memplan wrote from them.
type samples struct {
	files   map[string][]byte
	answers []string // the names of those that a sweep wrote
}

func (s *samples) data(name string) []byte {
	data, ok := s.files[name]
	if !ok {
		panic("no sample " + name)
	}
	return data
}

// smallModels are the sample models that cases start from; a run of one takes
// some 20 ms.
var smallModels = []string{"mlp.onnx", "convnext.onnx", "gpt.onnx", "unet.onnx", "video.onnx", "places.onnx", "resnet.onnx", "pointwise.onnx"}

// chain is an instance of solve remat.
const chain = `{"graph": {"name": "chain"}, "directed": true, "multigraph": false,
 "nodes": [{"id": 0, "name": "a", "cost_cpu": 1, "cost_ram": 1}, {"id": 1, "name": "b", "cost_cpu": 1, "cost_ram": 1},
  {"id": 2, "name": "c", "cost_cpu": 1, "cost_ram": 2}, {"id": 3, "name": "d", "cost_cpu": 1, "cost_ram": 1}, {"id": 4, "name": "e", "cost_cpu": 1, "cost_ram": 1}],
 "links": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 2, "target": 3}, {"source": 3, "target": 4}, {"source": 0, "target": 4}]}
`

// buffers is an instance of solve layout.
const buffers = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"

// lengths are sizes of batches.
const lengths = "length,count\n4,300\n7,20\n16,1\n"

// gate is a configuration that the sample models pass.
const gate = "models:\n  - path: mlp.onnx\n    batch: 4\n    checkpoint: none\n    vram: 16G\n    rules: {max-peak: 12G}\nrules: {max-increase: 2%}\nbaseline: .memplan-baseline.json\n"

// prices are of cards, an hour each.
const prices = "t4,0.35\na10,1.01\nh100,2.49\n"

// sweepCases are two cases of a model.
const sweepCases = "models:\n- path: mlp.onnx\n  vram: 16G\n  optimizer: adamw\n  matrix: {batch: [2, 4], precision: [fp32]}\n"

// frameworks are configurations of training frameworks, by name.
var frameworks = map[string]string{
	"ds_config.json":            `{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "activation_checkpointing": {"partition_activations": false}}`,
	"training_args.json":        `{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "fp16": true, "optim": "adamw_torch_fused", "gradient_checkpointing": false, "output_dir": "out"}`,
	"torchtitan.toml":           "[training]\nlocal_batch_size = 2\nseq_len = 8\nmixed_precision_param = 'bfloat16'\n[optimizer]\nname = 'AdamW'\nimplementation = 'foreach'\n[activation_checkpoint]\nmode = 'none'\n",
	"accelerate.framework.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n  fsdp_activation_checkpointing: false\n  fsdp_offload_params: false\n  fsdp_version: 2\n",
	"axolotl.framework.yml":     "micro_batch_size: 2\ngradient_accumulation_steps: 2\nbf16: true\noptimizer: adamw_torch\ngradient_checkpointing: false\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: 8\n",
}

// watched is a recording of a device's memory.
const watched = `{"schemaVersion":1,"pid":0,"gpus":[{"gpu":0,"device":"card"}]}
{"seconds":0,"gpu":0,"usedBytes":1024,"totalBytes":4096}
{"seconds":0.5,"gpu":0,"usedBytes":2048,"totalBytes":4096}
`

// repository is the root of the sources.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// newSamples reads the models and has memplan write one document of each kind
// in an empty folder.
func newSamples(binary, dir string) (*samples, error) {
	s := &samples{files: map[string][]byte{"chain.json": []byte(chain), "buffers.csv": []byte(buffers), "lengths.csv": []byte(lengths), ".memplan.yaml": []byte(gate), "watched.jsonl": []byte(watched),
		"prices.csv": []byte(prices), "cases.yaml": []byte(sweepCases)}}
	for name, text := range frameworks {
		s.files[name] = []byte(text)
	}
	golden := filepath.Join(repository(), "validate", "testdata", "golden")
	for _, name := range smallModels {
		if err := s.read(name, filepath.Join(golden, name)); err != nil {
			return nil, err
		}
	}
	err := cmp.Or(
		s.read("mlp.npz", filepath.Join(golden, "mlp.npz")),
		s.read("calibration.json", filepath.Join(repository(), "planner", "profile", "testdata", "calibration-h200.json")),
	)
	if err != nil {
		return nil, err
	}
	for name, data := range s.files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return nil, err
		}
	}
	return s, s.write(binary, dir)
}

func (s *samples) read(name, path string) (err error) {
	s.files[name], err = os.ReadFile(path)
	return err
}

// write has memplan make its documents.
func (s *samples) write(binary, dir string) error {
	for _, line := range []string{
		"plan mlp.onnx --batch 4 --checkpoint all -o plan.json",
		"plan gpt.onnx --batch 2 --vram 16G --checkpoint auto -o gpt-plan.json",
		"config plan.json --to torch -o checkpoint.json",
		"baseline .memplan.yaml",
		"validate mlp.onnx --batch 4 --device cpu --profile times.json",
		"solve remat chain.json --budget 3 --certificate proof.json",
		"analyze mlp.onnx --batch 4 --checkpoint all --timeline step.pickle",
		"solve layout buffers.csv -o placed.csv",
		"sweep cases.yaml -o out",
	} {
		cmd := exec.Command(binary, strings.Fields(line)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("memplan %s: %w\n%s", line, err, out)
		}
	}
	for _, name := range []string{"plan.json", "gpt-plan.json", "checkpoint.json", ".memplan-baseline.json", "times.json", "proof.json", "placed.csv", "step.pickle"} {
		if err := s.read(name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "out", "*"))
	for _, path := range found {
		name := "out/" + filepath.Base(path)
		s.answers = append(s.answers, name)
		err = cmp.Or(err, s.read(name, path))
	}
	return cmp.Or(err, s.arrays())
}

// arrays takes one array out of the archive, and makes a TensorProto.
func (s *samples) arrays() error {
	z, err := zip.NewReader(bytes.NewReader(s.files["mlp.npz"]), int64(len(s.files["mlp.npz"])))
	if err != nil {
		return err
	}
	for _, f := range z.File {
		if f.Name != "input0.npy" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(r); err != nil {
			return err
		}
		s.files["input.npy"] = b.Bytes()
	}
	if s.files["input.npy"] == nil {
		return fmt.Errorf("mlp.npz has no input among %d arrays", len(z.File))
	}
	s.files["tensor.pb"] = encode([]*field{num(1, 2), num(1, 12), num(2, 1), str(8, "input0"), str(9, make([]byte, 96))})
	return nil
}
