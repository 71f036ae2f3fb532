package aten_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate/calls"
)

// saved says what a run's autograd nodes keep: "operand", "result" (the first), "own"
// for memory that the call made beside that.
func saved(p *program.Program, outs []*aten.Tensor) (kinds []string) {
	for _, id := range p.Saved {
		kind := "own"
		switch {
		case p.Storages[id].Life == program.Static:
			kind = "operand"
		case len(outs) > 0 && outs[0] != nil && outs[0].Storage == id:
			kind = "result"
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// claimed are the kinds of a row's text, and those that every call keeps.
func claimed(op *aten.Op) (kinds, always []string) {
	for _, term := range strings.Split(op.Saves, ", ") {
		kind := "operand"
		word, _, sometimes := strings.Cut(term, " (")
		switch {
		case word == "":
			continue
		case word == "result":
			kind = "result"
		case word[0] == '+':
			kind = "own"
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
		if !sometimes {
			always = append(always, kind)
		}
	}
	return kinds, always
}

// TestSaves runs calls of every row, forward: what autograd keeps is what the row says. Measured
// calls (the operator atlas) are run, too, but for those in place or under autocast, which
// keep copies.
func TestSaves(t *testing.T) {
	seen := map[string][]string{}
	run := func(op, what string, p *program.Program, outs []*aten.Tensor) {
		guessed := slices.ContainsFunc(p.Warnings, func(w graph.Warning) bool { return strings.HasPrefix(w.Code, "unknown-") })
		if guessed || !slices.ContainsFunc(outs, (*aten.Tensor).RequiresGrad) {
			return
		}
		row := aten.Lookup(op)
		kinds, always := claimed(row)
		got := saved(p, outs)
		for _, k := range got {
			if !slices.Contains(kinds, k) {
				t.Errorf("%s keeps %s memory, and its row %q does not say so: %s", op, k, row.Saves, what)
			}
			if !slices.Contains(seen[row.Names[0]], k) {
				seen[row.Names[0]] = append(seen[row.Names[0]], k)
			}
		}
		if slices.Contains(always, "result") != (aten.SavesResult(op)) {
			t.Errorf("%s: SavesResult is %v", op, aten.SavesResult(op))
		}
		for _, k := range always {
			if k == "result" && !slices.Contains(got, k) {
				t.Errorf("%s does not keep its result, and its row says %q: %s", op, row.Saves, what)
			}
		}
	}
	list, err := calls.All()
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		s := &list[i]
		run(s.Op, s.Call, s.Forward, s.Outs)
	}
	for _, c := range readAtlas(t, filepath.Join("testdata", "atlas.jsonl.xz")).cases {
		if c.In != 0 || c.AC != "" || c.Op == "compose" {
			continue
		}
		op := c.Op
		if op == "normal" {
			op = "normal_functional"
		}
		p, outs, err := c.forward()
		if err == nil && aten.Lookup(op) != nil {
			run(op, c.line, p, outs)
		}
	}
	for _, row := range aten.Ops() {
		kinds, _ := claimed(&row)
		for _, k := range kinds {
			if !slices.Contains(seen[row.Names[0]], k) {
				t.Errorf("%s: no call keeps %s memory, and the row says %q", row.Names[0], k, row.Saves)
			}
		}
	}
}

// forward runs a case, which the table may refuse.
func (c *atlasCase) forward() (p *program.Program, outs []*aten.Tensor, err error) {
	defer aten.Recover(&err)
	e := aten.New(hopper(nil))
	e.P.Train = true
	e.SetGrad(true)
	e.SetPhase(program.Forward)
	run, err := c.prepared(e)
	if err != nil {
		return nil, nil, err
	}
	outs, err = run()
	return e.P, outs, err
}

// TestFacts: a fact about some of a row's operators names operators of the row, and Traits says
// what every trait means.
func TestFacts(t *testing.T) {
	var all aten.Trait
	for _, x := range aten.Traits {
		if x.Doc == "" || all&x.Trait != 0 {
			t.Errorf("%s: no doc, or twice", x.Name)
		}
		all |= x.Trait
	}
	for _, op := range aten.Ops() {
		for _, name := range op.Facts.Named() {
			if !slices.Contains(op.Names, name) {
				t.Errorf("%s is named in the row of %s", name, op.Names[0])
			}
		}
		if rest := op.Facts.Any() &^ all; rest != 0 {
			t.Errorf("%s: trait %b has no meaning", op.Names[0], rest)
		}
	}
	for _, x := range aten.Traits {
		if !slices.ContainsFunc(aten.Ops(), func(o aten.Op) bool { return o.Facts.Any()&x.Trait != 0 }) {
			t.Errorf("no operator is %q", x.Name)
		}
	}
}
