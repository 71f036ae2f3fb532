package planner

import (
	"bytes"
	"encoding/json"

	"github.com/memplan/memplan/planner/profile"
)

// schemaID is where editors and the collection of SchemaStore find the schema.
const schemaID = "https://raw.githubusercontent.com/memplan/memplan/main/docs/memplan.schema.json"

// A jsonSchema is a part of a JSON schema (draft 7, which SchemaStore asks for).
type jsonSchema map[string]any

// ConfigSchema is the JSON schema of .memplan.yaml. Whatever it refuses memplan
// refuses too; it does not know which dims a model has nor what a size may be.
func ConfigSchema() []byte {
	rules := limitsSchema()
	failOn := jsonSchema{"type": "array", "items": jsonSchema{"enum": failOnNames()}, "description": "what a model may not have"}
	entry := jsonSchema{"type": "object", "additionalProperties": false, "required": []string{"path"}, "properties": jsonSchema{
		"path":       jsonSchema{"type": "string", "minLength": 1, "description": "an ONNX file, relative to this one, or a pattern such as exports/**/*.onnx"},
		"batch":      jsonSchema{"anyOf": []any{jsonSchema{"type": "integer", "minimum": 1}, jsonSchema{"type": "string", "pattern": "^(max|[0-9]+)$"}}, "description": "samples of a step, or max for the largest that fits"},
		"dims":       jsonSchema{"type": "object", "additionalProperties": jsonSchema{"anyOf": []any{jsonSchema{"type": "integer", "minimum": 0}, jsonSchema{"type": "string", "pattern": "^[0-9]+$"}}}, "description": "other symbolic dimensions"},
		"mode":       jsonSchema{"enum": []string{"train", "infer"}},
		"precision":  named("of parameters and of the computation", profile.Precisions, func(p *profile.Precision) string { return p.Name }),
		"optimizer":  named("that updates the parameters", profile.Optimizers, func(o *profile.Optimizer) string { return o.Name }),
		"checkpoint": jsonSchema{"type": "string", "anyOf": []any{jsonSchema{"enum": Checkpoints}, jsonSchema{"pattern": "."}}, "description": "how activations are checkpointed, or a plan's file"},
		"gpu":        named("a card that the step must fit", profile.Devices, func(d *profile.Device) string { return d.Name }),
		"vram":       sizeSchema("memory that the step must fit, such as 16G"),
		"headroom":   sizeSchema("what stays free of it: auto, 0, a size or a percentage"),
		"rules":      rules,
		"fail-on":    failOn,
	}}
	schema := jsonSchema{
		"$schema": "http://json-schema.org/draft-07/schema#", "$id": schemaID, "title": "memplan's configuration",
		"description": "The models that memplan check looks at and the limits that each must keep", "type": "object", "additionalProperties": false, "required": []string{"models"},
		"properties": jsonSchema{
			"version":  jsonSchema{"anyOf": []any{jsonSchema{"const": 1}, jsonSchema{"const": ConfigVersion}}},
			"models":   jsonSchema{"type": "array", "minItems": 1, "items": entry},
			"rules":    rules,
			"fail-on":  failOn,
			"baseline": jsonSchema{"type": "string", "default": BaselineFileName, "description": "the file that memplan baseline writes"},
		},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(schema); err != nil {
		panic(err) // a table of ours that JSON has no form for
	}
	return b.Bytes()
}

// named is the schema of a name in a table.
func named[T any](doc string, table []T, name func(*T) string) jsonSchema {
	names := make([]string, len(table))
	for i := range table {
		names[i] = name(&table[i])
	}
	return jsonSchema{"enum": names, "description": doc}
}

func sizeSchema(doc string) jsonSchema {
	return jsonSchema{"type": []string{"string", "integer"}, "description": doc}
}

func failOnNames() []string {
	var names []string
	for i := range Rules {
		if Rules[i].FailOn {
			names = append(names, Rules[i].Name)
		}
	}
	return names
}

// limitsSchema is that of a map of rules.
func limitsSchema() jsonSchema {
	value := []string{"string", "integer", "number", "boolean"}
	properties := jsonSchema{}
	for i := range Rules {
		r := &Rules[i]
		if r.Implied || r.FailOn {
			continue
		}
		properties[r.Name] = jsonSchema{"description": r.Doc + ": " + r.Form, "anyOf": []any{
			jsonSchema{"type": value},
			jsonSchema{"type": "object", "additionalProperties": false, "required": []string{"limit"}, "properties": jsonSchema{
				"limit":    jsonSchema{"type": value},
				"severity": jsonSchema{"enum": []string{SeverityError, SeverityWarning}, "default": SeverityError},
			}},
		}}
	}
	return jsonSchema{"type": "object", "additionalProperties": false, "properties": properties}
}
