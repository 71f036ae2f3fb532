package planner

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/memplan/memplan/internal/testdata"
)

// The published schema is ConfigSchema's.
func TestConfigSchemaFile(t *testing.T) {
	testdata.Generated(t, filepath.Join("..", "docs", "memplan.schema.json"), string(ConfigSchema()), "go test ./planner -run ConfigSchema", *update)
}

// A validator of others takes the configurations that memplan reads, and refuses
// those whose keys, names and forms are wrong.
func TestConfigSchema(t *testing.T) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(ConfigSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaID, parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	good := []string{
		wholeConfig,
		"models: [{path: a.onnx}]",
		"models: [{path: a.onnx, batch: max, vram: 16000000000, headroom: 5%, fail-on: [warnings]}]\nfail-on: [cannot-tell]\nrules: {max-peak: {limit: 8G, severity: warning}, no-new-warnings: true}",
	}
	for _, text := range good {
		if _, err := ParseConfigFile("c.yaml", []byte(text)); err != nil {
			t.Errorf("memplan refuses %q: %v", text, err)
		}
		if err := schema.Validate(fromYAML(t, text)); err != nil {
			t.Errorf("the schema refuses %q: %v", text, err)
		}
	}
	for _, text := range []string{
		"models: []", "rules: {}", "version: 2\nmodels: [{path: a.onnx}]", "models: [{batch: 3}]", "models: [{path: a.onnx, batch: 0}]", "models: [{path: a.onnx, gpu: h2000}]",
		"models: [{path: a.onnx, mode: test}]", "models: [{path: a.onnx, colour: red}]", "models: [{path: a.onnx}]\nrules: {max-peek: 3G}", "models: [{path: a.onnx}]\nfail-on: [all]",
		"models: [{path: a.onnx}]\nrules: {max-peak: {severity: error}}", "models: [{path: a.onnx}]\nrules: {max-peak: {limit: 1G, severity: loud}}", "models: [{path: a.onnx, dims: {seq: -1}}]",
	} {
		if _, err := ParseConfigFile("c.yaml", []byte(text)); err == nil {
			t.Errorf("memplan takes %q", text)
		}
		if schema.Validate(fromYAML(t, text)) == nil {
			t.Errorf("the schema takes %q", text)
		}
	}
}

// fromYAML reads a document as a validator of JSON schemas wants it.
func fromYAML(t *testing.T, text string) any {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
