package planner

import (
	"fmt"

	"github.com/goccy/go-yaml/token"
)

// Limits of a configuration. The scanner takes linear time, the parser after it
// quadratic time in entries of one list or mapping, and quadratic memory in
// nesting: within these limits it takes some tenths of a second and 100 MB.
const (
	maxYAMLTokens = 20_000 // words and signs: some 800 models
	maxYAMLDepth  = 64     // nesting of lists and mappings, and tags and anchors of one value
)

// boundYAML returns an error for a document that would take the parser too
// long.
func boundYAML(tokens token.Tokens) error {
	var d yamlDepth
	for _, t := range tokens {
		if d.add(t); d.flow+len(d.columns) > maxYAMLDepth {
			return fmt.Errorf("%d: nested more than %d deep", t.Position.Line, maxYAMLDepth)
		}
	}
	if len(tokens) > maxYAMLTokens {
		return fmt.Errorf("%d: more than %d words and signs: split the configuration into several", tokens[maxYAMLTokens].Position.Line, maxYAMLTokens)
	}
	return nil
}

// A yamlDepth tracks a lower bound on a token's depth: tokens in the same
// brackets, and further right than the enclosing blocks.
type yamlDepth struct {
	flow    int   // open brackets and braces
	columns []int // columns at which the enclosing blocks begin, increasing
}

func (d *yamlDepth) add(t *token.Token) {
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		d.flow++
	case token.SequenceEndType, token.MappingEndType:
		d.flow = max(d.flow-1, 0)
	case token.CommentType, token.MappingValueType, token.CollectEntryType:
		return
	}
	if d.flow > 0 {
		return
	}
	for n := len(d.columns); n > 0 && d.columns[n-1] >= t.Position.Column; n = len(d.columns) {
		d.columns = d.columns[:n-1]
	}
	d.columns = append(d.columns, t.Position.Column)
}
