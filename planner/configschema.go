package planner

import (
	"bytes"
	"encoding/json"
	"maps"
)

// schemaID is the schema's address for editors and SchemaStore.
const schemaID = "https://raw.githubusercontent.com/memplan/memplan/main/docs/memplan.schema.json"

// A jsonSchema is a part of a JSON schema (draft 7, which SchemaStore requires).
type jsonSchema map[string]any

// ConfigSchema returns the JSON schema of .memplan.yaml. Everything it refuses
// memplan refuses, too; it does not know a model's dims nor the syntax of
// sizes.
func ConfigSchema() []byte {
	rules := limitsSchema()
	failOn := jsonSchema{"type": "array", "items": jsonSchema{"enum": failOnNames()}, "description": "what a model may not have"}
	model := jsonSchema{"path": jsonSchema{"type": "string", "minLength": 1, "description": "an ONNX file, relative to this one, or a pattern such as exports/**/*.onnx"}, "rules": rules, "fail-on": failOn}
	axes := jsonSchema{}
	for i := range Settings {
		s := &Settings[i]
		if s.Key == "" {
			continue
		}
		model[s.Key] = s.schema()
		if _, ok := s.At(&Config{}).(*map[string]int64); !ok {
			axes[s.Key] = jsonSchema{"type": "array", "minItems": 1, "items": s.schema()}
		}
	}
	model[matrixKey] = jsonSchema{"type": "object", "additionalProperties": false, "properties": axes, "description": "settings with a list of values each: one case for every combination"}
	entry := jsonSchema{"type": "object", "additionalProperties": false, "required": []string{"path"}, "properties": model}
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
		panic(err) // a table of ours that has no form in JSON
	}
	return b.Bytes()
}

// schema is the JSON schema of the setting's key.
func (s *Setting) schema() jsonSchema {
	out := jsonSchema{}
	if s.Names != nil {
		out["enum"] = s.Names
	}
	maps.Copy(out, s.Schema)
	if s.About != "" {
		out["description"] = s.About
	}
	return out
}

// sizeSchema is the JSON schema of a size.
var sizeSchema = jsonSchema{"type": []string{"string", "integer"}}

func failOnNames() []string {
	var names []string
	for i := range Rules {
		if Rules[i].FailOn {
			names = append(names, Rules[i].Name)
		}
	}
	return names
}

// limitsSchema is the JSON schema of a map of rules.
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
